"""No word of a live request gets out: canaries in requests of each source are in no file, message or metric.

The requests are good and broken ones. What is on the disk is searched before the window is sealed and after it.
KVTRACE_CANARY_ROWS sets the number of requests; `make fuzz-short` asks for 100,000.
"""

import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import kvtrace
from tests.attacks.canary import CANARY, WORDS, require_none
from tests.capture.windows import sealed, waited
from tests.ingest.test_canary import TINY, extras, messages

pytestmark = [pytest.mark.enable_socket, pytest.mark.allow_hosts(["127.0.0.1"])]

REQUESTS = int(os.environ.get("KVTRACE_CANARY_ROWS", 4000))
BATCH = 100  # requests of an export, and of a post of LiteLLM
NOW_NS = time.time_ns()
PROTOBUF, JSON = "application/x-protobuf", "application/json"


class Service:
    """A running `kvtrace record`, whose home and temporary files are in a folder of the test."""

    def __init__(self, folder, *arguments):
        self.folder = folder
        for name in ("home", "tmp"):
            (folder / name).mkdir()
        environment = {**os.environ, "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "KVTRACE_DEBUG": "1"}
        self.errors = (folder / "stderr").open("w+")
        command = [sys.executable, "-m", "kvtrace", "record", "-o", str(folder / "recorded"), *arguments]
        self.process = subprocess.Popen(command, stdout=self.errors, stderr=self.errors, env=environment, text=True)
        waited(lambda: "recording" in self.said() or self.process.poll() is not None, 60)
        self.urls = dict(re.findall(r"^(\w+) +http://(\S+)$", self.said(), re.M))

    def said(self):
        return Path(self.errors.name).read_text()

    def post(self, server, path, body, kind=JSON):
        """The status of a POST, and the text of its answer."""
        request = urllib.request.Request(
            f"http://{self.urls[server]}{path}", data=body, headers={"Content-Type": kind, "X-Name": CANARY}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode("latin-1")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode("latin-1") + str(error.headers)

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.urls['metrics']}/metrics", timeout=30) as answer:
            return answer.read().decode()

    def count(self, name):
        """The sum of a metric over its labels."""
        return sum(float(value) for value in re.findall(rf"^{name}_total(?:{{.*}})? (\S+)$", self.metrics(), re.M))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0
        self.errors.close()


def spans(draw, count):
    """An OTLP export in JSON, with calls of models."""
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span(draw, i) for i in range(count)]}]}]}


def span(draw, number):
    texts = ("gen_ai.input.messages", "gen_ai.prompt", "gen_ai.conversation.id", "user.id", CANARY)
    attributes = {name: {"stringValue": json.dumps(messages(draw))} for name in texts}
    attributes["gen_ai.operation.name"] = {"stringValue": "chat"}
    attributes["gen_ai.usage.output_tokens"] = {"intValue": draw.choice(["3", CANARY])}
    start_ns = draw.choice([1, NOW_NS, NOW_NS]) + number
    return {
        "name": CANARY, "startTimeUnixNano": str(start_ns), "traceId": f"{CANARY}{draw.random()}", "spanId": "a",
        "attributes": [{"key": name, "value": value} for name, value in attributes.items()],
        **draw.choice([{}, {}, {"status": {"code": 2, "message": CANARY}}, {"events": [CANARY]}]),
    }  # fmt: skip


def calls(draw, count):
    """A post of LiteLLM."""
    return [call(draw, draw.choice([5.5, NOW_NS / 1e9, NOW_NS / 1e9]) + i) for i in range(count)]


def call(draw, start_s):
    return {
        "id": f"{draw.random()}", "call_type": draw.choice(["acompletion", CANARY]), "startTime": start_s,
        "messages": messages(draw), "completion_tokens": draw.choice([3, CANARY]), "model": CANARY,
        "metadata": {"user_api_key_hash": CANARY, CANARY: CANARY}, "response": {"choices": [{"message": CANARY}]},
    }  # fmt: skip


