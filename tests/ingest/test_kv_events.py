"""KV events become rows: what was stored, with its path, and how often blocks were stored again."""

import json
import random
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import RowError
from kvtrace.ingest.logs import kv_events, open_reader, sources
from kvtrace.ingest.logs.kv_batches import KvEventCounts, event_batch, is_events
from kvtrace.ingest.logs.kv_blocks import KvBlocks, depth_of
from kvtrace.ingest.logs.kv_events import KvPublisher
from kvtrace.privacy.publishing import publish

SAMPLE = Path(__file__).parents[1] / "data/logs/kv_events.jsonl"
SIZE = 2


def stored(hashes, parent=None, tokens=None, **fields):
    """A store of blocks of two tokens; block h has the tokens 2h and 2h + 1."""
    tokens = [token for one in hashes for token in (2 * one, 2 * one + 1)] if tokens is None else tokens
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens,
        "block_size": SIZE, "lora_id": None, "medium": "GPU", **fields,
    }  # fmt: skip


def removed(*hashes, **fields):
    return {"type": "BlockRemoved", "block_hashes": [*hashes], "medium": "GPU", **fields}


CLEARED = {"type": "AllBlocksCleared"}


def rows_of(*batches, publisher=None):
    """The rows of batches (seconds, events), as (seconds, block numbers, cached blocks)."""
    publisher = publisher or KvPublisher()
    rows = [row for seconds, *events in batches for row in publisher.add([seconds, events])] + publisher.rest()
    return [
        (row["timestamp"], [one // 2 for one in row["prompt_token_ids"][::2]], row["cached_tokens"] // SIZE)
        for row in rows
    ]


def counts_of(*batches):
    publisher = KvPublisher()
    rows_of(*batches, publisher=publisher)
    return {name: value for name, value in publisher.counts().to_dict().items() if value and name != "block_size"}


# -- rows ------------------------------------------------------------------------------------------------------------


def test_a_row_is_the_path_and_what_the_parent_has_was_cached():
    found = rows_of((0, stored([1, 2])), (60, stored([3], 2)))
    assert found == [(0, [1, 2], 0), (60, [1, 2, 3], 2)]


def test_chunks_and_generated_blocks_extend_a_row():
    batches = (0, stored([1, 2])), (1, stored([3, 4], 2)), (2, stored([5], 4)), (7, stored([6], 5))
    assert rows_of(*batches) == [(0, [1, 2, 3, 4, 5, 6], 0)]


def test_several_blocks_after_generated_ones_are_the_next_turn():
    batches = (0, stored([1, 2])), (1, stored([3], 2)), (2, stored([4, 5], 3))
    assert rows_of(*batches) == [(0, [1, 2, 3], 0), (2, [1, 2, 3, 4, 5], 3)]


def test_a_store_that_comes_late_is_another_request():
    assert rows_of((0, stored([1, 2])), (5, stored([3, 4], 2))) == [(0, [1, 2, 3, 4], 0)]
    assert rows_of((0, stored([1, 2])), (5.01, stored([3, 4], 2))) == [(0, [1, 2], 0), (5.01, [1, 2, 3, 4], 2)]


def test_two_requests_share_a_prefix():
    found = rows_of((0, stored([1]), stored([2, 3], 1), stored([4, 5], 1)))
    assert found == [(0, [1, 2, 3], 0), (0, [1, 4, 5], 1)]


def test_a_session_does_not_extend_the_row_of_another():
    found = rows_of((0, stored([1], session_id="a")), (1, stored([2], 1, session_id="b")))
    assert found == [(0, [1], 0), (1, [1, 2], 1)]


def test_hits_that_vllm_publishes_begin_a_row():
    hit = stored([1, 2])
    found = rows_of((0, stored([1, 2])), (60, hit, stored([3], 2)), (120, hit), (120.5, hit), (122, hit))
    assert found == [(0, [1, 2], 0), (60, [1, 2, 3], 2), (120, [1, 2], 2), (122, [1, 2], 2)]  # one waits, one is new
    counts = counts_of((0, stored([1, 2])), (60, hit, stored([3], 2)), (120, hit))
    assert counts == {"first": 3, "hit": 4, "reports": 2, "resident": 3}


def test_a_prompt_of_one_resident_block_is_computed_again():
    assert counts_of((0, stored([1])), (60, stored([1]))) == {"first": 1, "copies": 1, "resident": 1}
    assert counts_of((0, stored([1])), (60, stored([1]), stored([2], 1)))["reports"] == 1


def test_an_unknown_parent_is_a_root_of_its_own():
    publisher = KvPublisher()
    rows = publisher.add([0, [stored([2], 1), stored([3], 1), stored([4], 9)]]) + publisher.rest()
    assert [row["prompt_token_ids"] for row in rows] == [[4, 5], [6, 7], [8, 9]]
    assert rows[0]["media"] == rows[1]["media"] != rows[2]["media"]
    assert publisher.counts().unknown_parents == 3 and publisher.counts().hit == 0


def test_a_parent_that_is_stored_later_joins_the_path():
    found = rows_of((0, stored([3], 2)), (60, stored([1, 2])), (120, stored([4], 3)))
    assert found == [(0, [3], 0), (60, [1, 2], 0), (120, [1, 2, 3, 4], 3)]


def test_adapters_salts_and_images_keep_prompts_apart():
    keys = [["poet", "tenant a"], ["poet", ["image 1", 0]]]
    publisher = KvPublisher()
    (row,) = publisher.add([0, [stored([1, 2], lora_name="poet", extra_keys=keys)]]) + publisher.rest()
    record = kv_events.read(row)
    assert (record.adapter, record.salts, record.media) == ("poet", [b'{"cache_salt":"tenant a"}'], [])
    assert record.media_at == [(2, b'"image 1"')]  # it begins in the second block


def ids_of(batches, folder):
    """The trace's ids of recorded batches (seconds, events)."""
    path = folder / "events.jsonl"
    path.write_bytes(b"".join(orjson.dumps([seconds, events]) + b"\n" for seconds, *events in batches))
    publish(
        kvtrace.ingest.anonymize(path, profile=kvtrace.privacy.profile("exact"), block_size=SIZE),
        folder / "trace.jsonl",
    )
    return [orjson.loads(line)["hash_ids"] for line in (folder / "trace.jsonl").read_bytes().splitlines()]


PROMPT = [7, 7, 5, 5, 5, 5]  # three blocks; token 5 is the placeholder of every image


def three_requests(**keys_of_images):
    """Requests with image A, image B and A again, after the cache lost A: block 10 is that of the text before it."""
    keys = {name: {"extra_keys": [None, *keys]} for name, keys in keys_of_images.items()}
    a = stored([10, 11, 12], tokens=PROMPT, **keys.get("a", {}))
    b = stored([21, 22], 10, tokens=PROMPT[2:], **(keys and {"extra_keys": keys["b"]["extra_keys"][1:]}))
    again = stored([11, 12], 10, tokens=PROMPT[2:], **(keys and {"extra_keys": keys["a"]["extra_keys"][1:]}))
    return (0, a), (60, b), (100, removed(11, 12)), (120, again)


@pytest.mark.parametrize(
    "keys",
    [
        # vLLM 0.33: an image and its first token, counted from the start of the block
        {"a": [[["image a", 0]], [["image a", -2]]], "b": [[["image b", 0]], [["image b", -2]]]},
        {"a": [["image a"], ["image a"]], "b": [["image b"], ["image b"]]},  # older
        {},  # events without keys: the hashes and their parents alone tell the images apart
    ],
    ids=["keys with places", "keys", "hashes alone"],
)
def test_images_with_equal_tokens_are_told_apart_as_the_parents_say(keys, tmp_path):
    assert ids_of(three_requests(**keys), tmp_path) == [[0, 1, 2], [0, 3, 4], [0, 1, 2]]


def test_wide_placeholders_of_sglang_are_ids_that_no_vocabulary_has():
    """SGLang 0.5.23 writes four numbers of 62 bits, made of an image's hash, in place of its placeholders."""
    wide = [2**61 + 5, 2**61 + 5, 2**40, 7]
    publisher = KvPublisher()
    (row,) = publisher.add([0, [stored([1, 2], tokens=wide)]]) + publisher.rest()
    first, again, second, text = row["prompt_token_ids"]
    assert first == again != second and min(first, second) >= 2**31 and max(first, second) < 2**32 and text == 7


def test_hashes_alone_need_no_places():
    """The engine's hash of a block covers its images."""
    publisher = KvPublisher()
    keys = {"tokens": [], "extra_keys": [[["image a", 0]]]}
    (row,) = publisher.add([0, [stored([1], **keys)]]) + publisher.rest()
    assert kv_events.read(row).media_at == kv_events.read(row).media == []


def test_images_in_one_block_and_across_blocks_stand_where_they_begin():
    """Image a at token 1, b at token 3 and over the third block, with its text's token after it."""
    keys = [[["a", 1]], [["a", -1], ["b", 1]], [["b", -1]]]
    publisher = KvPublisher()
    rows = publisher.add([0, [stored([1, 2, 3], extra_keys=keys)]])
    rows += publisher.add([60, [stored([4], 9, extra_keys=[[["b", -3]]])]]) + publisher.rest()
    assert [row["media_at"] for row in rows] == [[[1, "a"], [3, "b"]], [[0, "b"]]]  # the other's beginning is unknown


def test_events_without_tokens_give_hashes():
    batch = [0, [stored([2**63, -1], tokens=[]), stored([b"a", "b"], -1, tokens=[])]]
    publisher = KvPublisher()
    (row,) = publisher.add(batch) + publisher.rest()
    assert row["block_size"] == SIZE and row["block_hashes"][:2] == [2**63, 2**64 - 1]
    record = kv_events.read(orjson.loads(orjson.dumps(row)))
    assert (record.input_length, len(record.hashes), record.token_ids) == (8, 4, None)


def test_pairs_of_a_draft_model_are_tokens():
    publisher = KvPublisher()
    (row,) = publisher.add([0, [stored([1], tokens=[[5, 6], [6, 7]])]]) + publisher.rest()
    assert row["prompt_token_ids"] == [5, 6]


def test_one_group_of_a_hybrid_model_is_read():
    window = {"group_idx": 0, "kv_cache_spec_kind": "sliding_window"}
    full = {"group_idx": 1, "kv_cache_spec_kind": "full_attention"}
    batches = (0, stored([1], **window), stored([1], **full)), (9, removed(1, group_idx=0))
    assert rows_of(*batches) == [(0, [1], 0)]
    assert counts_of(*batches) == {"first": 1, "other_groups": 1, "resident": 1}


# -- counts ----------------------------------------------------------------------------------------------------------


def test_removed_and_stored_again():
    batches = (0, stored([1, 2])), (9, removed(2)), (60, stored([2, 3], 1)), (70, removed(3, 2, 1))
    assert counts_of(*batches) == {"first": 3, "again": 1, "hit": 1, "removed": 4}


def test_each_copy_is_removed_by_itself():
    batches = (0, stored([1])), (1, stored([1])), (2, removed(1)), (60, stored([2], 1))
    assert counts_of(*batches) == {"first": 2, "copies": 1, "hit": 1, "resident": 2}


def test_blocks_of_a_lower_tier_are_loaded_not_computed():
    on_cpu = {"medium": "CPU_PINNED", "token_ids": []}
    batches = (0, stored([1, 2])), (1, stored([1, 2]) | on_cpu), (9, removed(2, 1)), (60, stored([1, 2, 3]))
    assert rows_of(*batches) == [(0, [1, 2], 0), (60, [1, 2, 3], 2)]
    assert counts_of(*batches) == {"first": 3, "loaded": 2, "removed": 2, "resident": 3}
    gone = (59, removed(1, 2, medium="CPU_PINNED"))
    assert counts_of(*batches[:3], gone, batches[3])["again"] == 2


def test_an_emptied_cache_knows_nothing():
    assert counts_of((0, stored([1, 2]), CLEARED), (1, stored([1]))) == {"first": 3, "cleared": 2, "resident": 1}


def test_removals_of_unknown_blocks_are_counted():
    assert counts_of((0, removed(7)), (1, stored([1]), removed(1), removed(1))) == {
        "first": 1, "removed": 1, "unknown_removed": 2,
    }  # fmt: skip


def test_blocks_of_another_size_or_without_all_tokens_are_left_out():
    odd = stored([7, 8], tokens=[1, 2, 3])
    assert counts_of((0, stored([1]), odd, odd | {"block_size": 3}))["left_out"] == 4


def test_the_memory_is_bounded():
    publisher = KvPublisher(max_blocks=10)
    for one in range(100):
        publisher.add([one, [stored([one]), *([removed(one - 3)] if one > 2 else [])]])
    counts = publisher.counts()
    assert (counts.first, counts.resident, counts.forgotten) == (100, 3, 90)
    (cache,) = publisher._caches.values()
    assert len(cache._blocks._known) == 10 and len(cache._rows) < 10


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_counts_are_those_of_a_plain_model(seed, blocks):
    """Random paths of a tree are stored and removed: sets and dicts count the same."""
    rng = random.Random(seed)
    resident, seen, first, again, gone = set(), set(), 0, 0, 0
    publisher = KvPublisher()
    for second in range(40):
        path = [1]
        while len(path) < 5:
            path.append(path[-1] * 3 + rng.randrange(3))  # a block has three continuations
        hit = next((i for i, one in enumerate(path) if one not in resident), len(path))
        events = []
        if path[hit:]:
            first += len({*path[hit:]} - seen)
            again += len(({*path[hit:]} & seen) - resident)
            resident |= {*path[hit:]}
            seen |= {*path[hit:]}
            events = [stored(path[hit:], path[hit - 1] if hit else None)]
        while len(resident) > blocks:
            one = max(resident)  # children go first
            resident.remove(one)
            gone += 1
            events.append(removed(one))
        publisher.add([60 * second, events])
    counts = publisher.counts()
    assert (counts.first, counts.again, counts.removed, counts.resident) == (first, again, gone, len(resident))


# -- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch",
    [
        [1.5, [stored([1])]],
        [1.5, [stored([1])], 0],
        [1.5, [["BlockStored", [1], None, [2, 3], 2, None, "GPU"]], 0],
        {"ts": 1.5, "events": [stored([1])], "data_parallel_rank": 0},
        {"timestamp": 1.5, "event": stored([1])},
        {"seq": 4, "batch": [1.5, [stored([1])]]},
        stored([1]) | {"ts": 1.5},
        stored([1], medium=None) | {"ts": 1.5},
    ],
)
def test_all_forms_give_the_same_row(batch, tmp_path):
    line = orjson.dumps(batch)
    assert is_events(line)
    assert list(kv_events.row_lines([line])) == [
        b'{"kv_events":"row","timestamp":1.5,"cached_tokens":0,"prompt_token_ids":[2,3]}'
    ]
    (tmp_path / "events.jsonl").write_bytes(line + b"\n")
    found = sources.find(tmp_path / "events.jsonl")
    reader = open_reader("auto", sources.sample(found))
    assert reader.describe() == {"reader": "kv-events (detected)", "time": "seconds from the start (detected)"}


@pytest.mark.parametrize(
    "head", [b'{"messages": [{"content": "{\\"type\\": \\"BlockStored\\"}"}]}', b"[{", b"", b'"type": "BlockStored"']
)
def test_other_logs_are_not_kv_events(head):
    assert not is_events(head)


FAULTS = [
    "secret", 7, None, [], [1.5], [1.5, "secret"], ["secret", []], [float("nan"), []], [-1, []], [1e300, []], {},
    {"ts": "secret", "events": []}, [1, ["secret"]], [1, [{"type": 7}]], [1, [[]]],
    [1, [stored(["x" * 300], tokens=[1, 2])]], [1, [stored([1.5], tokens=[1, 2])]], [1, [removed(2**64)]],
    [1, [stored([1], tokens="secret")]], [1, [stored([1], tokens=[1, -1])]], [1, [stored([1], tokens=[1, "secret"])]],
    [1, [stored([1], tokens=[[], []])]], [1, [stored([1], tokens=[True, 2])]], [1, [stored([1], parent=["secret"])]],
    [1, [stored([1]) | {"block_size": 0}]], [1, [stored([1]) | {"block_size": "secret"}]],
    [1, [stored([1]) | {"block_size": 1 << 40}]], [1, [stored([1]) | {"medium": ["secret"]}]],
    [1, [stored([1], extra_keys=["secret", "secret"])]], [1, [stored([1], session_id={"secret": 1})]],
    [1, [{"type": "BlockRemoved"}]], [1, [removed("")]], [1, [], "secret"], [1, [removed(1, group_idx=-1)]],
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_batch_is_an_error_without_content_and_changes_nothing(fault):
    publisher = KvPublisher()
    publisher.add([0, [stored([1])]])
    before = publisher.counts().to_dict()
    with pytest.raises(RowError) as caught:
        publisher.add(fault)
    assert "secret" not in str(caught.value) and publisher.counts().to_dict() == before
    good = orjson.dumps([0, [stored([1])]])
    rows = list(kv_events.row_lines([good, json.dumps(fault).encode(), b'{"secret', good]))
    reader = open_reader("kv-events", rows[-1:])
    errors = []
    for row in rows:
        try:
            reader.read(row)
        except RowError as error:
            errors.append(str(error))
    assert [error.partition(":")[0] for error in errors][-1] == "line 3 of the events"
    assert len(rows) - len(errors) == 2 and not any("secret" in error for error in errors)


def test_events_of_unknown_types_are_counted():
    assert counts_of((0, {"type": "BlockReused"}, ["BlockMoved"], stored([1])))["unknown_events"] == 2


@pytest.mark.parametrize("hashes", [[1, 1], [1, 2, 1], [2, 1]])
def test_circles_end(hashes):
    publisher = KvPublisher()
    publisher.add([0, [stored([3], 1), stored([4], 2)]])
    publisher.add([1, [stored(hashes, 3), stored(hashes, 4), stored([9], 9), stored([9], 9)]])
    assert all(row["prompt_token_ids"] for row in publisher.rest())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3), lambda one: st.lists(one, max_size=4)
)
HASH = st.integers(0, 6)
FIELDS = st.sampled_from(["medium", "group_idx", "extra_keys", "token_ids"])
EVENT = st.builds(
    lambda hashes, parent, extra: stored(hashes, parent) | extra, st.lists(HASH, min_size=1, max_size=4),
    st.none() | HASH, st.dictionaries(FIELDS, JSON, max_size=1),
) | st.builds(lambda hashes: removed(*hashes), st.lists(HASH, max_size=4)) | st.just(CLEARED)  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 100), st.lists(EVENT, max_size=5)), max_size=8))
def test_any_events_give_rows_that_the_reader_reads(batches):
    publisher, rows = KvPublisher(max_blocks=5), []
    for seconds, events in batches:
        try:
            rows += publisher.add([seconds, events])
        except RowError:
            continue
    for row in rows + publisher.rest():
        assert kv_events.read(orjson.loads(orjson.dumps(row))).time == row["timestamp"]
    counts = publisher.counts()
    assert counts.resident >= 0
    stored_blocks = counts.first + counts.again + counts.loaded
    assert stored_blocks - counts.removed - counts.cleared - counts.resident >= 0  # the rest was forgotten


