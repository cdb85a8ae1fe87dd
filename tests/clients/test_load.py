"""Each client's own code loads what `convert` writes for it, and finds the requests, tokens and times of the trace.

KVTRACE_CLIENTS names a folder of environments, one a client (aiperf, vllm, sglang, guidellm, dynamo, vidur, lmcache,
libcachesim: `python -m venv NAME`, `NAME/bin/pip install PACKAGE`); what is missing there is skipped.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kvtrace import read
from kvtrace.cache import Tier
from kvtrace.cache.simulation import Setting
from kvtrace.cli import run
from kvtrace.formats import targets as clients
from kvtrace.serving import simulate_instances
from kvtrace.trace import convert, count_hits, unlimited_hits
from kvtrace.trace.columns import replace_columns
from tests.conftest import ROOT

ENVIRONMENTS = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder"))
TOKENIZER = ROOT / "tests/data/tokenizers/tiny/tokenizer.json"


@pytest.fixture(scope="session")
def trace(tmp_path_factory):
    """What `anonymize` writes of our own log, in blocks of 16."""
    path = tmp_path_factory.mktemp("clients") / "trace.jsonl"
    assert run(["anonymize", str(ROOT / "examples/raw_log.jsonl"), "-o", str(path), "--block-size", "16", "-q"]) == 0
    return read(path)


def loaded(environment, script, path, trace, *more):
    """What a client's own code says of a file."""
    python = ENVIRONMENTS / environment / "bin/python"
    if not python.exists():
        pytest.skip(f"no environment {environment} in KVTRACE_CLIENTS")
    command = [python, Path(__file__).parent / script, path, str(trace.block_size), TOKENIZER, *map(str, more)]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=plain | {"PYTHONHASHSEED": "0"})
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def facts(trace):
    """What a client that loads every request must find."""
    return {
        "requests": len(trace),
        "input_tokens": int(trace.input_length.sum()),
        "output_tokens": int(trace.output_length.sum()),
        "last_ms": round(trace.timestamp[-1]),
    }


@pytest.mark.parametrize(
    ("to", "environment", "script", "name"),
    [
        ("aiperf", "aiperf", "aiperf_rows.py", "t.jsonl"),
        ("llm-d", "aiperf", "aiperf_rows.py", "t.jsonl"),
        ("vllm", "vllm", "vllm_timed_trace.py", "t.jsonl"),
        ("burstgpt", "vllm", "vllm_burstgpt.py", "t.csv"),
        ("sglang", "sglang", "sglang_mooncake.py", "t.jsonl"),
        ("guidellm", "guidellm", "guidellm_mooncake.py", "t.jsonl"),
        ("dynamo", "dynamo", "dynamo_replay.py", "t.jsonl"),
        ("vidur", "vidur", "vidur_lengths.py", "t.csv"),
        ("lmcache", "lmcache", "lmcache_simulate.py", "t.jsonl"),
    ],
)
def test_a_client_finds_every_request(trace, tmp_path, to, environment, script, name):
    clients.write(trace, tmp_path / name, to)
    found = loaded(environment, script, tmp_path / name, trace)
    expected = facts(trace)
    assert {key: found[key] for key in expected if key in found} == {k: v for k, v in expected.items() if k in found}


def test_vllm_prompts_share_what_the_ids_share(trace, tmp_path):
    clients.write(trace, tmp_path / "t.jsonl", "vllm")
    shared = loaded("vllm", "vllm_timed_trace.py", tmp_path / "t.jsonl", trace)["shared"]
    for row in range(1, len(trace)):
        before, now = trace.prompt(row - 1), trace.prompt(row)
        common = min(len(before), len(now))
        blocks = int(np.argmin([*(before[:common] == now[:common]), False]))
        tokens = min(blocks * trace.block_size, trace.input_length[row], trace.input_length[row - 1])
        # made-up tokens of two blocks may begin alike, by chance
        assert tokens <= shared[row - 1] < tokens + trace.block_size


