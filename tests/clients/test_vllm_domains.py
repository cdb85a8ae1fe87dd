"""Requests with salts and adapters hit in our split view of a trace what they hit in vLLM's own cache.

vLLM's `generate_block_hash_extra_keys` puts cache_salt and the adapter into the hashes of its KVCacheManager. See
test_vllm_cache.py for KVTRACE_CLIENTS. `KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_domains` writes the
vectors anew.
"""

import json
from pathlib import Path

import numpy as np

from tests.cache.test_domains_vllm import VECTORS, domain_trace, numbers
from tests.cache.test_engine_vllm import serve, vector_trace
from tests.clients.in_vllm import needs_vllm
from tests.clients.test_vllm_cache import cases_of, made, served, wanted

SALTS, ADAPTERS = (None, "tenant a", "tenant b"), (None, None, "poet", "lawyer")


def isolated(vector, rng):
    """The vector with a salt and an adapter for each request, often none."""
    rows = len(vector["prompts"])
    keys = {"salt": SALTS[: rng.integers(1, 4)], "adapter": ADAPTERS[: rng.integers(1, 5)]}
    return vector | {name: [some[one] for one in rng.integers(len(some), size=rows)] for name, some in keys.items()}


def asked(vector, mode, schedule, capacity):
    """The case for vLLM: the tokens of the trace with its domains merged, and the salt and adapter of each request."""
    case = wanted(vector_trace(vector), mode, schedule, capacity)
    for request, salt, adapter in zip(case["requests"], vector["salt"], vector["adapter"], strict=True):
        request |= {"salt": salt, "adapter": adapter}
    return case


@needs_vllm
def test_random_requests_hit_as_in_vllm(tmp_path):
    seed = int(np.random.default_rng().integers(1 << 32))
    rng = np.random.default_rng(seed)
    tried, merged_differ = [], 0
    for number in range(30):
        vector = isolated(
            made(str(number), rng, rows=int(rng.integers(2, 60)), block_size=int(rng.integers(1, 5))), rng
        )
        trace = domain_trace(vector, "split")
        tried += [(vector, case) for case in cases_of(trace, rng.integers(0, 20, size=15).tolist())]
    for (vector, case), real in zip(tried, served([asked(v, **case) for v, case in tried], tmp_path), strict=True):
        engine = serve(domain_trace(vector, "split"), **case)
        found = {"version": real["version"], "hits": engine.hits.tolist(), "early_frees": engine.early_frees}
        assert found == real, f"seed {seed}: {case}"
        merged_differ += serve(domain_trace(vector, "merge"), **case).hits.tolist() != real["hits"]
    assert merged_differ > len(tried) // 10  # the domains matter


@needs_vllm
def test_equal_salts_share_as_no_salts_do(tmp_path):
    rng = np.random.default_rng(3)
    vector = made("one domain", rng, rows=40, block_size=2)
    vector |= {"salt": ["tenant a"] * 40, "adapter": ["poet"] * 40}
    cases = list(cases_of(vector_trace(vector), [3] * 15))
    for case, real in zip(cases, served([asked(vector, **case) for case in cases], tmp_path), strict=True):
        assert serve(vector_trace(vector), **case).hits.tolist() == real["hits"], case


@needs_vllm
def test_the_vectors_are_what_vllm_says(tmp_path):
    tried = [(vector, case) for vector in VECTORS["vectors"] for case in vector["cases"]]
    real = served([asked(v, case["mode"], case["schedule"], case["capacity"]) for v, case in tried], tmp_path)
    assert [case["hits"] for _, case in tried] == [one["hits"] for one in real]


def make_vectors(folder):
    """Every mode and schedule on made conversations with salts and adapters, with what vLLM says of each."""
    rng = np.random.default_rng(7)
    vectors = []
    for name, size in (("salts and adapters, blocks of 1", 1), ("salts and adapters, blocks of 4", 4)):
        vector = made(name, rng, rows=40, block_size=size)
        vector |= {"salt": [SALTS[one] for one in rng.integers(3, size=40)],
                   "adapter": [ADAPTERS[one] for one in rng.integers(4, size=40)]}  # fmt: skip
        cases = list(cases_of(domain_trace(vector, "split"), spare=(1, 0, 6, 9)))
        real = served([asked(vector, **case) for case in cases], folder)
        vector["cases"] = [
            case | {"hits": one["hits"], "early_frees": one["early_frees"]}
            for case, one in zip(cases, real, strict=True)
        ]
        vector["domain"] = numbers(vector)
        vectors.append(vector)
    return {"engine": "vllm", "version": real[0]["version"], "cache": "KVCacheManager", "vectors": vectors}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        found = make_vectors(Path(name))
    text = json.dumps(found).replace('{"name"', '\n{"name"').replace('{"mode"', '\n {"mode"')
    (Path(__file__).parent.parent / "vectors/engine_vllm_domains.json").write_text(text + "\n")
