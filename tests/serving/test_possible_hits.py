"""What a model's cache makes of the possible hits, worked out by hand, and the sentence that says so."""

import pytest

from kvtrace import UsageError
from kvtrace.cache import simulate
from kvtrace.serving import reachable_hits
from kvtrace.trace.building import toy

ALL = "With memory for all blocks, vLLM's cache of this model"


def forked(block_size=512):
    """Three prompts that share two blocks and then differ; a window of 128 tokens lies within one block of 512."""
    return toy("0 1 2 3", "0 1 4 5", "0 1 6 7", block_size=block_size)


def test_a_second_request_of_a_shared_prefix_hits_with_dense_retention_only():
    """The second prompt finds no window after block 1; vLLM keeps it there, so the third one does."""
    found = reachable_hits(forked(), "gpt-oss-20b")
    assert (found.prompt_tokens, found.possible_hit_tokens, found.hit_tokens) == (6144, 2048, 1024)
    hits = {one.setting: one.hit_tokens for one in found.others}
    # 1,024 tokens are a multiple of the interval, and the last boundary of larger blocks before a prompt's last token;
    # blocks of 2,048 are longer than what is shared
    assert hits == {"--retention dense": 2048, "--retention 1024": 2048, "--engine-block-size 1024": 2048,
                    "--engine-block-size 2048": 0}  # fmt: skip
    assert found.better.setting == "--retention dense"
    assert str(found) == (
        f"{ALL} (blocks of 512 tokens) hits 16.7 % of the prompt tokens; 33.3 % are possible. --retention dense would "
        "hit 33.3 %. Add --capacity to see this in the memory of your GPU."
    )


def test_the_hits_are_those_of_a_simulation():
    for capacity in (16, 20, 40):
        found = reachable_hits(forked(), "gpt-oss-20b", capacity=capacity)
        run = simulate(forked(), capacity, engine="vllm", mode="token", layout=found.layout)
        assert found.hit_tokens == run.hits.hit_tokens and found.capacity == capacity


def test_a_capacity_is_named_and_given_to_all_settings():
    """Eight blocks hold one prompt in both groups, so that its two shared blocks are gone when the next one ends."""
    found = reachable_hits(toy("0 1 2 3", "4 5 6 7", "0 1 2 3", block_size=512), "gpt-oss-20b", capacity=8)
    assert found.possible_hit_tokens == 1536 and {found.hit_tokens, *(one.hit_tokens for one in found.others)} == {0}
    assert str(found).startswith("At 8 blocks, vLLM's") and str(found).endswith("would hit clearly more.")


def test_prompts_below_a_block_cannot_hit():
    found = reachable_hits(forked(block_size=16), "qwen3-next-80b-a3b")
    assert (found.hit_tokens, found.prompts_below_a_block, found.better) == (0, 3, None)
    assert str(found) == (
        f"{ALL} (blocks of 576 tokens) hits 0.0 % of the prompt tokens; 33.3 % are possible. 3 prompts are not longer "
        "than one block: no setting helps them."
    )


def test_full_attention_hits_what_is_possible():
    found = reachable_hits(forked(), "llama-3.1-8b")
    assert found.hit_tokens == found.possible_hit_tokens == 2048 and found.layout is None and found.others == ()
    assert (
        str(found) == f"{ALL} hits 33.3 % of the prompt tokens; 33.3 % are possible. All of its layers keep all tokens."
    )
    assert found.to_dict()["layout"] is None


def test_sglang_has_no_other_setting():
    found = reachable_hits(forked(), "gpt-oss-20b", "sglang")
    assert (found.hit_tokens, found.others) == (1024, ()) and str(found).endswith("33.3 % are possible.")


def test_states_are_not_short_where_nothing_is_evicted():
    """A prompt of 128 tokens has its state at the end, where it cannot resume; the second one records it at 64 tokens.

    SGLang's share of memory has one state for each 111 blocks of 16 tokens, which 100 other prompts would take.
    """
    trace = toy(*["0 1 2 3 4 5 6 7"] * 3, *(" ".join(map(str, range(n, n + 8))) for n in range(8, 808, 8)),
                "0 1 2 3 4 5 6 7", block_size=16)  # fmt: skip
    found = reachable_hits(trace, "qwen3-next-80b-a3b", "sglang")
    assert found.hit_tokens == 64 + 64  # the third request, and the last one


def test_bad_arguments_are_refused():
    with pytest.raises(UsageError, match="models full attention only"):
        reachable_hits(forked(), "gpt-oss-20b", "lmcache")
    with pytest.raises(UsageError, match="too small for request 0"):
        reachable_hits(forked(), "gpt-oss-20b", capacity=2)
