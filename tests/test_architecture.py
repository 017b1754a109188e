"""The rooms, which of them may import which, and how a file is written. Oracle: the tables below, as in
docs/how_it_works.md."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pytest

from tests.support.source_tree import FILES, ROOT, SOURCES, TREES, bound, imports_by_name, named_by

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
ENTRANCE = ("benchmark", "run_all")  # `import benchmark` in a notebook; no file of the package asks for it
TORCH = {"torch", "transformers", "tokenizers", "safetensors"}
WITHOUT_TORCH = (
    *("benchmark.settings.suite", "benchmark.settings.load", "benchmark.records", "benchmark.store"),
    *("benchmark.settings.command_line", "benchmark.jobs.executors"),
    *("analysis.render", "paper_tables", "run_all"),
)


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
        elif isinstance(node, ast.Call) and imports_by_name(node):
            yield from named_by(node, place)


@cache
def arrows() -> dict[str, set[str]]:
    """Module of the project -> those that it imports."""
    found = {module: set(imported(tree, module)) for module, tree in TREES.items()}
    inside = {module: {name for name in names if room_of(name)} - {module} for module, names in found.items()}
    inside[ENTRANCE[0]].discard(ENTRANCE[1])
    return inside


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


def test_every_package_is_installed() -> None:
    """One that setup.cfg does not name is missing where the project is not run from its folder. Oracle: the folders."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = {module for module, path in FILES.items() if path.name == "__init__.py"}
    assert set(setup["options"]["packages"].split()) == packages


EXECUTORS = {"benchmark.jobs.executors", "benchmark.jobs.executors.local", "benchmark.jobs.executors.slurm"}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import importlib; importlib.import_module('run_all')", {"importlib", "run_all"}),
        ("from importlib import import_module as load", {"importlib"}),
        ("__import__(f'benchmark.jobs.executors.{name}')", EXECUTORS),
        ("import_module(f'{__name__}.{name}')", EXECUTORS),
        ("import_module('.plan', 'benchmark.jobs')", {"benchmark.jobs.plan"}),
        ("import_module('..records', package='benchmark.jobs')", {"benchmark.records"}),
        ("import_module(f'.executors.{name}', 'benchmark.jobs')", EXECUTORS),
        ("import_module(name='run_all')", {"run_all"}),
        ("def f():\n    from benchmark import records", {"benchmark.records"}),
        ("if TYPE_CHECKING:\n    import methods.er", {"methods.er"}),
    ],
)
def test_imports_are_seen_wherever_they_stand(code: str, found: set[str]) -> None:
    """Oracle: what Python would import."""
    assert set(imported(ast.parse(code), "benchmark.jobs.executors")) == found


@pytest.mark.parametrize("code", ["import_module(name)", "import_module('.plan', p)", "__import__('a', **more)"])
def test_an_import_that_says_nothing_is_refused(code: str) -> None:
    """Oracle: Python would import what the walk cannot know."""
    with pytest.raises(AssertionError, match=r"cannot see what"):
        list(imported(ast.parse(code), "benchmark.jobs.executors"))


BY_NAME = {"import_module", "__import__"}  # the walk sees what a call of them imports
IMPORTERS = BY_NAME | {
    *("run_module", "run_path", "resolve_name", "find_spec", "module_from_spec", "exec_module", "load_module"),
    *("spec_from_file_location", "spec_from_loader", "SourceFileLoader", "exec", "eval", "__builtins__", "__loader__"),
}
HAVE_IMPORTERS = {"importlib", "importlib.util", "importlib.machinery", "runpy", "pkgutil", "builtins", "sys"}


def hidden_imports(tree: ast.AST) -> set[str]:
    """What a file can import with and the walk does not see: importers that are not called by their own name, texts
    that name one, modules that have some in another use than one of their names, and the table of all modules."""
    nodes, modules = list(ast.walk(tree)), bound(tree)
    seen = {id(node.func) for node in nodes if isinstance(node, ast.Call) and imports_by_name(node)}
    asked = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    found = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and id(node) not in seen:
            owner = modules.get(node.value.id, node.value.id) if isinstance(node.value, ast.Name) else ""
            if node.attr == "eval":  # a network's evaluates no text
                found |= {node.attr} if owner == "builtins" else set()
            elif node.attr in IMPORTERS or (owner, node.attr) == ("sys", "modules"):
                found.add(node.attr)
        elif isinstance(node, ast.Name) and id(node) not in seen | asked:
            found |= {node.id} if node.id in IMPORTERS or modules.get(node.id) in HAVE_IMPORTERS else set()
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name: alias.asname for alias in node.names}
            found |= {name for name in names.keys() & IMPORTERS if name not in BY_NAME or names[name]}
            found |= names.keys() & ({"*", "modules"} if node.module in HAVE_IMPORTERS else set())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} & IMPORTERS
    return found


