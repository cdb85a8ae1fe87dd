"""vLLM's layouts: vectors from vLLM's own planner, and small cases worked out by hand."""

import json
from pathlib import Path

import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.engines.cache_groups import vllm_layout
from kvtrace.cache.layout import CacheGroup, LayerKind

DOCS = Path(__file__).parent.parent.parent / "docs/cache/hybrid.md"
PATH = Path(__file__).parent.parent / "vectors/vllm_layout.json"
VECTORS = json.loads(PATH.read_text()) if PATH.exists() else {"vectors": []}


def layers_of(case):
    """The layers of a case, one after the other."""
    kinds = {
        letter: LayerKind(kind, 1, token_bytes, window=window, state_bytes=state_bytes)
        for letter, (kind, token_bytes, window, state_bytes) in case["kinds"].items()
    }
    return [kinds[letter] for letter in case["layers"]]


def ours(case):
    """Our layout in the words of the vectors."""
    options = {name: case[name] for name in ("state_kernel", "block_size", "hybrid", "retention_interval")}
    try:
        layout = vllm_layout(layers_of(case), **options)
    except UsageError:
        return "refused"
    return {
        "groups": [[group.kind, group.layers, group.block_size, group.window] for group in layout.groups],
        "block_bytes": layout.block_bytes, "scheduler_block_size": layout.scheduler_block_size,
        "hash_block_size": layout.hash_block_size,
    }  # fmt: skip


def full(layers, token_bytes=1024):
    return LayerKind("full", layers, token_bytes)


def window(layers, token_bytes=1024, tokens=128):
    return LayerKind("window", layers, token_bytes, window=tokens)


def widths(layers, **options):
    """Each group's kind and number of layers."""
    return [(group.kind, group.layers) for group in vllm_layout(layers, **options).groups]


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_a_model_is_laid_out_as_in_vllm(vector):
    assert ours(vector["case"]) == vector["layout"]


def test_the_table_in_the_docs_has_vllms_figures():
    layouts = {vector["name"]: vector["layout"] for vector in VECTORS["vectors"]}
    rows = [line.strip("| ").split(" | ") for line in DOCS.read_text().splitlines() if line.count("|") == 5]
    rows = [row for row in rows if row[0] in layouts]
    assert len(rows) == 10
    for name, groups, blocks, block_bytes in rows:
        layout = layouts[name]
        assert block_bytes == f"{layout['block_bytes']:,}", name
        assert blocks == " and ".join(f"{size:,}" for size in sorted({row[2] for row in layout["groups"]})), name
        for kind, word in (("full", "full"), ("window", "windows"), ("chunk", "chunks"), ("state", "states")):
            part = next((part for part in groups.split(", ") if word in part), "").partition(word)[0]
            counts = [[int(number) for number in share.split(" x ")] for share in part.split(" and ") if share.strip()]
            widths = [width for *repeat, width in counts for _ in range(*repeat or (1,))]
            assert widths == [row[1] for row in layout["groups"] if row[0] == kind], name


def test_full_attention_is_one_group_with_all_its_bytes():
    layout = vllm_layout([full(32, 4096)])
    assert layout.is_full and layout.block_bytes == 32 * 16 * 4096
    assert layout.groups == (CacheGroup("full", 32, block_size=16),)


def test_latent_and_full_layers_of_different_bytes_share_a_group():
    layout = vllm_layout([LayerKind("latent", 2, 1152), LayerKind("latent", 2, 132)])
    assert layout.is_full and layout.block_bytes == 16 * 2 * (1152 + 132)


def test_groups_have_the_layers_of_the_rarer_kind():
    # 3 full and 7 windows: groups of 3, and the windows 0, 3, 6; 1, 4; 2, 5
    assert widths([window(7), full(3)]) == [("window", 3), ("window", 2), ("window", 2), ("full", 3)]


def test_groups_have_the_layers_of_the_commoner_kind_where_these_are_less_than_half_more():
    assert widths([window(12), full(13)]) == [("window", 12), ("full", 13)]
    assert widths([window(3), full(2)]) == [("window", 2), ("window", 1), ("full", 2)]  # 3 is not less than 1.5 * 2


def test_groups_stand_in_the_order_of_their_first_layers():
    assert widths([full(2), window(2)]) == [("full", 2), ("window", 2)]
    assert widths([window(1), full(2), window(1)]) == [("window", 2), ("full", 2)]  # equal layers are one kind


