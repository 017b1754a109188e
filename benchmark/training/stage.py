"""The loop: one stage of one run, the same for every method.

Work between `clock.start()` and `clock.pause()` is charged. All other work is free.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmark import cancel
from benchmark.cancel import Stopped
from benchmark.ledger import records
from benchmark.ledger.records import (
    EvaluationLine,
    Line,
    MetricsLine,
    ResumedLine,
    StageBudget,
    StageDone,
    StageLine,
)
from benchmark.locks import Lease
from benchmark.models import hash_weights
from benchmark.settings.base import ConfigError
from benchmark.settings.schedules import Schedule, find_schedule
from benchmark.settings.suite import pick_for_stage
from benchmark.settings.units import Work
from benchmark.training.checkpoint import Position, load_for_all, save
from benchmark.training.clock import Clock, CoreTime, count_flops, measure_core_share
from benchmark.training.declaration import find_stage_times, hash_code
from benchmark.training.evaluate import evaluate
from benchmark.training.learner import Learner, measure_elapsed
from benchmark.training.method import (
    Phase,
    get_state,
    keeps_optimizer,
    list_phases,
    set_state,
)
from benchmark.training.optimizer import Moments, copy_layers
from benchmark.training.processes import describe_provenance
from benchmark.training.progress import EvaluationTimes
from benchmark.training.step import StageInputs, Stepper, count_naive_flops

if TYPE_CHECKING:
    from benchmark.training.run import Run

CHECKPOINT = "checkpoint.pt"  # in a stage's folder, while it is trained
# alarms, the gravest last
ASKED_TO_STOP = 1
NOT_FINITE = 2


class NonFiniteLoss(ArithmeticError):
    """Training diverged: a loss or a weight is not finite. The last checkpoint is from before."""


class StageRun:
    """Trains one stage of a run.

    `train()` does it. `lease` is the lock of the stage's folder.
    """

    def __init__(self, run: Run, inputs: StageInputs, folder: Path, lease: Lease) -> None:
        self.run = run
        self.inputs = inputs
        self.folder = folder
        self.lease = lease
        self.stage = inputs.stage
        self.method = inputs.method
        self.world = inputs.world
        self.training = inputs.config.training
        times = find_stage_times(run.config, self.method)  # without changes by `set_training`
        self.times = times[self.stage.index]
        # seconds per FLOP on the machine that the budget names, if times are estimated
        self.pace = 0.0
        self.clock = Clock(inputs.config.budget, self.stage.index, self.world)
        self.position = Position(before=dict(self.clock.charged))
        texts = inputs.stream.evaluated
        tokens = sum(len(text.valid) for text in texts)
        self.evaluations = EvaluationTimes(self.training.evaluations, tokens)
        self.carries = False  # whether any phase starts with the moments of an earlier one
        self.carried: Moments = {}  # of the last phase that trained
        # weights and moments before a branch (`Phase.discard_after`)
        self.trunk: dict[str, Any] | None = None

    def train(self) -> None:
        """Train to the end of the stage's budget, and write the stage's results.

        Training goes on from the stage's checkpoint if there is one. When asked to stop, it saves a
        checkpoint and raises Stopped. Raises NonFiniteLoss, which names stage and step.
        """
        torch.manual_seed(self.stage.seed)
        phases = self._begin()
        saved = load_for_all(self.folder / CHECKPOINT, self.world)
        if saved:
            self._restore(saved, phases)
        else:
            self._record_start(phases)
            if phases and not self.stage.first:
                self._evaluate("start")
        self._saved_at = self.clock.seconds
        end = 0.0
        for number, phase in enumerate(phases):
            end += phase.share * self.clock.limit
            if number < self.position.phase:
                continue
            if number > self.position.phase:  # else the position is in this phase already
                saved = None
                self.position.phase = number
                self.position.step = 0
                self.position.before = dict(self.clock.charged)
            if phase.discard_after and not self.trunk:  # a branch begins: keep what is before it
                weights = {}
                for name, value in self.inputs.model.state_dict().items():
                    weights[name] = value.to("cpu", copy=True)
                self.trunk = {"model": weights, "carried": self.carried}
            self._train_phase(phase, end, saved)
        if phases:
            self._check_weights()
            self._evaluate(phases[-1].name, at_end=True)
        self._keep(phases)

    def _begin(self) -> list[Phase]:
        """Let the method make the stage's model and declare its phases. Both are charged."""
        clock = self.clock
        method = self.method
        if self.times.estimated:  # free, because it only measures
            naive_seconds = self.times.phases["adapt"]
            self.pace = naive_seconds / count_naive_flops(self.inputs)
        clock.start()
        flops = count_flops(self.inputs.begin)
        phases = list_phases(method, self.stage)
        clock.pause()
        seconds = self.times.set_up + self.pace * flops
        clock.count(Work(flops=flops, machine_seconds=seconds))
        clock.share = sum(phase.share for phase in phases) or 1.0
        self.carries = any(phase.optimizer == "carry" for phase in phases)
        self.carried = self.inputs.moments
        if method.growth:
            self.carried = copy_layers(self.carried, method.growth.layer_sources)
        return phases

    def _train_phase(self, phase: Phase, end: float, saved: dict[str, Any] | None) -> None:
        """Train one phase until `end`, in the budget's unit, is spent.

        It takes at least one step, and exceeds `end` by at most one step.
        """
        position = self.position
        training = self.training
        # Building, compiling and warming up are free: the clock is paused.
        moments = self.carried if phase.optimizer == "carry" else {}
        stepper = Stepper(self.inputs, phase, position.phase, moments)
        flops = stepper.warm_up()
        if saved:
            stepper.learner.metrics = saved["metrics"]
            stepper.learner.scaler.load_state_dict(saved["scaler"])
            if stepper.optimizer and saved["optimizer"]:
                vocabulary = self.inputs.model.vocabulary.size
                stepper.optimizer.load_moments(saved["optimizer"], vocabulary)
            saved.clear()  # else the device holds the moments twice
        warmup = pick_for_stage(training.warmup, self.stage.index)
        schedule = find_schedule(phase.schedule or training.schedule, warmup)
        seconds = self.times.phases.get(phase.name, 0.0)
        if self.times.estimated:
            seconds = self.pace * flops
        work = Work(steps=1, tokens=stepper.loader.tokens, flops=flops, machine_seconds=seconds)
        self.take_steps(stepper, work, schedule, end)
        stepper.close()
        if phase.trains:
            self.carried = stepper.gather_moments() if self.carries else {}
        record: dict[str, Any] = {"name": phase.name}
        for unit, value in self.clock.charged.items():
            record[unit] = value - position.before[unit]
        position.phases.append(record)
        self._record_metrics(phase.name, stepper.learner)
        if training.compile:
            # The next phase compiles again. If kept, this one's graphs fill memory, and abort
            # Python 3.13.0.
            torch.compiler.reset()

    def take_steps(self, stepper: Stepper, work: Work, schedule: Schedule, end: float) -> None:
        """Take steps until `end`, in the budget's unit, is spent.

        Each step is charged as `work`, plus the time that it takes.
        """
        clock = self.clock
        position = self.position
        progress = self.run.progress
        phase_part = (position.before[clock.unit.name], end)
        stage_part = (0.0, clock.limit * clock.share)
        earlier = self.stage.spent
        stream_part = (-earlier, self.stage.stream_info.budget - earlier)
        loss = torch.zeros(())
        learning_rate = 0.0
        if position.step == 0:  # the wall time of the first step is not known yet
            position.step_cost = clock.unit.cost(work) if clock.unit.cost else 0.0
            is_free = clock.unit.cost and not position.step_cost
            if is_free and clock.spent < end * (1 - 1e-9):
                raise ConfigError(
                    f"a step of phase {stepper.phase.name!r} costs no {clock.unit.name}, so the "
                    "phase would never end under this budget: let it multiply matrices, or take "
                    "another unit"
                )
        clock.start()
        while position.step == 0 or clock.spent < end * (1 - 1e-9):
            spent_before = clock.spent
            fraction_before = clock.fraction
            previous_loss = loss
            elapsed = measure_elapsed(
                spent_before, position.step_cost, phase_part, stage_part, stream_part
            )
            rate = schedule.at(getattr(elapsed, schedule.over))
            learning_rate = self.stage.learning_rate * rate
            loss = stepper.step(position.step, learning_rate, elapsed)
            # Reading the loss of the step before waits until the GPU has done all queued work. So
            # the clock charges the work, not its queueing.
            alarm = ASKED_TO_STOP if cancel.is_asked() else 0
            if not math.isfinite(previous_loss):
                alarm = NOT_FINITE
            alarm = clock.count(work, alarm)
            position.step += 1
            position.step_cost = clock.spent - spent_before
            has_passed_mark = clock.has_passed_mark(fraction_before, self.training.evaluations)
            evaluates = has_passed_mark and stepper.phase.trains
            is_save_due = clock.seconds - self._saved_at >= self.training.checkpoint_seconds
            saves = alarm == ASKED_TO_STOP or is_save_due
            shows = progress is not None and progress.is_due()
            if evaluates or saves or alarm or shows:
                clock.pause()  # evaluation, checkpoints and progress lines are free
                # not for a progress line: only one process shows it, but all must call `count`
                if evaluates or saves or alarm:
                    # what the device still had to do, before anything is recorded
                    clock.count(Work())
                self._check_finite(loss, stepper.phase, learning_rate, alarm)
                if progress:
                    progress.show(self.stage, stepper.phase, clock, loss, self.evaluations)
                with stepper.unshard_temporarily(evaluates or saves):
                    if evaluates:
                        self._evaluate(
                            stepper.phase.name, loss=loss.item(), learning_rate=learning_rate
                        )
                        self._record_metrics(stepper.phase.name, stepper.learner)
                    if saves:
                        self._save(stepper)
                if alarm == ASKED_TO_STOP:
                    raise Stopped
                clock.start()
        clock.pause()
        clock.count(Work())  # what the device still had to do
        self._check_finite(loss, stepper.phase, learning_rate)

    def _check_finite(self, loss: torch.Tensor, phase: Phase, rate: float, alarm: int = 0) -> None:
        if alarm == NOT_FINITE or not math.isfinite(loss):
            where = f" of phase {phase.name}, at learning rate {rate:.3g}"
            raise self._make_error("the loss is not finite", where)

    def _check_weights(self) -> None:
        """Raise NonFiniteLoss if weights that are to be saved are not finite.

        No loss has been computed with the weights of the last step yet.
        """
        names = []
        for name, tensor in self.inputs.model.named_parameters():
            if not tensor.isfinite().all():
                names.append(name)
        if names:
            raise self._make_error(f"{len(names)} weights are not finite ({names[0]} the first)")

    def _make_error(self, what: str, where: str = "") -> NonFiniteLoss:
        return NonFiniteLoss(
            f"{what} in stage {self.stage.index} ({self.stage.domains[-1]}) after step "
            f"{self.position.step}{where}: lower training.learning_rate, lengthen "
            "training.warmup, set training.max_grad_norm, or mend the method's loss"
        )

    def _evaluate(self, phase: str, at_end: bool = False, **values: Any) -> None:
        """Evaluate the model, and record the result in an EvaluationLine.

        At the end of a stage (`at_end`) it has the losses of each document. `values` are the loss
        and the learning rate of the step, in a phase that trains.
        """
        clock = self.clock
        with self.evaluations.measure():
            measurements = evaluate(
                self.inputs.eval_model,
                self.inputs.stream,
                self.world,
                self.training.precision,
                at_end=at_end,
            )
        for name, perplexity in measurements["perplexity"].items():
            if not math.isfinite(perplexity):
                raise self._make_error(f"the perplexity of {name} is more than a number holds")
        values["charged"] = clock.charged
        values["tokens_per_second"] = clock.tokens_per_second
        values |= measurements
        fraction = min(1.0, clock.fraction)
        line = EvaluationLine(phase=phase, step=self.position.step, fraction=fraction, **values)
        self._record(line)

    def _record_metrics(self, phase: str, learner: Learner) -> None:
        if learner.metrics:
            values: dict[str, float | None] = {**learner.metrics}
            self._record(MetricsLine(phase=phase, step=self.position.step, values=values))

    def _record_start(self, phases: list[Phase]) -> None:
        model = self.inputs.model
        stream = self.inputs.stream
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        line = StageLine(
            key=self.folder.name,
            description=self.run.stage_keys[self.stage.index].description,
            index=self.stage.index,
            domain=self.stage.domains[self.stage.index],
            parameters=model.parameters_count,
            trainable=sum(parameter.numel() for parameter in trainable),
            layers=model.layers,
            hidden_size=model.hidden_size,
            phases=[asdict(phase) for phase in phases],
            budget=StageBudget(self.clock.unit.name, self.clock.limit, self.times.estimated),
            provenance=describe_provenance(self.world, self.training.precision),
            data=stream.describe(),
            texts=stream.validation_keys,
            method=self.inputs.config.method,
            method_code=hash_code(type(self.method).__module__),
        )
        self._record(line)

    def _record(self, line: Line) -> None:
        if self.world.leads:
            self.lease.check()
            records.append(self.folder / records.STAGE_FILE, line)

    def _keep(self, phases: list[Phase]) -> None:
        """Write the stage's results, and at the end the record that it is done.

        The folder `model` has the evaluated model. The next stage starts from it, unless there is a
        folder `trained`: the trained model if the method evaluates another (`eval_model`), or the
        model before a branch (`Phase.discard_after`).
        """
        cores = measure_core_share(self.clock.cores, self.world)  # all processes take part
        if not self.world.leads:
            return
        self.lease.check()
        inputs = self.inputs
        folder = self.folder
        tokenizer = inputs.stream.corpus.tokenizer
        inputs.eval_model.save(folder / "model", tokenizer)
        weights = hash_weights(inputs.eval_model)
        trained = None
        if self.trunk:  # only now, because the evaluated model may be this one
            inputs.model.load_state_dict(self.trunk["model"])
            self.carried = self.trunk["carried"]
        if self.trunk or self.method.eval_model is not None:
            inputs.model.save(folder / "trained", tokenizer)
            trained = hash_weights(inputs.model)
        save(folder / "method.pt", get_state(self.method))
        if keeps_optimizer(phases):
            save(folder / "optimizer.pt", self.carried)
        rows = self.training.micro_batch_size
        is_as_set = rows == self.run.config.training.micro_batch_size
        line = StageDone(
            charged=self.clock.charged,
            phases=self.position.phases,
            growth=self.method.growth,
            cores=cores,
            weights=weights,
            trained=trained,
            micro_batch_size=None if is_as_set else rows,
        )
        self._record(line)
        (folder / CHECKPOINT).unlink(missing_ok=True)

    def _save(self, stepper: Stepper) -> None:
        self._check_weights()
        self._saved_at = self.clock.seconds
        optimizer = stepper.optimizer.gather_moments() if stepper.optimizer else None
        evaluated = self.method.eval_model
        # a fresh optimizer replaces the carried moments when its phase ends
        needs_carried = stepper.phase.optimizer == "carry" or not stepper.phase.trains
        # in the first phase they are in a file of the stage before
        carried = self.carried if self.position.phase and needs_carried else {}
        if self.world.leads:
            content = {
                "position": vars(self.position),
                "charged": self.clock.charged,
                "model": self.inputs.model.state_dict(),
                "evaluated": None if evaluated is None else evaluated.state_dict(),
                "optimizer": optimizer,
                "carried": carried,
                "state": get_state(self.method),
                "metrics": stepper.learner.metrics,
                "scaler": stepper.learner.scaler.state_dict(),
                "cores": vars(self.clock.cores),
                "trunk": self.trunk,
            }
            self.lease.check()
            save(self.folder / CHECKPOINT, content)
        self.world.wait_for_all()

    def _restore(self, saved: dict[str, Any], phases: list[Phase]) -> None:
        self.position = Position(**saved["position"])
        self.clock.cores = CoreTime(**saved["cores"])
        self.clock.charged |= saved["charged"]
        # taken out of `saved`, so that the device does not hold them twice
        self.inputs.model.load_state_dict(saved.pop("model"))
        evaluated = saved.pop("evaluated")
        if evaluated is not None:
            self.inputs.eval_model.load_state_dict(evaluated)
        self.trunk = saved["trunk"]
        set_state(self.method, saved["state"])
        if self.position.phase:  # else the moments are in a file of the stage before
            self.carried = saved["carried"]
        phase = phases[self.position.phase].name
        step = self.position.step
        self._record(ResumedLine(phase=phase, step=step, charged=self.clock.charged))