IMPORTS_UNSEEN = {
    "benchmark.jobs.slurm.process": {"run_module"},  # what a Slurm job starts with: it runs submitit's
    "benchmark.data.docstrings": {"find_spec"},  # where an installed package lies
    "benchmark.instruments.unchanged": {"modules", "__builtins__", "__loader__"},  # what the modules of a method hold
}


def test_nothing_is_imported_unseen() -> None:
    """Oracle: the table above, which says what for."""
    found = {module: hidden_imports(tree) for module, tree in TREES.items()}
    assert {module: names for module, names in found.items() if names} == IMPORTS_UNSEEN


@pytest.mark.parametrize(
    "code",
    [
        "from importlib import import_module as load",
        "load = importlib.import_module",
        "runpy.run_module('x')",
        "pkgutil.resolve_name('x')",
        "exec('import x')",
        "eval('__import__(name)')",
        "import builtins; builtins.eval('x')",
        "import importlib; getattr(importlib, 'import_module')('x')",
        "import importlib; getattr(importlib, name)('x')",
        "import importlib as i; getattr(i, name)('x')",
        "import importlib; vars(importlib)[name]('x')",
        "import importlib.util; importlib.util.find_spec('x').loader.exec_module(module)",
        "from importlib.machinery import SourceFileLoader",
        "import sys; sys.modules['benchmark.jobs.plan']",
        "import sys as system; system.modules['benchmark.jobs.plan']",
        "from sys import modules",
        "from importlib import *",
    ],
)
def test_hidden_imports_are_found(code: str) -> None:
    """Oracle: each of them can import what it does not say."""
    assert hidden_imports(ast.parse(code))


@pytest.mark.parametrize("code", ["model.eval()", "network.modules()", "import sys; sys.exit(1)", "import_module('x')"])
def test_what_imports_nothing_is_let_be(code: str) -> None:
    """Oracle: the walk sees `import_module('x')`, and the others import nothing."""
    assert not hidden_imports(ast.parse(code))


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_is_imported_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


MOST_LINES = {"file": 400, "run_all.py": 240, "function": 60}


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
    r"|[\d(\[{]|(?!torch|transformers|bf16)[a-z]|(`[^`]*`\W*)+$"
)


def test_docstrings_are_sentences() -> None:
    """None begins with what only a name before it would make a sentence, as a value, or with nothing but code."""
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node) or ""
                assert not re.match(NO_SENTENCE, text), f"{path}: {text}"


@pytest.mark.parametrize("text", ["(B, C) in fp32.", "0 for the first.", "ap, phase.", "5.0e-4", "`1:02`, `2:03`."])
def test_docstrings_that_are_values_are_found(text: str) -> None:
    """Oracle: nobody could read them aloud."""
    assert re.match(NO_SENTENCE, text)


@pytest.mark.parametrize("text", ["`code` in backticks.", "torch's own, outside.", "Offer it.", "True while it runs."])
def test_sentences_are_let_be(text: str) -> None:
    """Oracle: names that are written small or as code may begin one."""
    assert not re.match(NO_SENTENCE, text)


MOST_ARGUMENTS = 7  # of a constructor
TAKE_MORE = {
    "Stage": "its fields are what a method may know; the loop sets them by name, in one place",
    "Batch": "the stream makes it, by name, and methods read it",
    "Checkpoint": "its fields are what a file holds",
    "RunState": "its fields are what is known of a run; two functions make it, and name those that they know",
    "Phase": "its fields are what a method may ask for, and one names those that it sets",
    "JobState": "executors make it, in a place each",
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


def test_one_function_asks_for_homes() -> None:
    """`expanded` says of a user that is unknown what Python ends on. What a job is given, the node expands."""
    ask = {module for module, tree in TREES.items() if "expanduser" in {getattr(n, "attr", "") for n in ast.walk(tree)}}
    assert ask == {"benchmark.files", "benchmark.jobs.slurm.staging"}


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
