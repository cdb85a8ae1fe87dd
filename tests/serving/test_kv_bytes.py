"""KV bytes of the catalog beside those of kvcache-simulator 0.1.3: equal, or different for a stated reason."""

import json
from itertools import product
from pathlib import Path

import pytest

from kvtrace.serving.models import MODELS, cache_bytes, layer_kinds

VECTORS = Path(__file__).parents[1] / "vectors/kv_bytes.json"
DTYPES = {"bf16_fp16": "bfloat16", "fp8_int8": "fp8", "fp4_int4": "fp4", "fp32": "float32"}
SETTINGS = [
    {
        "tokens": tokens, "precision": precision, "indexer_precision": indexer, "recurrent_state_precision": state,
        "include_draft_kv_cache": draft, "include_linear_attention_state": True,
    }
    for tokens, (precision, indexer, state), draft in product(
        (64, 1024, 100_000),
        (("bf16_fp16", "bf16_fp16", "fp32"), ("fp8_int8", "fp4_int4", "bf16_fp16"), ("fp4_int4", "fp8_int8", "fp32")),
        (False, True),
    )
]  # fmt: skip
FIXED = {"minimax-m3": "bf16_fp16"}  # models whose indexer has one precision in the calculator


def ours(name, setting):
    """[KV bytes with states, indexer bytes] of a model."""
    indexer = FIXED.get(name, setting["indexer_precision"])
    kinds = layer_kinds(
        name, DTYPES[setting["precision"]], indexer_dtype=DTYPES[indexer],
        state_dtype=DTYPES[setting["recurrent_state_precision"]], draft=setting["include_draft_kv_cache"],
    )  # fmt: skip
    indexers = [kind for kind in kinds if kind.indexer]
    rest = [kind for kind in kinds if not kind.indexer]
    return [cache_bytes(part, setting["tokens"]) for part in (rest, indexers)]


VECTOR = json.loads(VECTORS.read_text()) if VECTORS.exists() else {"sizes": {}, "differences": {}}
SIZES, NOTES = VECTOR["sizes"], VECTOR["differences"]
HALF = {"tokens": 1000, "precision": "bf16_fp16", "indexer_precision": "bf16_fp16", "recurrent_state_precision": "fp32",
        "include_draft_kv_cache": False}  # fmt: skip


def test_the_calculator_has_62_models_and_the_catalog_all_of_them():
    assert len(SIZES) == 62 and SIZES.keys() <= MODELS.keys()


@pytest.mark.parametrize("name", sorted(SIZES.keys() - NOTES.keys()))
def test_bytes_are_those_of_the_calculator_in_every_setting(name):
    assert [setting for setting, _, sizes in compared(name) if ours(name, setting) != sizes] == []


def compared(name):
    """(setting, its place in SETTINGS, the calculator's bytes) of a model."""
    return [(setting, place, SIZES[name][place]) for place, setting in enumerate(SETTINGS)]


@pytest.mark.parametrize("name", sorted(name for name in NOTES if NOTES[name]["kind"] == "draft"))
def test_only_the_draft_differs_by_one_layer_of_full_attention(name):
    full = layer_kinds(name)[0]
    for setting, place, (kv, indexer) in compared(name):
        bits = {"bf16_fp16": 16, "fp8_int8": 8, "fp4_int4": 4}[setting["precision"]]
        layer = setting["include_draft_kv_cache"] * full.token_bytes * bits // 16 * setting["tokens"]
        assert ours(name, setting) == [kv + layer, indexer], place


@pytest.mark.parametrize("name", sorted(name for name in NOTES if NOTES[name]["kind"] == "window"))
def test_only_requests_shorter_than_a_window_differ_by_its_rest(name):
    windows = 0
    for setting, place, (kv, indexer) in compared(name):
        dtype = DTYPES[setting["precision"]]
        (window,) = (kind for kind in layer_kinds(name, dtype, draft=setting["include_draft_kv_cache"]) if kind.window)
        rest = window.bytes_per_token * max(window.window - setting["tokens"], 0)
        assert ours(name, setting) == [kv - rest, indexer], place
        windows += rest > 0
    assert windows


@pytest.mark.parametrize(
    ("name", "kv", "indexer"),
    [  # the fields of each config by hand, for 1,000 tokens with 2 bytes a value and states of 4
        ("dots3-note-prev", 13 * 576 * 2 * 1000 + 33 * 1088 * 2 * 512, 13 * 128 * 2 * 1000),
        ("deepseek-v4.1-flash", 40 * 512 * 2 * 128 + 512 * 2 * (3 * 500 + 1000), 128 * 2 * (3 * 500 + 1000)),
        ("glm-5.3-flash", 11 * 512 * 2 * 1000 + 34 * (3 * 24576 * 2 + 64 * 128 * 128 * 4), 11 * 128 * 2 * 250),
        (
            "inkling",
            (11 * 2048 * 1000 + 55 * 4096 * 512) * 2 + 3 * 2 * (11 * (2048 + 12288) + 55 * (4096 + 12288)),
            0,
        ),
        (
            "inkling-small",
            (7 * 2048 * 1000 + 35 * 2048 * 512) * 2 + 3 * 2 * (7 + 35) * (2048 + 8192),
            0,
        ),
    ],
)
def test_models_that_the_calculator_refuses_are_worked_by_hand(name, kv, indexer):
    assert NOTES[name]["kind"] == "refused" and all(size.startswith("Unsupported formula") for size in SIZES[name])
    assert ours(name, HALF) == [kv, indexer]


def test_each_difference_has_one_of_these_reasons_and_a_sentence():
    assert {note["kind"] for note in NOTES.values()} == {"draft", "window", "refused"}
    assert all(note["why"].endswith(".") for note in NOTES.values())
