"""A headless Chromium, driven by its DevTools protocol through the websocket client of tornado.

Opens a page, reads values from it, collects what its console complains of, and takes pictures. It
knows nothing of dps. Chromium is the Debian package `chromium`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tornado.websocket import WebSocketClientConnection, websocket_connect

__all__ = ["CHROMIUM", "Browser"]

#: Where Chromium is; None where it is not installed.
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-dev-shm-usage", "--remote-debugging-port=0", "about:blank",
)  # fmt: skip
#: Seconds that Chromium may take to start, and to answer.
_PATIENCE = 60.0


class Browser:
    """One tab of a Chromium of its own.

    Attributes
    ----------
    complaints : list of str
        Errors and warnings of the console, exceptions, and requests that failed.
    """

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self.complaints: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [CHROMIUM, f"--user-data-dir={self._folder.name}", *_OPTIONS],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._loop = asyncio.new_event_loop()
        self._calls = 0
        self._socket: WebSocketClientConnection | None = None

    def __enter__(self) -> Self:
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> None:
        port = Path(self._folder.name, "DevToolsActivePort")
        wait(lambda: port.exists() and len(port.read_text().splitlines()) == 2, "Chromium starts")
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port.read_text().split()[0]}/json/list"
        ) as answer:
            (page,) = [tab for tab in json.load(answer) if tab["type"] == "page"]
        self._socket = self._loop.run_until_complete(_socket(page["webSocketDebuggerUrl"]))
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result."""
        return self._loop.run_until_complete(
            asyncio.wait_for(self._call(method, parameters), _PATIENCE)
        )

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        assert self._socket is not None
        self._calls += 1
        number = self._calls
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.write_message(json.dumps(message))
        while True:
            answer = await self._socket.read_message()
            if answer is None:
                raise RuntimeError("Chromium has ended")
            said = json.loads(answer)
            if said.get("id") == number:
                if "error" in said:
                    raise RuntimeError(f"{method}: {said['error']['message']}")
                return dict(said["result"])
            self._listen(said)

    def _listen(self, said: dict[str, Any]) -> None:
        method, values = said.get("method"), said.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = values["exceptionDetails"]
            thrown = details.get("exception", {}).get("description", "")
            self.complaints.append(f"{details['text']} {thrown}")
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning"):
            self.complaints.append(
                " ".join(str(part.get("value", part)) for part in values["args"])
            )
        elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            entry = values["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}")

    def open(
        self, address: str, *, width: int = 1400, height: int = 1000, dark: bool = False
    ) -> None:
        """Open a page in a window of a size, by a reader who prefers light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        preference = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[preference])
        self.call("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """The value of an expression in the page, as JSON has it."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return None if "exceptionDetails" in found else found["result"].get("value")

    def wait(self, expression: str, what: str) -> Any:
        """Wait until an expression is true in the page; its value."""
        return wait(lambda: self.value(expression), what)

    def picture(self, path: str | Path, *, whole: bool = False) -> None:
        """Take a picture of what is seen, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End Chromium, and what is left of it."""
        try:
            if self._socket is not None:
                self._loop.run_until_complete(_end(self._socket))
        finally:
            self._loop.close()
            self._process.terminate()
            self._process.wait()
            self._folder.cleanup()


async def _socket(address: str) -> WebSocketClientConnection:
    return await websocket_connect(address, max_message_size=1 << 28)


async def _end(socket: WebSocketClientConnection) -> None:
    socket.close()
    while await socket.read_message() is not None:  # until the other side has closed it, too
        continue


def wait(condition: Callable[[], Any], what: str, seconds: float = _PATIENCE) -> Any:
    """Wait on a condition; what it became."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s in vain: {what}")
        time.sleep(0.05)
    return found
