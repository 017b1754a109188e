"""Our models in lm-evaluation-harness (Gao et al.), which asks for likelihoods of texts.

The harness is the package lm_eval. A model reads a text as in its own evaluation: after `<s>`, with
the prompt of its newest domain if it has prompts, or with the column, adapters or experts of that
domain. Masked models are left out, and no text is generated.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from lm_eval import simple_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer

from benchmark import cancel
from benchmark.data.tokenizer import encode_texts
from benchmark.devices import choose_device, keep_random_numbers
from benchmark.downstream.finetune import (
    Computation,
    NotScored,
    find_evaluated_stage,
    record_missing,
)
from benchmark.downstream.zero_shot import (
    ZERO_SHOT,
    hash_task_files,
    make_score_key,
    select_zero_shot_scores,
)
from benchmark.ledger import records
from benchmark.ledger.records import UnscoredLine, ZeroShotLine
from benchmark.ledger.store import Store
from benchmark.models import LanguageModel, load
from benchmark.models.transformer import read_tokenizer
from benchmark.settings.suite import RunConfig, Suite
from benchmark.settings.tasks import Evaluate
from benchmark.training.evaluate import LOGITS_AT_ONCE

ROWS = 64  # per forward pass, at most


class Likelihoods(TemplateLM):  # type: ignore[misc]
    """A model with the interface that the harness expects, for likelihoods only.

    Raises Stopped between two forward passes if asked to stop.
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.model = model
        self.bpe = tokenizer
        self.bpe.encode_special_tokens = True  # "<s>" in a text is text
        # tokens of text in a row: `<s>` and a prompt stand before them
        self.room = model.sequence_length - 2

    @property
    def eot_token_id(self) -> int:
        return self.model.vocabulary.special.eos

    @property
    def prefix_token_id(self) -> int:
        return self.model.vocabulary.special.bos

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        return encode_texts(self.bpe, [string])[0]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation after its context, and whether it is greedy."""
        pairs = [(context, continuation) for _, context, continuation in requests]
        sizes = [len(context) + len(continuation) for context, continuation in pairs]
        longest = max((len(continuation) for _, continuation in pairs), default=1)
        row_logits = longest * self.model.vocabulary.text
        rows = max(1, min(ROWS, LOGITS_AT_ONCE // row_logits))
        order = sorted(range(len(pairs)), key=lambda index: sizes[index])
        answers: dict[int, tuple[float, bool]] = {}
        for start in range(0, len(order), rows):
            cancel.check()
            part = order[start : start + rows]
            part_answers = self._answer([pairs[index] for index in part])
            answers |= zip(part, part_answers, strict=True)
        return [answers[index] for index in range(len(pairs))]

    @torch.no_grad()
    def _answer(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[tuple[float, bool]]:
        """What `_loglikelihood_tokens` returns, for pairs that fit in one forward pass.

        Of a pair that is longer than a row, the beginning is left out.
        """
        special = self.model.vocabulary.special
        device = choose_device()
        texts = []
        for context, continuation in pairs:
            if context[:1] == [special.bos]:
                context = context[1:]
            text = [*context, *continuation]
            texts.append(text[-self.room :])
        counts = [min(len(continuation), self.room) for _, continuation in pairs]
        width = max(len(text) for text in texts)
        max_count = max(counts)
        tokens = []
        places = []  # a token is predicted in the column before its own
        for text, count in zip(texts, counts, strict=True):
            padding = [special.eos] * (width - len(text))
            tokens.append([special.bos, *text, *padding])
            start = len(text) - count
            columns = range(start, len(text))
            filling = [0] * (max_count - count)
            places.append([*columns, *filling])
        newest = max(0, len(self.model.vocabulary.domains) - 1)
        logits = self.model(
            torch.tensor(tokens, device=device),
            torch.full((len(texts),), newest, device=device),
            torch.tensor(places, device=device),
        )
        log_probs = logits.float().log_softmax(-1).cpu()
        for row, (text, count) in enumerate(zip(texts, counts, strict=True)):
            targets = torch.tensor(text[len(text) - count :])
            row_log_probs = log_probs[row, :count]
            likelihoods = row_log_probs.gather(1, targets.unsqueeze(1))
            is_greedy = bool((row_log_probs.argmax(-1) == targets).all())
            yield likelihoods.sum().item(), is_greedy

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of each text as a whole.

        A text is cut into windows as long as the model reads, and each token is predicted once.
        """
        likelihoods = []
        for request in requests:
            ids = self.tok_encode(request.args[0])
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.room, context_len=1)
            rows = [("", *make_disjoint_window(window)) for window in windows]
            answers = self._loglikelihood_tokens(rows)
            likelihoods.append(math.fsum(value for value, _ in answers))
        return likelihoods

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        raise NotScored(
            "tasks that have text written are not for these models: take those that compare "
            "likelihoods"
        )


