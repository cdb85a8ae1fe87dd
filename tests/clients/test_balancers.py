"""Our ranks report what the engines' own schedulers report, and our balancers choose what the engines' own choose.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` and `sglang` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_balancers` writes the vectors anew.
"""

import json
import random
import tempfile
from pathlib import Path

import pytest

from kvtrace._base.errors import UsageError
from tests.clients import in_engine
from tests.serving.balancer_cases import balanced_case, served
from tests.serving.test_balancers import PATH, VECTORS, require_reports

ENGINES = [pytest.param(engine, marks=in_engine.needs(engine)) for engine in ("vllm", "sglang")]


def drawn(engine, numbers, **more):
    """Cases with what our kernel does with them; those that SGLang's scheduler never ends are left out."""
    for number in numbers:
        case = balanced_case(random.Random(number), engine) | more
        try:
            yield case, served(case)
        except UsageError:
            assert engine == "sglang"


def choices(pairs, folder, engine):
    """What the engine's own balancer chooses, given the reports and the ends of our ranks."""
    return in_engine.answers([case | ours for case, ours in pairs], folder, engine, f"{engine}_balancer.py")


def reports(cases, folder, engine):
    """What the engine's own scheduler reports of the requests of each case, on one rank."""
    return in_engine.answers([case | {"reports": True} for case in cases], folder, engine, f"{engine}_scheduler.py")


@pytest.mark.parametrize("engine", ENGINES)
def test_random_cases_go_to_the_ranks_that_the_engine_chooses(engine, tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    pairs = list(drawn(engine, range(seed, seed + 60)))
    for (case, ours), real in zip(pairs, choices(pairs, tmp_path, engine), strict=True):
        assert ours["instance"] == real["instance"], f"seed {seed}: {case}"


@in_engine.needs("vllm")
def test_random_cases_in_lockstep_go_to_the_ranks_that_vllm_chooses(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    pairs = list(drawn("vllm", range(seed, seed + 60), lockstep=True))
    for (case, ours), real in zip(pairs, choices(pairs, tmp_path, "vllm"), strict=True):
        assert ours["instance"] == real["instance"], f"seed {seed}: {case}"


@pytest.mark.parametrize("engine", ENGINES)
def test_random_cases_report_what_the_engine_reports(engine, tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    pairs = list(drawn(engine, range(seed, seed + 60), ranks=1, servers=1))
    for (case, ours), real in zip(pairs, reports([case for case, _ in pairs], tmp_path, engine), strict=True):
        require_reports(ours["reports"][0], real["reports"], f"seed {seed}: {case}")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_vectors_are_what_the_engine_says(engine, tmp_path):
    vectors = VECTORS[engine]
    pairs = [(vector["case"], served(vector["case"])) for vector in vectors["choices"]]
    for vector, real in zip(vectors["choices"], choices(pairs, tmp_path, engine), strict=True):
        assert real == {"version": vectors["version"], "instance": vector["instance"]}
    cases = [vector["case"] for vector in vectors["reports"]]
    for vector, real in zip(vectors["reports"], reports(cases, tmp_path, engine), strict=True):
        require_reports(vector["reports"], real["reports"], vector["case"])


def make_vectors(engine, folder, count=6):
    """Short cases whose choices are not those of a round-robin router, and what the engine says of each."""
    pairs = [pair for pair in drawn(engine, range(40_000, 40_400)) if 8 < len(pair[0]["requests"]) < 20]
    answers = choices(pairs, folder, engine)
    uneven = [
        {"case": case, "instance": real["instance"]}
        for (case, _), real in zip(pairs, answers, strict=True)
        if real["instance"] != [row % case["ranks"] for row in range(len(real["instance"]))]
    ]
    alone = [
        case | {"ranks": 1, "servers": 1} for case, _ in pairs if sum(row["output"] for row in case["requests"]) < 200
    ]
    known = [
        {"case": case, "reports": real["reports"]}
        for case, real in zip(alone[:count], reports(alone[:count], folder, engine), strict=True)
    ]
    return {"version": answers[0]["version"], "choices": uneven[:count], "reports": known}


def line(value):
    return json.dumps(value, separators=(", ", ": "))


def write_vectors():
    with tempfile.TemporaryDirectory() as folder:
        vectors = {engine: make_vectors(engine, Path(folder)) for engine in ("vllm", "sglang")}
    parts = [
        f'{line(engine)}: {{"version": {line(of["version"])}, '
        + ", ".join(f'"{kind}": [\n' + ",\n".join(map(line, of[kind])) + "\n]" for kind in ("choices", "reports"))
        + "}"
        for engine, of in vectors.items()
    ]
    PATH.write_text("{" + ",\n".join(parts) + "}\n")


if __name__ == "__main__":
    write_vectors()
