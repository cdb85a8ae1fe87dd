"""The twin of Mooncake's master evicts what a real mooncake_master evicts.

KVTRACE_CLIENTS names a folder of environments (see test_load.py); `mooncake` needs
`pip install mooncake-transfer-engine-non-cuda==0.3.13 nvidia-cuda-runtime-cu12`, and MOONCAKE_LIBRARIES the folders of
libcudart, libibverbs, libnl and libnuma. `KVTRACE_CLIENTS=... python -m tests.clients.test_mooncake_store` writes the
vectors anew.
"""

import json
import random
import tempfile
from pathlib import Path

from tests.cache.test_mooncake_store import VECTORS, require_equal, store_case
from tests.clients import in_engine
from tests.conftest import ROOT

needs_mooncake = in_engine.needs("mooncake")


@needs_mooncake
def test_random_cases_evict_as_the_master(tmp_path):
    seed = random.SystemRandom().randrange(1 << 30)
    cases = [store_case(random.Random(seed + number)) for number in range(6)]
    for number, (case, real) in enumerate(
        zip(cases, in_engine.answers(cases, tmp_path, "mooncake", DRIVER), strict=True)
    ):
        require_equal(case, real["done"], f"seed {seed + number}")
        assert real["version"] == VECTORS["version"]


DRIVER = "mooncake_store.py"


if __name__ == "__main__":
    drawn = [store_case(random.Random(seed)) for seed in range(100, 112)]
    with tempfile.TemporaryDirectory() as folder:
        real = in_engine.answers(drawn, Path(folder), "mooncake", DRIVER)
    vectors = []
    for case, one in zip(drawn, real, strict=True):
        if len(vectors) < 4 and any(step[1] == "evict" for step in one["done"]):
            vectors.append({"case": {k: v for k, v in case.items() if k != "operations"}, "done": one["done"]})
    found = {"engine": "mooncake", "version": real[0]["version"], "vectors": vectors}
    text = json.dumps(found, separators=(",", ":")).replace('{"case"', '\n{"case"')
    (ROOT / "tests/vectors/mooncake_store.json").write_text(text + "\n")
