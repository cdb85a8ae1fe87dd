"""Release profiles: each step against its slow twin, the laws they keep, and what they cost on a real trace."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace._native import sharing as kernel
from kvtrace.privacy.contributors import contributors
from kvtrace.privacy.profiles import PROFILES, declared, profile
from kvtrace.privacy.releases import NO_TURNS, release, release_in_pieces, share_by_k
from kvtrace.privacy.steps import drop_sessions, keep_allowed, round_lengths, step_times
from kvtrace.privacy.trace_draft import RowBlocks, TraceDraft
from kvtrace.trace.building import TraceBuilder, toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from kvtrace.trace.trace_figures import figures
from kvtrace.trace.unknown import UNKNOWN_LENGTH
from tests.privacy.senders import ROWS
from tests.reference import release as slow_release
from tests.reference import sharing as reference
from tests.strategies import traces

CONVERSATION = Path(__file__).resolve().parents[3] / "shared/data/mooncake/conversation_trace.jsonl"


def rows_of(trace):
    """All ids of each request, its prompt's and then its output's."""
    rows = [trace.prompt(row).tolist() for row in range(len(trace))]
    if trace.output_ids is not None:
        for row, ids in enumerate(rows):
            ids += trace.output_ids[trace.output_offsets[row] : trace.output_offsets[row + 1]].tolist()
    return rows


def count_contributors(trace, contributor):
    return RowBlocks.of(trace).contributors(contributor)


def split_below(trace, contributor, k, unknown=-1):
    draft = TraceDraft.of(trace)
    draft.blocks.split(contributor, k, unknown=unknown)
    return draft.trace()


def with_tail(trace, tail):
    draft = TraceDraft.of(trace)
    return draft.trace() if draft.set_tail(tail) else trace


def inferred(trace):
    return TraceDraft.of(trace).conversations()


def _blocks(*prompts):
    trace = toy(*prompts)
    return trace.hash_ids, trace.offsets


def contributors_of(trace, users=None, counts="auto"):
    return contributors(trace, users, counts, infer=lambda: inferred(trace))


def exposed(trace, contributor, k, unknown=-1):
    """Whether each request has a block of several contributors, of whom fewer than k are known."""
    who = {}
    for row, blocks in enumerate(rows_of(trace)):
        for block in blocks:
            who.setdefault(block, set()).add(int(contributor[row]))
    few = {block for block, found in who.items() if len(found) > 1 and len(found - {unknown}) < k}
    return np.array([not few.isdisjoint(row) for row in rows_of(trace)])


@st.composite
def held(draw, **options):
    trace = draw(traces(**options, unknown_outputs=True))
    users = st.lists(st.integers(-1, 4), min_size=len(trace), max_size=len(trace))
    return trace, np.array(draw(users))


# -- in pieces -------------------------------------------------------------------------------------------------------


@given(traces(unknown_outputs=True), st.sampled_from(["exact", "standard", "strict"]))
def test_a_release_in_pieces_is_that_of_a_whole_trace(trace, name):
    whole = release(trace, profile(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvtrace.privacy.trace_draft.REFERENCES", 4)
        pieces = release_in_pieces(trace, profile(name))
        chunks = list(pieces.columns())
    assert len(chunks) > 1 or len(whole.trace.hash_ids) <= 4 or len(whole.trace) == 1
    builder = TraceBuilder()
    for columns in chunks:
        builder.add(columns)
    joined = builder.columns()
    for field in ("timestamp", "input_length", "output_length", "hash_ids", "offsets", "session", "parent",
                  "output_ids", "output_offsets"):  # fmt: skip
        assert _listed(getattr(joined, field)) == _listed(getattr(whole.trace, field))
    assert (pieces.figures, pieces.meta) == (figures(whole.trace), whole.trace.meta)
    assert (pieces.account.steps, pieces.account.notes) == (whole.steps, whole.notes)
    assert (pieces.block_size, pieces.tail) == (whole.trace.block_size, whole.trace.tail)


def _listed(values):
    return None if values is None else values.tolist()


# -- kernels and their twins -----------------------------------------------------------------------------------------


@given(held())
def test_holders_are_counted_as_the_twin_counts_them(both):
    trace, users = both[0], np.abs(both[1])
    assert count_contributors(trace, users).tolist() == reference.count_contributors(
        rows_of(trace), users, trace.distinct
    )


@given(held(), st.integers(1, 6))
def test_blocks_are_split_as_the_twin_splits_them(both, k):
    trace, users = both
    contributor, unknown = np.arange(len(trace)), -1
    if (users >= 0).any():
        who = contributors_of(trace, users, "users")
        contributor, unknown = who.contributor, who.unknown
    split = rows_of(split_below(trace, contributor, k, unknown))
    assert split == reference.release_by_k(trace, contributor, k, unknown)


@given(traces(outputs=False, unknown_outputs=True), st.data())
def test_blocks_are_joined_to_runs_as_the_twin_joins_them(trace, data):
    trace = trace.chained()
    is_alone = data.draw(st.lists(st.booleans(), min_size=len(trace), max_size=len(trace)))
    blocks, prompts = RowBlocks.in_runs(trace, np.array(is_alone, dtype=bool)), rows_of(trace)
    parts = reference.runs(prompts, is_alone)
    assert [[len(part) for part in row] for row in parts] == [
        blocks.lengths[blocks.number[a:b]].tolist() for a, b in pairwise(blocks.offsets)
    ]
    assert blocks.prompt_blocks().tolist() == trace.prompt_blocks.tolist()
    assert blocks.segments()["hash_ids"].tolist() == trace.hash_ids.tolist()


@given(traces(outputs=False, unknown_outputs=True), st.integers(2, 6))
def test_the_twin_knows_where_splits_may_lead_to_more(trace, k):
    trace, rows = trace.chained(), rows_of(trace.chained())
    count = reference.count_contributors(rows, inferred(trace).tolist(), trace.distinct)
    starts = kernel.unsettled(trace.hash_ids, trace.offsets, count, k)
    assert starts.tolist() == reference.unsettled(rows, count, k)


@pytest.mark.parametrize("tail", ["kept", "unique", "dropped"])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_rounds_that_look_at_a_part_of_the_rows_split_what_rounds_over_all_rows_split(k, tail):
    rounds = []
    for seed in range(150):
        whole, parts = (TraceDraft.of(_branching_chats(np.random.default_rng(seed))) for _ in range(2))
        for draft in (whole, parts):
            draft.set_tail(tail)
        rounds.append(1)
        while whole.blocks.split(conversation := whole.conversations(), k):
            rounds[-1] += 1
        who = share_by_k(parts, k, lambda infer, rows=parts.rows: contributors(rows, infer=infer))
        assert who.contributor.tolist() == conversation.tolist()
        assert parts.columns().hash_ids.tolist() == whole.columns().hash_ids.tolist()
    assert max(rounds) > (2 if k > 2 else 0)  # so that parts of parts are looked at


def _branching_chats(rng):
    """Up to 40 prompts of blocks of 2 tokens; most go on from the start of an earlier one."""
    prompts, number = [[]], {}
    for _ in range(rng.integers(40)):
        before = prompts[rng.integers(len(prompts))] if rng.random() < 0.8 else []
        more = rng.integers(2, size=rng.integers(4)).tolist()
        prompts.append(before[: rng.integers(len(before) + 1)] + more)
    ids = [number.setdefault(tuple(path[: at + 1]), len(number)) for path in prompts for at in range(len(path))]
    lengths = np.array([2 * len(path) - (len(path) > 0 and path[-1] == 1) for path in prompts])
    zeros = np.zeros(len(prompts))
    offsets = np.concatenate([[0], np.cumsum([len(path) for path in prompts])])
    return Trace.from_columns(Columns(zeros, lengths, zeros, ids, offsets), block_size=2)


def test_a_split_leads_to_splits_above_it_and_not_below_a_block_that_keeps_k_conversations():
    prompts = "0 1", "0 1 2", "0 3", "0 3", "0 4", "0 5 6", "0 5 7"
    assert kernel.unsettled(*_blocks(*prompts), [5, 1, 1, 2, 1, 2, 1, 1], 3).tolist() == [0, 0, 0, 0, 0, 0, 0]
    assert kernel.unsettled(*_blocks(*prompts), [5, 3, 1, 2, 1, 2, 1, 1], 3).tolist() == [2, 3, 1, 1, 2, 1, 1]


@given(traces(unknown_outputs=True))
def test_conversations_are_inferred_as_the_twin_infers_them(trace):
    prompts = [trace.prompt(row).tolist() for row in range(len(trace))]
    assert inferred(trace).tolist() == reference.infer(prompts, trace.tail != "dropped")


@given(
    held(), st.sampled_from(["kept", "unique", "dropped"]), st.integers(1, 6), st.sampled_from(["users", "", "isolate"])
)
def test_a_release_has_the_blocks_and_the_hits_of_its_twin(both, tail, k, counts):
    trace, users = both
    users = None if not counts else np.abs(users) if counts == "isolate" else users
    options = {"users": users, "isolate": counts == "isolate"}
    trace = trace.chained()
    done = release(trace, profile("exact", tail=tail, k=k), **options)
    rows, steps = slow_release.release(trace, tail=tail, k=k, **options)
    assert rows_of(done.trace) == [prompt + output for prompt, output in rows]
    assert done.trace.prompt_blocks.tolist() == [len(prompt) for prompt, _ in rows]
    assert [(step.step.value, step.hits.hit_blocks) for step in done.steps] == steps


def test_kernels_refuse_arrays_that_do_not_fit():
    with pytest.raises(ValueError, match="distinct"):
        kernel.count_contributors(np.array([5]), np.array([0, 1]), np.array([0]), 2)
    with pytest.raises(ValueError, match="contributor"):
        kernel.count_contributors(np.array([0]), np.array([0, 1]), np.array([-1]), 2)
    with pytest.raises(ValueError, match="contributor"):
        kernel.count_contributors(np.array([0]), np.array([0, 1]), np.array([0, 0]), 2)
    with pytest.raises(ValueError, match="offsets"):
        kernel.count_contributors(np.array([0]), np.array([0, 2]), np.array([0]), 2)
    with pytest.raises(ValueError, match="offsets"):
        kernel.infer(np.array([0]), np.array([0, 3, 1]), np.array([3, 1]), False, 2)
    with pytest.raises(ValueError, match="in place"):
        kernel.split(np.array([0]), np.array([0, 1]), np.array([0]), np.array([1]), np.array([True]))
    with pytest.raises(ValueError, match="prompt"):
        kernel.leading_hits(np.array([0]), np.array([0, 1]), np.array([2]), np.ones(1, dtype=bool))


# -- k-sharing, worked out by hand ---------------------------------------------------------------------------------


def test_a_block_of_two_users_becomes_one_for_each_and_one_of_three_stays():
    #        ann    bob    cid    ann again
    trace = toy("0 1", "0 1", "0 2", "0 1 3")
    after = split_below(trace, np.array([0, 1, 2, 0]), 3)
    assert rows_of(after) == [[0, 1], [0, 2], [0, 3], [0, 1, 4]]  # block 1 of ann is hit by ann, and not by bob


def test_a_user_of_many_requests_counts_once():
    trace = toy("0", "0", "0")
    assert not exposed(trace, np.array([0, 0, 0]), 3).any()
    assert exposed(trace, np.array([0, 0, 1]), 3).all()


def test_who_is_counted_is_users_then_sessions_then_what_can_be_inferred():
    trace = Trace([0, 0, 0], [1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 1, 2, 3], session=[0, 0, -1], block_size=1)
    users = np.array([7, -1, 7])
    assert contributors_of(trace, users).kind == "users" and contributors_of(trace, users).contributor.tolist() == [
        7,
        8,
        7,
    ]
    assert contributors_of(trace).kind == "sessions" and contributors_of(trace).contributor.tolist() == [0, 0, 1]
    assert contributors_of(trace, users, "requests").contributor.tolist() == [0, 1, 2]
    assert contributors_of(trace[2:]).kind == "inferred" and contributors_of(trace[2:]).warning
    assert contributors_of(trace, users).warning is None and contributors_of(trace, np.full(3, -1)).kind == "sessions"


# -- laws --------------------------------------------------------------------------------------------------------------

names = st.sampled_from(ROWS)


@given(held(), names, st.integers(1, 6))
def test_a_release_exposes_no_block_of_two_to_k_minus_1_holders(both, name, k):
    trace, users = both
    done = release(trace, profile(name, k=k), users=users)
    if done.contributors is not None:
        assert not exposed(done.trace, done.contributors.contributor, k, done.contributors.unknown).any()


@given(traces(unknown_outputs=True), st.sampled_from(["standard", "strict"]), st.integers(2, 6))
def test_whoever_infers_conversations_from_a_release_finds_none_exposed(trace, name, k):
    trace = whole(drop_sessions(trace), trace)
    done = release(trace, profile(name, k=k))
    assert done.contributors.kind == "inferred"
    assert not exposed(done.trace, inferred(done.trace), k).any()


@given(held(), names)
def test_a_release_keeps_requests_order_and_blocks_and_hits_stay_prefixes(both, name):
    trace, users = both
    done = release(trace, PROFILES[name], users=users).trace
    assert len(done) == len(trace) and done.is_chained
    assert (done.prompt_blocks == trace.prompt_blocks).all()  # no profile drops tails
    before, after = kvtrace.trace.unlimited_hits(trace), kvtrace.trace.unlimited_hits(done)
    assert (after <= before).all()
    if name == "exact":
        assert done == trace


@given(held(), names)
def test_each_step_costs_hits_or_none_and_the_last_is_what_the_trace_has(both, name):
    trace, users = both
    done = release(trace, PROFILES[name], users=users)
    counted = [step.hits.hit_blocks for step in done.steps]
    assert counted == sorted(counted, reverse=True)
    assert counted[-1] == int(kvtrace.trace.unlimited_hits(done.trace).sum())


@given(held(), names)
def test_released_twice_is_released_once(both, name):
    trace, users = both
    users = contributors_of(
        trace, users
    ).contributor  # of all requests, as the second release no longer knows the sessions
    once = release(trace, PROFILES[name], users=users).trace
    assert release(once, PROFILES[name], users=users).trace == once


@given(held(), st.floats(0.2, 0.9), st.integers(0, 5))
def test_a_sample_holds_whole_sessions_and_numbers_without_gaps(both, share, seed):
    trace, users = both
    rng = np.random.default_rng(seed)
    try:
        done = release(trace, PROFILES["standard"], users=users, session_share=share, rng=rng)
    except UsageError as error:
        assert "contains none" in str(error)
        return
    assert done.sampled and len(done.trace) <= len(trace)
    if trace.session is not None and (trace.session >= 0).any():
        whole = np.bincount(trace.session[trace.session >= 0])
        kept = np.bincount(done.trace.session[done.trace.session >= 0], minlength=1)
        assert set(kept[kept > 0].tolist()) <= set(whole.tolist())
    assert done.meta["release"].keys() == {"settings", "k_counted", "sampled", "tenants_isolated"}
    assert done.trace.distinct == len(np.unique(np.concatenate([*map(np.array, rows_of(done.trace)), np.array([])])))


@given(held())
def test_isolated_users_share_nothing(both):
    trace, users = both
    done = release(trace, PROFILES["exact"], users=np.abs(users), isolate=True)
    assert (count_contributors(done.trace, np.abs(users)) <= 1).all() and done.isolated


@given(traces(unknown_outputs=True))
def test_tails_are_unique_or_gone_and_no_length_changes(trace):
    unique, dropped = with_tail(trace, "unique"), with_tail(trace, "dropped")
    assert (unique.input_length == trace.input_length).all() and (dropped.input_length == trace.input_length).all()
    assert (dropped.prompt_blocks == trace.input_length // trace.block_size).all()
    assert with_tail(unique, "dropped") == dropped and with_tail(dropped, "unique") is dropped
    uses = np.bincount(np.concatenate([*map(np.array, rows_of(unique))]).astype(int), minlength=unique.distinct)
    tails = unique.hash_ids[unique.offsets[1:][unique.input_length % unique.block_size > 0] - 1]
    assert (uses[tails] == 1).all()


def whole(columns, trace):
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail)


def rounded(trace, round_input, round_output):
    columns = round_lengths(trace, round_input, round_output, block_size=trace.block_size, tail=trace.tail)
    return whole(columns, trace)


@given(traces(unknown_outputs=True), st.sampled_from(["exact", "block", 1]), st.sampled_from(["exact", "pow2", 7]))
def test_rounded_lengths_are_never_below_a_block_less_and_keep_the_blocks(trace, round_input, round_output):
    done = rounded(trace, round_input, round_output)
    assert (done.prompt_blocks == trace.prompt_blocks).all()
    assert (done.input_length >= trace.input_length).all()
    assert (done.input_length - trace.input_length < trace.block_size).all()
    if round_input == "block":
        assert (done.input_length % trace.block_size == 0).all()
    for before, after in zip(trace.output_length.tolist(), done.output_length.tolist(), strict=True):
        if before == UNKNOWN_LENGTH:
            assert after == before
        elif round_output == "pow2":
            assert after == (2 ** round(math.log2(before)) if before else 0)
        elif round_output == 7:
            assert after % 7 == 0 and before <= after < before + 7


def test_dropped_tails_round_down_to_the_blocks_that_are_there():
    trace = with_tail(Trace.from_columns(Columns([0], [5], [1], [0, 1, 2], [0, 3]), block_size=2), "dropped")
    assert rounded(trace, "block", "exact").input_length.tolist() == [4]


@given(traces(unknown_outputs=True), st.integers(1, 9))
def test_times_come_in_steps_and_rows_keep_their_order(trace, step):
    done = step_times(trace, step)
    assert (done.timestamp % step == 0).all() and (np.abs(done.timestamp - trace.timestamp) < step).all()
    assert (done.hash_ids == trace.hash_ids).all()


def test_a_release_has_no_columns_but_types_of_a_closed_list_and_turns():
    columns = Columns([0, 1], [1, 1], [1, 1], [0, 1], [0, 1, 2])
    columns.extra = {"type": ["text", "secret"], "turn": [1, 2], "note": ["a", "b"], "prompt_text": ["c", "d"]}
    done, left = keep_allowed(Trace.from_columns(columns, block_size=1))
    assert left == ["note", "prompt_text"] and done.extra["type"].tolist() == ["text", "other"]
    assert done.extra["turn"].tolist() == [1, 2] and "turn" not in drop_sessions(done).extra
    said = release(Trace.from_columns(columns, block_size=1), PROFILES["standard"], users=np.array([0, 1]))
    assert said.notes == ["2 extra columns were left out."]


@pytest.mark.parametrize(
    ("turns", "kept"),
    [
        ([1, 2], True),
        ([0, 9_999], True),
        ([1, None], False),
        ([1, 10_000], False),
        (["a", "b"], False),
        ([-1, 1], False),
    ],
)
def test_turns_that_a_release_leaves_out_have_a_note(turns, kept):
    columns = Columns([0, 1], [1, 1], [1, 1], [0, 1], [0, 1, 2])
    columns.extra = {"turn": np.array(turns) if None not in turns else np.array(turns, dtype=object)}
    done = release(Trace.from_columns(columns, block_size=1), PROFILES["standard"], users=np.array([0, 1]))
    assert ("turn" in done.trace.extra) == kept
    assert [note for note in done.notes if "turn" in note] == ([] if kept else [NO_TURNS])


def test_strict_leaves_out_the_blocks_of_outputs_and_says_so():
    columns = Columns([0], [2], [2], [0], [0, 1], output_ids=[1], output_offsets=[0, 1])
    done = release(Trace.from_columns(columns, block_size=2), PROFILES["strict"])
    assert done.trace.output_ids is None and any("outputs were left out" in note for note in done.notes)


def test_blocks_hashed_without_their_prefix_are_chained_first():
    trace = toy("0 1 2", "3 1 2")
    done = release(trace, PROFILES["standard"], users=np.array([0, 1]))
    assert done.trace.is_chained and [step.step.value for step in done.steps][:2] == ["original", "chained"]


# -- what a profile says, and what is wrong with one -------------------------------------------------------------------


STEPS = {  # step -> options of a release that takes it
    "original": {},
    "chained": {},
    "sampled": {"session_share": 0.5},
    "tails_unique": {},
    "tails_dropped": {"tail": "dropped"},
    "alike": {"alike": 2},
    "tenants_isolated": {"isolate": True},
    "k_sharing": {},
    "resampled": {"resample": True, "drop_sessions": True},
}


@pytest.mark.parametrize("step", STEPS)
def test_a_release_records_each_step_that_it_takes(step):
    rows = ["7 1", "7 2", "8 7", "8 1"] if step == "chained" else ["0 1", "0 1", "0 2", "3 4"]
    rows *= 16 if step == "resampled" else 1
    options = dict(STEPS[step])
    settings = {key: options.pop(key) for key in ("tail", "alike", "resample", "drop_sessions") if key in options}
    chosen = profile("standard", **settings)
    done = release(toy(*rows), chosen, users=np.arange(len(rows)), rng=np.random.default_rng(0), **options)
    assert step in [taken.step for taken in done.steps]


def test_a_sidecar_declares_the_profile_that_made_the_trace():
    done = release(toy("0 1", "0 1"), profile("strict", k=4), users=np.array([0, 1]))
    assert declared(done.meta) == profile("strict", k=4) and done.meta["release"]["k_counted"] == "users"
    assert declared({"profile": "loose"}) is None
    assert declared({"profile": "strict", "release": {"settings": {"k": "many"}}}) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "loose"}, "'loose' is not a release profile"),
        ({"tail": "cut"}, "'cut' is not a valid tail"),
        ({"k": 0}, "k must be"),
        ({"k": 10**30}, "k must be"),
        ({"round_output": 2**63}, "round_output must be"),
        ({"k_counts": "rows"}, "'rows' is not valid for k_counts"),
        ({"time_step_ms": -1}, "time_step_ms must be"),
        ({"round_input": "pow3"}, "not valid for round_input. Did you mean pow2"),
        ({"round_output": 0}, "round_output must be"),
    ],
)
def test_a_wrong_setting_is_told(settings, said):
    with pytest.raises(UsageError, match=said):
        profile(**{"name": "standard"} | settings)


def test_input_lengths_are_rounded_within_a_block_only():
    with pytest.raises(UsageError, match="divide the block size of 4"):
        rounded(toy("0", block_size=4), 3, "exact")


# -- the conversation trace ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not CONVERSATION.exists(), reason="no shared data")
def test_the_costs_on_the_conversation_trace():
    trace = kvtrace.read(CONVERSATION)

    def costs(k, **options):
        done = release(trace, profile("standard", k=k, **options))
        base = done.steps[0].hits.hit_blocks
        return [round(100 * (step.hits.hit_blocks / base - 1), 2) for step in done.steps[1:]]

    assert costs(3) == [-0.11, -3.08]  # standard: at most 3.5 %
    assert costs(5) == [-0.11, -4.95] and costs(10) == [-0.11, -6.79]
    assert costs(3, k_counts="requests") == [-0.11, -24.13]  # why k never counts requests
