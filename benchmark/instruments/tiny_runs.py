"""A place where methods train on almost nothing: three small domains, models of a few thousand weights, ten steps."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmark.models import load
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig
from benchmark.store import Store
from benchmark.training.keys import check_memory_shares
from benchmark.training.method import Build, LifelongMethod
from benchmark.training.processes import World
from benchmark.training.run import Run

Weights = dict[str, Tensor]
ALONE = World(0, 1, torch.device("cpu"))
STEPS = 10


def place_in(name: str, error: Exception) -> str:
    """Where in the file of the method of this name an error arose, in brackets; nothing where it arose elsewhere."""
    lines = [one for one in traceback.extract_tb(error.__traceback__) if Path(one.filename).name == f"{name}.py"]
    return f" ({Path(*Path(lines[-1].filename).parts[-2:])}:{lines[-1].lineno})" if lines else ""


class Lab:
    """Trains tiny runs of the method `name`, as `build` makes it, in folders of its own below `folder`."""

    def __init__(self, name: str, build: Build, folder: Path) -> None:
        self.name, self.build, self.folder = name, build, folder

    def new_method(self, options: Mapping[str, Any] | None = None) -> LifelongMethod:
        return self.build(self.name, options or {})

    def config(self, architecture: str = "gpt", **training: Any) -> RunConfig:
        """A tiny run of the method: 8 rows a batch, or more where 8 cannot hold its share of memory."""
        for rows in (8, 20):
            config = tiny_config(self.name, architecture, **{"batch_size": rows, **training})
            with contextlib.suppress(ConfigError):
                check_memory_shares(config, self.new_method())
                return config
        return tiny_config(self.name, architecture, **{"batch_size": 100, **training})

    def run(
        self, config: RunConfig, store: str, asked_to_stop: Callable[[], bool] = lambda: False, world: World = ALONE
    ) -> Run:
        """A run in the folder `store`, which shares the tokenised text with all others."""
        root = self.folder / store
        root.mkdir(parents=True, exist_ok=True)
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        if not (root / "data").exists():
            (root / "data").symlink_to(data)
        build = functools.partial(self.build, config.method, config.options)
        return Run(config, build, Store(root), world, asked_to_stop=asked_to_stop)

    def weights(self, config: RunConfig, store: str) -> list[Weights]:
        """Train if necessary; the weights after each stage."""
        run = self.run(config, store)
        run.train()
        return weights_of(run)

    def undisturbed(self, architecture: str = "gpt") -> list[Weights]:
        return self.weights(self.config(architecture), f"undisturbed-{architecture}")


def weights_of(run: Run) -> list[Weights]:
    """The weights after each of its stages."""
    return [load(run.store.stage(key) / "model").state_dict() for key in run.keys]


def tiny_config(method: str, architecture: str = "gpt", **training: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "suite": "conformance",
            "row": method,
            "row_index": 0,
            "method": method,
            "options": {},
            "seed": 3,
            "domains": [{"name": name, "packages": [name]} for name in ("json", "email", "logging")],
            "tokenizer": {"vocabulary": 400, "sample_bytes": 100_000},
            "data": {"sequence_length": 18, "memory_tokens": 1600, "valid_share": 0.2, "max_valid_tokens": 320},
            "model": {
                "architecture": architecture,
                "head_size": 16,
                "dropout": 0.0,
                "ladder": [{"layers": n, "hidden_size": width} for n, width in ((1, 16), (1, 32), (2, 32))],
            },
            "training": {"batch_size": 8, "learning_rate": 3e-3, "evaluations": 2, "precision": "fp32", **training},
            "budget": {"unit": "steps", "amount": STEPS},
        }
    )
