"""Fine-tuning a checkpoint on downstream tasks: best epoch by dev, scored once on test.

Shapes: B sequences, T tokens per sequence (padded to the longest of its forward pass), C classes.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from msgspec import structs
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmark import cancel
from benchmark.cancel import Stopped
from benchmark.data.prepared import prepare_corpus
from benchmark.devices import (
    BASE_WIDTH,
    autocast,
    choose_device,
    choose_precision,
    is_out_of_memory,
    keep_random_numbers,
)
from benchmark.downstream.classifier import (
    Pick,
    Rows,
    SavedModel,
    encode_rows,
    fit_discriminator,
)
from benchmark.downstream.linear_probe import score_probe
from benchmark.downstream.tasks import (
    TaskData,
    compute_metric,
    decontaminate_tasks,
    list_wanted,
    make_score_key,
    record_baselines,
    score_predictions,
)
from benchmark.errors import UserError
from benchmark.ledger import records
from benchmark.ledger.records import (
    EvaluationLine,
    ScoreLine,
    StageDone,
    UnscoredLine,
    ZeroShotLine,
    select_kind,
)
from benchmark.ledger.store import Store
from benchmark.locks import Lease
from benchmark.settings.schedules import find_schedule
from benchmark.settings.suite import RunConfig, Suite
from benchmark.settings.tasks import Finetuning, Prompt, Split, Task
from benchmark.training.run import make_stream

POOL = 8  # at most so many batches have their rows sorted by length together
BETAS = (0.9, 0.98)  # fairseq's for RoBERTa, as in pre-training
EPSILON = 1e-6  # likewise

Computation = Callable[[], Sequence[ScoreLine | ZeroShotLine]]
Progress = Callable[[Sequence[ScoreLine | ZeroShotLine], int], None]

_log = logging.getLogger(__name__)


class NotScored(ArithmeticError):
    """Fine-tuning diverged or failed, or a row does not fit in memory.

    Other scores are still computed. The next `run` tries again.
    """


def bucket_by_length(
    lengths: NDArray[np.int64], batch_size: int, generator: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Every row once, in batches of rows of similar length.

    Rows are shuffled and sorted by length within pools of a few batches, and then the batches are
    shuffled. A task of few batches has smaller pools, so that it has at least four pools, or one
    per batch. With one pool, its batches would be the same in every epoch.
    """
    order = generator.permutation(len(lengths))
    pool_batches = max(1, min(POOL, len(order) // (4 * batch_size)))
    pool_size = batch_size * pool_batches
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(order), pool_size):
        pool = order[start : start + pool_size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        for place in range(0, len(pool), batch_size):
            batches.append(pool[place : place + batch_size])
    return [batches[number] for number in generator.permutation(len(batches))]


class Trainer:
    """Fine-tunes one classifier, of a model with hidden size `width`, on one task."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        settings: Finetuning,
        seed: int,
        width: int = BASE_WIDTH,
    ) -> None:
        self.device = choose_device()
        self.model = model.to(self.device)
        self.task = task
        self.settings = settings
        self.generator = np.random.default_rng(seed)
        self.precision = choose_precision(settings.precision, self.device, width)
        self.autocast = autocast(self.device, self.precision)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lr=0.0,
            betas=BETAS,
            eps=EPSILON,
            weight_decay=task.weight_decay,
            fused=True,
        )
        self.steps = 0

    def fit(self, train: Rows, dev_score: Callable[[], float]) -> float:
        """Train, then load the weights of the epoch with the best dev score (the first among ties).

        Returns that score. Raises NotScored if the loss is not finite.
        """
        lengths = np.array([len(row) for row in train.tokens])
        batch_size = self.task.batch_size
        batches_per_epoch = -(-len(lengths) // batch_size)
        total_steps = self.task.max_epochs * batches_per_epoch
        best: dict[str, Tensor] = {}
        scores: list[float] = []
        for epoch in range(self.task.max_epochs):
            self.model.train()
            batches = bucket_by_length(lengths, batch_size, self.generator)
            losses = [self._step(train, batch, total_steps) for batch in batches]
            if not torch.isfinite(torch.stack(losses)).all():
                raise NotScored(
                    f"task {self.task.name!r}: the loss is not finite in epoch {epoch + 1}, with "
                    f"learning_rate {self.task.learning_rate}; lower it"
                )
            scores.append(dev_score())
            best_epoch = scores.index(max(scores))
            if best_epoch == epoch:
                weights = self.model.state_dict()
                best = {name: value.clone() for name, value in weights.items()}
            elif epoch - best_epoch >= self.settings.patience:
                break
        self.model.load_state_dict(best)
        return max(scores)

    def _step(self, rows: Rows, batch: NDArray[np.int64], total_steps: int) -> Tensor:
        """Train on the rows with the numbers `batch`, and return their mean loss."""
        cancel.check()
        # neither the first nor the last step has a rate of 0
        share = (self.steps + 1) / (total_steps + 1)
        schedule = find_schedule(self.task.schedule, self.task.warmup)
        rate = schedule.at(share)
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.learning_rate * rate
        self.optimizer.zero_grad()
        loss = torch.zeros((), device=self.device)
        for part in self._split_batch(rows, batch):
            targets = torch.tensor([rows.targets[row] for row in part], device=self.device)
            logits = self._compute_logits(rows, part)
            part_loss = F.cross_entropy(logits, targets, reduction="sum") / len(batch)
            self.scaler.scale(part_loss).backward()
            loss += part_loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.steps += 1
        return loss

    @torch.no_grad()
    def predict(self, rows: Rows) -> list[int]:
        """The class of each row, in the order of `rows`."""
        self.model.eval()
        predictions = np.empty(len(rows.tokens), dtype=np.int64)
        by_length = np.argsort([len(row) for row in rows.tokens], kind="stable")
        for part in self._split_batch(rows, by_length):
            logits = self._compute_logits(rows, part)
            predictions[part] = logits.argmax(1).cpu().numpy()
        return predictions.tolist()

    def _split_batch(self, rows: Rows, batch: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """The batch in pieces of at most `forward_tokens` tokens, with padding, or of one row."""
        longest = max(len(rows.tokens[row]) for row in batch)
        size = max(1, self.settings.forward_tokens // longest)
        for start in range(0, len(batch), size):
            yield batch[start : start + size]

    def _compute_logits(self, rows: Rows, part: NDArray[np.int64]) -> Tensor:
        """Logits (B, C) in fp32 of the rows whose numbers `part` holds."""
        tokens = [torch.tensor(rows.tokens[row]) for row in part]
        ones = [torch.ones_like(row) for row in tokens]
        pad_sequence = nn.utils.rnn.pad_sequence
        ids = pad_sequence(tokens, batch_first=True, padding_value=rows.padding)
        mask = pad_sequence(ones, batch_first=True)
        ids = ids.to(self.device)
        mask = mask.to(self.device)
        with self.autocast:
            return self.model(input_ids=ids, attention_mask=mask).logits.float()


def score(
    checkpoint: SavedModel, data: TaskData, prompt: Prompt, seed: int, settings: Finetuning
) -> ScoreLine:
    """Fine-tune once and score. Everything random is a function of the seed.

    If a pass does not fit in memory, training starts again with half as many tokens per pass.
    Raises DataError, ConfigError, NotScored, and Stopped before the next step if asked to stop.
    """
    start = time.monotonic()
    name = data.task.name
    rows = encode_rows(checkpoint, data, prompt, seed)
    longest = max(len(row) for split in rows.values() for row in split.tokens)
    given_forward_tokens = settings.forward_tokens
    while True:
        try:
            trainer, best, predictions = _fine_tune(checkpoint, data, rows, seed, settings)
            break
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if settings.forward_tokens <= longest:
                raise NotScored(
                    f"task {name!r}: memory does not hold a row of {longest} columns: shorten the "
                    "texts, or use a machine with more"
                ) from error
        half = max(longest, settings.forward_tokens // 2)
        settings = settings.model_copy(update={"forward_tokens": half})
        _log.warning(
            "task %r: memory does not hold a forward pass: half as many columns, %d", name, half
        )
    result = ScoreLine(
        prompt=prompt,
        seed=seed,
        dev=best,
        precision=trainer.precision,
        seconds=round(time.monotonic() - start, 3),
        **score_predictions(data, predictions),
    )
    if settings.forward_tokens != given_forward_tokens:
        result.forward_tokens = settings.forward_tokens
    return result


def _fine_tune(
    checkpoint: SavedModel,
    data: TaskData,
    rows: Mapping[Split, Rows],
    seed: int,
    settings: Finetuning,
) -> tuple[Trainer, float, list[int]]:
    """A fine-tuned model, its score on dev, and its predictions on test."""
    task = data.task
    with keep_random_numbers(choose_device()):
        torch.manual_seed(seed)
        network = checkpoint.load_classifier(data.labels, task.domain)
        trainer = Trainer(network, task, settings, seed, checkpoint.config.hidden_size)

        def score_dev() -> float:
            dev = rows["dev"]
            return compute_metric(task.metric, dev.targets, trainer.predict(dev))

        best = trainer.fit(rows["train"], score_dev)
        return trainer, best, trainer.predict(rows["test"])


def find_missing(
    stage_key: str,
    checkpoint: SavedModel,
    tasks: Sequence[TaskData],
    settings: Finetuning,
    path: Path,
) -> list[tuple[UnscoredLine, TaskData, Prompt]]:
    """The scores of a model that the records in `path` lack.

    Each has the record to write if it cannot be computed, still without a reason, and the task and
    prompt that it is computed from.
    """
    lines = select_kind(records.read(path, records.SCORES), ScoreLine)
    scored_keys = {line.key for line in lines}
    has_prompts = checkpoint.config.prompts
    missing = []
    for data in tasks:
        trials = list_wanted(data.task, settings, has_prompts, checkpoint.final)
        for protocol, prompt, seed in trials:
            key = make_score_key(stage_key, data.task, data.key, settings, prompt, seed, protocol)
            if key not in scored_keys:
                line = UnscoredLine(
                    key=key,
                    task=data.task.name,
                    protocol=protocol,
                    prompt=prompt,
                    seed=seed,
                    error="",
                )
                missing.append((line, data, prompt))
    return missing


def record_missing(
    path: Path,
    find_computations: Callable[[], Sequence[tuple[Sequence[UnscoredLine], Computation]]],
    progress: Progress = lambda lines, remaining: None,
) -> bool:
    """Append to `path` the scores that it lacks, and return whether it lacked any.

    `find_computations` returns the functions that compute them, each with the lines to record if it
    fails. Another process that wants the same scores waits, and then finds them. A killed process
    loses one computation. `progress` gets the new scores and the number of computations left.
    Raises UserError and Stopped at once, and NotScored for the last failure after all others were
    tried.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    failure: NotScored | None = None
    with Lease(path.with_suffix(".lock")) as lease:
        computations = find_computations()
        for number, (missing, compute) in enumerate(computations, start=1):
            try:
                lines = compute()
            except (UserError, Stopped):
                raise
            except Exception as error:
                lease.check()
                reason = f"task {missing[0].task!r}: {error!r:.500}"
                if isinstance(error, NotScored):
                    reason = str(error)
                text = "".join(traceback.format_exception(error))
                for line in missing:
                    records.append(path, structs.replace(line, error=reason, traceback=text))
                failure = NotScored(reason)
                continue
            lease.check()
            for scored in lines:
                records.append(path, scored)
            progress(lines, len(computations) - number)
    if failure:
        raise failure
    return bool(computations)


def score_all(
    stage_key: str,
    checkpoint: SavedModel,
    tasks: Sequence[TaskData],
    settings: Finetuning,
    path: Path,
    progress: Progress = lambda lines, remaining: None,
) -> bool:
    """Score a model on all tasks, prompts, protocols and seeds that the records in `path` lack.

    Raises what `record_missing` raises.
    """

    def compute(missing: UnscoredLine, data: TaskData, prompt: Prompt) -> list[ScoreLine]:
        if missing.protocol == "linear_probe":
            result = score_probe(checkpoint, data, prompt, settings.forward_tokens)
        else:
            result = score(checkpoint, data, prompt, missing.seed, settings)
            result.window = checkpoint.cut_to_window(data).key
        return [structs.replace(result, key=missing.key)]

    def find_computations() -> list[tuple[Sequence[UnscoredLine], Computation]]:
        missing = find_missing(stage_key, checkpoint, tasks, settings, path)
        fine_tuned = {}
        for line, data, _ in missing:
            if line.protocol == "finetune":
                fine_tuned[line.task] = data
        baselines_file = path.with_name("baselines.jsonl")
        record_baselines(list(fine_tuned.values()), baselines_file, checkpoint.cut_to_window)
        return [([line], partial(compute, line, data, prompt)) for line, data, prompt in missing]

    return record_missing(path, find_computations, progress)


def find_evaluated_stage(store: Store, config: RunConfig, index: int) -> str:
    """The key of a stage of a run, or "" if the stage has no evaluated model.

    A method may leave out early stages.
    """
    keys = store.read_stage_keys(config)
    if not keys:
        return ""
    lines = store.read_stage(keys[index])
    if records.find_last(lines, StageDone) and records.find_last(lines, EvaluationLine):
        return keys[index]
    return ""


def score_stage(
    suite: Suite,
    config: RunConfig,
    index: int,
    tasks: Sequence[TaskData],
    store: Store,
    progress: Callable[[str], None],
) -> str:
    """Add the missing scores of the model after a stage, if the stage is finished.

    Returns a line that says whether any were added. `progress` gets a text after each score. Raises
    Stopped during a score if asked to stop.
    """
    domain = config.domains[index].name
    final = index == len(config.domains) - 1
    key = find_evaluated_stage(store, config, index)
    if not key:
        return f"nothing to score after {domain}"

    def report(lines: Sequence[ScoreLine | ZeroShotLine], remaining: int) -> None:
        for line in lines:
            assert isinstance(line, ScoreLine)
            trial = f"{line.task}, {line.protocol}, prompt {line.prompt}, seed {line.seed}"
            score = f"{trial}: {line.test:.1%}"
            progress(f"scoring after {domain}  {score}  {remaining} scores left of the stage")

    checkpoint = SavedModel(store.stage_folder(key) / "model", final)

    @cache
    def fit() -> Pick:
        stream = make_stream(config, prepare_corpus(config, store))
        return fit_discriminator(checkpoint.folder, stream, index + 1)

    checkpoint.pick = lambda texts: fit()(texts)  # fitted only if a prompt is to be picked
    tasks = decontaminate_tasks(tasks, config, store)
    path = store.scores_file(key)
    if not score_all(key, checkpoint, tasks, suite.finetuning, path, report):
        return f"nothing to score after {domain}"
    return f"scored after {domain}"
