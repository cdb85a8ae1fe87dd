"""Caches have the blocks, and log the tokens, that vLLM's own planner gives them for some bytes of memory.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` among them.
`KVTRACE_CLIENTS=... python -m tests.clients.test_vllm_room` writes the vectors anew.
"""

import json
from pathlib import Path

from kvtrace.cache.engines.cache_groups import STATE_KERNELS
from tests.clients.in_vllm import answers, needs_vllm
from tests.clients.test_vllm_layout import MODELS, model_case
from tests.serving.test_room import PATH, ours

GIB = 1 << 30
SIZES = ((40 * GIB, 8192, 8192, 1), (13 * GIB + 12345, 131072, 16384, 1), (6 * GIB, 32768, 4096, 1))
SHARED = ((40 * GIB, 131072, 8192, 8), (7 * GIB, 100_000, 8192, 4))  # of one full group: context parallelism


def cases():
    for name in MODELS:
        case = model_case(name)
        is_full = set(case["layers"]) <= {"f", "l"} and "s" not in case["layers"]
        for available, longest, flight, ranks in SIZES + (SHARED if is_full else ()):
            size = {"available": available, "max_model_len": longest, "in_flight": flight, "context_ranks": ranks}
            saves = STATE_KERNELS[case["state_kernel"]].checkpoint_alignment != 0 and "s" in case["layers"]
            yield name, case | size | {"checkpoints": saves}


def sized(folder):
    """Name, case and answer of each case."""
    named = list(cases())
    declared = {name: kernel.block_alignment for name, kernel in STATE_KERNELS.items()}
    asked = [
        case | {"alignment": declared[case["state_kernel"]] if declared[case["state_kernel"]] > 1 else None}
        for _, case in named
    ]
    return [
        (name, case, answer) for (name, case), answer in zip(named, answers(asked, folder, "vllm_room.py"), strict=True)
    ]


@needs_vllm
def test_caches_are_sized_as_in_vllm(tmp_path):
    for name, case, real in sized(tmp_path):
        assert "refused" not in real, (name, real)
        wanted = {key: real[key] for key in ("blocks", "logged", "concurrency")}
        assert ours(case) == wanted, (name, case)


def write(folder):
    vectors = [{"name": name, "case": case, "room": answer} for name, case, answer in sized(folder)]
    PATH.write_text("".join(json.dumps(vector) + "\n" for vector in vectors))


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        write(Path(made))
