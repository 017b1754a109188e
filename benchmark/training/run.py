"""One run: its stages one after the other, each from its checkpoint, from the store, or from the start.

Stages are content-addressed: `runs/stages/<key>`, the key a hash of all that determines the result. Runs that share a
prefix (the first stage above all, where most methods do what Naive does) share its computation and its numbers.
"""

from __future__ import annotations

import logging
import math
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from benchmark import records
from benchmark.data.leaks import find_validation_leaks
from benchmark.data.tokens import Corpus, corpus_of
from benchmark.files import sweep
from benchmark.locks import Lease, LeaseLost
from benchmark.models import LanguageModel, architectures, load, load_trained, weights_hash
from benchmark.models.devices import is_out_of_memory, precision_of, strict_algorithms
from benchmark.records import DoneLine, EndedLine, EvaluationLine, FailedLine, Line, LineOfRun, RunLine, StageLine
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.suite import RunConfig, Start
from benchmark.store import Store
from benchmark.training import checkpoint
from benchmark.training.draws import check_method
from benchmark.training.evaluate import evaluate_missing
from benchmark.training.keys import code_of, stage_keys, stage_of
from benchmark.training.method import LifelongMethod, get_state, keeps_optimizer, set_state
from benchmark.training.optimizer import Moments
from benchmark.training.processes import Stopped, World, polled, provenance
from benchmark.training.progress import ProgressLine
from benchmark.training.stage import StageRun
from benchmark.training.step import StageInputs, set_training, trainable_stage
from benchmark.training.step_times import stage_times
from benchmark.training.stream import Stream

CHECKPOINT = "checkpoint.pt"  # in a stage's folder, while it is trained
_log = logging.getLogger(__name__)


def stream_of(config: RunConfig, corpus: Corpus) -> Stream:
    """The batches of a run; its architecture says whether every token is predicted or masked ones."""
    masked = architectures.load(config.model.architecture).masked
    if masked and corpus.special.mask < 0:
        raise ConfigError(
            f"model.start {config.model.start!r}: its tokenizer has no mask token, which the model needs: take another"
        )
    return Stream(corpus, config.data, masked, config.seed, config.places, config.replay)


