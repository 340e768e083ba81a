"""A browser for tests: Debian's headless Chromium, over the WebDriver protocol.

The few calls that the tests need, with the standard library alone. The browser lives as long as the block that opened it;
its driver ends with this process, however this process ends.
"""

from __future__ import annotations

import base64
import ctypes
import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers import REPOSITORY

AXE = REPOSITORY / ".axe/axe.min.js"
START_WITHIN_S = 60.0
CALL_WITHIN_S = 60.0
END_WITHIN_S = 20.0

TAB, ENTER, SPACE, SHIFT = "\ue004", "\ue007", " ", "\ue008"


class Browser:
    """One window."""

    def __init__(self, driver: str) -> None:
        self._session = driver
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        # Nothing but the page: no look for updates, no requests of its own.
        arguments += ["--disable-background-networking", "--disable-component-update", "--no-first-run"]
        options = {"args": arguments}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"{driver}/session/{session['sessionId']}"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._session + path, data=data, method=method)
        request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=CALL_WITHIN_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                said = json.load(error)["value"]
            raise RuntimeError(f"{method} {path}: {said['error']}: {said['message'].splitlines()[0]}") from None

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs the body of a function in the page."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_until_done(self, script: str, *arguments: Any) -> Any:
        """As :meth:`run`, for a script that calls its last argument with its result."""
        return self._call("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def show_as(self, *, scheme: str, width: int, height: int) -> None:
        """Light or dark, and how large the window is."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.devtools("Emulation.setEmulatedMedia", media="screen", features=features)

    def press(self, *keys: str) -> None:
        """Presses keys one after the other; ``SHIFT`` is held down for the one behind it."""
        actions: list[dict[str, str]] = []
        held = False
        for key in keys:
            actions.append({"type": "keyDown", "value": key})
            if key == SHIFT:
                held = True
                continue
            actions.append({"type": "keyUp", "value": key})
            if held:
                actions.append({"type": "keyUp", "value": SHIFT})
                held = False
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def until(self, what: str, script: str, *arguments: Any, within: float = 30.0) -> Any:
        """Runs a script until its value is true, and returns that."""
        return eventually(what, lambda: self.run(script, *arguments), within, lambda: str(self.log()))

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def log(self) -> list[str]:
        """What the page complained about since it was asked last."""
        entries = self._call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def barriers(self) -> list[str]:
        """What keeps people from using the page, by axe-core: what is serious or critical."""
        assert AXE.exists(), f"{AXE} is missing: run .ci/setup, which fetches it"
        self.run(AXE.read_text() + "\nreturn true;")
        script = """
            const done = arguments[arguments.length - 1];
            axe.run(document, { resultTypes: ["violations"] }).then(done, (error) => done({ error: String(error) }));
        """
        result = self.run_until_done(script)
        assert "error" not in result, result["error"]
        assert result["passes"], "axe-core looked at nothing"
        found = [one for one in result["violations"] if one["impact"] in ("serious", "critical")]
        nodes = [(one["id"], node["html"][:200], node["failureSummary"]) for one in found for node in one["nodes"]]
        return [f"{rule}: {html}: {why}" for rule, html, why in nodes]

    def close(self) -> None:
        self._call("DELETE", "")


def eventually(what: str, look: Callable[[], Any], within: float = 30.0, more: Callable[[], str] = str) -> Any:
    """What ``look`` returns as soon as that is true."""
    end = time.monotonic() + within
    while not (seen := look()):
        assert time.monotonic() < end, f"it did not come to pass within {within} s: {what}; {more()}"
        time.sleep(0.05)
    return seen


def _die_with_us() -> None:
    """In the child: the kernel ends it with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, with a profile of its own that vanishes."""
    program = shutil.which("chromedriver")
    assert program, "chromedriver is missing: run .ci/setup, which installs Debian's chromium-driver"
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "w") as log:
        environment = {"HOME": folder, "TMPDIR": folder, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC"}
        driver = subprocess.Popen(
            [program, "--port=0"], stdout=log, stderr=subprocess.STDOUT, env=environment, preexec_fn=_die_with_us
        )
        try:

            def port() -> str | None:
                found = re.search(r"started successfully on port (\d+)", Path(log.name).read_text())
                assert driver.poll() is None, "chromedriver has ended"
                return found and found[1]

            browser = Browser(f"http://127.0.0.1:{eventually('chromedriver listens', port, START_WITHIN_S)}")
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()
            driver.wait(END_WITHIN_S)
