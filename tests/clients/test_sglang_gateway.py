"""Our plain twin of SGLang's gateway chooses the workers that the gateway itself chooses.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `sglang-router` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_sglang_gateway` writes the vectors anew.
"""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.serving.gateway_cases import gateway_case, served

PYTHON = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "sglang-router/bin/python"
needs_gateway = pytest.mark.skipif(not PYTHON.exists(), reason="no environment sglang-router in KVTRACE_CLIENTS")


def replayed(cases, folder):
    """What the gateway does with cases."""
    path = folder / "cases.jsonl"
    rows = [case | {"events": [row[:3] for row in case["events"]]} for case in cases]  # without the blocks
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON, ROOT / "tests/clients/sglang_gateway.py", path], capture_output=True, text=True, env=plain
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def cases_of(seeds, evicts=False, ranks=0):
    """Cases in which nothing is drawn."""
    cases = [gateway_case(random.Random(seed), evicts) for seed in seeds]
    for case in cases:
        if ranks:
            case.update(workers=2, ranks=ranks)
    return [case for case in cases if not served(case)[1]]


@needs_gateway
@pytest.mark.parametrize("ranks", [0, 2])
def test_random_requests_go_where_the_gateway_sends_them(tmp_path, ranks):
    seed = random.SystemRandom().randrange(1 << 30)
    cases = cases_of(range(seed, seed + 6), ranks=ranks)
    for number, (case, seen) in enumerate(zip(cases, replayed(cases, tmp_path), strict=True)):
        assert served(case)[0] == seen["workers"], f"seed {seed}, case {number}"


@needs_gateway
def test_the_tree_evicts_as_the_gateways(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    for number in range(seed, seed + 3):
        for case in cases_of([number], evicts=True):
            #  again if it differs: an eviction can come where the case has none
            assert any(served(case)[0] == replayed([case], tmp_path)[0]["workers"] for _ in range(3)), f"seed {number}"


def make_vectors(folder):
    """Short cases: with and without evictions, workers and ranks."""
    cases = [*cases_of(range(40_000, 40_012)), *cases_of(range(41_000, 41_004), ranks=2)]
    cases += cases_of(range(42_000, 42_006), evicts=True)
    done = replayed(cases, folder)
    vectors = [{"case": case, "workers": seen["workers"]} for case, seen in zip(cases, done, strict=True)]
    return {"gateway": "sglang-router", "version": done[0]["version"], "vectors": vectors}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        made = make_vectors(Path(name))
    text = json.dumps(made, separators=(",", ":")).replace('{"case"', '\n{"case"')
    (ROOT / "tests/vectors/sglang_gateway.json").write_text(text + "\n")