class Run:
    """Trains the missing stages of one run. `new_method` builds the method with its options (see `methods.build`).

    A stage that another process trains, or text that it makes, is waited for, or, where the run `waits` for none, Taken
    is raised. So is Stopped, of `Run` itself too, when asked to stop.
    """

    def __init__(
        self,
        config: RunConfig,
        new_method: Callable[[], LifelongMethod],
        store: Store,
        world: World,
        progress: ProgressLine | None = None,
        asked_to_stop: Callable[[], bool] = lambda: False,
        waits: bool = True,
    ) -> None:
        self.config, self.new_method, self.store, self.world = config, new_method, store, world
        self.progress, self.asked_to_stop, self.waits = progress, asked_to_stop, waits
        poll = polled(asked_to_stop, waits or world.size > 1)  # all of them wait, or none
        self.corpus = corpus_of(config, store, check=world.leads, poll=poll)  # the others read the same files
        self.stream = stream_of(config, self.corpus)
        # all runs need these, so they are waited for
        self.leaks = find_validation_leaks(self.corpus, config.learned, store.data, polled(asked_to_stop))
        self.stream.mark_leaks(self.leaks)
        method = new_method()
        check_method(config, method)
        if method.decoders_only and self.stream.masked:
            raise ConfigError(
                f"row {config.row!r} trains decoders only, and {config.model.architecture} predicts masked tokens: "
                "leave the row out, or take another model.architecture"
            )
        start, apart = config.start, ["document_mask"] * config.data.document_mask
        self._start_key = digest([start.key, config.data.sequence_length, *apart]) if start else ""
        self.keys = stage_keys(config, method, [self.corpus.keys[text.name] for text in config.learned])
        stages = [stage_of(config, index) for index in range(len(self.keys))]
        self._keeps = [keeps_optimizer(method.phases(stage)) for stage in stages]

    def outcome(self) -> str:
        """The finished run in a few words: its AP, and of what it is the geometric mean, each domain's perplexity."""
        line = records.last(self.store.stage_lines(self.keys[-1]), EvaluationLine)
        if line is None:
            return ""
        names = [domain.name for domain in self.config.domains]
        values = [math.inf if (value := line.perplexity[name]) is None else value for name in names]
        each = ", ".join(f"{name} {value:,.1f}" for name, value in zip(names, values, strict=True))
        return f": AP {statistics.geometric_mean(values):,.1f} ({each})"

    def train(self, last_stage: int | None = None) -> None:
        """Train all stages, or those up to `last_stage`. Raises Stopped when asked to stop, and whatever went wrong.

        A failure is recorded with its traceback; the checkpoints stay, and the next call goes on from them.
        """
        description, lines = self._description(), self.store.run_lines(self.config)
        known = records.last(lines, RunLine)  # what the run consisted of: a changed text changes its stages
        is_known = known is not None and structs.replace(known, time=0.0) == description
        if not is_known or isinstance(lines[-1], FailedLine):  # which may not be the last word on a run that goes on
            self._record(description)
        count = len(self.keys) if last_stage is None else last_stage + 1
        index = 0
        try:
            if self.config.start:
                self._evaluate_start(self.config.start)
            for index in range(count):
                while not self._train_stage(index):
                    pass
        except (Stopped, KeyboardInterrupt, LeaseLost):
            raise
        except Exception as error:
            self._record_failure(index, error)
            raise
        if count == len(self.keys) and not (is_known and isinstance(lines[-1], EndedLine)):
            self._record(EndedLine())

    def _evaluate_start(self, start: Start) -> None:
        """Measure the untouched start model, once for all runs that begin with it."""
        path = self.store.start_file(self._start_key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._acquired(path.with_suffix(".lock"), briefly=True):
            model = partial(self._start_model, start)
            evaluate_missing(path, model, self.stream, self.world, self._precision())
            self.world.barrier()

    def _start_model(self, start: Start) -> LanguageModel:
        from benchmark.models.start_model import load_start  # which few runs need, and imports growth

        model = load_start(start, self.corpus.vocabulary)
        if self.config.data.document_mask:
            model.separate_documents()
        return model

    def _precision(self) -> str:
        """The arithmetic of all of the run: "auto" is what its first stage began with, on whatever machine.

        It is read for each stage, under its lease: another run, on another machine, may have begun the first one.
        """
        auto = self.config.training.precision == "auto"
        begun = records.last(self.store.stage_lines(self.keys[0]), StageLine) if auto else None
        here = precision_of(self.config.training.precision, self.world.device)
        if self.config.training.shard and here == "fp16":  # of "auto": losses are scaled for whole gradients alone
            here = "fp32"
        return self.world.agree(begun.provenance.precision if begun else here)

    def _train_stage(self, index: int) -> bool:
        """Train a stage, if nobody has; returns False where it was taken over meanwhile, as if its process had died.

        Several processes would have to agree on that: theirs end then, with LeaseLost.
        """
        folder = self.store.stage(self.keys[index])
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with self._acquired(folder / "lock", briefly=self.store.stage_done(self.keys[index])) as lease:
                # The first process decides: on a network file system the others may see files late.
                [todo] = self.world.maximum(self.world.leads and not self.store.stage_done(self.keys[index]))
                if todo:
                    self._compute(index, folder, lease)
                elif self.world.leads:  # whoever was killed once the stage was done, and before it removed this
                    (folder / CHECKPOINT).unlink(missing_ok=True)
                self.world.barrier()
                model, file = partial(load, folder / "model"), self.store.stage_file(self.keys[index])
                evaluate_missing(file, model, self.stream, self.world, self._precision())
        except LeaseLost as error:
            if self.world.size > 1:
                raise
            _log.warning("%s", error)
            return False
        return True

    @contextmanager
    def _acquired(self, path: Path, briefly: bool) -> Iterator[Lease]:
        """Hold a lock, for which whoever else wants the same waits, and finds it done.

        One that is had `briefly`, for a look or an evaluation by all who share what it guards, is always waited for.
        Raises Stopped when asked to stop before, Taken where another has it and this run waits for none.
        """
        lease = Lease(path)

        def say() -> None:
            if not briefly:
                print(f"waits for {path.parent}: {lease.owner()} has it", file=sys.stderr)

        self.world.acquire(lease, polled(self.asked_to_stop, self.waits or briefly), say)
        try:
            yield lease
        finally:
            lease.release()

    def _compute(self, index: int, folder: Path, lease: Lease) -> None:
        """Train a stage; where memory does not hold its rows at once, from its last checkpoint with half as many.

        Several processes would have to agree on that: theirs fail, and say the cure.
        """
        config = set_training(self.config, precision=self._precision())
        rows = config.training.micro_batch_size or config.training.batch_size
        while True:
            try:
                with strict_algorithms(config.training.deterministic):
                    return self._keep(self._stage_run(config, index, folder, lease), index, folder, lease)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                here = min(rows, config.training.batch_size // self.world.size)
                if here == 1:
                    raise ConfigError(
                        f"memory does not hold the model of stage {index} and one row of a forward pass: take a "
                        "smaller model, shorter rows, or a machine with more"
                    ) from error
                rows = -(-here // 2)
                if self.world.size > 1:
                    raise ConfigError(
                        f"memory does not hold {here} rows of a forward pass of stage {index}: set "
                        f"training.micro_batch_size = {rows}"
                    ) from error
            _log.warning("%s: memory does not hold the rows of a forward pass: half as many, %d", folder, rows)
            config = set_training(config, micro_batch_size=rows)

    def _stage_run(self, config: RunConfig, index: int, folder: Path, lease: Lease) -> StageRun:
        """A stage with the model and the method that it begins with."""
        if self.world.leads:
            sweep(folder)
        previous = self.store.stage(self.keys[index - 1]) if index else None
        load_previous = partial(load, previous / "model") if previous else None
        stage = trainable_stage(config, index, self.stream, load_previous)
        method = self.new_method()
        moments: Moments = {}
        torch.manual_seed(stage.seed)
        if previous:
            moments = self._load_left(previous / "optimizer.pt") if self._keeps[index] else {}
            model = load_trained(previous)
            set_state(method, {**get_state(method), **self._load_left(previous / "method.pt")})
        else:
            start = self.config.start
            model = self._start_model(start) if start else stage.build(stage.ladder[0])

        texts = self.stream.evaluated

        def record(kind: type[Line], **values: Any) -> None:
            if not self.world.leads:
                return
            lease.check()
            if kind is StageLine:
                values["key"] = self.keys[index]
                values["provenance"] = provenance(self.world, values.pop("precision"))
                values["data"] = {text.name: {**text.info, **self._count_leaks(text.name)} for text in texts}
                values["texts"] = self.stream.validation_keys
                values |= {"method": config.method, "method_code": code_of(type(method).__module__)}
            records.append(folder / records.STAGE_FILE, kind(**values))

        inputs = StageInputs(config, stage, self.stream, method, model, self.world, moments)
        if config.budget.reference:
            inputs.times = stage_times(self.config, index)  # a table knows the run's own settings
        return StageRun(inputs, folder / CHECKPOINT, record, self.asked_to_stop, self.progress, lease.check)

    def _count_leaks(self, text: str) -> dict[str, Any]:
        counts = {domain: len(of[text]) for domain, of in self.leaks.items() if of[text]}
        own = counts.pop(text, 0)
        return {"near_copies": own, **({"near_copies_in": counts} if counts else {})}

    def _keep(self, training: StageRun, index: int, folder: Path, lease: Lease) -> None:
        """Train a stage and write what it leaves, and at the end that it is done."""
        model, summary = training.run(), training.summary()
        if not self.world.leads:
            return
        lease.check()
        model.save(folder / "model", self.corpus.tokenizer)
        weights = weights_hash(model)
        if other := training.trained():
            other.save(folder / "trained", self.corpus.tokenizer)
        hashes = {"weights": weights, "trained": weights_hash(other) if other else None}
        checkpoint.save(folder / "method.pt", get_state(training.method))
        if self._keeps[index]:
            checkpoint.save(folder / "optimizer.pt", training.carried)
        rows = training.training.micro_batch_size
        fewer = {"micro_batch_size": rows} if rows != self.config.training.micro_batch_size else {}
        training.record(DoneLine, **summary, **hashes, **fewer)
        training.checkpoint_file.unlink(missing_ok=True)

    def _load_left(self, path: Path) -> Any:
        """What the stage before has left in a file."""
        known = checkpoint.load(path)
        if known is None:
            raise ConfigError(
                f"{path} is missing, so {self.config.row} would forget what it knew: restore it from a copy, or delete "
                f"{path.parent} to train that stage again"
            )
        return known

    def _record_failure(self, stage: int, error: Exception) -> None:
        """The first process that fails says why; the others fail because it has left them, or for the same reason."""
        file = self.store.run_file(self.config)
        with Lease(file.with_suffix(".lock")) if self.world.size > 1 else nullcontext():
            if isinstance(self.store.run_lines(self.config)[-1], FailedLine):  # this call began with a line of its own
                return
            text, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
            self._record(FailedLine(stage=stage, error=text, traceback=trace))

    def _description(self) -> RunLine:
        return structs.replace(
            self.config.description(),
            stages=self.keys,
            unigram={domain.name: domain.info["unigram_perplexity"] for domain in self.corpus.domains},
            texts=self.stream.validation_keys,
            tokens=self.corpus.keys,
            start=self._start_key,
        )

    def _record(self, line: LineOfRun) -> None:
        if self.world.leads or isinstance(line, FailedLine):
            records.append(self.store.run_file(self.config), line)
