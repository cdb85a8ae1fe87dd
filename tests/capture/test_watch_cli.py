"""kvtrace watch as an operator runs it: figures of a followed log, JSON lines, metrics over HTTP, and how it ends."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvtrace import read
from kvtrace.analysis import hit_curve
from kvtrace.capture.metrics import Reading
from kvtrace.cli import run
from kvtrace.cli.watch import _display
from tests.capture.snapshots import COUNTS, snapshot
from tests.docs import ROOT
from tools.docs_site import schemas

LOG = ROOT / "examples/raw_log.jsonl"
DATA = ROOT / "tests/data/tokenizers"
TINY = ["--tokenizer", str(DATA / "tiny"), "--chat-template", str(DATA / "templates/objects.jinja")]
OPTIONS = ["watch", "--follow", str(LOG), "--from-start", "--block-size", "16", *TINY]
WATCH = [sys.executable, "-m", "kvtrace", *OPTIONS]


def watch(*options, status=0):
    """What the command prints on stdout and on stderr."""
    done = subprocess.run([*WATCH, *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def curve(tmp_path_factory):
    """The exact curve of the same log."""
    path = tmp_path_factory.mktemp("exact") / "trace.jsonl"
    assert run(["anonymize", str(LOG), "-o", str(path), "--profile", "exact", "--block-size", "16", "-q", *TINY]) == 0
    return hit_curve(read(path))


def test_the_last_figures_are_those_of_the_exact_curve(curve):
    shown = json.loads(watch("--capacity", "20", "--model", "llama-3.1-8b", "--once", "--json", "-q")[0])
    jsonschema.validate(shown, json.loads((schemas.FOLDER / "watch.schema.json").read_text()))
    assert shown["sources"] == ["follow"] and shown["counts"]["requests"] == 96 and shown["capacity_blocks"] == 20
    points = {point["factor"]: point for point in shown["window"]["curve"]}
    assert [point["capacity_blocks"] for point in points.values()] == [10, 20, 40, 80]
    for point in points.values():
        exact = curve.at(point["capacity_blocks"])
        assert point["block_hit_rate"] == pytest.approx(exact.block_hit_rate)
        assert point["token_hit_rate"] == pytest.approx(exact.token_hit_rate)
        assert point["request_hit_rate"] == pytest.approx(exact.request_hit_rate)
    assert shown["window"]["working_set_blocks"] == curve.working_set
    assert points[1.0]["capacity_gib"] == 20 * 16 * 131072 / 2**30


def test_once_prints_the_whole_screen_in_a_pipe(curve):
    out, err = watch("--capacity", "20", "--once")
    wanted = 0.9 * curve.at(curve.working_set).token_hit_rate
    assert curve.at(65).token_hit_rate < wanted <= curve.at(66).token_hit_rate
    assert "kvtrace watch: follow" in out and "90 % of the possible token hits need 66 blocks" in out
    assert "\x1b" not in out and err == "" and all(len(text) <= 160 for text in out.splitlines())


def test_a_pipe_gets_a_line_at_each_interval_and_at_the_end():
    out, _ = watch("--interval", "500ms", "--for", "6s")
    lines = out.splitlines()
    assert len(lines) >= 2 and all(re.match(r"\d\d:\d\d:\d\d (0|96) requests in 1 h", text) for text in lines)
    assert " 96 requests in 1 h" in lines[-1]
    assert "0.125x" in lines[-1] and "delivered" not in lines[-1]  # no capacity, and no cached tokens in this log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_status_0(number):
    process = subprocess.Popen([*WATCH, "--json", "--interval", "200ms"], stdout=subprocess.PIPE, text=True)
    first = json.loads(process.stdout.readline())
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and first["window"]["requests"] in (0, 96)  # lines come before requests do
    assert json.loads(rest.splitlines()[-1])["window"]["requests"] == 96


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def fetched(url, **headers):
    """Status, content type and body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"], error.read().decode()


