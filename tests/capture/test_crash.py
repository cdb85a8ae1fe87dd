"""A recorder killed at any moment: what it had digested is sealed, audited and whole, and the rest is counted.

KVTRACE_KILL_POINTS sets how often a recorder is killed; `make fuzz` kills 200.
"""

import contextlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import msgspec
import orjson
import pytest

import kvtrace
from kvtrace.capture.intake import Ledger
from kvtrace.capture.windows import STATE, open_windows, read_window
from kvtrace.privacy.publishing import publish
from tests.capture.publishing import Publisher
from tests.capture.recording import CANARY, OPTIONS, row
from tests.capture.windows import sealed, waited
from tests.conftest import drawn
from tests.docs import ROOT

KILLS = int(os.environ.get("KVTRACE_KILL_POINTS", drawn(4)))
KILLED_TIMES = 2  # of one recording


def started(folder, *, count=100_000, rate=2000, window_s=1.0, key_file=None, first=0):
    """A running recorder, once it takes requests."""
    arguments = [folder, count, rate, window_s, key_file or "", first]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.capture.recording", *map(str, arguments)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    said = []
    for line in process.stdout:
        if line == "ready\n":
            return process, said
        said.append(line)
    raise AssertionError(process.stderr.read())


def digesters_of(process):
    """The processes that a recorder started."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return [int(number) for number in found.stdout.split()]


def requests_of(folder):
    """The requests of all sealed windows, each of which is a valid, audited trace."""
    total = 0
    for path in sealed(folder):
        trace = kvtrace.read(path)
        assert kvtrace.formats.check(path) == []
        assert kvtrace.privacy.audit(path).passed
        assert path.with_name(path.name + ".card.md").exists()
        total += len(trace)
    return total


def lost_in(told):
    """The lost requests of all windows, which a recorder tells at its start, or when the window is sealed."""
    window = r"^(window-\S+: |the recorder stopped before a window began; )"
    found = re.findall(window + r".*?([\d,]+)(?: requests?)? (?:was |were )?lost", told, re.M)
    return sum({name: int(number.replace(",", "")) for name, number in found}.values())


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_recorder_loses_what_was_not_digested_and_says_how_much(seed, tmp_path):
    rng = random.Random(seed)
    folder = tmp_path / "recorded"
    key_file = tmp_path / "key" if seed % 3 == 0 else None
    process, _ = started(folder, key_file=key_file)
    time.sleep(rng.uniform(0, 3))
    victims = digesters_of(process)
    if seed % 2:  # all at once, as a machine that fails
        for number in victims:
            os.kill(number, signal.SIGKILL)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done, said = started(folder, count=10, rate=1000, window_s=3600, key_file=key_file)
    rest, errors = done.communicate(timeout=120)
    assert not errors
    told = "".join(said) + rest
    assert requests_of(folder) + lost_in(told) == Ledger(folder / STATE / "counts").accepted, told
    assert sorted(path.name for path in (folder / STATE).iterdir()) == ["counts", "lock"], told
    assert not [path for path in folder.iterdir() if path.name.endswith((".part", ".lock"))]
    for path in folder.rglob("*"):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes()


@pytest.mark.parametrize("has_key", [True, False])
def test_with_its_key_a_recorder_goes_on_with_the_window_and_without_it_says_what_is_lost(has_key, tmp_path):
    folder, year = tmp_path / "recorded", {"window_s": 366 * 86400}
    key_file = tmp_path / "key" if has_key else None
    process, _ = started(folder, rate=1000, key_file=key_file, **year)
    waited(lambda: any((window := read_window(path)) and window.covered > 200 for path in open_windows(folder)))
    (digester,) = digesters_of(process)
    for number in (process.pid, digester):
        os.kill(number, signal.SIGKILL)
    process.communicate()
    (open_window,) = open_windows(folder)
    waited(lambda: not os.path.exists(f"/proc/{digester}"))
    kept = read_window(open_window).covered
    lost = Ledger(folder / STATE / "counts").accepted - kept
    done, said = started(folder, count=50, rate=1000, first=100_000, key_file=key_file, **year)
    rest, errors = done.communicate(timeout=120)
    assert not errors and rest.endswith("done\n")
    number = "no request was" if not lost else "1 request was" if lost == 1 else f"{lost:,} requests were"
    sentence = f"{open_window.stem}: the recorder stopped before the window ended; {number} lost."
    assert said == [f"{sentence} It goes on.\n" if has_key else f"{sentence}\n"]
    before, after = map(row, range(kept)), map(row, range(100_000, 100_050))
    logs = [[*before, *after]] if has_key else [[*before], [*after]]
    windows = sealed(folder)
    assert len(windows) == len(logs)
    for i, (window, log) in enumerate(zip(windows, logs, strict=True)):  # as if it had never been interrupted
        (tmp_path / "log.jsonl").write_text("\n".join(log))
        publish(
            kvtrace.ingest.anonymize(tmp_path / "log.jsonl", log_format="auto", **OPTIONS), tmp_path / f"whole{i}.jsonl"
        )
        assert window.read_bytes() == (tmp_path / f"whole{i}.jsonl").read_bytes()
        assert kvtrace.privacy.audit(window).passed


FOLLOWED, EXPORTED = 1_000_000, 2_000_000  # outputs of requests of two sources, each another one
KV_EVENTS = [orjson.loads(line) for line in (ROOT / "tests/data/logs/kv_events.jsonl").read_bytes().splitlines()]
KV_EVENTS = [msgspec.msgpack.encode(batch) for batch in KV_EVENTS]


class Service:
    """`kvtrace record` with all sources of requests, or with KV events, and the clients that feed it."""

    def __init__(self, folder, upstream, publisher, *options):
        self.log, self.said, self.urls = folder / "app.jsonl", [], {}
        self.acknowledged = self.followed = self.exported = 0  # requests over all runs
        requests = ["--follow", str(self.log), "--from-start", "--otlp", "0", "--proxy", "0", "--upstream", upstream]
        sources = ["--kv-events", publisher.endpoint] if publisher else requests
        self._command = [
            sys.executable, "-m", "kvtrace", "record", "-o", str(folder / "recorded"), *sources,
            "--tokenizer", OPTIONS["tokenizer"], "--block-size", "16", "--window", "1s", *options,
        ]  # fmt: skip
        self._publisher, self._feeding = publisher, threading.Event()

    def start(self):
        self.urls.clear()
        self.runs = False
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        clients = (self._write, self._export, self._ask) if self._publisher is None else (self._publish,)
        self._threads = [threading.Thread(target=work) for work in (self._listen, *clients)]
        self._feeding.set()
        for thread in self._threads:
            thread.start()

    def end(self, number):
        """End the recorder with a signal, and the clients; returns its exit status."""
        if number == signal.SIGTERM:
            self._feeding.clear()
            time.sleep(0.5)
        self.process.send_signal(number)
        status = self.process.wait(120)
        self._feeding.clear()
        for thread in self._threads:
            thread.join()
        self.process.stderr.close()
        return status

    def _listen(self):
        for line in self.process.stderr:
            self.said.append(line)
            self.runs = self.runs or line.startswith("recording ")
            if name := re.match(r"(\w+) +http://(\S+)", line):
                self.urls[name[1]] = name[2]

    def _write(self):
        """Append lines to the followed log."""
        with self.log.open("a") as log:
            while self._feeding.is_set():
                for _ in range(20):
                    output = FOLLOWED + self.followed
                    log.write(row(self.followed).replace('"output": 3', f'"output": {output}') + "\n")
                    self.followed += 1
                log.flush()
                time.sleep(0.02)

    def _publish(self):
        while self._feeding.is_set():
            self._publisher.send(KV_EVENTS[self._publisher.next % len(KV_EVENTS)])
            time.sleep(0.005)

    def _export(self):
        while self._feeding.is_set():
            spans = []
            for _ in range(5):
                self.exported += 1
                texts = {"gen_ai.operation.name": "chat", "gen_ai.prompt": f"{CANARY} {self.exported % 7} and more"}
                values = [{"key": name, "value": {"stringValue": text}} for name, text in texts.items()]
                output = {"intValue": str(EXPORTED + self.exported)}
                values.append({"key": "gen_ai.usage.output_tokens", "value": output})
                spans.append({"traceId": f"{self.exported:032x}", "spanId": f"{self.exported:016x}",
                              "startTimeUnixNano": str(time.time_ns()), "attributes": values})  # fmt: skip
            self._post("otlp", "/v1/traces", {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}, 5)

    def _ask(self):
        number = 0
        while self._feeding.is_set():
            number += 1
            messages = [{"role": "user", "content": f"{CANARY} {number % 7} and more"}]
            self._post("proxy", "/v1/chat/completions", {"model": "stub-1", "messages": messages, "stub": {}}, 0)

    def _post(self, server, path, body, requests):
        time.sleep(0.02)
        if server not in self.urls:
            return
        request = urllib.request.Request(
            f"http://{self.urls[server]}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with contextlib.suppress(OSError, http.client.HTTPException):
            with urllib.request.urlopen(request, timeout=10) as answer:
                answer.read()
            self.acknowledged += requests


def descendants(number):
    """The processes below a process."""
    found = subprocess.run(["pgrep", "-P", str(number)], capture_output=True, text=True)
    below = [int(child) for child in found.stdout.split()]
    return below + [deeper for child in below for deeper in descendants(child)]


@pytest.mark.enable_socket
@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.parametrize("seed", range(-(-KILLS // KILLED_TIMES)))
def test_a_killed_command_loses_no_window_and_counts_no_request_twice(seed, upstream, tmp_path):
    rng, folder = random.Random(seed), tmp_path / "recorded"
    options = ["--profile", "exact" if seed % 3 else "standard"]
    options += ["--key-file", str(tmp_path / "key")] if seed % 2 else []
    options += ["--link-windows"] if seed % 4 == 3 else []
    with tempfile.TemporaryDirectory(prefix="kv") as short, contextlib.ExitStack() as stack:
        publisher = stack.enter_context(Publisher(short)) if seed % 5 == 4 else None
        service = Service(tmp_path, upstream, publisher, *options)
        for _ in range(KILLED_TIMES):
            service.start()
            time.sleep(rng.uniform(0.2, 4.5))
            order = rng.choice(["recorder", "recorder first", "recorder last"])
            victims = [] if order == "recorder" else [n for n in descendants(service.process.pid) if rng.random() < 0.8]
            if order == "recorder last":
                end_at_once(victims)
                time.sleep(rng.choice([0, rng.uniform(0, 1)]))
            service.end(signal.SIGKILL)
            end_at_once(victims)
        service.start()
        waited(lambda: service.runs or service.process.poll() is not None)
        time.sleep(rng.uniform(0, 1.5))
        status = service.end(signal.SIGTERM)
    told, ledger = "".join(service.said), Ledger(folder / STATE / "counts")
    assert status == 0 and not re.search("Traceback|internal error", told), told
    assert ledger.dropped == ledger.refused == 0 and (requests_of(folder) or not ledger.accepted), told
    state = {"counts", "lock", *(["links"] if "--link-windows" in options else [])}
    assert {path.name for path in (folder / STATE).iterdir()} == state, told
    assert not [path for path in folder.iterdir() if path.name.endswith((".part", ".lock"))]
    for path in folder.rglob("*"):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes()
    outputs = [output for path in sealed(folder) for output in kvtrace.read(path).output_length.tolist()]
    least, most = lost_requests(folder, service.said)
    if publisher is None:
        assert ledger.position(str(service.log)).offset == service.log.stat().st_size
        assert service.followed + service.acknowledged <= ledger.accepted
        assert least <= ledger.accepted - len(outputs) <= most, (ledger.accepted, len(outputs), least, most, told)
        numbered = [output for output in outputs if output >= FOLLOWED]
        assert "standard" in options or len(numbered) == len({*numbered}), told  # `standard` rounds outputs
    if "--link-windows" in options:
        assert len(kvtrace.privacy.join_windows(sealed(folder))) == len(outputs)


def end_at_once(processes):
    for number in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def lost_requests(folder, lines):
    """The fewest and the most requests that were lost, as the recorders said, and the sidecars of windows say."""
    said, between = {}, []
    for line in lines:
        if found := re.match(r"(window-\S+): .*?([\d,]+|no)(?: requests?)? (?:was |were )?lost", line):
            said[found[1]] = int(found[2].replace(",", "").replace("no", "0"))
        elif found := re.match(r"the recorder stopped before a window began; ([\d,]+|no)", line):
            between.append(int(found[1].replace(",", "").replace("no", "0")))
    least = sum(said.values()) + sum(between)
    most = least
    for path in sealed(folder):
        name, stated = path.name.partition(".")[0], kvtrace.read(path).meta["recording"]["lost"]
        if name not in said:  # the recorder was killed before it said so; rounded up to two digits
            least, most = least + stated * 10 // 11, most + stated
    return least, most
