"""A trace made in tasks has the bytes of the one that is made in one place, whoever runs the tasks and however many."""

import json
import os
import random
import signal
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kvtrace._base.errors import InputError, KvtraceError, RowError, StoppedError, UsageError
from kvtrace._base.workers import retrying_map
from kvtrace.ingest.encoding_tasks import partitions_of
from kvtrace.ingest.keys import Key
from kvtrace.ingest.logs import sources
from kvtrace.privacy.numbering.run import LocalRunner
from kvtrace.privacy.numbering.store import Store
from kvtrace.privacy.numbering.task_plan import shard_of
from kvtrace.trace.trace_figures import figures
from tests.conftest import drawn
from tests.ingest.flat import anonymize_dataset, anonymize_rows

KEY = Key(bytes(range(16)))
TINY = str(Path(__file__).resolve().parents[1] / "data/tokenizers/tiny")
OPTIONS = {"key": KEY, "tokenizer": None, "block_size": 4}
NAMES = (
    "timestamp", "input_length", "output_length", "hash_ids", "offsets", "session", "parent", "output_ids",
    "output_offsets", "domain",
)  # fmt: skip


def rows(count, seed, *, users=True, sessions=True, types=True):
    """Requests out of order, many at the same time, whose prompts share beginnings; some without user or session."""
    draw = random.Random(seed)
    for _ in range(count):
        ids = [7] * draw.choice([4, 8, 12]) + [draw.randrange(4) for _ in range(draw.randrange(1, 12))]
        row = {
            "timestamp": draw.randrange(count) // 2 * 500,
            "prompt_token_ids": ids,
            "output_length": draw.randrange(9),
        }
        if types and draw.random() < 0.8:
            row["type"] = draw.choice(["text", "coder", "no such type"])
        if sessions and draw.random() < 0.7:
            row["session_id"] = f"s{draw.randrange(count // 5 + 1)}"
        if users and draw.random() < 0.7:
            row["user"] = f"u{draw.randrange(9)}"
        yield row


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Writes a log, in pieces of few rows."""
    monkeypatch.setattr("kvtrace.ingest.logs.sources.PIECE_BYTES", 400)

    def write(wanted, name="log.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in wanted))
        return path

    return write


class Here:
    """Runs tasks one after the other, in this process."""

    workers, is_far = 1, False

    def map(self, function, items):
        return map(function, items)


def in_tasks(path, tmp_path, runner=None, **options):
    """The columns, sidecar and contributors of a run of tasks; nothing is left of its files."""
    work = tmp_path / "work"
    with anonymize_dataset(path, runner=runner or Here(), work=work, **(OPTIONS | options)) as dataset:
        numbered = dataset.made
        parts = list(numbered.columns())
        columns = {name: _end_to_end([getattr(part, name) for part in parts], name) for name in NAMES}
        columns |= {name: np.concatenate([part.extra[name] for part in parts]).tolist() for name in parts[0].extra}
        result = columns, json.dumps(numbered.meta | {"figures": numbered.figures}), numbered.contributors()
    assert not work.exists()
    return result


def _end_to_end(arrays, name):
    if arrays[0] is None:
        return None
    if name.endswith("offsets"):
        return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(array) for array in arrays]))]).tolist()
    return np.concatenate(arrays).tolist()


def in_one(path, **options):
    """The same of a run in one place."""
    released = anonymize_rows(path, **(OPTIONS | options))
    columns = {name: getattr(released.columns, name) for name in NAMES}
    columns = {name: None if values is None else values.tolist() for name, values in columns.items()}
    columns |= {name: values.tolist() for name, values in released.columns.extra.items()}
    counted = released.released and released.released.contributors
    return columns, json.dumps(released.meta | {"figures": figures(released.trace())}), counted


# -- the same bytes --------------------------------------------------------------------------------------------------

CHANGES = [
    {},
    {"tail": "dropped"},
    {"tail": "kept", "k": 2},
    {"k": 6},
    {"k_counts": "sessions"},
    {"k_counts": "requests"},
]
ALL_PARTITIONS = (1, 2, 7, 40)  # the last: more than a log of 80 rows has pieces


@pytest.mark.parametrize("profile", ["exact", "standard", "strict"])
@pytest.mark.parametrize("changed", CHANGES, ids=str)
def test_any_number_of_partitions_gives_the_same_trace_and_sidecar(log, tmp_path, profile, changed):
    path = log(rows(80, seed=5))
    expected = in_one(path, profile=profile, **changed)
    for partitions in ALL_PARTITIONS if not changed else (7,):
        result = in_tasks(path, tmp_path, profile=profile, partitions=partitions, **changed)
        assert result[:2] == expected[:2]
        if expected[2] is not None:
            assert result[2].kind == expected[2].kind and _same_groups(result[2].contributor, expected[2].contributor)


def _same_groups(ours, other):
    return (
        len(set(zip(ours.tolist(), other.tolist(), strict=True))) == len(set(ours.tolist())) == len(set(other.tolist()))
    )


def accounts(count, seed, **kinds):
    """Requests of three tenants, some accounts without a tenant, and some requests without either."""
    draw = random.Random(seed)
    for row in rows(count, seed, **kinds):
        if draw.random() < 0.8:
            row["account_id"] = f"a{draw.randrange(8)}"
        if draw.random() < 0.6:
            row["organization_id"] = f"o{draw.randrange(3)}"
        yield row


@pytest.mark.parametrize("kinds", [{}, {"users": False}, {"sessions": False}], ids=str)
@pytest.mark.parametrize("changed", [{}, {"k": 5}, {"tail": "dropped"}, {"k_counts": "users"}], ids=str)
def test_accounts_and_their_users_are_counted_alike_in_tasks(log, tmp_path, kinds, changed):
    path = log(accounts(80, len(changed) + 3 * len(kinds), **kinds))
    expected = in_one(path, **changed)
    assert expected[2].kind == "accounts" and expected[2].member is not None and expected[2].unknown >= 0
    for partitions in ALL_PARTITIONS if not changed else (7,):
        result = in_tasks(path, tmp_path, partitions=partitions, **changed)
        assert result[:2] == expected[:2]
        for name in ("contributor", "member"):
            assert _same_groups(getattr(result[2], name), getattr(expected[2], name))
        assert ((result[2].contributor == result[2].unknown) == (expected[2].contributor == expected[2].unknown)).all()
        assert expected[2].unnamed is not None and (result[2].unnamed == expected[2].unnamed).all()


@pytest.mark.parametrize("in_parts", [True, False])
def test_users_must_be_known_to_be_counted(log, tmp_path, in_parts):
    path = log(rows(20, seed=1, users=False))
    with pytest.raises(UsageError, match="--k-counts users needs the users of the requests"):
        in_tasks(path, tmp_path, k_counts="users") if in_parts else in_one(path, k_counts="users")


def test_thousands_of_blocks_are_matched_too(log, tmp_path):
    path = log(rows(2500, seed=6))
    assert in_tasks(path, tmp_path, partitions=3)[:2] == in_one(path)[:2]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kinds", [{"users": False}, {"sessions": False}, {"types": False}], ids=str)
def test_whatever_a_log_knows_the_trace_is_the_same(log, tmp_path, seed, kinds):
    path = log(rows(40, seed, **kinds))
    assert in_tasks(path, tmp_path, partitions=1 + seed * 3)[:2] == in_one(path)[:2]


def test_several_files_and_packed_ones_are_parts_in_their_order(log, tmp_path):
    import gzip

    whole = list(rows(60, seed=2))
    log(whole[:20], "a.jsonl")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(log(whole[20:40], "b.jsonl").read_bytes()))
    (tmp_path / "b.jsonl").unlink()
    log(whole[40:], "c.jsonl")
    paths = sorted(tmp_path.glob("*.jsonl*"))
    assert in_tasks(paths, tmp_path, partitions=5)[:2] == in_one(paths)[:2]


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_of_this_machine_give_the_same(log, tmp_path, workers):
    path = log(rows(60, seed=3))
    assert in_tasks(path, tmp_path, LocalRunner(workers), partitions=5)[:2] == in_one(path)[:2]


@pytest.mark.parametrize(
    ("times", "is_named"),
    [(range(40, 0, -1), True), (range(40), False), ([9] * 40, False), ([*range(40, 1, -1), 5], False)],
)
def test_a_log_in_reverse_time_order_is_named_in_tasks_too(log, tmp_path, times, is_named):
    path = log({"timestamp": time, "prompt_token_ids": [7] * 9, "output_length": 1} for time in times)
    notes, alone = [], []
    in_tasks(path, tmp_path, partitions=5, on_note=notes.append)
    in_one(path, on_note=alone.append)
    assert notes == alone and any("reverse time order" in note for note in notes) == is_named


def test_a_log_of_lengths_shares_nothing(tmp_path):
    path = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:17:0{i},{9 + i},{i}" for i in range(8)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    assert in_tasks(path, tmp_path, k_counts="requests", partitions=3)[:2] == in_one(path, k_counts="requests")[:2]


def test_the_partitions_of_a_log_are_all_its_pieces_in_order(log):
    path = log(rows(100, seed=1))
    files = sources.find(path)
    whole = [(piece.start, piece.size) for piece in sources.pieces(files)]
    for count in (1, 3, 8, 500):
        parts = partitions_of(files, count)
        assert [part.number for part in parts] == list(range(len(parts))) and len(parts) <= count
        assert [(piece.start, piece.size) for part in parts for piece in part.pieces()] == whole


def test_shards_are_of_the_highest_bits_and_all_are_used():
    digests = np.stack([np.arange(64, dtype=np.uint64) << np.uint64(58), np.zeros(64, np.uint64)], axis=1)
    assert np.bincount(shard_of(digests, 8)).tolist() == [8] * 8
    assert shard_of(np.full((1, 2), 2**64 - 1, np.uint64), 7).tolist() == [6]


# -- bad rows --------------------------------------------------------------------------------------------------------


def test_bad_rows_are_reported_by_line_and_counted(log, tmp_path):
    wanted = list(rows(60, seed=4))
    wanted[33]["output_length"] = "no number"
    path = log(wanted)
    with pytest.raises(RowError, match=r"log.jsonl:34: "):
        in_tasks(path, tmp_path, partitions=4)
    errors, errors_in_tasks = [], []
    sidecar = in_one(path, max_errors=-1, on_reject=errors.append)[1]
    assert in_tasks(path, tmp_path, partitions=4, max_errors=-1, on_reject=errors_in_tasks.append)[1] == sidecar
    assert [str(error) for error in errors] == [str(error) for error in errors_in_tasks] and len(errors) == 1
    assert not (tmp_path / "work").exists()


def test_a_log_without_requests_is_an_error(log, tmp_path):
    path = log([{"timestamp": 0, "prompt_token_ids": [], "output_length": 1}])
    with pytest.raises(InputError, match="prompts are empty"):
        in_tasks(path, tmp_path)


def talks(count, seed, **kinds):
    """Requests whose prompts often continue an earlier prompt and its output, and outputs that come again."""
    draw, earlier = random.Random(seed), [[7] * 4]
    for row in rows(count, seed, types=False, **kinds):
        prompt = [*draw.choice(earlier), *(draw.randrange(3) for _ in range(draw.randrange(9)))][-40:]
        output = [draw.randrange(3) for _ in range(draw.randrange(12))]
        earlier.append(prompt + output)
        yield row | {"prompt_token_ids": prompt, "output_token_ids": output, "output_length": len(output)}


def chats(count, seed):
    """Conversations without times, some of several turns."""
    draw = random.Random(seed)
    for number in range(count):
        messages = [{"role": "system", "content": draw.choice(["You book boats.", "You are brief."])}]
        for _ in range(draw.randint(1, 4)):
            messages.append({"role": "user", "content": " ".join(draw.choices(["boat", "lamp", "sea"], k=5))})
            messages.append({"role": "assistant", "content": draw.choice(["Yes.", "No.", "Boat 7 leaves at 9:40."])})
        yield {"id": f"chat-{number}", "messages": messages}


@pytest.mark.parametrize("seed", range(drawn(8)))
@pytest.mark.parametrize("changed", [{}, {"profile": "exact", "outputs": True}], ids=str)
def test_modelled_arrivals_are_the_same_in_tasks(log, tmp_path, seed, changed):
    path = log(chats(40, seed))
    options = {"arrivals": "rate=2/s,think=3s,seed=4", "tokenizer": TINY} | changed
    expected = in_one(path, **options)
    assert len(set(expected[0]["timestamp"])) > 9
    for partitions in (1, 4, 30):
        assert in_tasks(path, tmp_path, partitions=partitions, **options)[:2] == expected[:2]


def test_modelled_arrivals_leave_logged_times(log, tmp_path):
    options = {"arrivals": "rate=2/s"}
    path = log(rows(50, seed=1))
    assert in_tasks(path, tmp_path, partitions=4, **options)[:2] == in_one(path, **options)[:2]


@pytest.mark.parametrize("seed", range(drawn(4)))
@pytest.mark.parametrize("changed", [{"profile": "exact"}, *CHANGES[:3], CHANGES[5]], ids=str)
def test_blocks_of_outputs_are_the_same_in_tasks(log, tmp_path, seed, changed):
    path = log(talks(90, seed))
    expected = in_one(path, outputs=True, **changed)
    assert expected[0]["output_ids"]
    for partitions in (1, 3, 16):
        assert in_tasks(path, tmp_path, outputs=True, partitions=partitions, **changed)[:2] == expected[:2]


def test_a_log_of_lengths_has_no_hits_in_tasks_either(tmp_path):
    path = Path(TINY).parents[1] / "logs/lengths.jsonl"
    assert in_tasks(path, tmp_path, outputs=True, partitions=2)[:2] == in_one(path, outputs=True)[:2]


WHOLE = [
    {"keep_order": True, "profile": "exact"},
    {"keep_order": True, "profile": "exact", "tail": "unique"},
    {"sample_sessions": 0.5},
    {"sample_sessions": 0.5, "tail": "dropped", "k_counts": "sessions"},
    {"sample_sessions": 0.7, "arrivals": "rate=2/s,seed=4"},
]


@pytest.mark.parametrize("kinds", [{}, {"sessions": False}], ids=str)
@pytest.mark.parametrize("changed", WHOLE, ids=str)
def test_options_that_need_all_rows_in_one_process_give_the_same_in_tasks(log, tmp_path, changed, kinds):
    path = log(rows(90, seed=7, **kinds))
    expected = in_one(path, **changed)
    for partitions in (1, 2, 7):
        assert in_tasks(path, tmp_path, partitions=partitions, **changed)[:2] == expected[:2]


@pytest.mark.parametrize("changed", [{}, {"profile": "strict"}, {"outputs": True}, {"sample_sessions": 0.5}], ids=str)
def test_conversations_are_inferred_in_tasks_too(log, tmp_path, changed):
    path = log(talks(90, seed=3, users=False, sessions=False))
    expected = in_one(path, **changed)
    assert expected[2].kind == "inferred"
    for partitions in (1, 5):
        result = in_tasks(path, tmp_path, partitions=partitions, **changed)
        assert result[:2] == expected[:2] and result[2].contributor.tolist() == expected[2].contributor.tolist()


@pytest.mark.parametrize("is_chained", [True, False])
@pytest.mark.parametrize("profile", ["exact", "standard"])
def test_hashes_of_an_engine_are_released_in_tasks_too(log, tmp_path, is_chained, profile):
    draw = random.Random(5)
    hashes = [[draw.choice((1, 2, 3)) for _ in range(draw.randint(1, 5))] for _ in range(50)]
    if is_chained:
        hashes = [[hash(tuple(names[: end + 1])) % 2**60 for end in range(len(names))] for names in hashes]
    path = log(
        {
            "schema": "dynamo.request.trace.v1",
            "event_type": "request_end",
            "agent_context": {"session_id": f"s{time % 7}"},
            "request": {
                "request_received_ms": 1900000000000 + 40 * (time // 2),
                "output_tokens": 2,
                "replay": {
                    "trace_block_size": 16,
                    "input_length": 16 * len(names),
                    "input_sequence_hashes": names,
                },
            },
        }
        for time, names in enumerate(hashes)
    )
    options = {"profile": profile, "block_size": None}
    expected = in_one(path, **options)
    assert in_tasks(path, tmp_path, partitions=4, **options)[:2] == expected[:2]


def test_a_memory_limit_holds_for_one_process_too(log, tmp_path):
    path = log(rows(90, seed=7))
    with pytest.raises(UsageError, match="--memory is 50 MB, but this needs at most"):
        in_tasks(path, tmp_path, sample_sessions=0.5, memory=50_000_000)
    assert not (tmp_path / "work").exists()


# -- k-sharing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(drawn(4)))
def test_no_block_has_two_to_k_minus_1_holders(log, tmp_path, seed):
    columns, _, held = in_tasks(log(rows(80, seed)), tmp_path, k=4, partitions=9)
    prompts = [columns["hash_ids"][start:stop] for start, stop in pairwise(columns["offsets"])]
    contributors: dict = {}
    for who, prompt in zip(held.contributor.tolist(), prompts, strict=True):
        for block in prompt:
            contributors.setdefault(block, set()).add(who)
    assert {len(some) for some in contributors.values()} & {2, 3} == set()
    assert max(map(len, contributors.values())) >= 4


# -- workers that die, files that go ---------------------------------------------------------------------------------


def test_the_task_of_a_killed_worker_is_repeated(log, tmp_path, monkeypatch):
    path, died = log(rows(60, seed=8)), []
    stages = sys.modules["kvtrace.privacy.numbering.run"]
    for name in ("gather", "match", "rank", "resolve", "finish"):
        monkeypatch.setattr(stages, name, _dying(getattr(stages, name), tmp_path / name))
        died.append(tmp_path / name)
    expected = in_one(path)
    assert in_tasks(path, tmp_path, LocalRunner(2), partitions=5)[:2] == expected[:2]
    assert all(mark.exists() for mark in died)


def _dying(stage, mark):
    """The stage, which is killed the first time that its third task begins, halfway through what it writes."""

    def run(plan, number):
        if number == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return stage(plan, number)

    return run


def _always_dies(item):
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_task_that_kills_every_worker_is_given_up():
    results = []
    with pytest.raises(StoppedError, match="killed 3 times"):
        results.extend(retrying_map(_always_dies, range(9), 2))
    results = []
    with pytest.raises(StoppedError):
        for item in retrying_map(_always_dies, range(9), 2):
            results.append(item)
    assert results == [0, 1, 2]


def test_outputs_are_written_atomically(tmp_path):
    store = Store(str(tmp_path / "work"))
    store.write("a/1", {"x": 1}, numbers=np.arange(5), none=np.empty((0, 2)))
    with store.open("a/1") as held:
        assert held["numbers", 2:4].tolist() == [2, 3] and held["none"].shape == (0, 2) and "other" not in held
    assert (tmp_path / "work/a/1").stat().st_mode & 0o077 == 0 and os.listdir(tmp_path / "work/a") == ["1"]
    (tmp_path / "work/a/1").write_bytes((tmp_path / "work/a/1").read_bytes()[:-3])
    with store.open("a/1") as held, pytest.raises(KvtraceError, match="shorter"):
        held["numbers"]
    with pytest.raises(KvtraceError, match="was deleted during the run"), store.open("a/2"):
        pass


def test_a_store_may_lie_behind_a_url(log, tmp_path):
    pytest.importorskip("fsspec")
    path = log(rows(40, seed=9))
    with anonymize_dataset(path, runner=Here(), work="memory://runs/one", partitions=3, **OPTIONS) as dataset:
        ids = np.concatenate([part.hash_ids for part in dataset.made.columns()]).tolist()
    assert ids == in_one(path)[0]["hash_ids"]
    import fsspec

    assert not fsspec.filesystem("memory").find("/runs")


@pytest.mark.parametrize("where", ["folder", "file", "url"])
def test_a_work_folder_that_holds_something_is_refused_and_left_alone(log, tmp_path, where):
    path, work = log(rows(9, seed=1)), tmp_path / "work"
    if where == "url":
        fsspec = pytest.importorskip("fsspec")
        fsspec.filesystem("memory").pipe("/mine/photo", b"kept")
        work = "memory://mine"
    elif where == "folder":
        work.mkdir()
        (work / "photo").write_bytes(b"kept")
    else:
        work.write_bytes(b"kept")
    with pytest.raises(UsageError, match="not empty"), anonymize_dataset(path, runner=Here(), work=work, **OPTIONS):
        pass
    if where == "url":
        assert fsspec.filesystem("memory").cat("/mine/photo") == b"kept"
    else:
        assert (work / "photo" if where == "folder" else work).read_bytes() == b"kept"


def test_nothing_in_the_store_is_text_or_key(log, tmp_path):
    wanted = list(rows(20, seed=1))
    for row in wanted:
        row["user"] = row["session_id"] = "keeper-canary-7f3a"
    path, held = log(wanted), []
    with anonymize_dataset(path, runner=Here(), work=tmp_path / "work", partitions=2, **OPTIONS):
        held = [file.read_bytes() for file in (tmp_path / "work").rglob("*") if file.is_file()]
    whole = b"".join(held)
    assert len(held) == 2 + 5 * 2 and b"keeper" not in whole and bytes(range(16)) not in whole
