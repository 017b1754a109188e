"""One run: its stages one after the other, from a checkpoint, from the store, or from the start.

Stages are content-addressed: `runs/stages/<key>`. The key is a hash of all that determines the
result. Runs with equal first stages share their computation and their numbers. In the very first
stage most methods equal Naive.
"""

from __future__ import annotations

import gc
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
from msgspec import structs

from benchmark import cancel
from benchmark.cancel import Stopped
from benchmark.data.prepared import prepare_corpus
from benchmark.data.tokens import Corpus
from benchmark.devices import choose_precision, is_out_of_memory, strict_algorithms
from benchmark.files import sweep
from benchmark.ledger import records
from benchmark.ledger.records import FailedLine, LineOfRun, RunDone, RunLine, StageLine
from benchmark.ledger.runs import make_run_line
from benchmark.ledger.store import Store
from benchmark.locks import Lease, LeaseLost
from benchmark.models import LanguageModel, architectures, load, load_trained
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.suite import RunConfig, Start
from benchmark.training import checkpoint
from benchmark.training.batch_parts import check_method
from benchmark.training.declaration import make_stage_keys
from benchmark.training.evaluate import evaluate_missing
from benchmark.training.method import (
    LifelongMethod,
    get_state,
    keeps_optimizer,
    list_phases,
    set_state,
)
from benchmark.training.processes import World, find_machine_name
from benchmark.training.progress import ProgressLine
from benchmark.training.stage import CHECKPOINT, StageRun
from benchmark.training.step import StageInputs, make_stage, set_training
from benchmark.training.stream import Stream

_log = logging.getLogger(__name__)


def make_stream(config: RunConfig, corpus: Corpus) -> Stream:
    """The batches of a run.

    Its architecture decides whether every token is predicted or only masked ones. Raises
    ConfigError if a start model's tokenizer lacks the mask token that the architecture needs.
    """
    masked = architectures.load(config.model.architecture).masked
    if masked and corpus.special.mask < 0:
        raise ConfigError(
            f"model.start {config.model.start!r}: its tokenizer has no mask token, which the model "
            "needs: take another"
        )
    return Stream(corpus, config.data, masked, config.seed, config.places, config.replay)


