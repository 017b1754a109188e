"""A real browser that a test drives: Chromium over its own protocol on a pipe, so no package is needed for it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
PATIENCE = 120.0  # seconds for an answer, on a machine that is busy


class Browser:
    """One page in a headless browser, whose profile is below `folder`; a context that ends it."""

    def __init__(self, program: str, folder: Path) -> None:
        (to_read, self._to), (self._from, to_write) = os.pipe(), os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
        command = [program, *options, "--remote-debugging-pipe", "about:blank"]
        shell = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", *command]
        self._process = subprocess.Popen(shell, pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._count, self._session = b"", 0, ""
        self.said: list[str] = []  # on the console, and what was thrown
        self.asked: list[str] = []  # addresses that the page asked for
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, one: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def open(self, path: Path, width: int = 1280, *, scripts: bool = True, **media: str) -> None:
        """Show a file in a window of this width, under media features like `prefers_color_scheme="dark"`.

        `scripts`: whether those of the page may run; ours do in any case.
        """
        self._call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.said, self.asked = [], []
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self._call("Emulation.setEmulatedMedia", media="", features=features)
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        self._call("Page.navigate", url=path.as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def print_media(self) -> None:
        """Lay the page out as it is printed."""
        self._call("Emulation.setEmulatedMedia", media="print", features=[])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true, ten seconds at most."""
        for _ in range(200):  # not in the page: without scripts it has no timers
            if self.run(f"Boolean({condition})"):
                return
            time.sleep(0.05)
        raise AssertionError(f"never: {condition}")

    def press(self, key: str, times: int = 1) -> None:
        """Press a key of the keyboard."""
        code = {"key": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") else {}
        for _ in range(times):
            self._call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", **code)

    def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def _attach(self) -> None:
        page = next(one for one in self._call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **parameters: Any) -> Any:
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._count, "method": method, "params": parameters, **session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                self.said.append(json.dumps(answer["params"]))
            if answer.get("method") == "Network.requestWillBeSent":
                self.asked.append(answer["params"]["request"]["url"])

    def _read(self) -> Any:
        while b"\0" not in self._buffer:
            answers, _, _ = select.select([self._from], [], [], PATIENCE)
            assert answers, f"the browser said nothing for {PATIENCE:.0f} s"
            found = os.read(self._from, 1 << 16)
            assert found, "the browser ended"
            self._buffer += found
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
