"""Short cases through Dynamo's offline replay in its own environment, and the files of their vectors."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.dynamo_replay import PYTHON, replay
from kvtrace.formats import targets as clients
from tests.conftest import ROOT
from tests.serving.scheduler_cases import trace_of

needs_dynamo = pytest.mark.skipif(not PYTHON.exists(), reason="no environment dynamo in KVTRACE_CLIENTS")


def seen_of(case, folder, *, engine=None, workers=None, **more):
    """What the replay did with a case: `engine` has more fields of its mocked engine, `more` those beside it."""
    trace, path = trace_of(case), folder / f"{len(list(folder.iterdir()))}.jsonl"
    clients.write(trace, path, "dynamo")
    router = "kv_router" if case["router"] == "dynamo" else "round_robin"
    settings = {"num_workers": case["workers"] if workers is None else workers, "router_mode": router}
    fields = {"num_gpu_blocks": case["capacity"], **case["settings"], **(engine or {})}
    (seen,) = replay(trace, [{"path": str(path), "engine": fields, "settings": settings, **more}])
    return seen


def rows_of(seen, *columns):
    """Of each request: worker, hit tokens, admission, first token and end in seconds, preemptions, and more columns."""
    times = [np.round(column / 1000, 9) for column in (seen.admit, seen.first, seen.end)]
    every = [seen.worker, seen.first_reused, *times, seen.readmitted, *columns]
    return [list(row) for row in zip(*(column.tolist() for column in every), strict=True)]


def replayed(case, folder, **given):
    """Its version, and of each request: worker, hit tokens, admission, first token and end in seconds, preemptions."""
    seen = seen_of(case, folder, **given)
    return seen.version, rows_of(seen)


def require_vectors(vectors, replayed, folder):
    """The replay says of each vector what was kept; those of its KV router are left out, which draws ties."""
    for vector in vectors["vectors"]:
        if vector["case"]["router"] == "round-robin":
            assert replayed(vector["case"], folder) == (vectors["version"], vector["requests"])


def write_vectors(name, make_vectors):
    """Write tests/vectors/NAME.json: the version, and a line for each of the chosen cases with its requests."""
    with tempfile.TemporaryDirectory() as folder:
        made = make_vectors(Path(folder))
    text = json.dumps(made, separators=(",", ":")).replace('{"case"', '\n{"case"')
    (ROOT / f"tests/vectors/{name}.json").write_text(text + "\n")
