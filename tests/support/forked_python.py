"""A `python` program for a folder. It forks from a process that has imported torch, so that the
import is paid once.

Started as `python forked_python.py SOCKET CORE`, this file is the server of the program that
`install` writes. The server imports no code of the project: each fork imports it from the folder of
its script. Like a container's client, the program passes signals on, and its work is killed if the
program ends. If the program is suspended, its work runs on.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

FAMILIES = (
    "bert",
    "roberta",
    "roberta_prelayernorm",
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "smollm3",
    "olmo2",
    "olmo3",
    "gemma3",
    "gpt_neox",
    "modernbert",
)
IMPORTED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "tokenizers",
    "safetensors.torch",
    "pandas",
    "pydantic.dataclasses",
    "msgspec.json",
    "scipy.stats",
    "sklearn.linear_model",
    "matplotlib.pyplot",
    "seaborn",
    "fontTools.subset",
    *(f"transformers.models.{name}.modeling_{name}" for name in FAMILIES),
)
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)

with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    ignored = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    words = json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ), ignored]).encode()
    socket.send_fds(server, [len(words).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(words)
    for number in SIGNALS:
        signal.signal(number, lambda number, _: server.send(bytes([number])))
    status = int(server.recv(16))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)
"""
LOOK = 5.0  # seconds between two checks that the parent still lives
PATIENCE = 300.0  # seconds for the imports, on a busy machine


@contextlib.contextmanager
def serve(core: str = "") -> Iterator[str]:
    """Yield a server's address. The server ends with the context. Forks run on `core`, if given."""
    folder = tempfile.mkdtemp(dir="/tmp")  # the address of a socket has a hundred bytes at most
    address = f"{folder}/python"
    server = subprocess.Popen([sys.executable, __file__, address, core])
    deadline = time.monotonic() + PATIENCE
    try:
        while not Path(address).exists():
            assert server.poll() is None and time.monotonic() < deadline, "no Python to fork from"
            time.sleep(0.05)
        yield address
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder)


def install(address: str, file: Path) -> None:
    """Write a program that runs a script or module as `python` does, in a fork of this server."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(CLIENT.format(python=sys.executable, address=address))
    file.chmod(0o755)


def answer(address: str, core: str) -> int:
    """Fork for each call, until the parent is gone. Returns the exit status of this process."""
    parent = os.getppid()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # otherwise garbage collection in a fork would copy all pages
    if core:
        os.sched_setaffinity(0, [int(core)])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{address}.new")
        server.listen()
        os.rename(f"{address}.new", address)
        server.settimeout(LOOK)
        while True:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                if os.getppid() == parent:
                    continue
                return 0
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.setblocking(True)
    return run_for(connection)


def run_for(client: socket.socket) -> int:
    """Run in a fork what a client asks for, pass on its signals, and tell it the exit status.

    The fork is killed once the client is gone.
    """
    size, descriptors, _, _ = socket.recv_fds(client, 8, 3)
    words = client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    folder, arguments, environment, ignored = json.loads(words)
    child = os.fork()
    if child == 0:
        client.close()
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        become_python(folder, arguments, environment, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    ending = os.pidfd_open(child)
    while ending not in select.select([client.fileno(), ending], [], [])[0]:
        signals = client.recv(16)
        for number in signals or [signal.SIGKILL]:
            os.kill(child, number)
        if not signals:
            break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):
        client.sendall(str(status).encode())
    return 0


def become_python(
    folder: str, arguments: list[str], environment: dict[str, str], descriptors: list[int]
) -> NoReturn:
    """Run `python ARGUMENTS` in this process: a script, a module after -m, or a text after -c."""
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    # the server's own output may be a seekable file, and the new one a pipe, or the reverse
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1)
    if "-u" in arguments[:1]:
        sys.stdout.reconfigure(write_through=True)
        arguments = arguments[1:]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = [entry for entry in environment.get("PYTHONPATH", "").split(":") if entry]
    run: Callable[..., Any]
    if arguments[0] == "-m":
        arguments = arguments[1:]
        sys.path[0] = folder
        run = functools.partial(runpy.run_module, arguments[0], alter_sys=True)
    elif arguments[0] == "-c":
        text = arguments[1]
        arguments = ["-c", *arguments[2:]]
        sys.path[0] = ""
        run = functools.partial(run_text, text)
    else:
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        run = functools.partial(runpy.run_path, arguments[0])
    sys.argv = arguments
    status = run_main(run)
    # end as the interpreter does, but do not free all imported modules, which takes seconds
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_text(text: str, run_name: str) -> None:
    """Run the program text of `python -c`."""
    exec(text, {"__name__": run_name})


def run_main(run: Callable[..., Any]) -> int:
    """Call `run` as the main program and return its exit status."""
    try:
        run(run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(answer(*sys.argv[1:]))