# -- publishers ------------------------------------------------------------------------------------------------------


def test_lost_batches_are_counted_and_replayed_ones_are_not_taken_twice():
    publisher = KvPublisher()
    for sequence in (3, 4, 6, 4, 5):
        publisher.add([sequence, [stored([sequence])]], sequence)
    counts = publisher.counts()
    assert (counts.first, counts.lost, counts.restarts) == (3, 1, 0)


def test_a_smaller_number_at_a_later_time_is_an_engine_that_started_again():
    publisher = KvPublisher()
    publisher.add([1, [stored([1])]], 8)
    rows = publisher.add([9, [stored([1])]], 0)
    counts = publisher.counts()
    assert len(rows) == 1 and (counts.first, counts.again, counts.restarts, counts.cleared) == (2, 0, 1, 1)


def test_each_rank_has_a_cache_of_its_own():
    publisher = KvPublisher()
    for rank in (0, 1):
        publisher.add([0, [stored([1])], rank])
    assert publisher.counts().first == publisher.counts().resident == 2 and len(publisher.rest()) == 2


def test_each_rank_numbers_its_batches():
    publisher = KvPublisher()
    for sequence in range(3):
        for rank in (0, 1):
            publisher.add([2 * sequence + rank, [stored([1 + sequence])], rank], sequence)
    publisher.add([9, [stored([9])], 1], 0)  # only this rank started again
    counts = publisher.counts()
    assert (counts.first, counts.resident, counts.lost, counts.restarts) == (7, 4, 0, 1)


def test_blocks_by_hand():
    blocks = KvBlocks(KvEventCounts())
    batch = event_batch([0, [stored([1, 2]), stored([3], 2)]])
    assert [blocks.put(event) for event in batch.events] == [0, 0]
    assert depth_of(blocks[3]) == 3 and blocks.is_resident(3) and not blocks.is_resident(4)


# -- files -----------------------------------------------------------------------------------------------------------


def test_the_sample_is_what_vllm_stored():
    rows = list(kv_events.row_lines(SAMPLE.read_bytes().splitlines()))
    records = [kv_events.read(orjson.loads(row)) for row in rows]
    assert [record.cached_tokens // 16 for record in records] == [0, 2, 4, 0, 4]  # the hits of vLLM's own cache
    assert [len(record.token_ids) // 16 for record in records] == [5, 4, 7, 3, 6]


def test_pieces_do_not_change_the_rows():
    found = sources.find(SAMPLE)
    for size in (1, 100, 1 << 20):
        lines = [line for piece in sources.pieces(found, size) for line in piece.read().splitlines()]
        assert lines == list(kv_events.row_lines(SAMPLE.read_bytes().splitlines()))
