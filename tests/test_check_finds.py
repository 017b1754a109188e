"""`check` finds the faults that it promises to find, and accepts fair methods. Each class here is a
small method with one fault or none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.spawn import ProcessRaisedException

import methods
from benchmark.instruments import conformance
from benchmark.instruments.conformance import TinyRuns
from benchmark.training.method import LifelongMethod
from methods.pnn import PNN
from tests.support.thorough import only_thorough


@dataclass
class L2SP(LifelongMethod):
    """The penalty of docs/adding_a_method.md, ten times as strong. It also pulls weights in
    directions that change no prediction.
    """

    needs_full_weights = True

    strength: float = 0.1

    def start_stage(self, model, stage):
        self.anchor = (
            [] if stage.first else [parameter.detach().clone() for parameter in model.parameters()]
        )
        return model

    def adjust_gradients(self, learner, memory):
        for parameter, anchor in zip(learner.parameters, self.anchor, strict=bool(self.anchor)):
            parameter.grad.add_(parameter.detach() - anchor, alpha=self.strength)


@dataclass
class HidesCopies(L2SP):
    """Does not say that it keeps a copy of the weights."""

    needs_full_weights = False


@dataclass
class KeepsNoise(LifelongMethod):
    """Keeps the noise of the first run in the process for all later runs, whatever their seed."""

    noise: ClassVar[list[torch.Tensor]] = []

    def start_stage(self, model, stage):
        if not self.noise:
            self.noise.append(torch.randn(()))
        return model

    def adjust_gradients(self, learner, memory):
        for parameter in learner.parameters:
            parameter.grad.add_(parameter.detach(), alpha=self.noise[0].item())


@dataclass
class SeedsStages(LifelongMethod):
    """Draws the same numbers with every seed when a stage begins."""

    def start_stage(self, model, stage):
        torch.manual_seed(0)
        return model


@dataclass
class SeedsSteps(LifelongMethod):
    """Draws the same numbers with every seed in each step."""

    def loss(self, learner, batch):
        torch.manual_seed(0)
        return super().loss(learner, batch)


@dataclass
class DrawsOn(LifelongMethod):
    """Each step continues the random numbers of the step before, which a resume does not know."""

    def start_stage(self, model, stage):
        self.drawn = None
        return model

    def loss(self, learner, batch):
        if self.drawn is not None:
            torch.set_rng_state(self.drawn)
        return super().loss(learner, batch)

    def after_step(self, learner):
        if learner.elapsed.stage > 0:  # not in the warm-up
            self.drawn = torch.get_rng_state()


@dataclass
class TeachesItself(LifelongMethod):
    """Distils from the student itself in later stages: the added gradient is only rounding."""

    def start_stage(self, model, stage):
        self.teaches = not stage.first
        return model

    def loss(self, learner, batch):
        if not self.teaches:
            return super().loss(learner, batch)
        text = batch.tokens, batch.domains, batch.positions
        student = F.log_softmax(learner.model(*text), -1)
        teacher = F.log_softmax(learner.model(*text), -1).detach()
        return super().loss(learner, batch) + F.kl_div(
            student, teacher, log_target=True, reduction="batchmean"
        )


@dataclass
class WritesOtherwise(LifelongMethod):
    """Naive's loss, computed in another way."""

    may_equal_naive = True

    def loss(self, learner, batch):
        logits = learner.model(batch.tokens, batch.domains, batch.positions)
        of_targets = logits.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
        return (logits.logsumexp(-1) - of_targets).mean()


@dataclass
class SilentPNN(PNN):
    """Does not say that its model reads the domain."""

    def reads_domain(self):
        return False


@dataclass
class SaysTold(LifelongMethod):
    """Says that its model reads the domain, which it does not."""

    def reads_domain(self):
        return True


def build(kind: type[LifelongMethod], name: str, options: Mapping[str, Any]) -> LifelongMethod:
    """A method of this kind, or a shipped one."""
    return kind() if name == kind.__name__ else methods.build(name, options)