def broken(draw, body):
    """A body that is cut, or not JSON at all, now and then."""
    kind = draw.randrange(8)
    return body[: len(body) // 2] if kind == 0 else CANARY.encode() * 9 if kind == 1 else body


def test_canaries_in_live_requests_are_in_nothing_that_the_service_leaves(upstream, tmp_path):
    draw, log, answers = random.Random(5), tmp_path / "app.jsonl", []
    service = Service(
        tmp_path, "--otlp", "0", "--proxy", "0", "--upstream", upstream, "--follow", str(log), "--metrics", "0",
        "--tokenizer", str(TINY), "--block-size", "4", "--profile", "exact", "--allow-truncated",
        "--session-header", "x-session",
    )  # fmt: skip
    try:
        with log.open("w") as file:
            file.write('{"timestamp": 1795000000, "input": "Hello", "output": 3}\n')
            for i in range(REQUESTS // 4):
                row = {"timestamp": NOW_NS // 10**9 + i, "input": messages(draw), "output": CANARY, **extras(draw)}
                file.write(broken(draw, json.dumps(row).encode()).decode() + "\n")
        for _ in range(REQUESTS // 4 // BATCH):
            answers.append(service.post("otlp", "/v1/traces", broken(draw, json.dumps(spans(draw, BATCH)).encode())))
            answers.append(service.post("otlp", "/litellm", broken(draw, json.dumps(calls(draw, BATCH)).encode())))
            answers.append(service.post("otlp", "/v1/traces", CANARY.encode() * 50, PROTOBUF))
            answers.append(service.post("otlp", f"/v1/traces?{CANARY}={CANARY}", CANARY.encode(), CANARY))
            answers.append(service.post("otlp", f"/{CANARY}", CANARY.encode()))
        passing = http.client.HTTPConnection(service.urls["proxy"], timeout=30)
        for i in range(REQUESTS // 40):
            request = {"model": CANARY, "messages": messages(draw), "stream": i % 2 == 0, "stub": {}}
            path = draw.choice(["/v1/chat/completions", "/v1/messages", "/v1/responses"])
            passing.request(
                "POST", path, broken(draw, json.dumps(request).encode()), {"Authorization": CANARY, "X-Session": CANARY}
            )
            passing.getresponse().read()
        passing.close()
        waited(lambda: settled(service), 600)
        assert {status for status, _ in answers} == {200, 400, 404, 415}
        assert service.count("kvtrace_digested_requests") > REQUESTS // 8
        assert service.count("kvtrace_rejected_requests") > REQUESTS // 40
        for status, text in answers:
            require_none(text, where=f"an answer {status}")
        require_none(service.metrics(), where="the metrics")
        require_nothing_left(tmp_path, log)
        for number in (service.process.pid, *children(service.process.pid)):
            assert re.search(r"Max core file size +0 +0 ", Path(f"/proc/{number}/limits").read_text())
            require_none(Path(f"/proc/{number}/cmdline").read_bytes().decode("latin-1"), where="a command line")
    finally:
        service.stop()
    require_nothing_left(tmp_path, log)
    (window,) = sealed(tmp_path / "recorded")
    assert len(kvtrace.read(window)) > REQUESTS // 8
    require_none(str(kvtrace.read(window).extra) + str(kvtrace.read(window).meta), where="the trace")


def settled(service):
    """Whether all that was received has been digested."""
    text = service.metrics()
    waiting = re.findall(r"^kvtrace_queue_(?!limit)\w+ (\S+)$", text, re.M)
    before = (service.count("kvtrace_digested_requests"), service.count("kvtrace_rejected_requests"))
    if not waiting or any(float(value) for value in waiting):
        return False
    time.sleep(2)
    return before == (service.count("kvtrace_digested_requests"), service.count("kvtrace_rejected_requests"))


def children(number):
    found = subprocess.run(["pgrep", "-P", str(number)], capture_output=True, text=True)
    return [int(child) for child in found.stdout.split()]


def require_nothing_left(folder, log):
    """The canary is in no file but the log itself."""
    files = [path for path in folder.rglob("*") if path.is_file() and path != log]
    assert len(files) >= 3
    for path in files:
        require_none(path.read_bytes().decode("latin-1"), where=path.name, forms=WORDS)
        require_none(str(path.relative_to(folder)), where="a name")
