"""Ranks in lockstep take the steps that the engines' own loops take, each rank in a thread of its own.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` and `sglang` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_lockstep` writes the vectors anew.
"""

import json
import random
import tempfile
from pathlib import Path

import pytest

from tests.clients import in_engine
from tests.clients.test_balancers import choices
from tests.serving.balancer_cases import balanced_case
from tests.serving.balancer_cases import served as balanced
from tests.serving.test_lockstep import PATH, SERVED, TWINS, VECTORS, drawn_cases, require_equal

ENGINES = [pytest.param(engine, marks=in_engine.needs(engine)) for engine in ("vllm", "sglang")]


def said(cases, folder, engine):
    """What the loops of an engine do with each case."""
    return in_engine.answers(cases, folder, engine, f"{engine}_lockstep.py")


@pytest.mark.parametrize("engine", ENGINES)
def test_random_cases_take_the_steps_of_the_engine(engine, tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    cases = list(drawn_cases(engine, range(seed, seed + 60)))
    for case, real in zip(cases, said(cases, tmp_path, engine), strict=True):
        require_equal(TWINS[engine](case), real, f"seed {seed}: {case}")
        require_equal(SERVED[engine](case), real, f"seed {seed}: {case}")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_vectors_are_what_the_engine_says(engine, tmp_path):
    vectors = VECTORS[engine]["vectors"]
    for vector, real in zip(vectors, said([one["case"] for one in vectors], tmp_path, engine), strict=True):
        assert real == {"version": VECTORS[engine]["version"]} | vector["served"]


def make_vectors(engine, folder, count=8):
    """Short cases with ranks that run dummy steps, and what the engine says of each."""
    cases = [case for case in drawn_cases(engine, range(20_000, 20_300)) if len(case["requests"]) <= 9]
    vectors = []
    for case, real in zip(cases, said(cases, folder, engine), strict=True):
        version = real.pop("version")
        if sum(map(len, real["steps"])) <= 60 and max(real["dummies"]) and len(vectors) < count:
            vectors.append({"case": case, "served": real})
    return {"version": version, "vectors": vectors}


def make_choices(folder, count=6):
    """Short cases whose ranks vLLM's balancer chooses otherwise than if they were not in lockstep."""
    cases = [balanced_case(random.Random(number), "vllm") for number in range(50_000, 50_400)]
    cases = [case | {"lockstep": True} for case in cases if 8 < len(case["requests"]) < 20]
    pairs = [(case, balanced(case)) for case in cases]
    pairs = [
        (case, ours) for case, ours in pairs if ours["instance"] != balanced(case | {"lockstep": False})["instance"]
    ]
    return [
        {"case": case, "instance": real["instance"]}
        for (case, _), real in zip(pairs[:count], choices(pairs[:count], folder, "vllm"), strict=True)
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = {engine: make_vectors(engine, Path(folder)) for engine in ("vllm", "sglang")}
        found["balancer"] = make_choices(Path(folder))
    PATH.write_text(json.dumps(found, separators=(",", ":")).replace('{"case"', '\n{"case"') + "\n")