def make_tiny(kind: type[LifelongMethod], folder: Path) -> TinyRuns:
    return TinyRuns(kind.__name__, functools.partial(build, kind), folder)


@only_thorough
def test_two_processes_are_compared_by_what_they_predict(tiny_folder) -> None:
    """Oracle: by hand. L2-SP is fair: Adam turns rounding errors into steps in a bias of
    attention's keys, but this bias changes no softmax. Noise that another seed's run left is
    unfair: two fresh processes do not have it.
    """
    fair, wrong = (
        make_tiny(L2SP, tiny_folder / "fair"),
        make_tiny(KeepsNoise, tiny_folder / "wrong"),
    )
    with pytest.raises(AssertionError, match="KeepsNoise in two processes: .*of one seed"):
        conformance.two_processes_equal_one(fair, wrong)


def test_a_copy_of_weights_that_cannot_be_sharded_is_told(tiny_folder) -> None:
    """Oracle: torch: a process holds a part of each weight, the method's copy holds the whole."""
    sharded = "HidesCopies with sharded weights .*needs_full_weights"
    with pytest.raises(ProcessRaisedException, match=sharded):
        conformance.two_processes_equal_one(make_tiny(HidesCopies, tiny_folder))


@pytest.mark.parametrize(
    ("kind", "where"),
    [(SeedsStages, "stage 0: start_stage"), (SeedsSteps, "stage 0, phase adapt, step 0")],
)
def test_numbers_that_all_seeds_share_are_told(
    kind: type[LifelongMethod], where: str, tiny_folder
) -> None:
    """Oracle: by hand: the first place where the method seeds torch's generator by a constant."""
    with pytest.raises(AssertionError, match=f"^{where}: "):
        conformance.draws_other_numbers_with_each_seed(make_tiny(kind, tiny_folder))


def test_dropout_that_a_resume_cannot_draw_again_is_told(tiny_folder) -> None:
    """Oracle: the run without a kill. Dropout makes the resumed run differ from it. Without
    dropout the method would draw nothing, and the two runs would be equal.
    """
    with pytest.raises(AssertionError, match="after kills"):
        conformance.resumes_identically_from_a_kill_in_each_phase(make_tiny(DrawsOn, tiny_folder))


def test_a_teacher_that_is_the_student_does_nothing(tiny_folder) -> None:
    """Oracle: by hand: p - p is 0 except for rounding errors, which Adam turns into steps."""
    with pytest.raises(AssertionError, match="after 3 stages .*Naive's"):
        conformance.is_naive_where_it_says(make_tiny(TeachesItself, tiny_folder))


def test_naives_loss_in_another_form_is_naives(tiny_folder) -> None:
    """By hand: a cross-entropy is the log of a sum of exponentials minus the target's logit."""
    conformance.is_naive_where_it_says(make_tiny(WritesOtherwise, tiny_folder))


@pytest.mark.parametrize(("kind", "cure"), [(SilentPNN, "return True"), (SaysTold, "return False")])
def test_whether_a_model_reads_the_domain_is_tried(
    kind: type[LifelongMethod], cure: str, tiny_folder
) -> None:
    """Oracle: the architectures: PNN reads a text with the column of its domain, Naive's model has
    one network for all.
    """
    with pytest.raises(AssertionError, match=cure):
        conformance.is_told_domains_where_it_says(make_tiny(kind, tiny_folder))


def test_which_methods_read_the_domain() -> None:
    """Oracle: the architectures: columns, adapters per domain, and ELLE's prompts, which an option
    leaves out.
    """
    told = {name for name in methods.list_names() if methods.build(name).reads_domain()}
    assert told == {"pnn", "lora", "elle", "elle_exact", "aki", "stack"}
    assert not methods.build("elle", {"prompts": False}).reads_domain()
