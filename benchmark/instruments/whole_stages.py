"""Some steps of each phase of a stage, from the phase's begin to its end, without the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.instruments.speed import prepare_stages
from benchmark.settings.schedules import find_schedule
from benchmark.settings.suite import RunConfig, pick_for_stage
from benchmark.training.learner import Elapsed
from benchmark.training.method import Build, Phase, list_phases
from benchmark.training.processes import World
from benchmark.training.step import StageInputs, Stepper
from benchmark.training.stream import Stream


@dataclass(frozen=True)
class Moment:
    """The position of a step in its phase, and what the training loop would tell the step."""

    step: int  # its number in the phase, from 0
    learning_rate: float
    elapsed: Elapsed


def list_phase_steps(inputs: StageInputs, steps: int) -> Iterator[tuple[Stepper, list[Moment]]]:
    """A stepper for each phase of a stage that has begun, with the moments of its steps.

    The last moment is at the phase's end. The caller takes the steps and closes the stepper.
    """
    phases = list_phases(inputs.method, inputs.stage)
    total = sum(phase.share for phase in phases)
    begin = 0.0
    for number, phase in enumerate(phases):
        end = begin + phase.share / total
        stepper = Stepper(inputs, phase, number)
        yield stepper, _list_moments(inputs, phase, begin, end, steps)
        begin = end


def _list_moments(
    inputs: StageInputs, phase: Phase, begin: float, end: float, steps: int
) -> list[Moment]:
    """The moments of a phase, evenly spread from `begin` to `end`, as shares of the stage."""
    stage = inputs.stage
    training = inputs.config.training
    warmup = pick_for_stage(training.warmup, stage.index)
    schedule = find_schedule(phase.schedule or training.schedule, warmup)
    moments = []
    for step in range(steps):
        share_of_phase = step / (steps - 1)
        share_of_stage = begin + share_of_phase * (end - begin)
        share_of_stream = (stage.index + share_of_stage) / stage.stream_info.stages
        elapsed = Elapsed(share_of_phase, share_of_stage, share_of_stream)
        rate = stage.learning_rate * schedule.at(getattr(elapsed, schedule.over))
        moments.append(Moment(step, rate, elapsed))
    return moments


def list_random_states(config: RunConfig, build: Build, stream: Stream) -> dict[str, Tensor]:
    """The state of torch's generator after each start_stage, and after some steps of each phase."""
    world = World(0, 1, torch.device("cpu"))
    states = {}
    for _, prepared in prepare_stages(config, build, stream, world):
        inputs = prepared.inputs
        states[f"stage {inputs.stage.index}: start_stage"] = torch.get_rng_state()
        for stepper, moments in list_phase_steps(inputs, steps=3):
            for moment in moments:
                stepper.step(moment.step, moment.learning_rate, moment.elapsed)
                where = (
                    f"stage {inputs.stage.index}, phase {stepper.phase.name}, step {moment.step}"
                )
                states[where] = torch.get_rng_state()
            stepper.close()
    return states
