"""What a method declares about planned stages, and the keys of these stages.

No torch here, because commands that only plan need the keys.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from benchmark.data.prepared import make_text_finder
from benchmark.data.sampling import draw_bits
from benchmark.ledger import keys
from benchmark.ledger.keys import Declaration, StageKey
from benchmark.ledger.ledger import Ledger
from benchmark.ledger.store import Store
from benchmark.settings.base import digest
from benchmark.settings.schedules import Schedule
from benchmark.settings.suite import RunConfig, pick_for_stage
from benchmark.training.method import (
    Build,
    LifelongMethod,
    Stage,
    StreamInfo,
    choose_optimizer,
    keeps_optimizer,
    list_phases,
)
from benchmark.training.step_times import StageTimes, find_times

STAGE_SEED = 5000  # counter of the numbers that give a stage its seed, and of no others
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)  # syntax that may have a docstring


def plan_stage(config: RunConfig, index: int) -> Stage:
    """Stage `index` of a run, before anything is trained.

    A method can declare its signature and its phases for this stage. The stage has no model and no
    text: its functions for them raise TypeError.
    """
    domains = config.domains[: index + 1]
    names = tuple(domain.name for domain in domains)
    budget = config.budget
    amounts = []
    for number in range(len(config.domains)):
        amounts.append(pick_for_stage(budget.amount, number))
    stream_info = StreamInfo(stages=len(amounts), size=config.model.ladder[-1], budget=sum(amounts))
    return Stage(
        domains=names,
        ladder=config.model.ladder[: index + 1],
        spent=sum(amounts[:index]),
        budget=amounts[index],
        unit=budget.unit,
        learning_rate=pick_for_stage(config.training.learning_rate, index),
        seed=int(draw_bits(config.seed, index, STAGE_SEED)) >> 1,
        build=_refuse,
        memory_sequences=_refuse,
        previous=_refuse,
        stream_info=stream_info,
    )


def _refuse(*_: object) -> NoReturn:
    raise TypeError("a stage that is only planned has no models and no text: see `make_stage`")


def make_stage_keys(
    config: RunConfig, method: LifelongMethod, texts: Sequence[str]
) -> list[StageKey]:
    """The key of each stage of a run, if this method trains it.

    `texts` has one hash per text of `RunConfig.learned`: of its tokens and of their tokenizer.
    """
    return keys.make_stage_keys(config, declare_stages(config, method), texts)


def declare_stages(config: RunConfig, method: LifelongMethod) -> list[Declaration]:
    """A method's declaration of each stage, with step times if the budget names their table."""
    times = find_stage_times(config, method) if config.budget.reference else []
    declarations = []
    for index in range(len(config.domains)):
        declaration = declare(config, method, plan_stage(config, index))
        if config.budget.reference:
            content = {**declaration.content, "times": msgspec.to_builtins(times[index])}
            declaration = replace(declaration, content=content)
        declarations.append(declaration)
    return declarations


@dataclass(frozen=True)
class BuiltMethods:
    """Answers the ledger's questions about methods (`benchmark.ledger.ledger.Methods`)."""

    build: Build

    def make_keys(self, config: RunConfig, texts: Sequence[str]) -> list[StageKey]:
        return make_stage_keys(config, self._build(config), texts)

    def hash_code(self, config: RunConfig) -> str:
        return hash_code(type(self._build(config)).__module__)

    def reads_domain(self, config: RunConfig) -> bool:
        return self._build(config).reads_domain()

    def _build(self, config: RunConfig) -> LifelongMethod:
        return self.build(config.method, config.options)


def open_ledger(store: Store, build: Build) -> Ledger:
    """The ledger of a `--runs` folder, which compares records with the current texts and code."""
    return Ledger(store, make_text_finder(store), BuiltMethods(build))


def find_stage_times(config: RunConfig, method: LifelongMethod) -> list[StageTimes]:
    """The times of each stage of a run on the machine that its budget names, see `find_times`.

    If the times of a method's first stage are estimated, and the stage equals Naive's, it takes
    Naive's times, so that the stage is trained once for both.
    """
    stages = [plan_stage(config, index) for index in range(len(config.domains))]
    phases = [[phase.name for phase in list_phases(method, stage)] for stage in stages]
    first, *later = find_times(config, phases)
    stage = stages[0]
    if first.estimated:
        naive = declare(config, LifelongMethod(), stage)
        if declare(config, method, stage) == naive:
            settings = {"method": "naive", "options": {}}
            first = find_times(config.model_copy(update=settings))[0]
    return [first, *later]


def declare(config: RunConfig, method: LifelongMethod, stage: Stage) -> Declaration:
    """The method's part of a planned stage's key: all about the method that decides weights."""
    phases = list_phases(method, stage)
    content: dict[str, Any] = {}
    signature = method.signature(stage)
    # without a signature the stage equals Naive's, whatever the version of the method
    if signature and method.version > 1:
        signature = {**signature, "version": method.version}
    if signature:
        content["signature"] = signature
    schedules = [phase.schedule for phase in phases]
    # a learning rate over the stream depends on the budget of all stages
    knows_the_stream = any(
        isinstance(schedule, Schedule) and schedule.over == "stream" for schedule in schedules
    )
    if knows_the_stream:
        content["stream"] = stage.stream_info.budget
    if keeps_optimizer(phases):
        content["keeps"] = "optimizer"
    if method.optimizer:
        optimizer = choose_optimizer(method, config.training)
        content["optimizer"] = {"name": optimizer.name, "options": optimizer.options}
    return Declaration(content, method.uses_memory(stage))


@functools.cache
def hash_code(module: str) -> str:
    """A hash of a method's module and of the modules that it imports, directly or indirectly.

    Only modules of its package and of `methods` count. Every form of import that names a module is
    followed, `importlib.import_module("...")` too. Comments and docstrings do not count.
    """
    package = module.rpartition(".")[0]
    sources: dict[str, str] = {}
    queue = [module]
    while queue:
        name = queue.pop()
        if name in sources:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        tree = ast.parse(Path(spec.origin).read_bytes())
        for node in ast.walk(tree):
            for imported in _list_imported(node, name):
                if imported.startswith((f"{package}.", "methods.")) and _is_module(imported):
                    queue.append(imported)
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        sources[name] = ast.unparse(tree)
    return digest(sorted(sources.items()))


def _list_imported(node: ast.AST, importer: str) -> Iterator[str]:
    """The full names of the modules, or of their members, that a syntax node imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    elif isinstance(node, ast.ImportFrom):
        parent = node.module or ""
        if node.level:
            folder = importer.rsplit(".", node.level)[0]
            parent = f"{folder}.{parent}".rstrip(".")
        yield parent
        for alias in node.names:
            yield f"{parent}.{alias.name}"
    elif isinstance(node, ast.Call):
        function = ast.unparse(node.func)
        is_import = function.endswith("import_module") or function == "__import__"
        if is_import and node.args and isinstance(node.args[0], ast.Constant):
            name = str(node.args[0].value)
            folder = importer.rpartition(".")[0]
            yield f"{folder}{name}" if name.startswith(".") else name


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is not a package: it is a member of a module
        return False
