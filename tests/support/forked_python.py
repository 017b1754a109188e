"""`python` as a folder's own program, forked from a process that has imported torch: what that
takes is paid once.

Started as `python forked_python.py SOCKET`, this file serves the `python` that `install` writes. It
imports no code of the project: a fork finds that in the folder of its script.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

IMPORTED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "transformers.models.gpt2.modeling_gpt2",
    "tokenizers",
    "safetensors.torch",
    "pandas",
    "pydantic.dataclasses",
    "msgspec.json",
    "scipy.stats",
    "sklearn.linear_model",
    "matplotlib.pyplot",
    "seaborn",
)
CLIENT = """#!{python} -IS
import json, os, socket, sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"0"], [0, 1, 2])
    server.sendall(json.dumps([os.getcwd(), sys.argv[1:], dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(16)))
"""
LOOK = 5.0  # seconds between two looks whether anybody still wants the server
PATIENCE = 300.0  # seconds for the imports, on a busy machine


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """The address of a server, which ends with the context."""
    folder = tempfile.mkdtemp(dir="/tmp")  # the address of a socket has a hundred bytes at most
    address = f"{folder}/python"
    server = subprocess.Popen([sys.executable, __file__, address])
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
    """Write a program that runs a script as `python` does, by the server at this address."""
    file.parent.mkdir(parents=True)
    file.write_text(CLIENT.format(python=sys.executable, address=address))
    file.chmod(0o755)


def answer(address: str) -> int:
    """Fork for each call, one after the other. Returns a fork's exit status, or 0 once the parent
    is gone.
    """
    parent = os.getppid()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # else each fork's collections would copy all pages
    # one core: nothing is worth processes side by side, each of which would import torch
    cores = sorted(os.sched_getaffinity(0))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, [cores[number % len(cores)]])
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
            with connection:
                connection.setblocking(True)
                descriptors = socket.recv_fds(connection, 1, 3)[1]
                with connection.makefile("rb") as words:
                    folder, arguments, environment = json.loads(words.read())
                child = os.fork()
                if child == 0:
                    break
                for descriptor in descriptors:
                    os.close(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                connection.sendall(str(status).encode())
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    sys.stdout = os.fdopen(
        1, "w", closefd=False
    )  # what it was may be a file, and can be written at any place
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    status = run_script(Path(arguments[0]))
    # as the interpreter ends, but without seconds in which it frees all that was imported
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_script(script: Path) -> int:
    """The exit status of a script that runs as the main program."""
    sys.path[0] = str(script.resolve().parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1]))
