"""A headless Chromium, spoken to over two pipes: the DevTools protocol, without a library.

The browser is that of `$CHROMIUM`, or the first on the PATH; tests are skipped where there is none.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--mute-audio",
    "--disable-extensions",
    "--disable-background-networking",
    "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The browser's file; None where there is none."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self.session: str | None = None
        self.errors: list[str] = []
        """What the page's scripts have thrown."""

    def call(self, method: str, *, seconds: float = 60, **params: Any) -> dict[str, Any]:
        """The result of a command. Raises RuntimeError where it is refused, TimeoutError where it takes too long."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + seconds
        while True:
            answer = self._read(end)
            if answer.get("method") == "Runtime.exceptionThrown":
                details = answer["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _read(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            found = os.read(self._in, 1 << 20)
            if not found:
                raise RuntimeError("the browser has gone")
            self._rest += found
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def open(self, file: Path, width: int = 1440, height: int = 1000, dark: bool = False) -> None:
        """Show a page of memgraph's, and wait until it is drawn."""
        self.look(width, height, dark)
        self.call("Page.navigate", url=file.resolve().as_uri())
        end = time.monotonic() + 60
        while not self.run("Boolean(window.memgraph && (memgraph.painted || memgraph.problem))"):
            assert time.monotonic() < end, "the page is not drawn"
            time.sleep(0.02)
        assert self.run("memgraph.problem || ''") == ""

    def look(self, width: int, height: int, dark: bool) -> None:
        """The size of the window, and the colour scheme that its user prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str, **more: Any) -> Any:
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True, **more
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", found))
        return found["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self, file: Path, *, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def browser(binary: str) -> Iterator[Browser]:
    """A browser with an empty page; it ends with the context."""
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()

    def place_pipes() -> None:  # the browser reads from 3 and writes to 4
        reads, writes = os.dup(their_in), os.dup(their_out)
        os.dup2(reads, 3)
        os.dup2(writes, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, preexec_fn=place_pipes, close_fds=False, env=_environment(profile), **quiet)
        os.close(their_in)
        os.close(their_out)
        try:
            page = Browser(our_out, our_in)
            targets = page.call("Target.getTargets")["targetInfos"]
            target = next(info["targetId"] for info in targets if info["type"] == "page")
            page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            page.call("Page.enable")
            page.call("Runtime.enable")
            yield page
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(our_out)
            os.close(our_in)


def _environment(home: str) -> dict[str, str]:
    return os.environ | {"HOME": home, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home}
