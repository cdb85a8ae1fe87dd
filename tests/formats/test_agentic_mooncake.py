"""Agentic Mooncake: what is written comes back, and a file by hand is read as Dynamo reads it."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace import InputError, Trace, UsageError
from kvtrace.formats.agentic_mooncake import write
from kvtrace.formats.converting import convert_file
from kvtrace.formats.open_pieces import open_pieces
from kvtrace.formats.rewriting import Difference, differences
from kvtrace.formats.sidecar import sidecar_path
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import Dependencies
from tests.conftest import drawn
from tests.strategies import waiting_traces

HEADER = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4, "hash_id_scope": "local",
          "source": {"format": "by hand", "digest": "0"}}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request(name, *waits, play="p", agent="main", at=0.0, ids=(1, 2), **more):
    """A row; `waits` are (request_id, trigger, delay_ms, relation)."""
    keys = ("request_id", "trigger", "delay_ms", "relation")
    return {
        "request_id": name, "play_id": play, "session_id": agent, "model": "m", "input_length": 4 * len(ids),
        "output_length": 3, "hash_ids": list(ids), "not_before_ms": at,
        "dependencies": [dict(zip(keys, one, strict=True)) for one in waits],
    } | more  # fmt: skip


def put(folder, *rows, name="t.jsonl"):
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / name)


def lists_of(waits):
    return [list(zip(*(values[waits.offsets[r] : waits.offsets[r + 1]].tolist() for values in waits.arrays()[1:]),
                     strict=True)) for r in range(len(waits))]  # fmt: skip


# -- what is written comes back ------------------------------------------------------------------------------------


@given(waiting_traces(unknown_outputs=True))
@settings(max_examples=drawn(80), deadline=None)
def test_a_file_keeps_all_columns_without_its_sidecar(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("agentic") / "t.jsonl"
    if (trace.input_length < 1).any():
        with pytest.raises(InputError, match="the prompt is empty"):
            kvtrace.write(trace, path, format="agentic-mooncake")
        return
    _, sidecar = kvtrace.write(trace, path, format="agentic-mooncake")
    assert kvtrace.read(path) == trace and kvtrace.formats.check(path) == []
    opened = open_pieces(path).read()
    assert np.concatenate([piece.hash_ids for _, piece in opened.pieces()]).tolist() == trace.hash_ids.tolist()
    assert opened.result.columns.dependencies == trace.dependencies and differences(opened) == []
    (path.parent / "t.jsonl.meta.json").unlink()
    assert sidecar == sidecar_path(path) and kvtrace.read(path) == trace


@given(waiting_traces(unknown_outputs=True))
@settings(max_examples=30, deadline=None)
def test_dropped_tails_are_dropped_again(tmp_path_factory, trace):
    assume((trace.input_length >= 1).all() and trace.output_ids is None)
    path = tmp_path_factory.mktemp("agentic") / "t.jsonl.zst"
    columns = replace_columns(trace)
    has_tail = trace.input_length % trace.block_size != 0
    columns.hash_ids = np.delete(trace.hash_ids, trace.offsets[1:][has_tail] - 1)
    columns.offsets = np.concatenate([[0], np.cumsum(trace.full_blocks)])
    dropped = Trace.from_columns(columns, block_size=trace.block_size, tail="dropped")
    kvtrace.write(dropped, path, format="agentic-mooncake", first_id=7)
    assert kvtrace.read(path) == dropped


def test_rows_are_those_of_the_format(folder):
    waits = Dependencies.of([[], [(0, "dispatch", "spawn", 2.5)], [(0, "completion", "sequence", 10.0)]])
    columns = replace_columns(toy("0 1", "2", "0 1 3", block_size=4), session=[0, 0, 0], parent=[-1, -1, 0],
                              dependencies=waits, service_ms=[5.0, np.nan, 1.0],
                              extra={"agent": np.array([0, 1, 0])})  # fmt: skip
    kvtrace.write(Trace.from_columns(columns, block_size=4), "t.jsonl", format="agentic-mooncake")
    header, *rows = map(json.loads, (folder / "t.jsonl").read_text().splitlines())
    assert header | HEADER == header | {"source": HEADER["source"]}
    assert header["kvtrace"] == {"tail": "kept", "recorded_times": True}
    assert rows[0] == {
        "request_id": "0", "play_id": "session-0", "source_play_ordinal": 0, "session_id": "session-0/agent-0",
        "model": "unknown", "input_length": 8, "output_length": 1, "hash_ids": [0, 1], "not_before_ms": 0,
        "dependencies": [], "recorded_api_time_ms": 5.0,
    }  # fmt: skip
    assert rows[1]["session_id"] == "session-0/agent-1" and "recorded_api_time_ms" not in rows[1]
    assert rows[1]["dependencies"] == [{"request_id": "0", "trigger": "dispatch", "delay_ms": 2.5, "relation": "spawn"}]
    assert rows[2]["dependencies"][0]["relation"] == "sequence"


def test_a_sequence_on_dispatch_is_a_spawn_for_dynamo_and_a_sequence_for_us(folder):
    waits = Dependencies.of([[], [(0, "dispatch", "sequence", 2.0)]])
    trace = Trace.from_columns(replace_columns(toy("0", "1"), dependencies=waits), block_size=1)
    kvtrace.write(trace, "t.jsonl", format="agentic-mooncake")
    last = json.loads((folder / "t.jsonl").read_text().splitlines()[-1])
    assert last["dependencies"][0]["relation"] == "spawn"
    assert kvtrace.read("t.jsonl") == trace


def test_without_times_requests_start_when_those_before_them_allow_it(folder):
    waits = Dependencies.of([[], [(0, "completion", "sequence", 10.0)], [(0, "dispatch", "spawn", 2.0)]])
    columns = replace_columns(toy("0", "1", "2"), timestamp=[0.0, 15.5, 17.0], dependencies=waits,
                              service_ms=[5.5, 1.0, 1.0])  # fmt: skip
    with open("t.jsonl", "wb") as stream:
        write(stream, Trace.from_columns(columns, block_size=1), recorded_times=False)
    rows = [json.loads(line) for line in (folder / "t.jsonl").read_text().splitlines()[1:]]
    assert [row["not_before_ms"] for row in rows] == [0, 0, 0]
    assert kvtrace.read("t.jsonl").timestamp.tolist() == [0.0, 2.0, 15.5]


# -- files by hand -------------------------------------------------------------------------------------------------


def test_a_file_in_any_order_is_read_in_time(folder):
    path = put(
        folder, HEADER,
        request("b", ("a", "completion", 100, "sequence"), at=130, ids=(1, 2, 9)),
        request("c", ("a", "dispatch", 5, "spawn"), agent="child", at=5, ids=(7,), recorded_api_time_ms=20),
        request("a", at=0, recorded_api_time_ms=30.5, priority=3),
        request("d", play="q", at=70, ids=(1,)),
        request("e", ("b", "completion", 1, "sequence"), ("c", "completion", 1, "join"), at=200, ids=(1, 2, 9)),
    )  # fmt: skip
    trace = kvtrace.read(path)
    assert trace.timestamp.tolist() == [0, 5, 70, 130, 200] and trace.block_size == 4
    assert trace.session.tolist() == [0, 0, 1, 0, 0] and trace.extra["agent"].tolist() == [0, 1, 0, 0, 0]
    assert trace.parent.tolist() == [-1, -1, -1, 0, 3]
    assert lists_of(trace.dependencies) == [
        [], [(0, 0, 1, 5.0)], [], [(0, 1, 0, 100.0)], [(3, 1, 0, 1.0), (1, 1, 2, 1.0)]
    ]  # fmt: skip
    assert np.array_equal(trace.service_ms, [30.5, 20, np.nan, np.nan, np.nan], equal_nan=True)
    assert trace.extra["model"].tolist() == ["m"] * 5 and trace.extra["priority"].tolist() == [3] + [None] * 4


def test_a_file_by_another_hand_is_not_what_kvtrace_writes(folder):
    opened = open_pieces(put(folder, HEADER, request("a")))
    assert differences(opened) == [Difference.ROWS] and opened.texts[0].values == HEADER


def test_a_barrier_is_kept(folder):
    trace = kvtrace.read(put(folder, HEADER, request("a"), request("b", ("a", "completion", 0, "replay_barrier"))))
    assert lists_of(trace.dependencies)[1] == [(0, 1, 3, 0.0)]
    kvtrace.write(trace, "u.jsonl", format="agentic-mooncake")
    assert '"relation": "replay_barrier"' in (folder / "u.jsonl").read_text()


def test_the_first_version_is_read(folder):
    row = {"request_id": "a", "input_tokens": 8, "output_tokens": 2, "hash_ids": [1, 2], "created_time": 100}
    path = put(
        folder, row,
        row | {"request_id": "b", "wait_for": ["a"], "delay_ms": 7, "tool_wait_ms": 2, "created_time": None},
        row | {"request_id": "c", "wait_for": ["a", "b"], "created_time": 300},
        row | {"request_id": "d", "created_time": 105},
    )  # fmt: skip
    trace = kvtrace.read(path, block_size=4)
    assert trace.timestamp.tolist() == [0, 5, 9, 200] and trace.session.tolist() == [0, 1, 0, 0]
    assert lists_of(trace.dependencies) == [[], [], [(0, 1, 0, 9.0)], [(0, 1, 2, 0.0), (2, 1, 2, 0.0)]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [([HEADER | {"version": 3}],
      "t.jsonl:1: the version of the header is not 2; kvtrace reads no other version with a header."),
     ([HEADER | {"block_size": 0}],
      "t.jsonl:1: the block_size of the header is not a whole number from 1 to 16,777,216."),
     ([HEADER | {"block_size": 2**63}],
      "t.jsonl:1: the block_size of the header is not a whole number from 1 to 16,777,216."),
     ([HEADER], "t.jsonl: the file has no requests."),
     ([HEADER, {"request_id": "a"}], "t.jsonl:2: input_length is missing."),
     ([HEADER, request("a"), request("a")], "t.jsonl:3: an earlier row has the same request_id."),
     ([HEADER, request("a", model=None), request(3)], "t.jsonl:3: request_id is not a text."),
     ([HEADER, request("a", dependencies=7)], "t.jsonl:2: dependencies is not a list."),
     ([HEADER, request("a", dependencies=[{"request_id": "b"}])],
      "t.jsonl:2: a dependency does not have request_id, trigger, delay_ms and relation."),
     ([HEADER, request("a"), request("b", ("a", "completion", "soon", "join"))],
      "t.jsonl:3: delay_ms is not a number."),
     ([HEADER, request("a"), request("b", ("x", "completion", 0, "join"))],
      "t.jsonl:3: the request waits for a row that does not exist."),
     ([HEADER, request("a"), request("b", ("a", "whenever", 0, "join"))],
      "t.jsonl:3: the trigger of a dependency is none of dispatch, completion."),
     ([HEADER, request("a"), request("b", ("a", "completion", -5, "join"))],
      "t.jsonl:3: a delay is negative, not a number, or longer than 2^53 ms."),
     ([HEADER, request("z"), *(request(one, (other, "completion", 0, "join")) for one, other in ("ab", "ba"))],
      "t.jsonl:3: the request waits for itself or for a later row."),
     ([HEADER, request("a", input_length=9)], "t.jsonl:2: 2 hash_ids for 9 tokens; at block size 4 there should be 3."),
     ([HEADER, request("a", recorded_api_time_ms=-1)],
      "t.jsonl:2: the service time is negative or longer than 2^53 ms.")],
)  # fmt: skip
def test_a_broken_file_is_one_line(folder, rows, message):
    with pytest.raises(InputError) as error:
        kvtrace.read(put(folder, *rows).replace(f"{folder}/", ""))
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_check_lists_every_row(folder):
    path = put(
        folder, HEADER, request("a", at=5), request("b", ("gone", "completion", 0, "join"), at=5), "nothing",
        request("c", ("a", "never", -1, "join"), at=7, recorded_api_time_ms=-1),
    )  # fmt: skip
    found = [
        (one.line, one.rule, one.message)
        for one in kvtrace.formats.check(path)
        if one.rule not in ("times", "numbering")
    ]
    assert found == [
        (4, "rows", "the row is not a JSON object. A trace has one object on each line."),
        (3, "dependencies", "the request waits for a row that does not exist."),
        (5, "dependencies", "a delay is negative, not a number, or longer than 2^53 ms."),
        (5, "dependencies", "the trigger of a dependency is none of dispatch, completion."),
        (5, "service times", "the service time is negative or longer than 2^53 ms."),
    ]


@pytest.mark.parametrize("tokens", [2**53, 2**24], ids=["no prompt", "many blocks"])
def test_a_length_alone_makes_no_blocks(folder, capsys, tokens):
    rows = [request(str(row), ids=[row], input_length=tokens) for row in range(5)]
    path = put(folder, HEADER | {"block_size": 1}, *rows)
    assert kvtrace.cli.run(["audit", path]) == 4 and "out of memory" not in capsys.readouterr().err
    assert differences(open_pieces(path)) == [Difference.ROWS]


def test_plain_columns_need_a_block_size(folder):
    columns = replace_columns(toy("0"))
    with pytest.raises(UsageError, match="needs a block size"), open("t.jsonl", "wb") as stream:
        write(stream, columns)


ODD = [None, True, -1, 0, 2**63, 1.5, 1e300, "", "a", "b", [], [1], ["a"], {}, {"a": 1}]


@given(st.data())
@settings(max_examples=drawn(150), deadline=None)
def test_a_file_with_an_odd_value_is_read_or_refused_in_one_line(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("odd")
    own = {"tail": "dropped", "recorded_times": True, "links": ["session", "parent"], "without": ["agent"]}
    rows = [HEADER | {"kvtrace": own},
            request("a", recorded_api_time_ms=5, domain=3, session=0),
            request("b", ("a", "completion", 1, "sequence"), at=9, parent="a", output_hash_ids=[7])]  # fmt: skip
    inside = [*rows, rows[0]["kvtrace"], rows[0]["source"], rows[2]["dependencies"][0]]
    place = data.draw(st.sampled_from(inside))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(st.sampled_from(ODD))
    path = put(folder, *rows)
    try:
        kvtrace.read(path)
    except (InputError, UsageError) as error:
        assert "\n" not in str(error)
    with contextlib.suppress(InputError):
        kvtrace.formats.check(path)
        open_pieces(path).read()


# -- conversions ---------------------------------------------------------------------------------------------------


@pytest.fixture
def session(folder):
    """Four requests, of which each waits for the one before it."""
    waits = [[]] + [[(row, "completion", "sequence", 5.0)] for row in range(3)]
    columns = replace_columns(toy("0", "0 1", "0 1 2", "0 1 2 3", gap_ms=10.0), dependencies=Dependencies.of(waits),
                              service_ms=[5.0, 5.0, np.nan, 5.0], session=[0] * 4)  # fmt: skip
    kvtrace.write(Trace.from_columns(columns, block_size=1), "t.parquet")
    return "t.parquet"


LEFT_OUT = "3 dependencies were left out: requests start at their own times."
KEEPING = " Use the format agentic-mooncake or parquet to keep them."
TIMES = "3 service times were left out."


@pytest.mark.parametrize(
    ("output", "to", "losses"),
    [("u.jsonl", None, [LEFT_OUT + KEEPING, TIMES]),
     ("u.jsonl", "bailian", [LEFT_OUT + KEEPING, TIMES]),
     ("u.jsonl", "agentic-mooncake", []),
     ("u.parquet", None, []),
     ("u.dataset", None, []),
     ("u.jsonl", "aiperf", [LEFT_OUT, TIMES, "1 session was left out: rows are independent."]),
     ("u.jsonl", "dynamo-agentic",
      ["3 times of requests that wait were left out: Dynamo would not start such a request before its time."])],
)  # fmt: skip
def test_what_an_output_cannot_hold_is_counted_once(session, output, to, losses):
    assert convert_file(session, output, to=to).losses == losses


@pytest.mark.parametrize(
    ("steps", "losses"),
    [({"start_ms": 10.0}, ["1 dependency on a request outside the part was removed: its request starts at its own "
                           "time."]),
     ({"stop_ms": 25.0}, []),
     ({"limit": 2}, []),
     ({"factor": 2, "ratio": 3.0}, []),
     ({"row_share": 0.5, "seed": 0}, ["2 dependencies on requests outside the part were removed: their requests start "
                                      "at their own times."])],
)  # fmt: skip
def test_a_cut_says_how_many_dependencies_it_removed(session, steps, losses):
    done = convert_file(session, "u.parquet", **steps)
    assert done.losses == losses
    assert set(kvtrace.read("u.parquet").extra) == set()


def test_speed_changes_times_and_neither_delays_nor_service_times(session):
    convert_file(session, "u.parquet", ratio=2.0)
    trace = kvtrace.read("u.parquet")
    assert trace.timestamp.tolist() == [0, 5, 10, 15] and trace.dependencies.delay_ms.tolist() == [5.0] * 3
    assert np.array_equal(trace.service_ms, [5.0, 5.0, np.nan, 5.0], equal_nan=True)