def test_lmcache_counts_the_same_hits_of_complete_chunks(trace, tmp_path):
    clients.write(trace, tmp_path / "t.jsonl", "lmcache")
    found = loaded("lmcache", "lmcache_simulate.py", tmp_path / "t.jsonl", trace)
    complete = np.minimum(unlimited_hits(trace), trace.full_blocks)
    assert found["hit_tokens"] == int(complete.sum()) * trace.block_size


def test_lmcache_counts_nearly_the_hits_of_a_pool_below_instances_without_caches(trace, tmp_path):
    """Its simulator makes the end of a prompt the most recent, so what it evicts of a prompt is worth more."""
    clients.write(trace, tmp_path / "t.jsonl", "lmcache")
    sizes = [400, 500, 700]
    found = loaded("lmcache", "lmcache_simulate.py", tmp_path / "t.jsonl", trace, *sizes)["hit_tokens_of_sizes"]
    for size, theirs in zip(sizes, found, strict=True):
        tiers = [Tier("hbm", 0), Tier("pool", size, scope="cluster")]
        done = simulate_instances(trace, 8, setting=Setting(1, mode="token"), schedule="serial", tiers=tiers)
        assert 0.95 * done.hits.hit_tokens <= theirs <= done.hits.hit_tokens


@pytest.mark.parametrize("name", ["t.csv", "t.oracleGeneral"])
def test_libcachesim_reads_every_block(trace, tmp_path, name):
    clients.write(trace, tmp_path / name, "libcachesim")
    found = loaded("libcachesim", "libcachesim_read.py", tmp_path / name, trace)
    assert found["ids"] == trace.hash_ids.tolist() and found["sizes"] == [1]
    assert found["misses"] == trace.distinct
    assert found["never"] == (0 if name.endswith(".csv") else trace.distinct)


@pytest.mark.parametrize("block_size", ["512", "16"])
def test_aiperf_validates_what_anonymize_writes(tmp_path, block_size):
    path = tmp_path / "t.jsonl"
    log = ROOT / "examples/raw_log.jsonl"
    assert run(["anonymize", str(log), "-o", str(path), "--block-size", block_size, "-q"]) == 0
    assert validated(path) == 1  # it has sessions, which AIPerf would take for increments
    assert run(["convert", str(path), "-o", str(tmp_path / "a.jsonl"), "--to", "aiperf", "-q"]) == 0
    assert validated(tmp_path / "a.jsonl") == 0


def test_aiperf_validates_the_conversation_trace_as_converted(shared, tmp_path):
    source, path = shared / "data/mooncake/conversation_trace.jsonl", tmp_path / "t.jsonl"
    assert run(["convert", str(source), "-o", str(path), "--to", "aiperf", "-q"]) == 0
    assert validated(path) == 0


@pytest.mark.parametrize("factor", [2, 32])
def test_aiperf_validates_folded_and_sampled_traces(trace, tmp_path, factor):
    part = convert(trace, row_share=0.5, seed=1, factor=factor)
    clients.write(part, tmp_path / "t.jsonl", "aiperf")
    assert validated(tmp_path / "t.jsonl") == 0


def test_dynamo_reuses_no_more_than_can_be(trace, tmp_path):
    clients.write(trace, tmp_path / "t.jsonl", "dynamo")
    found = loaded("dynamo", "dynamo_replay.py", tmp_path / "t.jsonl", trace)
    assert 0 < found["reused"] <= count_hits(trace, unlimited_hits(trace)).token_hit_rate


def test_what_each_client_gets_is_the_trace_itself(trace, tmp_path):
    clients.write(trace, tmp_path / "t.jsonl", "dynamo")
    bare = replace_columns(trace, session=None, parent=None, extra={})
    assert read(tmp_path / "t.jsonl") == type(trace).from_columns(bare, block_size=16, tail=trace.tail)


def validated(path):
    """The exit status of AIPerf's own check."""
    command = ENVIRONMENTS / "aiperf/bin/aiperf"
    if not command.exists():
        pytest.skip("no environment aiperf in KVTRACE_CLIENTS")
    return subprocess.run([command, "validate", "mooncake-trace", "--input", path], capture_output=True).returncode