def test_smaller_pages_get_longer_blocks_and_others_are_padded():
    layout = vllm_layout([full(2, 1024), window(2, 4096)])
    assert [group.block_size for group in layout.groups] == [64, 16]
    assert (layout.scheduler_block_size, layout.hash_block_size) == (64, 16)
    padded = vllm_layout([full(2, 1024), window(2, 2560)])
    assert [group.block_size for group in padded.groups] == [16, 16] and padded.block_bytes == 2 * 16 * 2560


def test_windows_beside_latents_whose_pages_cannot_be_padded_keep_all_tokens():
    layout = vllm_layout([LayerKind("latent", 2, 1152), window(3, 4096)])
    assert layout.is_full and layout.block_bytes == 16 * (2 * 1152 + 3 * 4096)


def test_a_page_of_attention_holds_a_state():
    state = LayerKind("state", 6, state_bytes=100_000)
    layout = vllm_layout([state, full(2, 1024)])  # 100,000 / 1,024 = 97.7 tokens, in multiples of 16
    assert [(group.kind, group.layers, group.block_size) for group in layout.groups] == [
        ("state", 2, 112), ("state", 2, 112), ("state", 2, 112), ("full", 2, 112),
    ]  # fmt: skip
    assert layout.block_bytes == 2 * 112 * 1024
    assert vllm_layout([state, full(2, 1024)], block_size=64).groups[0].block_size == 128
    assert vllm_layout([state, LayerKind("latent", 2, 1024)]).groups[0].block_size == 128  # multiples of 128


@pytest.mark.parametrize(
    ("kernel", "block_size", "alignment"), [("split", 112, 0), ("mamba2", 112, 1), ("flashinfer", 128, 128)]
)
def test_the_kernel_of_the_states_says_where_a_prefill_saves_them(kernel, block_size, alignment):
    layout = vllm_layout([LayerKind("state", 6, state_bytes=100_000), full(2, 1024)], state_kernel=kernel)
    assert layout.groups[0].block_size == block_size
    assert layout.internal_checkpoint_alignment == alignment


def test_without_the_hybrid_manager_windows_keep_all_tokens():
    layout = vllm_layout([window(18, 2048), full(18, 2048)], hybrid=False)
    assert layout.is_full and layout.groups[0].layers == 36
    assert widths([window(4)], hybrid=False) == [("window", 4)]  # one group is not hybrid


STATES = LayerKind("state", 6, state_bytes=100_000)


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ([], {}, "a model without layers"),
        ([full(0)], {}, "at least one layer"),
        ([LayerKind("full", 2)], {}, "bytes of a kind of layer are not known"),
        ([LayerKind("latent", 2, 512, tokens_per_entry=4)], {}, "compressed layers"),
        ([full(2)], {"block_size": 24}, "multiple of 16 tokens; 24 is not"),
        ([full(2)], {"state_kernel": "triton"}, "'triton' is not a kernel of states"),
        ([full(2)], {"retention_interval": 64}, "no windows or states"),
        ([full(2), window(2)], {"retention_interval": 24}, "multiple of 16 tokens"),
        ([full(2), STATES], {"hybrid": False}, "without its hybrid KV cache manager"),
        ([full(2), window(2), window(2, tokens=64)], {"hybrid": False}, "windows of several sizes"),
        ([LayerKind("latent", 2, 1152), LayerKind("chunk", 2, 4096, window=8192)], {}, "equally large"),
        ([full(2, 1024), LayerKind("chunk", 2, 2048, window=8192)], {}, "chunked layers"),
    ],
)
def test_what_vllm_refuses_is_one_clear_sentence(layers, options, message):
    with pytest.raises(UsageError, match=message):
        vllm_layout(layers, **options)


def test_published_block_sizes_come_out():
    """vLLM's issues name the model and the block: 528 (#40696, #45238), 8,320 (#48402), 2,096 and 1,920 (#53749)."""
    convolution = 3 * 8192 * 2  # of 4 tokens, 16 bits
    qwen = [LayerKind("state", 24, state_bytes=32 * 128 * 128 * 4 + convolution), full(8, 2 * 4 * 256 * 2)]
    assert vllm_layout(qwen).scheduler_block_size == 528
    nemotron = LayerKind("state", 40, state_bytes=128 * 64 * 128 * 4 + 3 * (128 * 64 + 2 * 8 * 128) * 2)
    assert vllm_layout([nemotron, full(8, 2 * 2 * 128 * 1)]).scheduler_block_size == 8320
    small = LayerKind("state", 23, state_bytes=64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2)
    assert vllm_layout([small, full(6, 2 * 2 * 128 * 2)]).scheduler_block_size == 2096
    ling = LayerKind("state", 28, state_bytes=32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2)
    assert vllm_layout([ling, LayerKind("latent", 4, 576 * 2)], state_kernel="flashkda").scheduler_block_size == 1920
