"""The loop: one stage of one run, the same for every method.

What is charged to the budget and what is free is said at the line, by `clock.start()` and `clock.pause()`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmark.models import LanguageModel
from benchmark.settings.config import RunConfig, per_stage
from benchmark.settings.units import Work
from benchmark.training import checkpoint
from benchmark.training.clock import Clock
from benchmark.training.evaluate import perplexities
from benchmark.training.flops import count_flops
from benchmark.training.learner import Learner, precision_of
from benchmark.training.loader import Loader
from benchmark.training.method import LifelongMethod, Phase, Stage
from benchmark.training.optimization import new_optimizer, scheduled
from benchmark.training.processes import World
from benchmark.training.step_times import stage_times
from benchmark.training.stream import Stream

ASKED_TO_STOP, NOT_FINITE = 1, 2  # alarms, the gravest last


class Stopped(Exception):
    """The run was asked to stop; its state is in a checkpoint."""


class NonFiniteLoss(ArithmeticError):
    """Training diverged. The last checkpoint is from before."""


class Progress(Protocol):
    """Where a run shows how far it is."""

    def due(self) -> bool: ...

    def show(self, stage: Stage, phase: str, clock: Clock, loss: float | None) -> None: ...


@dataclass
class Position:
    """Where in its stage a run is: with weights, optimizer and the method's state, all that a resume needs."""

    phase: int = 0
    step: int = 0  # of the phase
    step_cost: float = 0.0  # of the last step, in the budget's unit
    before: dict[str, float] = field(default_factory=dict)  # charged when the phase began
    phases: list[dict[str, Any]] = field(default_factory=list)  # what each finished phase spent


