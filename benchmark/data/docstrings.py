"""Documentation text on every machine: docstrings of installed packages.

Modules are read with `ast`, and never imported.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import platform
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from benchmark.data.documents import TORN, Document, NotHere, cut, refuse
from benchmark.interpreters import standing_in_code

SHORTEST = 200  # characters
MODULES = 400  # per process: a small package is read before a second process has started
STDLIB = "stdlib"
TEST_FOLDERS = {"test", "tests", "idle_test"}
# the fields of a statement that contain statements, in their order in the source
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Documents = tuple[Document, ...]


@lru_cache(maxsize=16)
def read_package(package: str) -> tuple[Documents, Mapping[str, int]]:
    """Docstrings of the modules, classes and functions of an installed package.

    Also returns how many were skipped, by reason. `package` is a top-level name, or "stdlib" for
    Python's own library. The result is cached, because parsing takes up to half a minute on one
    core and the text is only a few megabytes. Raises DataError if the package is not installed.
    """
    import joblib  # here, because it is slow and a plan of runs does not need it

    files = find_modules(package)
    processes = max(1, min(joblib.cpu_count(), len(files) // MODULES))
    read_module = joblib.delayed(_read_module)
    with standing_in_code():
        parallel = joblib.Parallel(n_jobs=processes)
        modules = parallel(read_module(path, module) for path, module in files)
    documents: list[Document] = []
    skipped = Counter[str]()
    for module_documents, module_skipped in modules:
        documents += module_documents
        skipped += module_skipped
    return tuple(documents), skipped


def _read_module(path: Path, module: str) -> tuple[list[Document], Counter[str]]:
    documents: list[Document] = []
    skipped = Counter[str]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes such as "\d", in code that is not ours
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return [], Counter(["module that does not parse"])
    for name, node in _walk_objects(tree, ""):
        text = ast.get_docstring(node)
        if text is None:
            continue
        if len(text) < SHORTEST:
            skipped[f"docstring under {SHORTEST} characters"] += 1
        elif TORN.search(text):
            skipped["docstring with a lone surrogate"] += 1
        else:
            source = f"{module}:{name}".rstrip(":")
            for piece in cut(text):
                documents.append(Document(piece, source))
    return documents, skipped


def read_versions(packages: Collection[str]) -> dict[str, str]:
    """The versions of the distributions that contain `packages`, by distribution."""
    versions: dict[str, str] = {}
    if STDLIB in packages:
        versions["python"] = platform.python_version()
    for package in packages:
        if package == STDLIB or package in sys.stdlib_module_names:
            continue
        for distribution in _find_distributions(package):
            versions[distribution] = importlib.metadata.version(distribution)
    return versions


def _find_distributions(package: str) -> tuple[str, ...]:
    try:
        importlib.metadata.distribution(package)
        return (package,)
    except importlib.metadata.PackageNotFoundError:  # sklearn is in scikit-learn
        # by their files: Python 3.10's packages_distributions does not know packages that meson
        # built
        names = set()
        for distribution in importlib.metadata.distributions():
            files = distribution.files or ()
            if any(file.parts[0] == package for file in files):
                names.add(distribution.metadata["Name"])
        return tuple(sorted(names))


def _walk_objects(node: ast.AST, name: str) -> Iterator[tuple[str, Documented]]:
    """Everything in `node` that can have a docstring: qualified name and node."""
    if isinstance(node, Documented):
        yield name, node
    for block in BLOCKS:
        for child in getattr(node, block, ()):
            child_name = name
            if isinstance(child, Documented) and not isinstance(child, ast.Module):
                child_name = f"{name}.{child.name}".lstrip(".")
            yield from _walk_objects(child, child_name)


@lru_cache(maxsize=16)
def find_modules(package: str) -> Sequence[tuple[Path, str]]:
    """The files of a package's modules and their dotted names, sorted within each folder.

    Folders of tests are left out. The list is cached.
    """
    modules = []
    skipped_folders = TEST_FOLDERS | {"__pycache__"}
    for root in _find_roots(package):
        prefix = () if package == STDLIB else (package,)
        if root.is_file():
            modules.append((root, package))
        for folder, folders, names in os.walk(root, onerror=refuse):
            # a folder such as site-packages is no identifier, so nothing in it can be imported
            folders[:] = sorted(
                name for name in folders if name.isidentifier() and name not in skipped_folders
            )
            parents = prefix + Path(folder).relative_to(root).parts
            for name in sorted(names):
                if name.endswith(".py"):
                    stem = name.removesuffix(".py")
                    parts = parents if stem == "__init__" else (*parents, stem)
                    module = ".".join(parts) or package
                    modules.append((Path(folder, name), module))
    return modules


def _find_roots(package: str) -> list[Path]:
    if package == STDLIB:
        return [Path(sysconfig.get_paths()["stdlib"])]
    # for a dotted name, `find_spec` would import the parent package
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None:
        raise NotHere(
            f"no package {package!r} is installed: give the top-level name that `import` takes "
            f"(sklearn, not scikit-learn), install it, or take {STDLIB!r}, Python's own library"
        )
    if spec.submodule_search_locations is not None:
        return [Path(location) for location in spec.submodule_search_locations]
    if spec.origin and spec.origin.endswith(".py"):
        return [Path(spec.origin)]
    return []
