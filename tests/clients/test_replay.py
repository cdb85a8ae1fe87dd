"""AIPerf replays a synthetic trace to a stand-in for a model, and measures its lengths, at its times.

KVTRACE_CLIENTS names a folder of environments (see test_load.py); what is missing there is skipped. These tests talk to
a server on this machine: run them with --allow-hosts=127.0.0.1.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kvtrace import read
from kvtrace.formats import targets as clients
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.synthesis.sampling import sample
from kvtrace.text import tokenizers
from kvtrace.text.prompts import texts_to_hashes, write_prompts
from kvtrace.trace import count_hits, unlimited_hits
from tests.clients.test_load import ENVIRONMENTS

ROWS, REVISION = 50, "0" * 40


@pytest.fixture(scope="module")
def conversation(shared):
    return read(shared / "data/mooncake/conversation_trace.jsonl")


@pytest.fixture(scope="module")
def grown(conversation):
    """Some twenty seconds of a synthetic trace."""
    return sample(fit(conversation), ROWS, seed=1)


@pytest.fixture
def server(shared, tmp_path):
    """(address, the file where it notes each request) of the stand-in, run in AIPerf's environment."""
    python = ENVIRONMENTS / "aiperf/bin/python"
    if not python.exists():
        pytest.skip("no environment aiperf in KVTRACE_CLIENTS")
    log = tmp_path / "served.jsonl"
    command = [python, Path(__file__).parent / "model_server.py", qwen(shared) / "tokenizer.json", log]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=plain(), text=True) as model:
        yield f"http://127.0.0.1:{model.stdout.readline().strip()}", log
        model.terminate()


def qwen(shared):
    return shared / "data/tokenizers/qwen3"


def plain(**more):
    """The environment without what would make another Python find this project."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more


def replayed(path, address, shared, tmp_path):
    """What AIPerf measured: one record a request, and how long it took in seconds."""
    # its workers find a tokenizer only by a Hub name, so this one goes where the Hub's client keeps its files
    folder = tmp_path / "hub/models--local--stand-in"
    shutil.copytree(qwen(shared), folder / "snapshots" / REVISION)
    (folder / "snapshots" / REVISION).chmod(0o755)
    (folder / "snapshots" / REVISION / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(REVISION)
    command = [
        ENVIRONMENTS / "aiperf/bin/aiperf", "profile", "--model", "stand-in", "--url", address,
        "--endpoint-type", "chat", "--streaming", "--tokenizer", "local/stand-in", "--random-seed", "1",
        "--input-file", path, "--custom-dataset-type", "mooncake-trace", "--fixed-schedule",
        "--artifact-dir", tmp_path / "artifacts", "--export-level", "records", "--ui", "none",
    ]  # fmt: skip
    offline = plain(HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    done = subprocess.run(command, capture_output=True, text=True, env=offline, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    records = [json.loads(line) for line in (tmp_path / "artifacts/profile_export.jsonl").read_text().splitlines()]
    return sorted(records, key=lambda record: record["metadata"]["conversation_id"])


def lengths(records):
    return sorted(record["metrics"]["input_sequence_length"]["value"] for record in records)


def test_aiperf_measures_the_lengths_of_our_texts(grown, server, shared, tmp_path):
    tokenizer = tokenizers.load(str(qwen(shared)))
    assert write_prompts(grown, tmp_path / "t.jsonl", tokenizer, to="aiperf").exact == ROWS
    address, log = server
    records = replayed(tmp_path / "t.jsonl", address, shared, tmp_path)
    assert lengths(records) == sorted(grown.input_length.tolist())
    served = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(row["prompt"] for row in served) == sorted(grown.input_length.tolist())
    assert sorted(row["asked"] for row in served) == sorted(grown.output_length.clip(1).tolist())
    # and at the trace's times
    sent = sorted(record["metadata"]["credit_issued_ns"] / 1e6 for record in records)
    assert max(abs(at - sent[0] - due) for at, due in zip(sent, grown.timestamp, strict=True)) < 500
    # what the model was sent shares what the trace shares
    order = {text: ids for text, ids in zip(texts_of(tmp_path / "t.jsonl"), rows_of(grown), strict=True)}
    texts = [row["text"] for row in served]
    assert texts_to_hashes(tokenizer, texts, 512) == renumbered([order[text] for text in texts])


def test_aiperf_builds_prompts_of_our_ids_within_a_token(grown, server, shared, tmp_path):
    #  AIPerf's own prompts: without a BOS token its blocks can merge with their neighbours
    clients.write(grown, tmp_path / "t.jsonl", "aiperf")
    records = replayed(tmp_path / "t.jsonl", server[0], shared, tmp_path)
    wrong = [abs(a - b) for a, b in zip(lengths(records), sorted(grown.input_length.tolist()), strict=True)]
    assert max(wrong) <= 2 and sum(wrong) <= 5


def test_dynamo_reuses_what_a_cache_with_room_for_all_would(grown, tmp_path):
    python = ENVIRONMENTS / "dynamo/bin/python"
    if not python.exists():
        pytest.skip("no environment dynamo in KVTRACE_CLIENTS")
    clients.write(grown, tmp_path / "t.jsonl", "dynamo")
    command = [python, Path(__file__).parent / "dynamo_replay.py", tmp_path / "t.jsonl", "512"]
    done = subprocess.run(command, capture_output=True, text=True, env=plain())
    assert done.returncode == 0, done.stderr[-2000:]
    most = count_hits(grown, unlimited_hits(grown)).token_hit_rate
    assert 0 <= json.loads(done.stdout.splitlines()[-1])["reused"] <= most + 1e-9


def texts_of(path):
    return [json.loads(line)["text_input"] for line in path.read_text().splitlines()]


def rows_of(trace):
    return [trace.prompt(row).tolist() for row in range(len(trace))]


def renumbered(rows):
    number = {}
    return [[number.setdefault(block, len(number)) for block in row] for row in rows]
