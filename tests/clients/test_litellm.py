"""LiteLLM itself calls a stand-in for a model: what our callback and our receiver get is what LiteLLM logs.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), among them `litellm`:
`pip install 'litellm[proxy]' msgspec`, and what kvtrace needs (`python tools/requirements.py run`).
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

import kvtrace
from kvtrace.capture.sources.otlp import otlp_app
from kvtrace.ingest.logs import open_reader
from tests import docs
from tests.capture.asgi import Queue
from tests.capture.servers import serving
from tests.clients.test_load import ENVIRONMENTS, TOKENIZER
from tests.conftest import ROOT

PYTHON = ENVIRONMENTS / "litellm/bin/python"
pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="no environment litellm in KVTRACE_CLIENTS"),
    pytest.mark.enable_socket,
]


@pytest.fixture
def model(tmp_path):
    """The address of a stand-in for a model."""
    script = [sys.executable, ROOT / "tests/clients/model_server.py", TOKENIZER, tmp_path / "model.log"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as server:
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        server.terminate()


@pytest.fixture
def receiver():
    """The address of our receiver, and its queue."""
    queue = Queue()
    with serving(otlp_app(queue)) as address:
        yield address, queue


def environment(**more):
    plain = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return plain | {"PYTHONPATH": f"{ROOT / 'src'}", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"} | more


def calls(*arguments):
    done = subprocess.run(
        [PYTHON, ROOT / "tests/clients/litellm_calls.py", *arguments], capture_output=True, text=True,
        env=environment(), timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])["calls"]


def records_of(lines):
    lines = [line for line in lines if line]
    reader = open_reader("litellm", lines, time_unit="s")
    return sorted((reader.read(line) for line in lines), key=lambda record: record.time)


def test_the_callback_gets_what_litellm_logs(model, tmp_path):
    assert calls(model, "", tmp_path) == 13
    ours, theirs = ((tmp_path / name).read_bytes().split(b"\n") for name in ("callback.jsonl", "own.jsonl"))
    records = records_of(ours)
    assert len(records) == 13 and records == records_of(theirs)
    assert {record.messages[1]["content"] for record in records} == {f"Is oven {n} on? ü" for n in {*range(14)} - {11}}
    assert {record.output_length for record in records} == {3} and all(record.prompt_tokens for record in records)
    assert any(record.tools for record in records)
    assert not any(b"sk-secret" in line for line in ours)


@pytest.mark.parametrize("log_format", ["json_array", "ndjson"])
def test_the_receiver_gets_what_litellm_logs(model, receiver, tmp_path, log_format):
    address, queue = receiver
    assert calls(model, f"{address}/litellm", tmp_path, log_format) == 11
    posted = [line for _, payload, _ in queue.items for line in payload.split(b"\n")]
    succeeded = [line for line in posted if json.loads(line)["status"] != "failure"]  # it posts failed calls, too
    assert len(posted) == 12
    records = records_of(succeeded)
    assert records == records_of((tmp_path / "own.jsonl").read_bytes().split(b"\n"))
    assert records == records_of((tmp_path / "callback.jsonl").read_bytes().split(b"\n"))


PAGE = docs.ROOT / "docs/capture/record.md"
PYTHON_CODE, PROXY_CODE = (code for _, code in docs.blocks(PAGE, "py") if "LiteLLMCallback" in code)
((_, CONFIG),) = docs.blocks(PAGE, "yaml")
UPSTREAM = "http://127.0.0.1:8000/v1"


def test_the_pages_example_seals_a_window(model, tmp_path):
    code = PYTHON_CODE.replace(UPSTREAM, model)
    assert code != PYTHON_CODE
    done = subprocess.run([PYTHON, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (trace,) = [path for path in (tmp_path / "recordings").glob("*.jsonl")]
    assert len(kvtrace.read(trace)) == 1


def test_the_proxy_records_by_the_pages_configuration(model, receiver, tmp_path):
    """With the callback and `generic_api` side by side."""
    (address, queue), key = receiver, f"sk-{secrets.token_hex(24)}"
    config = CONFIG.replace(UPSTREAM, model).replace('recorder"]', 'recorder", "generic_api"]')
    (tmp_path / "config.yaml").write_text(config + f'general_settings: {{master_key: "{key}"}}\n')
    code = PROXY_CODE.replace('("recordings")', '("recordings", window_s=5.0, profile="exact")')
    assert model in config and "generic_api" in config and "exact" in code
    (tmp_path / "kvtrace_callback.py").write_text(code)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = PYTHON.with_name("litellm")
    proxy = subprocess.Popen(
        [script, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)], cwd=tmp_path,
        env=environment(GENERIC_LOGGER_ENDPOINT=f"{address}/litellm"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        for number in range(4):
            body = {"model": "oven", "messages": [{"role": "user", "content": f"Is oven {number} on?"}],
                    "max_tokens": 2, "stream": number % 2 == 1}  # fmt: skip
            answered(f"http://127.0.0.1:{port}/v1/chat/completions", body, key, proxy)
        deadline = time.monotonic() + 60
        while (recorded(tmp_path) < 4 or not queue.items) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        proxy.terminate()
        proxy.communicate(timeout=20)
    lines = [line for _, payload, _ in queue.items for line in payload.split(b"\n")]
    records = records_of(lines)
    assert [record.messages[0]["content"] for record in records] == [f"Is oven {n} on?" for n in range(4)]
    assert {record.output_length for record in records} == {2} and all(record.account for record in records)
    assert not any(key.encode() in line for line in lines)
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join(lines) + b"\n")
    whole = kvtrace.ingest.anonymize(log, profile="exact", time_unit="s")
    windows = [kvtrace.read(path) for path in sorted((tmp_path / "recordings").glob("*.jsonl"))]
    assert recorded(tmp_path) == len(whole) == 4
    assert [length for trace in windows for length in trace.input_length] == whole.input_length.tolist()
    assert [length for trace in windows for length in trace.output_length] == whole.output_length.tolist()


def recorded(folder):
    """The requests of all sealed windows."""
    return sum(path.read_bytes().count(b"\n") for path in (folder / "recordings").glob("*.jsonl"))


def answered(url, body, key, process):
    """The answer to a POST; the server may still start."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    for _ in range(600):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.read()
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert process.poll() is None, process.stdout.read()[-2000:]
            time.sleep(0.1)
    raise AssertionError("the proxy did not start")
