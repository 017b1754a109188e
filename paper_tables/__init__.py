"""One small file a table or figure. The file's name is the exhibit's name, and that of the files it
renders to.

To add one, add a file with a module-level `EXHIBIT`, and name it under `tables` in a suite. What
the paper prints for it, if anything, goes to `printed/NAME.csv` (columns: see `analysis.exhibits`).
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import itertools
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

import methods
from benchmark import records
from benchmark.downstream.tasks import find_example_keys, select_scores
from benchmark.downstream.zero_shot import select_zero_shot_scores
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig, Suite, Suites
from benchmark.store import Store, leave_out_older_texts, load_runs, make_empty_run
from benchmark.training.identity import Identities, name_further_seeds

if TYPE_CHECKING:
    from analysis.exhibits import Exhibit, View
    from analysis.study import Study

# pandas, matplotlib and torch take seconds to import: exhibits are loaded, and models measured,
# when it comes to that

_FOLDER = Path(__file__).parent
PRINTED = (
    "bert_base",
    "bert_large",
    "gpt_base",
    "ablation",
    "half_time",
    "small_memory",
    "expand_size",
)
"""The suites that the paper prints numbers of."""
LONGEST_NAME = 100  # characters of the folder of a report
READS_MODELS: dict[str, type[records.Line]] = {
    "representational_similarity": records.SimilarityLine,
    "attention_patterns": records.AttentionLine,
}
"""Exhibits that the records of training are not enough for, and the kind of line that a look into
models adds.
"""


def list_exhibits() -> list[str]:
    """All exhibits, tables and figures, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem != "__init__")


def load(name: str, study: Path | None = None) -> Exhibit:
    """The exhibit of a table or figure, with the paper's numbers; `study` is a folder which may
    hold some of its own.

    Raises ConfigError for a name that is none.
    """
    from analysis.exhibits import read_printed

    if own := _find_exhibit(name, study):
        spec = importlib.util.spec_from_file_location(name, own)
        assert spec and spec.loader
        module = sys.modules[name] = importlib.util.module_from_spec(
            spec
        )  # where dataclasses look for their types
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(f"paper_tables.{name}")
    exhibit: Exhibit = module.EXHIBIT
    return dataclasses.replace(
        exhibit, name=name, printed=read_printed(_FOLDER / "printed" / f"{name}.csv")
    )


def _find_exhibit(name: str, study: Path | None) -> Path | None:
    """The file of an exhibit that only a study has, None for one of the project. Raises ConfigError
    for others.
    """
    if name in list_exhibits():
        return None
    if study and name.isidentifier() and (study / f"{name}.py").is_file():
        return study / f"{name}.py"
    near = difflib.get_close_matches(name, list_exhibits(), cutoff=0.0)
    raise ConfigError(
        f"no table or figure {name!r}: choose from the files of {_FOLDER}, such as "
        f"{', '.join(near)}"
    )


def find_study_folder(suite: Suite) -> Path | None:
    """The folder of a suite's file, as it is called from here or from the project; None if it has
    none.
    """
    file = Path(shlex.split(suite.called)[0])
    if file.suffix != ".toml":
        return None
    return next(
        (folder for folder in (file.parent, _FOLDER.parent / file.parent) if folder.is_dir()), None
    )


@dataclass(frozen=True)
class ModelMeasure:
    """Writes the lines of one kind with `analysis.model_similarity`, which it imports when it is
    called.
    """

    kind: type[records.Line]

    def is_done(self, store: Store, stage: str) -> bool:
        """Whether the model of a stage is measured."""
        return bool(
            records.select_kind(
                records.read(store.measures_file(stage), records.MEASURES), self.kind
            )
        )

    def __call__(self, config: RunConfig, store: Store) -> None:
        from analysis.model_similarity import measure_attention, measure_similarity

        (measure_attention if self.kind is records.AttentionLine else measure_similarity)(
            config, store
        )


def list_measures(suite: Suite) -> tuple[ModelMeasure, ...]:
    """The measures of models that the suite's tables and figures need besides the records of
    training.

    Raises ConfigError for a name that is neither a table nor a figure.
    """
    for name in suite.tables:
        _find_exhibit(name, find_study_folder(suite))
    needed = dict.fromkeys(READS_MODELS[name] for name in suite.tables if name in READS_MODELS)
    return tuple(map(ModelMeasure, needed))