class StageRun:
    """Trains one stage of one run; `run()` does it. `model` is as the previous stage left it, or new."""

    def __init__(
        self,
        config: RunConfig,
        stage: Stage,
        stream: Stream,
        method: LifelongMethod,
        model: LanguageModel,
        world: World,
        checkpoint_file: Path,
        record: Callable[..., None],
        asked_to_stop: Callable[[], bool],
        progress: Progress,
    ) -> None:
        self.config, self.stage, self.stream, self.method, self.model = config, stage, stream, method, model
        self.world, self.checkpoint_file, self.record = world, checkpoint_file, record
        self.asked_to_stop, self.progress = asked_to_stop, progress
        self.clock = Clock(config.budget, stage.index, world)
        self.position = Position(before=self.clock.charged())
        self.precision = precision_of(config.training, world)
        self.times = stage_times(config, stage.index)  # on the machine of a reference budget

    def run(self) -> LanguageModel:
        """Train to the end of the stage's budget, from its checkpoint if there is one. Returns the trained model.

        Raises Stopped, after a checkpoint, when asked to; NonFiniteLoss with phase, step and learning rate.
        """
        torch.manual_seed(self.stage.seed)
        self.model.to(self.world.device).train()
        self.clock.start()
        model = self.method.start_stage(self.model, self.stage)  # growth is charged
        self.model = model.to(self.world.device).train()
        self.clock.pause()
        self.clock.count(Work(reference=self.times.set_up if self.times else 0.0))
        phases = list(self.method.phases(self.stage))
        self.clock.share = sum(phase.share for phase in phases) or 1.0
        saved = checkpoint.load(self.checkpoint_file, self.world.device)
        self._check_agreement(saved)
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
            if number > self.position.phase:
                saved = None
                self.position.phase, self.position.step = number, 0
                self.position.before = self.clock.charged()
            self._train_phase(phase, end, saved)
        if phases:
            self._evaluate(phases[-1].name)
        return self.model

    def _train_phase(self, phase: Phase, end: float, saved: dict[str, Any] | None) -> None:
        """Train until `end` of the budget is spent: at least one step, at most one step too long."""
        clock, position, method, training = self.clock, self.position, self.method, self.config.training
        # Building, compiling and warming up are free: the clock is paused.
        learner = Learner(self.model, method.loss, training, self.world)
        optimizer = new_optimizer(learner.parameters, training) if phase.trains else None
        loader = Loader(self.stream, self.stage, phase, position.phase, training, self.world, method)
        flops = self._warm_up(learner, phase, loader)
        if saved:
            learner.metrics = saved["metrics"]
            if optimizer:
                optimizer.load_state_dict(saved["optimizer"])
        peak = per_stage(training.learning_rate, self.stage.index)
        warmup = per_stage(training.warmup, self.stage.index)
        begin = position.before[clock.unit.name]
        loss, rate = torch.zeros(()), 0.0
        work = Work(1, loader.rows, loader.tokens, flops, self.times.phases[phase.name] if self.times else 0.0)
        if position.step == 0:  # what wall time the first step will take is not known
            position.step_cost = clock.unit.cost(work) if clock.unit.cost else 0.0

        clock.start()
        while position.step == 0 or clock.spent < end * (1 - 1e-9):
            spent, fraction = clock.spent, clock.fraction
            torch.manual_seed(loader.seed(position.step))  # dropout: a function of the step, nothing to checkpoint
            batches, memory = loader.get(position.step)
            previous_loss = loss
            if optimizer:
                length = max(end - begin, position.step_cost) or 1.0  # a budget may be shorter than a step
                done = (spent + position.step_cost / 2 - begin) / length  # half-way through this step
                rate = peak * scheduled(phase.schedule or training.schedule, done, warmup)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                loss = learner.accumulate(batches)
                method.adjust_gradients(learner, memory)
                if training.clip:
                    torch.nn.utils.clip_grad_norm_(learner.parameters, training.clip)
                optimizer.step()
            else:
                method.observe(learner, batches)
            # The loss of the step before: looking at it waits for the GPU to be done with all that was asked of it, so
            # that the clock charges work and not its queueing.
            alarm = NOT_FINITE if not math.isfinite(previous_loss) else ASKED_TO_STOP * self.asked_to_stop()
            alarm = clock.count(work, alarm)
            position.step, position.step_cost = position.step + 1, clock.spent - spent
            evaluate = self._passed_mark(fraction) and phase.trains
            save = alarm == ASKED_TO_STOP or clock.seconds - self._saved_at >= training.checkpoint_seconds
            if evaluate or save or alarm or self.progress.due():
                clock.pause()  # evaluation, checkpoints and progress lines are free
                self._check_finite(loss, phase, rate, alarm)
                self.progress.show(self.stage, phase.name, clock, loss.item() if phase.trains else None)
                if evaluate:
                    self._evaluate(phase.name, learner, loss=loss.item(), learning_rate=rate)
                if save:
                    self._save(optimizer, learner)
                if alarm == ASKED_TO_STOP:
                    raise Stopped
                clock.start()
        clock.pause()
        self._check_finite(loss, phase, rate)
        spent_here = {unit: value - position.before[unit] for unit, value in clock.charged().items()}
        position.phases.append({"name": phase.name, **spent_here})
        if learner.metrics:
            self.record("metrics", phase=phase.name, step=position.step, values=learner.metrics)
        if training.compile:
            # the next phase compiles anew; kept, this one's graphs fill memory, and abort Python 3.13.0
            torch.compiler.reset()

    def _warm_up(self, learner: Learner, phase: Phase, loader: Loader) -> float:
        """Run one step without effect: what is lazy or compiled costs no budget. Returns its FLOPs if they matter."""
        state, weights = copy.deepcopy((get_state(self.method), self.model.state_dict()))
        batches, memory = loader.compute(0)

        def step(learner: Learner) -> None:
            if phase.trains:
                learner.accumulate(batches)
                self.method.adjust_gradients(learner, memory)
            else:
                self.method.observe(learner, batches)

        step(learner)
        flops = 0.0
        if self.clock.unit.name == "flops":  # counted in an uncompiled step: the counter sees operators, not kernels
            training = self.config.training.model_copy(update={"compile": False})
            eager = Learner(self.model, self.method.loss, training, self.world)
            flops = count_flops(lambda: step(eager)) * self.world.size
        set_state(self.method, state)
        self.model.load_state_dict(weights)  # a phase that does not train may change them itself
        learner.metrics = {}
        for parameter in learner.parameters:
            parameter.grad = None
        return flops

    def _passed_mark(self, fraction: float) -> bool:
        """Whether the last step crossed one of the evenly spaced points of evaluation; the stage's end is apart."""
        marks = self.config.training.evaluations
        return int(self.clock.fraction * marks + 1e-9) > int(fraction * marks + 1e-9) and self.clock.fraction < 1 - 1e-9

    def _check_finite(self, loss: torch.Tensor, phase: Phase, rate: float, alarm: int = 0) -> None:
        if alarm == NOT_FINITE or not math.isfinite(loss):
            raise NonFiniteLoss(
                f"the loss is not finite in stage {self.stage.index} ({self.stage.domains[self.stage.index]}), phase "
                f"{phase.name}, step {self.position.step}, at learning rate {rate:.3g}: lower training.learning_rate, "
                "lengthen training.warmup, or set training.clip"
            )

    def _evaluate(self, phase: str, learner: Learner | None = None, **values: float) -> None:
        perplexity = perplexities(self.model, self.stream, self.world, self.precision)
        charged = self.clock.charged()
        self.record(
            "evaluation",
            phase=phase,
            step=self.position.step,
            fraction=min(1.0, self.clock.fraction),
            charged=charged,
            perplexity=perplexity,
            tokens_per_second=charged["tokens"] / charged["seconds"] if charged["seconds"] else 0.0,
            **values,
        )
        if learner and learner.metrics:
            self.record("metrics", phase=phase, step=self.position.step, values=learner.metrics)

    def _record_start(self, phases: list[Phase]) -> None:
        parameters = list(self.model.parameters())
        self.record(
            "stage",
            index=self.stage.index,
            domain=self.stage.domains[self.stage.index],
            parameters=sum(p.numel() for p in parameters),
            trainable=sum(p.numel() for p in parameters if p.requires_grad),
            layers=self.model.layers,
            hidden_size=self.model.hidden_size,
            phases=[asdict(phase) for phase in phases],
            budget={"unit": self.clock.unit.name, "amount": self.clock.limit},
            precision=self.precision,
        )

    def _check_agreement(self, saved: dict[str, Any] | None) -> None:
        """On a network file system a process may see an older checkpoint than the others, or none."""
        mine = (saved["position"]["phase"], saved["position"]["step"]) if saved else None
        first = self.world.agree(mine)
        if mine != first:
            raise RuntimeError(
                f"{self.checkpoint_file}: process {self.world.rank} finds (phase, step) {mine}, the first process "
                f"{first}; run again once the file system shows all processes the same"
            )

    def _save(self, optimizer: torch.optim.Optimizer | None, learner: Learner) -> None:
        self._saved_at = self.clock.seconds
        if self.world.leads:
            checkpoint.save(
                self.checkpoint_file,
                {
                    "position": asdict(self.position),
                    "charged": self.clock.charged(),
                    "model": self.model.state_dict(),
                    "optimizer": optimizer.state_dict() if optimizer else None,
                    "state": get_state(self.method),
                    "metrics": learner.metrics,
                },
            )
        self.world.barrier()

    def _restore(self, saved: dict[str, Any], phases: list[Phase]) -> None:
        self.position = Position(**saved["position"])
        self.clock.restore(saved["charged"])
        self.model.load_state_dict(saved["model"])
        set_state(self.method, saved["state"])
        self.record("resumed", phase=phases[self.position.phase].name, step=self.position.step)


def get_state(method: LifelongMethod) -> dict[str, Any]:
    """What of a method outlives a step."""
    return {name: getattr(method, name) for name in method.state}


def set_state(method: LifelongMethod, state: dict[str, Any]) -> None:
    for name in method.state:
        setattr(method, name, state[name])
