"""Golden counts of vLLM's own cache for requests with salts and adapters: what our split view of a trace hits."""

import json
from pathlib import Path

import pytest

from kvtrace.trace.columns import fields_of
from kvtrace.trace.domains import in_domains
from kvtrace.trace.trace import Trace
from tests.cache.test_engine_vllm import serve, vector_trace

FILE = Path(__file__).parents[1] / "vectors/engine_vllm_domains.json"
VECTORS = json.loads(FILE.read_text()) if FILE.exists() else {"vectors": []}


def numbers(vector):
    """The domain of each request: a number for each pair of salt and adapter, -1 for neither."""
    number = {(None, None): -1}
    return [number.setdefault(pair, len(number) - 1) for pair in zip(vector["salt"], vector["adapter"], strict=True)]


def domain_trace(vector, view):
    """A view of the vector's trace."""
    trace = vector_trace(vector)
    return in_domains(Trace(**fields_of(trace) | {"domain": numbers(vector)}, block_size=trace.block_size), view)


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_requests_with_salts_hit_as_in_vllm(vector):
    trace = domain_trace(vector, "split")
    for case in vector["cases"]:
        engine = serve(trace, case["capacity"], case["mode"], case["schedule"])
        assert (engine.hits.tolist(), engine.early_frees) == (case["hits"], case["early_frees"]), case["mode"]


def test_the_vectors_have_domains_that_matter():
    for vector in VECTORS["vectors"]:
        assert vector["domain"] == numbers(vector) and len(set(vector["domain"])) > 4
        merged = domain_trace(vector, "merge")
        cases = [serve(merged, case["capacity"], case["mode"], case["schedule"]) for case in vector["cases"]]
        assert [one.hits.sum() for one in cases] > [sum(case["hits"]) for case in vector["cases"]]
    assert len(VECTORS["vectors"]) == 2
