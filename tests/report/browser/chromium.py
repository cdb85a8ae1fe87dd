"""A headless Chromium that is spoken to over a pipe (its DevTools protocol): no port, no driver, no other package."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from contextlib import contextmanager

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE_S = 60


def executable():
    """Where a Chromium is, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def tab(folder, width=1320, height=1000):
    """An empty tab of a browser of its own, whose profile lives in the folder."""
    (their_in, ours_out), (ours_in, their_out) = os.pipe(), os.pipe()
    # Chromium reads descriptor 3 and writes to 4; away with whatever stands there
    theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (their_in, their_out)]

    def place():
        os.dup2(theirs[0], 3)
        os.dup2(theirs[1], 4)

    process = subprocess.Popen(
        [executable(), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        preexec_fn=place, pass_fds=(3, 4, *theirs), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for fd in (their_in, their_out, *theirs):
        os.close(fd)
    try:
        yield Tab(ours_out, ours_in, width, height)
    finally:
        process.kill()
        process.wait()
        os.close(ours_out)
        os.close(ours_in)


class Tab:
    """One page: what it is told, and what it says."""

    def __init__(self, out, into, width, height):
        self._out, self._into, self._rest, self._number, self._session = out, into, b"", 0, None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def open(self, path):
        """Load a file and wait until it is drawn."""
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._read()
        self.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 300)))")

    def evaluate(self, expression):
        """The value of some JavaScript."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def resize(self, width, height):
        """Give the window a size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme):
        """Be the browser of somebody who likes pages light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self):
        """What is to be seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def complaints(self):
        """Errors and warnings on the console, and exceptions."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [event for event in self.events if event["method"] in kinds]

    def requests(self):
        """Addresses that the page asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def call(self, method, **params):
        """The result of a DevTools command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _read(self):
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            assert select.select([self._into], [], [], max(0, deadline - time.monotonic()))[0], "Chromium is silent"
            more = os.read(self._into, 1 << 20)
            assert more, "Chromium went away"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        found = json.loads(message)
        if "method" in found:
            self.events.append(found)
        return found