def ask(
    model: LanguageModel,
    tokenizer: Tokenizer,
    tasks: Sequence[str],
    settings: Evaluate,
) -> Any:
    """The harness's scores of each task, and the task's version.

    Scores are values by metric, e.g. {"acc": 0.5, "acc_stderr": 0.1}. Raises Stopped, and NotScored
    for a task that the harness does not know or gives no score of.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(include_path=settings.folder, include_defaults=False)
    if not set(tasks) <= set(manager.all_tasks):  # listing all tasks of the harness takes a while
        manager = TaskManager(include_path=settings.folder)
    unknown = [task for task in tasks if task not in manager.all_tasks]
    if unknown:
        raise NotScored(
            f"lm_eval knows no task {', '.join(unknown)}: `lm_eval ls tasks` shows all; "
            "evaluate.folder adds yours"
        )
    with (
        keep_random_numbers(choose_device()),
        contextlib.redirect_stderr(io.StringIO()),  # it draws progress bars
    ):
        answers: Any = simple_evaluate(
            Likelihoods(model, tokenizer),
            tasks=list(tasks),
            num_fewshot=settings.num_fewshot,
            limit=settings.limit,
            bootstrap_iters=0,
            log_samples=False,
            task_manager=manager,
        )
    scores: dict[str, tuple[dict[str, float], str]] = {}
    empty = []
    for task in tasks:
        values: dict[str, float] = {}
        for name, value in answers["results"].get(task, {}).items():
            if "," in name and isinstance(value, int | float):  # "METRIC,FILTER" is a score
                values[name.removesuffix(",none")] = float(value)
        if not values:
            empty.append(task)
        version = str(answers["versions"].get(task, ""))
        scores[task] = (values, version)
    if empty:
        raise NotScored(
            f"lm_eval has no score of {', '.join(empty)} as a whole: name the tasks in it"
        )
    return scores


def evaluate_stage(suite: Suite, config: RunConfig, index: int, store: Store) -> str:
    """Run the harness once on all tasks that lack scores of the model after a stage.

    Returns a line that says whether there were any. Raises NotScored (also recorded), and Stopped.
    """
    domain = config.domains[index].name
    key = find_evaluated_stage(store, config, index)
    if not key:
        return f"nothing to evaluate after {domain}"
    path = store.scores_file(key)
    folder = store.stage_folder(key) / "model"
    settings = suite.evaluate

    def compute(tasks: Sequence[str]) -> list[ZeroShotLine]:
        start = time.monotonic()
        model = load(folder).to(choose_device()).eval()
        tokenizer = read_tokenizer(folder, model.vocabulary)
        answers = ask(model, tokenizer, tasks, settings)
        content = hash_task_files(settings)
        seconds = round(time.monotonic() - start, 3)
        return [
            ZeroShotLine(
                key=make_score_key(key, task, settings),
                task=task,
                values=values,
                version=version,
                content=content,
                seconds=seconds,
            )
            for task, (values, version) in answers.items()
        ]

    def find_computations() -> list[tuple[Sequence[UnscoredLine], Computation]]:
        lines = records.read(path, records.SCORES)
        scores = select_zero_shot_scores(settings, key, lines)
        tasks = [task for task in settings.tasks if task not in scores]
        if not tasks:
            return []
        missing = [
            UnscoredLine(
                key=make_score_key(key, task, settings),
                task=task,
                protocol=ZERO_SHOT,
                prompt="",
                seed=0,
                error="",
            )
            for task in tasks
        ]
        return [(missing, partial(compute, tasks))]

    outcome = "evaluated" if record_missing(path, find_computations) else "nothing to evaluate"
    return f"{outcome} after {domain}"