class Run:
    """Trains the missing stages of one run.

    `make_method` builds the method with its options (see `methods.build`). A run waits for stages
    and text that another process makes, or raises Taken if `waits` is False. When asked to stop, it
    raises Stopped. The constructor does the same.
    """

    def __init__(
        self,
        config: RunConfig,
        make_method: Callable[[], LifelongMethod],
        store: Store,
        world: World,
        progress: ProgressLine | None = None,
        waits: bool = True,
    ) -> None:
        self.config = config
        self.make_method = make_method
        self.store = store
        self.world = world
        self.progress = progress
        self.waits = waits
        waits_for_text = waits or world.size > 1  # several processes all wait
        # only the first process checks files: the others read the same ones
        self.corpus = prepare_corpus(config, store, check=world.leads, waits=waits_for_text)
        self.stream = make_stream(config, self.corpus)
        method = make_method()
        check_method(config, method)
        self._start_key = ""
        if config.start:
            parts = [config.start.key, config.data.sequence_length]
            if config.data.document_mask:
                parts.append("document_mask")
            self._start_key = digest(parts)
        texts = [self.corpus.keys[text.name] for text in config.learned]
        self.stage_keys = make_stage_keys(config, method, texts)
        self.keys = [stage.key for stage in self.stage_keys]

    def train(self, last_stage: int | None = None) -> None:
        """Train all stages, or those up to `last_stage`.

        Raises Stopped when asked to stop. A failure is recorded with its traceback, and raised. The
        checkpoints stay, and the next call goes on from them.
        """
        lines = self.store.read_run(self.config)
        unigram = {domain.name: domain.info["unigram_perplexity"] for domain in self.corpus.domains}
        description = structs.replace(
            make_run_line(self.config),
            stages=self.keys,
            unigram=unigram,
            texts=self.stream.validation_keys,
            tokens=self.corpus.keys,
            start=self._start_key,
        )
        # the last description of the run: a changed text changes its stages
        run_line = records.find_last(lines, RunLine)
        is_known = run_line is not None and structs.replace(run_line, time=0.0) == description
        # the last line of a run that goes on must not be a failure
        if not is_known or isinstance(lines[-1], FailedLine):
            self._record(description)
        count = len(self.keys) if last_stage is None else last_stage + 1
        index = 0
        try:
            if self.config.start:
                self._evaluate_start(self.config.start)
            for index in range(count):
                self._train_stage(index)
        except (Stopped, KeyboardInterrupt, LeaseLost):
            raise
        except Exception as error:
            self._record_failure(index, error)
            raise
        has_ended = is_known and isinstance(lines[-1], RunDone)
        if count == len(self.keys) and not has_ended:
            self._record(RunDone())

    def _evaluate_start(self, start: Start) -> None:
        """Measure the untouched start model, once for all runs that begin with it."""
        path = self.store.start_file(self._start_key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._hold(path.with_suffix(".lock"), briefly=True):
            load_model = partial(self._load_start_model, start)
            evaluate_missing(path, load_model, self.stream, self.world, self._choose_precision())
            self.world.wait_for_all()

    def _load_start_model(self, start: Start) -> LanguageModel:
        # few runs need it, and it imports growth
        from benchmark.models.start_model import load_start

        model = load_start(start, self.corpus.vocabulary)
        if self.config.data.document_mask:
            model.separate_documents()
        return model

    def _choose_precision(self) -> str:
        """The precision of the whole run.

        "auto" is the precision with which the first stage began, on any machine. It is read for
        each stage under the stage's lease, because another run on another machine may have begun
        the first one.
        """
        first_stage = None
        if self.config.training.precision == "auto":
            first_stage = records.find_last(self.store.read_stage(self.keys[0]), StageLine)
        width = self.config.model.ladder[-1].hidden_size
        precision = choose_precision(self.config.training.precision, self.world.device, width)
        if self.config.training.shard and precision == "fp16":
            # "auto" chose fp16, but losses are scaled only for whole gradients
            precision = "fp32"
        if first_stage:
            precision = first_stage.provenance.precision
        return self.world.broadcast(precision)

    def _train_stage(self, index: int) -> None:
        """Train a stage, unless it is trained already.

        If another process takes the stage over meanwhile, wait for that process. Several processes
        would have to agree to wait, so they raise LeaseLost.
        """
        key = self.keys[index]
        world = self.world
        folder = self.store.stage_folder(key)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with self._hold(folder / "lock", briefly=self.store.is_stage_done(key)) as lease:
                # The first process decides: on a network file system the others may see files late.
                is_missing = world.leads and not self.store.is_stage_done(key)
                [is_missing_for_first] = world.find_maximum(is_missing)
                if is_missing_for_first:
                    self._compute(index, folder, lease)
                elif world.leads:
                    # left by a process that was killed just after the stage was done
                    (folder / CHECKPOINT).unlink(missing_ok=True)
                world.wait_for_all()
                load_model = partial(load, folder / "model")
                precision = self._choose_precision()
                path = self.store.stage_file(key)
                evaluate_missing(path, load_model, self.stream, world, precision)
        except LeaseLost as error:
            if world.size > 1:
                raise
            _log.warning("%s", error)
            self._train_stage(index)

    @contextmanager
    def _hold(self, path: Path, briefly: bool) -> Iterator[Lease]:
        """Hold the lock of work that only one process shall do: the next holder finds it done.

        A lock that is held `briefly`, for a look or an evaluation, is always waited for. Raises
        Stopped when asked to stop during the wait, and Taken if another process has the lock and
        this run does not wait.
        """
        lease = Lease(path)

        def say() -> None:
            if not briefly:
                owner = lease.name_owner()
                print(f"waits for {path.parent}: {owner} has it", file=sys.stderr)

        check = partial(cancel.check_wait, self.waits or briefly)
        acquire = partial(lease.acquire, say, check)
        self.world.let_first(acquire)
        try:
            yield lease
        finally:
            lease.release()

    def _compute(self, index: int, folder: Path, lease: Lease) -> None:
        """Train a stage.

        If memory does not suffice, go on from its checkpoint with half as many rows per forward
        pass. Raises ConfigError with a cure if a single row is too much, or if there are several
        processes, because they would have to agree on that.
        """
        world = self.world
        config = set_training(self.config, precision=self._choose_precision())
        while True:
            try:
                with strict_algorithms(config.training.deterministic):
                    if world.leads:
                        sweep(folder)
                    return StageRun(self, self._load_inputs(config, index), folder, lease).train()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                training = config.training
                micro_batch = training.micro_batch_size or training.batch_size
                rows = min(micro_batch, training.batch_size // world.size)
                half = -(-rows // 2)  # rounded up
                if rows == 1 or world.size > 1:
                    cure = "take a smaller model"
                    if rows > 1:
                        cure = f"set training.micro_batch_size = {half}"
                    raise ConfigError(
                        f"memory does not hold {rows} rows of a forward pass of stage {index}: "
                        f"{cure}"
                    ) from error
            _log.warning(
                "%s: memory does not hold the rows of a forward pass: half as many, %d",
                folder,
                half,
            )
            config = set_training(config, micro_batch_size=half)
            gc.collect()  # the failed try's Learner refers to itself, and holds its model

    def _load_inputs(self, config: RunConfig, index: int) -> StageInputs:
        """A stage with the model, the method and the moments that it begins with.

        `config` is the run's with its precision chosen, perhaps with smaller micro-batches.
        """
        previous_folder = self.store.stage_folder(self.keys[index - 1]) if index else None
        load_previous = partial(load, previous_folder / "model") if previous_folder else None
        stage = make_stage(config, index, self.stream, load_previous)
        method = self.make_method()
        make_inputs = partial(StageInputs, config, stage, self.stream, method, world=self.world)
        torch.manual_seed(stage.seed)
        if not previous_folder:
            if config.start:
                return make_inputs(self._load_start_model(config.start))
            return make_inputs(stage.build(stage.ladder[0]))
        cure = f"restore it from a copy, or delete {previous_folder} to train that stage again"
        keeps = keeps_optimizer(list_phases(method, stage))
        moments = checkpoint.load(previous_folder / "optimizer.pt", cure=cure) if keeps else {}
        model = load_trained(previous_folder)
        if config.model.init == "scaled":
            # models that older versions saved lack `scaled`, which growth reads
            model.network.config.scaled = True
        state = checkpoint.load(previous_folder / "method.pt", cure=cure)
        # an attribute that the file lacks keeps its first value
        set_state(method, {**get_state(method), **state})
        return make_inputs(model, moments=moments)

    def _record_failure(self, stage: int, error: Exception) -> None:
        """Let the first process that fails record why.

        The others fail because it has left them, or for the same reason.
        """
        file = self.store.run_file(self.config)
        with Lease(file.with_suffix(".lock")) if self.world.size > 1 else nullcontext():
            last_line = self.store.read_run(self.config)[-1]
            # Another process has recorded this failure. It is no older one, because after an older
            # one `train` begins with a RunLine.
            if isinstance(last_line, FailedLine):
                return
            record_failure(self.config, self.store, stage, error)

    def _record(self, line: LineOfRun) -> None:
        if self.world.leads:
            records.append(self.store.run_file(self.config), line)


def record_failure(config: RunConfig, store: Store, stage: int, error: Exception) -> None:
    """Record why a run ended before its time."""
    text = f"{type(error).__name__}: {error}"
    line = FailedLine(
        stage=stage, error=text, traceback=traceback.format_exc(), node=find_machine_name()
    )
    records.append(store.run_file(config), line)
