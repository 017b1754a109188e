"""Each architecture is one file that no other file names. A file outside the project works, too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import methods
from benchmark.downstream.classifier import SavedModel
from benchmark.downstream.finetune import score
from benchmark.instruments.conformance import TinyRuns
from benchmark.models import architectures, load
from benchmark.models.growth import grow
from benchmark.settings import names as setting_names
from tests.support.record_lines import read_stage_lines
from tests.support.toy_task import SETTINGS, data_of, save

ROOT = Path(__file__).parents[1]
ROOMS = ("benchmark", "methods", "analysis", "paper_tables")
OUTSIDE = Path(__file__).parent / "examples" / "architectures"


@pytest.fixture
def toy() -> Iterator[str]:
    """The name of an architecture whose file lies outside of the project."""
    setting_names.ARCHITECTURE_FOLDERS.append(str(OUTSIDE))
    yield "starcoder2"
    setting_names.ARCHITECTURE_FOLDERS.remove(str(OUTSIDE))
    sys.modules.pop("benchmark.models.architectures.starcoder2", None)


def test_one_from_outside_trains_evaluates_and_grows(toy: str, tiny_folder: Path) -> None:
    """Oracle: by hand: after each stage, the perplexity of its domain is below 400, that of a
    uniform guess over 400 tokens. Exact growth leaves the logits as they were.
    """
    tiny = TinyRuns("elle_exact", methods.build, tiny_folder)
    run = tiny.make_run(tiny.make_config(toy), "run")
    run.train()
    for index, key in enumerate(run.keys):
        lines = read_stage_lines(run.store.stage_file(key))
        evaluations = [line["perplexity"] for line in lines if line["kind"] == "evaluation"]
        domain = run.config.domains[index].name
        assert evaluations[-1][domain] < 400  # the perplexity of a uniform guess
    model = load(run.store.stage_folder(run.keys[-1]) / "model").double()
    assert (model.layers, model.hidden_size) == (2, 32)
    tokens = torch.arange(4, 24).view(2, 10)
    larger: Any = grow(model.network, 3, 48)[0]
    with torch.no_grad():
        before = model.network(tokens).logits
        torch.testing.assert_close(
            larger(tokens).logits[..., : before.shape[-1]], before, rtol=0, atol=1e-10
        )


def test_one_from_outside_is_fine_tuned(toy: str, tmp_path: Path) -> None:
    """Oracle: one word decides the label, so accuracy must rise far above chance, which is 0.5."""
    checkpoint = SavedModel(save(tmp_path / "model", toy))
    assert checkpoint.length == 16
    assert score(checkpoint, data_of(), "right", 0, SETTINGS).test > 0.95


def test_no_other_file_asks_for_an_architecture_by_name() -> None:
    """Oracle: the syntax trees of all other files. In comparisons, matches and dicts there is no
    name or model type of an architecture, and no file imports the classes of one family.
    """
    names = set(setting_names.list_architecture_names())
    names |= {model_type for name in names for model_type in architectures.load(name).model_types}
    own = ROOT / "benchmark" / "models" / "architectures"
    for path in (
        path for room in ROOMS for path in (ROOT / room).rglob("*.py") if path.parent != own
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare | ast.Match | ast.Dict):
                named = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                assert not names & named, f"{path}:{node.lineno}"
            if isinstance(node, ast.ImportFrom):
                assert not str(node.module).startswith("transformers.models"), (
                    f"{path}:{node.lineno}"
                )
