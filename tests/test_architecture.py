"""The rooms, which of them may import which, and who may read a clock. Oracle: the tables below, as in
docs/how_it_works.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BASE = "benchmark"  # the files in benchmark/ itself
ROOMS = ("settings", "data", "models", "training", "downstream", "instruments", "jobs")
FLOORS = (BASE, *(f"benchmark.{room}" for room in ROOMS))
MAY_IMPORT = {room: {*FLOORS[:floor]} for floor, room in enumerate(FLOORS)} | {
    "methods": {*FLOORS[: FLOORS.index("benchmark.training") + 1]},
    "analysis": {BASE, "benchmark.settings"},
    "paper_tables": {BASE, "benchmark.settings", "analysis"},
    "run_all": {*FLOORS, "methods", "analysis", "paper_tables"},
}
# analysis works from records; only these two look into models
LOOKS_INTO_MODELS = {"analysis.similarity", "analysis.attention"}
TORCH = {"torch", "transformers", "tokenizers", "safetensors"}
WITHOUT_TORCH = (
    *("benchmark.settings.config", "benchmark.settings.suite_files", "benchmark.records", "benchmark.store"),
    *("benchmark.settings.command_line", "benchmark.jobs.executors"),
    *("analysis.render", "paper_tables", "run_all"),
)
# a module that has clocks -> what of it reads none; nothing else of it is taken without a word in READS_A_CLOCK
NO_CLOCK: dict[str, set[str]] = {"time": {"sleep"}, "datetime": {"timedelta"}, "uuid": {"uuid4"}} | {
    module: set() for module in ("resource", "timeit", "asyncio", "sched", "calendar", "psutil")
}
# what clocks of other modules are called, whatever they hang on
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime", "times", "getrusage"} | {
    *("localtime", "gmtime", "ctime", "asctime", "strftime", "now", "utcnow", "today", "timeit", "default_timer"),
    *("uuid1", "elapsed_time", "Event", "Timer"),
}
READS_A_CLOCK = {
    "benchmark.training.clock": "charges the budget",
    "benchmark.training.contention": "what share of its cores a stage had",
    "benchmark.training.progress": "how often a line is shown",
    "benchmark.training.run": "which failures are of this call",
    "benchmark.records": "when a line was written",
    "benchmark.downstream.finetune": "how long a fine-tuning took, for its record",
    "benchmark.instruments.speed": "measures steps",
    "benchmark.instruments.step_parts": "the shares of a step's time",
    "benchmark.instruments.conformance": "how long each check took",
    "benchmark.jobs.survey": "how old a sign of life is",
}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_of(path): path
    for room in ("benchmark", "methods", "analysis", "paper_tables", "run_all.py")
    for path in sorted((ROOT / room).rglob("*.py") if (ROOT / room).is_dir() else [ROOT / room])
}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in FILES.items()}
SOURCES = {FILES[module]: tree for module, tree in TREES.items()} | {
    path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "tests").rglob("*.py"))
}


def room_of(module: str) -> str:
    """The room that a module of the project is in, else nothing."""
    top, _, rest = module.partition(".")
    if top != "benchmark":
        return top if top in MAY_IMPORT else ""
    room = f"benchmark.{rest.partition('.')[0]}"
    return room if room in MAY_IMPORT else BASE


def imported(tree: ast.AST, place: str) -> Iterator[str]:
    """Every module that a file imports, at the top, in functions, for types, and by `import_module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else str(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from _dynamic(node.args[0], place)


def _dynamic(name: ast.expr, place: str) -> set[str]:
    """What `import_module(name)` imports, as far as its text says: a module, or all that a package has directly."""
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        package = first.value.rstrip(".")
    else:
        assert ast.unparse(first) == "{__name__}", f"{place}: the test cannot see what {ast.unparse(name)} imports"
        package = place
    if first is name:
        return {package}
    return {package} | {module for module in FILES if module.rpartition(".")[0] == package}


@cache
def arrows() -> dict[str, set[str]]:
    """Module of the project -> those that it imports."""
    found = {module: set(imported(tree, module)) for module, tree in TREES.items()}
    return {module: {name for name in names if room_of(name)} - {module} for module, names in found.items()}


@pytest.mark.parametrize("module", FILES)
def test_imports_go_one_way(module: str) -> None:
    rooms = {room_of(name) for name in arrows()[module]} - {room_of(module)}
    may = MAY_IMPORT["benchmark.jobs"] | {"analysis"} if module in LOOKS_INTO_MODELS else MAY_IMPORT[room_of(module)]
    assert rooms <= may, f"{module} imports {rooms - may}"
    if room_of(module) in ("analysis", "paper_tables") and module not in LOOKS_INTO_MODELS:
        packages = {name.partition(".")[0] for name in imported(TREES[module], module)}
        assert not packages & TORCH, f"{module} imports torch"


def test_no_two_files_import_each_other() -> None:
    """Larger circles count, and imports for types. Oracle: an order in which each comes after its own."""
    left = dict(arrows())
    while ready := [module for module, names in left.items() if not names & left.keys()]:
        for module in ready:
            del left[module]
    while ends := left.keys() - set().union(*left.values()):  # only in the way to a circle
        for module in ends:
            del left[module]
    assert not left, f"circles among {sorted(left)}"


EXECUTORS = {"benchmark.jobs.executors", "benchmark.jobs.executors.local", "benchmark.jobs.executors.slurm"}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import importlib; importlib.import_module('run_all')", {"importlib", "run_all"}),
        ("from importlib import import_module as load", {"importlib"}),
        ("__import__(f'benchmark.jobs.executors.{name}')", EXECUTORS),
        ("import_module(f'{__name__}.{name}')", EXECUTORS),
        ("def f():\n    from benchmark import records", {"benchmark.records"}),
        ("if TYPE_CHECKING:\n    import methods.er", {"methods.er"}),
    ],
)
def test_imports_are_seen_wherever_they_stand(code: str, found: set[str]) -> None:
    """Oracle: what Python would import."""
    assert set(imported(ast.parse(code), "benchmark.jobs.executors")) == found


IMPORTERS = ("import_module", "__import__", "run_module", "run_path", "resolve_name", "spec_from_file_location", "exec")


def hidden_imports(tree: ast.AST) -> set[str]:
    """What a file can import with and the walk does not see: importers that are not called by their own name."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = set()
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in IMPORTERS and not (name in IMPORTERS[:2] and id(node) in called):
            found.add(name)
        elif isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} & {*IMPORTERS}:
            found.add(str(node.module))
    return found


def test_nothing_is_imported_unseen() -> None:
    """Only what a Slurm job starts with runs another module, submitit's."""
    found = {module: hidden_imports(tree) for module, tree in TREES.items()}
    assert {module: names for module, names in found.items() if names} == {
        "benchmark.jobs.slurm.process": {"run_module"}
    }


@pytest.mark.parametrize(
    "code",
    [
        "from importlib import import_module as load",
        "load = importlib.import_module",
        "runpy.run_module('x')",
        "pkgutil.resolve_name('x')",
        "exec('import x')",
    ],
)
def test_hidden_imports_are_found(code: str) -> None:
    assert hidden_imports(ast.parse(code))


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_is_imported_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def clocks(tree: ast.AST) -> set[str]:
    """What a file can read a clock with: modules that have some, in any use but a name of theirs that reads none;
    clocks of others by their names; and the text that pandas and numpy take for the time."""
    nodes = list(ast.walk(tree))
    bound = {  # name in the file -> the module that it is, or comes from
        alias.asname or alias.name.partition(".")[0]: alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    innocent, found = set(), set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in NO_CLOCK.get(bound.get(owner, ""), ()):
                innocent.add(id(node.value))
            if node.attr.removesuffix("_ns") in CLOCKS and (id(node) in called or owner in bound):
                found.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            plain = NO_CLOCK.get(str(node.module))
            found |= {name for name in names if name.removesuffix("_ns") in CLOCKS} if plain is None else names - plain
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= _dynamic(node.args[0], "a clock?") & NO_CLOCK.keys()
        elif isinstance(node, ast.Constant) and node.value in ("now", "today"):
            found.add(node.value)
    return found | {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and id(node) not in innocent
        if node.id not in NO_CLOCK.get(bound.get(node.id, ""), {node.id})
    }


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.perf_counter()",
        "import time as t; t.monotonic_ns()",
        "from time import process_time as p",
        "from datetime import datetime; datetime.now()",
        "import resource; resource.getrusage(0)",
        "import torch; torch.cuda.Event(enable_timing=True)",
        "from torch import cuda; cuda.Event()",
        "from datetime import datetime as d; d.now()",
        "from datetime import date; date.today()",
        "from time import *",
        "import time; t = time; t.time()",
        "import time; time.strftime('%s')",
        "import pandas as pd; pd.Timestamp.now()",
        "import numpy as np; np.datetime64('now')",
        "import pandas as pd; pd.to_datetime('now')",
        "import datetime; D = datetime.datetime; D.now()",
        "import time; a, t = 0, time; t.time()",
        "import time; clock: object = time; clock.time()",
        "import time; getattr(time, 'time')()",
        "import time; vars(time)['time']()",
        "import time\nclass A:\n    t = time\nA.t.time()",
        "import importlib; importlib.import_module('time').time()",
        "from importlib import import_module; clock = import_module('time')",
        "import uuid; uuid.uuid1()",
        "import asyncio; asyncio.new_event_loop()",
        "loop.time()",
        "import os; clock = os.times",
        "from torch.cuda import Event",
    ],
)
def test_every_way_to_read_a_clock_is_seen(code: str) -> None:
    assert clocks(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(1)",
        "import datetime; datetime.timedelta(seconds=1)",
        "from datetime import timedelta; timedelta(1)",
        "import uuid; uuid.uuid4()",
        "line['time'] > stage.time.wall + sum(self.times)",
    ],
)
def test_what_reads_no_clock_is_let_be(code: str) -> None:
    """A test that finds everything would be switched off."""
    assert not clocks(ast.parse(code))


def test_time_is_read_where_it_is_said() -> None:
    """Only the clock charges a budget; whoever else reads one says what for."""
    assert {module for module, tree in TREES.items() if clocks(tree)} == set(READS_A_CLOCK)


MOST_LINES = {"file": 400, "run_all.py": 200, "function": 60}


def test_files_and_functions_fit_on_few_screens() -> None:
    """Docstrings and comments count, too."""
    for path, tree in SOURCES.items():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES.get(path.name, MOST_LINES["file"]), path
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                assert lines <= MOST_LINES["function"], f"{path}: {node.name} has {lines} lines"


def test_the_step_is_read_at_a_glance() -> None:
    """The loop, the warm-up and `speed` share it, so whoever compares methods reads it first. Oracle: 25 lines."""
    nodes = [node for node in ast.walk(TREES["benchmark.training.step"]) if isinstance(node, ast.ClassDef)]
    (stepper,) = (node for node in nodes if node.name == "Stepper")
    (step,) = (node for node in stepper.body if isinstance(node, ast.FunctionDef) and node.name == "step")
    assert (step.end_lineno or 0) - step.lineno < 25


NO_SENTENCE = (
    r"(Of|As|Likewise|With|Without|Those|That of|For (all|each|the)|From the|Over|Also|Until|Nor|In \w+ order)\b"
)


def test_docstrings_are_sentences() -> None:
    """None begins with what only a name before it would make a sentence."""
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node) or ""
                assert not re.match(NO_SENTENCE, text), f"{path}: {text}"


MOST_ARGUMENTS = 7  # of a constructor
TAKE_MORE = {
    "ELLE": "its fields are the options of the method, and a suite names those that it sets",
}


def arguments(declared: ast.ClassDef) -> int:
    """How many arguments the constructor takes that a class writes, or has as a dataclass."""
    for statement in declared.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            of = statement.args
            return len(of.posonlyargs + of.args + of.kwonlyargs) - 1
    how = " ".join(map(ast.unparse, [*declared.decorator_list, *declared.bases]))
    if not ("dataclass" in how or "NamedTuple" in how):
        return 0
    fields = [ast.unparse(statement) for statement in declared.body if isinstance(statement, ast.AnnAssign)]
    return sum(not {"ClassVar", "init=False", "KW_ONLY"} & set(re.split(r"[^\w=]+", one)) for one in fields)


def test_constructors_take_few_arguments() -> None:
    """What belongs together is a record of its own. Settings and lines of records, which declare what a file holds,
    are read and not constructed. Each exception is needed."""
    classes = [node for tree in SOURCES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    many = {node.name: arguments(node) for node in classes if arguments(node) > MOST_ARGUMENTS}
    assert set(many) == set(TAKE_MORE), many


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("class A:\n    def __init__(self, a, b=1, *, c): ...", 3),
        ("@dataclass(frozen=True)\nclass A:\n    a: int\n    b: ClassVar[int]\n    c: int = field(init=False)", 1),
        ("@dataclass\nclass A:\n    a: int\n    _: KW_ONLY\n    b: int\n    c: int", 3),
        ("@dataclass(kw_only=True)\nclass A:\n    a: int", 1),
        ("class A(NamedTuple):\n    a: int\n    b: int", 2),
        ("class A(TypedDict):\n    a: int\n    b: int", 0),
    ],
)
def test_arguments_are_counted(code: str, count: int) -> None:
    """Oracle: what `inspect.signature` would say; nothing is said of a dictionary."""
    declared = ast.parse(code).body[0]
    assert isinstance(declared, ast.ClassDef) and arguments(declared) == count


def test_no_two_nones_stand_side_by_side_in_a_call() -> None:
    """A reader would have to count places to know what they are. Indices and tuples are no calls."""
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                none = [isinstance(argument, ast.Constant) and argument.value is None for argument in node.args]
                assert not any(one and other for one, other in pairwise(none)), (
                    f"{path}:{node.lineno}: {ast.unparse(node)}"
                )


def test_no_test_file_imports_another() -> None:
    """What tests share stands in tests/support. Programs that a test holds as text count."""
    for path in SOURCES:
        found = re.findall(r"^ *(?:from|import) tests(?:\.| import )test_.*", path.read_text(encoding="utf-8"), re.M)
        assert not found, f"{path}: {found}"
