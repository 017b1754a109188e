"""A new method's file and its test, to be filled in; both run as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmark.errors import UserError
from benchmark.files import read_bytes, whole_file

METHOD = '''\
"""{title}: what it does in a sentence (authors, year, title, arXiv number).

The paper's equation, in its letters: the loss is L + lambda / 2 sum theta^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import LifelongMethod, NotNegative, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from benchmark.training.learner import Batch
    from benchmark.training.learner import Learner


@dataclass
class {kind}(LifelongMethod):
    title = "{title}"
    group = "controls"
    space: ClassVar = {{"strength": (0.001, 0.01, 0.1)}}

    strength: NotNegative = 0.01  # lambda: the weight of the penalty

    def signature(self, stage: Stage) -> dict[str, object]:
        return {{"method": "{name}", **self.options()}}  # in the first stage too, which is not Naive's

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        import torch

        penalty = torch.stack([parameter.square().sum() for parameter in learner.parameters]).sum() / 2
        return super().loss(learner, batch) + self.strength * penalty
'''

TEST = '''\
"""{title}. Write here what its numbers are compared with."""

from __future__ import annotations

import pytest
import torch

import methods
from benchmark.instruments.tiny_runs import Lab


@pytest.mark.parametrize(("strength", "same"), [(0.0, True), (0.01, False)])
def test_{name}_without_a_penalty_is_naive(strength: float, same: bool, tmp_path) -> None:
    """Oracle: Naive's weights, bit for bit."""
    naive = Lab("naive", methods.build, tmp_path)
    lab = Lab("{name}", lambda name, options: methods.build(name, {{"strength": strength}}), tmp_path)
    expected, actual = naive.weights(naive.config(), "naive")[-1], lab.weights(lab.config(), "{name}")[-1]
    assert all(torch.equal(expected[name], actual[name]) for name in expected) == same
'''


def new_method(name: str, folder: Path = Path()) -> Iterator[str]:
    """Write methods/NAME.py and tests/test_NAME.py below `folder`, a clone, and say what to do next.

    Raises UserError for a name that is no method's, and where one of the files is there, or methods/ is not.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"a method cannot be called {name!r}: take small letters, digits and _, such as l2_sp")
    title = name.replace("_", " ").title()
    meant = {"name": name, "title": title, "kind": title.replace(" ", "")}
    files = {
        folder / "methods" / f"{name}.py": METHOD.format(**meant).encode(),
        folder / "tests" / f"test_{name}.py": TEST.format(**meant).encode(),
    }
    there = [path for path in files if path.exists()]
    if wrong := there if len(there) == len(files) else [one for one in there if read_bytes(one) != files[one]]:
        raise UserError(f"{wrong[0]} is there already: take another name")
    for path in files:
        if not path.parent.is_dir():
            raise UserError(
                f"there is no folder {path.parent}: go to a clone of the benchmark, or give a package of yours an "
                "entry point (docs/adding_a_method.md)"
            )
    for path, content in files.items():  # one that a full disk, or a kill, has kept from its other half is there
        with whole_file(path) as file:
            file.write(content)
        yield f"wrote {path}"
    yield f"next: python run_all.py check {name}"
