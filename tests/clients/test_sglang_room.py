"""Pools have the tokens, and servers the static share, that SGLang's own classes give them.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `sglang` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_sglang_room` writes the vectors anew.
"""

import json
from pathlib import Path

from tests.clients import in_engine
from tests.serving.test_room import SGLANG_PATH, ours_in_sglang

GIB = 1 << 30
POOLS = [
    {"layers": 32, "kv_heads": 8, "head_dim": 128, "tp": 1, "page_size": 1, "available": 40 * GIB},
    {"layers": 80, "kv_heads": 8, "head_dim": 128, "tp": 16, "page_size": 64, "available": 11 * GIB + 4321},
    {"layers": 61, "kv_heads": 1, "head_dim": 128, "latent": 576, "tp": 8, "page_size": 64, "available": 43 * GIB},
    {"layers": 36, "kv_heads": 8, "head_dim": 64, "tp": 4, "page_size": 1, "available": 40 * GIB, "window": 128,
     "window_layers": 18},
    {"layers": 48, "kv_heads": 4, "head_dim": 192, "tp": 4, "page_size": 64, "available": 14 * GIB, "window": 128,
     "window_layers": 39, "ratio": 0.8},
]  # fmt: skip
MEMORIES = (15_360, 24_081, 45_500, 81_004, 97_400, 143_165, 182_600)  # MiB
SHARES = [
    {"memory_mib": memory, "tp": tp, "pp": 1, "latent": latent, "after_capture": not latent}
    for memory in MEMORIES
    for tp in (1, 2, 8)
    for latent in (False, True)
]


def answered(folder):
    cases = [*POOLS, *SHARES]
    return list(zip(cases, in_engine.answers(cases, folder, "sglang", "sglang_room.py"), strict=True))


@in_engine.needs("sglang")
def test_pools_and_shares_are_those_of_sglang(tmp_path):
    for case, answer in answered(tmp_path):
        assert ours_in_sglang(case) == answer, case


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        vectors = [{"case": case, "room": answer} for case, answer in answered(Path(made))]
        SGLANG_PATH.write_text("".join(json.dumps(vector) + "\n" for vector in vectors))