def write_report(
    suites: Suites, runs: Path, out: Path, view: View = "ours", only_tables: bool = False
) -> None:
    """Render the tables of suites from the records below `runs`; print the first, and a line of
    each of the others.

    They go to a folder in `out` that has the suite's name; with several suites, their names with +
    between.
    """
    from analysis.exhibits import TableExhibit
    from analysis.notes import warn_of_baselines, warn_of_counting
    from analysis.page import render
    from analysis.tables import to_text

    tables = {table: find_study_folder(suite) for suite, _ in suites for table in suite.tables}
    study = load_study(suites, runs)
    exhibits, folder = list(itertools.starmap(load, tables.items())), out / study.name
    if view == "both":
        exhibits = [
            exhibit for exhibit in exhibits if exhibit.printed
        ]  # the paper has nothing like the others
    lacks = [name_lack(study), name_lack_of_printed(study, exhibits) if view == "both" else ""]
    for lack in filter(None, lacks):
        print(f"! {lack}")
    if lacks[0] and (view == "ours" or lacks[1]):
        return  # all cells would be empty
    render(study, exhibits, load, folder, view, only_tables)
    main = next((exhibit for exhibit in exhibits if isinstance(exhibit, TableExhibit)), None)
    if main:
        table = main.build(study, view)
        for warning in (*warn_of_counting(study), *warn_of_baselines(study)):
            print(f"! {warning}")
        print(to_text(dataclasses.replace(table, notes=(), warnings=())))
        print(
            f"notes on it: {len(table.notes)}, in "
            f"{folder / main.name}{'' if view == 'ours' else '.both'}.md"
        )
    others = [exhibit.name for exhibit in exhibits if exhibit is not main]
    if others:
        print(f"also in {folder}: {', '.join(others)}")
    identities = Identities(Store(runs), methods.build)
    for line in (line for _, configs in suites for line in name_further_seeds(configs, identities)):
        print(line)
    print(
        f"open {folder / 'index.html'} in a browser"
        if view == "ours"
        else f"all of it is in {folder}"
    )


def name_lack(study: Study) -> str:
    """Says that nothing of a study is recorded; "" where something is, even if it does not count."""
    if any(run.line.stages or run.why for run in study.runs):
        return ""
    return f"no records of {study.name}: give the --runs where they are, or the folder of a study, results/NAME"


def name_lack_of_printed(study: Study, exhibits: Sequence[Exhibit]) -> str:
    """Says why no number of the paper's stands in the tables of view "both"; "" where one does."""
    from analysis.exhibits import TableExhibit

    tables = [exhibit for exhibit in exhibits if isinstance(exhibit, TableExhibit)]
    if any(exhibit.build(study, "both").has_printed for exhibit in tables):
        return ""
    if not tables:
        return f"--view both: the paper prints none of the tables of {study.name}"
    if any(study.printed.values()):
        return f"--view both: no row, stage and domain of {study.name} is one that the paper prints a number of"
    return (
        f"--view both: no number of the paper's stands beside those of {study.name}, which is none "
        "of its suites "
        f"({', '.join(PRINTED)}) and extends none"
    )


def load_study(suites: Suites, runs: Path) -> Study:
    """The records of suites' runs below `runs`; its name joins theirs. Raises ConfigError for two
    of one name.

    Only records of what identifies a run count, and of texts the newest. A record says the place
    that its row had in the suite of that day, and another suite that shares a model may have it
    scored in tasks of its own: places, tasks and settings of fine-tuning are this suite's.
    """
    from analysis.study import Study

    names = [suite.name for suite, _ in suites]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"more than one suite is called {', '.join(twice)}, so their runs would be taken for "
            "seeds of each other: "
            "give each once, or another name"
        )
    store, chosen = Store(runs), []
    identities = Identities(store, methods.build)
    for suite, configs in suites:
        known = {run.id: run for run in load_runs(runs, suite.name)}
        domains: dict[tuple[str, str], str] = {
            (task.name, task.metric): task.domain for task in suite.tasks
        }
        examples = find_example_keys(suite, store)
        recorded = [
            identities.leave_out(known[config.id], config)
            if config.id in known
            else make_empty_run(config.describe())
            for config in configs
        ]
        for config, run in zip(configs, leave_out_older_texts(recorded), strict=True):
            now = config.describe()
            current = {
                name: getattr(now, name) for name in ("row_index", "domains", "probes", "tasks")
            }
            line = structs.replace(run.line, **current)
            of_stages = zip(run.line.stages, run.scores, strict=False)
            scores = [
                select_scores(suite, key, lines, examples) for key, lines in of_stages
            ] or run.scores
            zero_shot = zip(run.line.stages, run.zero_shot, strict=False)
            asked = [
                [*select_zero_shot_scores(suite.evaluate, key, lines).values()]
                for key, lines in zero_shot
            ]
            measured = [(line, domains.get((line.task, line.metric))) for line in run.baselines]
            baselines = [
                structs.replace(line, domain=of) for line, of in measured if of is not None
            ]
            chosen.append(
                dataclasses.replace(
                    run, line=line, scores=scores, baselines=baselines, zero_shot=asked
                )
            )
    title = "; ".join(dict.fromkeys(suite.title for suite, _ in suites))
    paper = any(suite.paper for suite, _ in suites)
    called = {suite.name: suite.called for suite, _ in suites}
    printed = {
        suite.name: next((name for name in suite.built_in if name in PRINTED), "")
        for suite, _ in suites
    }
    only_last = frozenset(suite.name for suite, _ in suites if suite.finetuning.stages == "last")
    joined = "+".join(names)
    name = joined if len(joined) <= LONGEST_NAME else f"{names[0]}+{len(names) - 1}_more"
    return Study(name, chosen, title, paper, called, printed, only_last)
