"""Headless Chromium, driven by chromedriver over plain HTTP."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, final

from tests.limits import HANG

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # A mouse, as a laptop has: the theme makes code that scrolls focusable only where one can hover.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
)


def installed() -> bool:
    """Whether Chromium and its driver are there (Debian: `chromium` and `chromium-driver`)."""
    return all(shutil.which(name) for name in ("chromium", "chromedriver"))


@final
class Browser:
    """One tab of a headless Chromium.

    Args:
        profile: An empty folder for what Chromium writes.
    """

    def __init__(self, profile: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={port}", "--silent"],
            env={**os.environ, "HOME": str(profile)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait_for_driver()
            options = {"args": [*_FLAGS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
            capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            capabilities["timeouts"] = {"script": int(HANG * 1000)}
            session = self._request("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        except BaseException:
            self._driver.kill()
            self._driver.wait()
            raise
        self._url += f"/session/{session['sessionId']}"

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._request("DELETE", "", None)
        finally:
            self._driver.terminate()
            self._driver.wait(HANG)

    def resize(self, width: int, height: int = 900) -> None:
        """Sets the size of the page in CSS pixels; a window of Chromium can't be as narrow as a phone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Sets the preferred colour scheme, "light" or "dark"."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._devtools("Emulation.setEmulatedMedia", {"features": [feature]})

    def open(self, url: str) -> None:
        """Opens a page and waits until it is loaded."""
        self._request("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        """Returns what the body of a JavaScript function returns, or what the promise that it returns becomes."""
        return self._request("POST", "/execute/sync", {"script": script, "args": []})

    def messages(self) -> list[str]:
        """Warnings and errors of the console since the last call."""
        entries = self._request("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def _devtools(self, command: str, arguments: dict[str, Any]) -> None:
        self._request("POST", "/goog/cdp/execute", {"cmd": command, "params": arguments})

    def _wait_for_driver(self) -> None:
        deadline = time.monotonic() + HANG
        while True:
            try:
                if self._request("GET", "/status", None)["ready"]:
                    return
            except OSError:
                if time.monotonic() > deadline or self._driver.poll() is not None:
                    raise
                time.sleep(0.05)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=HANG) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None