def test_metrics_over_http_are_those_of_the_snapshot_and_hold_nothing_of_the_log(socket_enabled):
    port = free_port()
    options = ["--capacity", "20", "--metrics", str(port), "--json", "--interval", "200ms"]
    process = subprocess.Popen([*WATCH, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        shown = json.loads(process.stdout.readline())
        until = time.monotonic() + 30
        while shown["counts"]["requests"] < 96 and time.monotonic() < until:
            shown = json.loads(process.stdout.readline())
        status, kind, text = fetched(f"http://127.0.0.1:{port}/metrics")
        assert status == 200 and kind.startswith("text/plain")
        samples = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        rate = {point["factor"]: point["token_hit_rate"] for point in shown["window"]["curve"]}
        for factor in (0.5, 1.0, 2.0, 4.0):
            key = ("kvtrace_capacity_hit_ratio", *sorted(["window", "token", "capacity", f"{factor:g}"]))
            assert samples[key] == pytest.approx(rate[factor])
        assert samples[("kvtrace_received_requests_total",)] == samples[("kvtrace_digested_requests_total",)] == 96
        assert samples[("kvtrace_queue_limit_bytes",)] == 256 << 20
        assert str(LOG) not in text and "raw_log" not in text
        accept = "application/openmetrics-text;version=1.0.0"
        assert fetched(f"http://127.0.0.1:{port}/metrics", Accept=accept)[1].startswith("application/openmetrics-text")
        assert fetched(f"http://127.0.0.1:{port}/healthz")[::2] == (200, "ok\n")
        assert fetched(f"http://127.0.0.1:{port}/")[0] == 404
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--capacity", "50%"],
            "--capacity 50%: the working set is not known in advance. Write blocks, tokens or GiB.",
        ),
        (["--capacity", "24GiB"], "capacity 24GiB is in bytes. Add --model or --kv-bytes-per-token."),
        (["--capacity", "many"], "'many' is not a capacity."),
        (["--metrics", "here"], "'here' is not an address. Examples:"),
        (["--interval", "1ms"], "--interval must be at least 100."),
        (["--sample", "2"], "'2' is not a share from 0 to 1."),
        (["--queue", "much"], "--queue: 'much' is not a size. Examples: 2GB, 800MB, 1.5GiB."),
    ],
)
def test_bad_options_are_one_line_with_status_2(options, message, capsys):
    assert run([*OPTIONS, *options, "--once"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and message in shown.err and shown.err.count("\n") == 1


def test_an_address_of_another_machine_is_one_line_with_status_2():
    out, err = watch("--metrics", "192.0.2.1:1", "--once", status=2)
    message = "--metrics: cannot listen at 192.0.2.1:1 (Cannot assign requested address)."
    assert out == "" and message in err and err.count("\n") == 1


def test_once_without_any_request_says_so(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("")
    line = [*WATCH[:4], "--follow", str(path), "--once", "--for", "1s"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (3, "kvtrace: no request arrived, so there are no figures.\n")


def test_once_with_bad_requests_alone_says_why(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("not JSON\n")
    line = [*WATCH[:4], "--follow", str(path), "--from-start", "--once", "--for", "30s"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    reason = "1 rejected: not valid JSON at column 1."
    assert done.stderr == f"kvtrace: no request could be read, so there are no figures. {reason}\n"
    assert done.returncode == 3


def test_a_log_of_figures_ends_with_the_reasons_of_rejected_requests(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"not JSON\n" + LOG.read_bytes())
    line = [*WATCH[:4], "--follow", str(path), "--from-start", "--for", "3s"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.stderr == "rejected    1: not valid JSON at column 1.\n" and done.returncode == 0


def test_on_a_terminal_messages_stand_above_the_figures(monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    consoles, reading = ["stderr"], Reading(snapshot(), COUNTS)
    with _display(["otlp"], consoles, as_json=False) as show:
        show(reading)
        assert len(consoles) == 2 and consoles[-1].is_terminal
    assert consoles == ["stderr"]
