"""Who may read a clock. Oracle: the table of those that do, and what for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.source_tree import TREES, bound, imports_by_name, named_by

# a module that has clocks -> what of it reads none; nothing else of it is taken without a word in READS_A_CLOCK
NO_CLOCK: dict[str, set[str]] = {"time": {"sleep"}, "datetime": {"timedelta"}, "uuid": {"uuid4"}} | {
    module: set()
    for module in (
        *("resource", "timeit", "asyncio", "sched", "calendar", "psutil"),
        *("cProfile", "profile", "torch.profiler", "torch.autograd.profiler", "torch.utils.benchmark"),
    )
}
# what clocks of other modules are called, whatever they hang on
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime", "getrusage", "getloadavg"} | {
    *("localtime", "gmtime", "ctime", "asctime", "strftime", "now", "utcnow", "today", "timeit", "default_timer"),
    *("uuid1", "elapsed_time", "Event", "Timer", "profile", "profiler", "formatdate", "make_msgid"),
    *("st_mtime", "st_atime", "st_ctime", "st_birthtime", "getmtime", "getatime", "getctime"),
}
ALSO_NAMES_OF_NUMBERS = {"time", "times"}  # a field may be called so: these count where they are called, or a module's
LOOKS_UP = ("getattr", "attrgetter", "methodcaller")
# of the files in which the kernel says how long what took
FILES_WITHOUT = ("/proc/cpuinfo", "/proc/meminfo", "/proc/vmstat")
PROGRAMS = {"date", "uptime", "hwclock", "timedatectl", "ps", "perf"}
READS_A_CLOCK = {
    "benchmark.training.clock": "charges the budget",
    "benchmark.training.progress": "how often a line is shown",
    "benchmark.jobs.local.board": "how often a table is drawn",
    "benchmark.training.step_times": "whether a table was changed since it was read",
    "benchmark.records": "when a line was written",
    "benchmark.locks": "how long an owner has given no sign of life",
    "benchmark.files": "how old what a killed writer has left is, and whether a file was changed since it was read",
    "benchmark.data.corpus": "when a file of text was last changed",
    "benchmark.downstream.finetune": "how long a fine-tuning took, for its record",
    "benchmark.instruments.speed": "measures steps",
    "benchmark.instruments.conformance": "how long each check took",
    "benchmark.jobs.slurm.job_states": "when a job was last seen, and whether a report was rendered since",
    "benchmark.jobs.stop_signals": "how long ago a job was asked to stop, which has so long to be queued again",
    "benchmark.jobs.survey": "how old a sign of life is, and what executors said",
    "benchmark.jobs.side_by_side": "when what another process had is tried again",
    "benchmark.jobs.doctor": "how long a node takes to answer, and whose clock is off",
    "benchmark.jobs.slurm.probe": "what time it is on a node",
}


def clocks(tree: ast.AST) -> set[str]:
    """What a file can read a clock with: modules that have some, in any use but a name of theirs that reads none;
    clocks of others by their names, called or not; and texts that say the time, or name what does."""
    nodes, imports = list(ast.walk(tree)), bound(tree)
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    innocent, found = set(), set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in NO_CLOCK.get(imports.get(owner, ""), ()):
                innocent.add(id(node.value))
            name = node.attr.removesuffix("_ns")
            if name in CLOCKS or (name in ALSO_NAMES_OF_NUMBERS and (id(node) in called or _root(node) in imports)):
                found.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            plain = NO_CLOCK.get(str(node.module))
            found |= {name for name in names if _is_clock(name)} if plain is None else names - plain
        elif isinstance(node, ast.Call) and imports_by_name(node):
            found |= named_by(node, "a clock?") & NO_CLOCK.keys()
        elif isinstance(node, ast.Call | ast.Subscript):
            found |= {name for name in _looked_up(node) if _is_clock(name)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} if _says_the_time(node.value) else set()
    if _starts_programs(nodes, imports):
        texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        found |= {text for text in texts if {word.rpartition("/")[2] for word in text.split()[:1]} & PROGRAMS}
    return found | {
        node.id
        for node in nodes
        if isinstance(node, ast.Name) and id(node) not in innocent
        if node.id not in NO_CLOCK.get(imports.get(node.id, ""), {node.id})
    }


def _is_clock(name: str) -> bool:
    return name.removesuffix("_ns") in CLOCKS | ALSO_NAMES_OF_NUMBERS


def _root(node: ast.expr) -> str:
    """What a chain of attributes hangs on, if that has a name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _looked_up(node: ast.Call | ast.Subscript) -> Iterator[str]:
    """The names of attributes that `getattr(a, "b")` or `vars(a)["b"]` reads."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in LOOKS_UP:
        texts = node.args
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith((")", "__dict__")):
        texts = [node.slice]
    else:
        return
    yield from (text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str))


def _says_the_time(text: str) -> bool:
    """Whether pandas or numpy take this text for the time, or the kernel writes times in a file or folder so called."""
    kernel = text.startswith(("/proc", "/dev/rtc", "/sys/class/rtc")) and text not in FILES_WITHOUT
    return kernel or text.strip().lower() in ("now", "today")


def _starts_programs(nodes: list[ast.AST], imports: dict[str, str]) -> bool:
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    of_os = {value for value in imports.values() if value.startswith("os.")} | {use for use in used if use[:3] == "os."}
    started = any(use.startswith(("os.system", "os.popen", "os.exec", "os.spawn", "os.posix_spawn")) for use in of_os)
    return started or any(value.partition(".")[0] == "subprocess" for value in imports.values())


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.perf_counter()",
        "import time as t; t.monotonic_ns()",
        "from time import process_time as p",
        "from datetime import datetime; datetime.now()",
        "import resource; resource.getrusage(0)",
        "import torch; torch.cuda.Event(enable_timing=True)",
        "import torch; Event = torch.cuda.Event",
        "from torch import cuda; cuda.Event()",
        "from torch.cuda import Event",
        "import torch; torch.profiler.profile()",
        "import torch.profiler as p; p.schedule()",
        "from torch import profiler; profiler.schedule()",
        "from datetime import datetime as d; d.now()",
        "from datetime import date; date.today()",
        "from time import *",
        "import time; t = time; t.time()",
        "import time; time.strftime('%s')",
        "import pandas as pd; pd.Timestamp.now()",
        "import pandas as pd; now = pd.Timestamp.now; now()",
        "import pandas as pd; T = pd.Timestamp; now = T.now; now()",
        "import pandas as pd; pd.Timestamp('NOW')",
        "import numpy as np; np.datetime64('now')",
        "import numpy as np; np.datetime64('NOW')",
        "import pandas as pd; pd.to_datetime('now')",
        "import datetime; D = datetime.datetime; D.now()",
        "import time; a, t = 0, time; t.time()",
        "import time; clock: object = time; clock.time()",
        "import time; getattr(time, 'time')()",
        "import time; vars(time)['time']()",
        "import os; getattr(os, 'times')()",
        "import os; vars(os)['times']()",
        "import os; os.__dict__['times']()",
        "import operator, os; operator.attrgetter('times')(os)()",
        "import time\nclass A:\n    t = time\nA.t.time()",
        "import importlib; importlib.import_module('time').time()",
        "from importlib import import_module; clock = import_module(name='time')",
        "import uuid; uuid.uuid1()",
        "import asyncio; asyncio.new_event_loop()",
        "loop.time()",
        "import os; clock = os.times",
        "from os import times",
        "path.stat().st_mtime",
        "path.stat().st_mtime_ns",
        "import os; os.path.getmtime('x')",
        "import email.utils; email.utils.formatdate()",
        "from email.utils import formatdate",
        "open('/proc/uptime')",
        "open(f'/proc/{pid}/stat')",
        "Path('/proc') / 'uptime'",
        "import subprocess; subprocess.run(['date'])",
        "import subprocess; command = ['/bin/date', '+%s']; subprocess.run(command)",
        "from subprocess import run; run('date +%s', shell=True)",
        "import os; os.popen('date')",
        "from os import system; system('uptime')",
    ],
)
def test_every_way_to_read_a_clock_is_seen(code: str) -> None:
    """Oracle: each of them says what time it is, or how long something took, when it is run."""
    assert clocks(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(1)",
        "import datetime; datetime.timedelta(seconds=1)",
        "from datetime import timedelta; timedelta(1)",
        "import uuid; uuid.uuid4()",
        "line['time'] > stage.time.wall + sum(self.times)",
        "getattr(line, 'seconds')",
        "open('/proc/meminfo')",
        "row = {'date': 1}",
        "import subprocess; subprocess.run(['sbatch', 'up to date'])",
    ],
)
def test_what_reads_no_clock_is_let_be(code: str) -> None:
    """A test that finds everything would be switched off. Oracle: none of them says what time it is."""
    assert not clocks(ast.parse(code))


def test_time_is_read_where_it_is_said() -> None:
    """Only the clock charges a budget; whoever else reads one says what for. Oracle: the table above."""
    assert {module for module, tree in TREES.items() if clocks(tree)} == set(READS_A_CLOCK)
