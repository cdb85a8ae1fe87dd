"""Weka sessions: what is read is what the files say, what is written is what was read, and what is broken is named."""

import gzip
import json
import math
import os
import random
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace import InputError, UsageError
from kvtrace._base.errors import KvtraceError
from kvtrace.cache import engines
from kvtrace.cli import run
from kvtrace.formats import format_table
from kvtrace.formats.reading import read_columns
from kvtrace.formats.weka_columns import seconds_of
from kvtrace.trace.columns import Columns
from kvtrace.trace.dependencies import JOIN, SPAWN
from kvtrace.trace.hits import count_hits, unlimited_hits
from tests.conftest import drawn

FACTS = {  # facts/agents.md: an independent count of the sessions in the shared data
    "claude-code": (158, 10_697, 19_951_113, 732_245, 19_218_868, 0.9630408, 63),
    "claude-code-global": (11, 1_097, 598_311, 276_765, 321_546, 0.3711822, 117),
}


def request(t, ids, tokens=None, **fields):
    tokens = 64 * len(ids) + 5 if tokens is None else tokens
    return {"t": t, "type": "n", "model": "m", "in": tokens, "out": 3, "hash_ids": ids, "stop": "", **fields}


def session(requests, **fields):
    usual = {"id": "a", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 7}
    return {**usual, "system_tokens": 9, **fields, "requests": requests}


def subagent(t, requests, **fields):
    entry = {"t": t, "type": "subagent", "agent_id": "agent_001", "subagent_type": "Explore", "duration_ms": None}
    return {**entry, "status": "completed", "models": ["m"], **fields, "requests": requests}


TREE = session(
    [
        request(0.5, [1, 2, 3], type="s", api_time=9.25, think_time=0.0, input_types=["text"], ttft=1.125),
        subagent(12.0, [request(0.0, [8], api_time=3.0), request(4.0, [8, 9], api_time=2.5)], total_tokens=77),
        request(20.0, [1, 2, 3, 4], api_time=1.0, output_types=["text", "tool_use"]),
        subagent(21.0, [], agent_id="agent_002"),
    ],
    totals={"requests": 4},
    custom=[1, {"hash_ids": [5, 6]}],
)


# the main agent goes on at 60 s, so the subagent of 40 s ended, and did not start, at 50 s
ENDED = session(
    [
        request(0.0, [1, 2], api_time=9.0),
        subagent(50.0, [request(0.0, [8], api_time=15.0), request(20.0, [8, 9], api_time=18.0)], duration_ms=40_000),
        request(60.0, [1, 2, 3], api_time=1.0),
    ]
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(values, name="a.json"):
    text = json.dumps(values) if not isinstance(values, str) else values
    with open(name, "w") as file:
        file.write(text)
    return name


def put_all(folder, *sessions):
    folder.mkdir()
    for number, values in enumerate(sessions):
        put(values, folder / f"s{number}.json")
    return folder


def back(trace, name="back.json"):
    """The object of a session that is written again."""
    kvtrace.write(trace, name, format="weka")
    with (gzip.open if str(name).endswith(".gz") else open)(name) as file:
        return json.load(file)


# -- reading ---------------------------------------------------------------------------------------------------------


def test_a_session_is_read_with_its_subagents(folder):
    trace = kvtrace.read(put(TREE))
    assert (trace.block_size, trace.tail, str(trace.fixes)) == (
        64,
        "dropped",
        "times started at 500 ms and now start at 0",
    )
    assert trace.timestamp.tolist() == [0, 11_500, 15_500, 19_500]  # the subagent's times are relative to 12 s
    assert trace.service_ms.tolist() == [9250, 3000, 2500, 1000]
    assert trace.extra["agent"].tolist() == [0, 1, 1, 0]
    assert trace.parent.tolist() == [-1, -1, 1, 0] and trace.session.tolist() == [0, 0, 0, 0]
    assert trace.hash_ids.tolist() == [0, 1, 2, 3, 3, 4, 0, 1, 2, 5]
    assert trace.extra["input_types"].tolist() == ['["text"]', None, None, None]
    assert trace.extra["ttft"].tolist() == [1.125, None, None, None]
    waits = trace.dependencies
    assert waits.request.tolist() == [1, 2, 3, 3] and waits.row.tolist() == [0, 1, 0, 2]
    assert waits.relation.tolist() == [SPAWN, 0, 0, JOIN]
    assert waits.delay_ms.tolist() == [2250, 1000, 1500, 1500]  # 18.5 s is the last end before 20 s


def test_inner_times_may_be_absolute(folder):
    inner = [request(12.0, [8]), request(15.0, [8, 9])]
    assert kvtrace.read(put(session([request(0, [1]), subagent(12.0, inner)]))).timestamp.tolist() == [
        0,
        12_000,
        15_000,
    ]


def test_local_ids_are_kept_apart_and_global_ids_are_shared(folder):
    local = put_all(folder / "local", session([request(0, [1, 2])]), session([request(1, [1, 2])]))
    assert kvtrace.read(local).hash_ids.tolist() == [0, 1, 2, 3]
    both = [session([request(time, [1, 2])], hash_id_scope="global") for time in (0, 1)]
    trace = kvtrace.read(put_all(folder / "global", *both))
    assert trace.hash_ids.tolist() == [0, 1, 0, 1] and trace.session.tolist() == [0, 1]
    mixed = put_all(folder / "mixed", *both, session([request(2, [1, 2])]))
    assert kvtrace.read(mixed).hash_ids.tolist() == [0, 1, 0, 1, 2, 3]


def test_a_session_may_be_compressed_and_come_from_a_pipe(folder, capsys):
    text = json.dumps(TREE).encode()
    (folder / "g.json.gz").write_bytes(gzip.compress(text))
    (folder / "z.json.zst").write_bytes(zstandard.compress(text))
    whole = kvtrace.read(put(TREE))
    assert kvtrace.read("g.json.gz") == kvtrace.read("z.json.zst") == whole
    assert kvtrace.read(put(json.dumps(TREE, indent=2), "pretty.json")) == whole
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: (folder / "pipe").write_bytes(text))
    writer.start()
    assert kvtrace.read("pipe") == whole
    writer.join()
    assert run(["convert", "a.json", "-o", "-", "--to", "weka", "-q"]) == 0
    assert json.loads(capsys.readouterr().out) == TREE


def test_stated_block_counts_are_kept(folder):
    rows = [request(0, [1, 2, 3], 64), request(1, [1], 640), request(2, [1, 2, 3, 4], 260)]
    trace = kvtrace.read(put(session(rows)))
    assert trace.tail == "stated" and trace.prompt_blocks.tolist() == [3, 1, 4]
    assert (
        str(trace.fixes) == "1 prompt has more blocks than its tokens fill, and 1 has fewer; the block counts are kept"
    )
    hits = count_hits(trace, unlimited_hits(trace))
    assert (hits.hit_blocks, hits.blocks, hits.hit_tokens) == (4, 8, 64 + 192)


def test_blocks_of_all_lengths_are_kept_tails(folder):
    assert kvtrace.read(put(session([request(0, [1, 2], 65), request(1, [1, 3], 128)]))).tail == "kept"


def test_a_list_of_ids_in_an_unknown_field_stays_there(folder):
    trace = kvtrace.read(put(session([request(0, [1, 2], note={"hash_ids": [4, 5]})])))
    assert trace.hash_ids.tolist() == [0, 1] and json.loads(trace.extra["note"][0]) == {"hash_ids": [4, 5]}


def test_reading_without_extra_columns(folder):
    trace = kvtrace.read(put(TREE), extra="ignore")
    assert trace.extra == {} and len(trace.dependencies.row) == 4


def values_changed(draw, data):
    """JSON with one value in place of another, or missing."""
    whole = json.loads(data)
    odd = draw.choice([None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, 0.5, "", "x", [], {}, [[]], {"": []}])
    inner, key = draw.choice(list(_places(whole)))
    if draw.random() < 0.3 and isinstance(inner, dict):
        del inner[key]
    else:
        inner[key] = odd
    return json.dumps(whole).encode()


def _places(value):
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


# -- writing ---------------------------------------------------------------------------------------------------------

times = st.integers(0, 10**6).map(lambda n: n / 1000) | st.floats(0, 1e6, allow_nan=False)
scalars = st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=4) | st.sampled_from([0.1, 1e300])
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(max_size=3), scalars, max_size=2)
names = st.sampled_from(["think_time", "ttft", "agent", "weka_session", "note", "x", "input_types", "status"])
id_lists = st.lists(st.integers(0, 6) | st.sampled_from([2**63, 2**64 - 1, 10**15]), max_size=5, unique=True)


@st.composite
def requests_of(draw, time=times):
    fields = draw(st.dictionaries(names, values, max_size=3))
    if draw(st.booleans()):
        fields["api_time"] = draw(st.none() | times)
    made = {**fields, "t": draw(time), "in": draw(st.integers(0, 400)), "out": draw(st.integers(0, 9))}
    if draw(st.integers(0, 9)):
        made["hash_ids"] = draw(id_lists)
    if draw(st.booleans()):
        made["type"] = draw(st.sampled_from(["n", "s"]))
    return made


@st.composite
def entries(draw):
    if draw(st.integers(0, 3)):
        return draw(requests_of())
    inner = draw(st.lists(requests_of(), max_size=3))
    fields = draw(st.dictionaries(names, values, max_size=2))
    return {**fields, "t": draw(times), "type": "subagent", "requests": inner}


@st.composite
def sessions(draw):
    fields = draw(st.dictionaries(st.sampled_from(["id", "models", "totals", "z"]), values, max_size=3))
    scope = draw(st.sampled_from(["local", "global"]))
    made = {**fields, "block_size": 64, "hash_id_scope": scope}
    return {**made, "requests": draw(st.lists(entries(), max_size=6))}


@settings(max_examples=drawn(150))
@given(st.lists(sessions(), min_size=1, max_size=3))
def test_sessions_are_written_as_they_were_read(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("sessions")
    read = put_all(folder / "in", *made)
    if not any(entry.get("requests", [entry]) for one in made for entry in one["requests"]):
        return  # a trace has requests
    kvtrace.write(kvtrace.read(read), folder / "out", format="weka")
    for name in sorted(path.name for path in read.iterdir()):
        assert json.loads((folder / "out" / name).read_text()) == json.loads((read / name).read_text())


def test_a_tree_is_written_as_it_was_read(folder):
    assert back(kvtrace.read(put(TREE))) == TREE
    assert back(kvtrace.read(put(TREE)), "back.json.gz") == TREE


def test_a_round_trip_by_parquet_loses_nothing_but_what_parquet_lacks(folder):
    kvtrace.write(kvtrace.read(put(TREE)), "t.parquet")
    read = kvtrace.read("t.parquet")
    read.service_ms, read.dependencies = kvtrace.read(put(TREE)).service_ms, None
    assert back(read) == TREE


def test_the_files_keep_their_names_and_are_plain(folder):
    (folder / "in").mkdir()
    (folder / "in/b.json.gz").write_bytes(gzip.compress(json.dumps(TREE).encode()))
    put(session([request(0, [1])]), folder / "in/a.json")
    kvtrace.write(kvtrace.read("in"), "out", format="weka")
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["a.json", "b.json"]
    assert kvtrace.read("out") == kvtrace.read("in")


def test_names_stay_inside_of_the_folder(folder):
    trace = kvtrace.read(put_all(folder / "in", session([request(0, [1])], id="../x"), session([request(0, [1])])))
    for one, name in zip(trace.meta["weka"]["sessions"], ("../../a.json", "s0.json"), strict=True):
        one["file"] = name
    kvtrace.write(trace, "out", format="weka")
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["s0.json", "session.json"]


def test_a_part_has_ids_of_its_own(folder):
    trace = kvtrace.read(put(TREE))[2:]
    written = back(trace)
    assert [entry["type"] for entry in written["requests"]] == ["subagent", "n"]
    assert kvtrace.read("back.json") == trace or kvtrace.read("back.json").hash_ids.tolist() == trace.hash_ids.tolist()


def test_a_faster_trace_has_faster_times(folder):
    trace = kvtrace.trace.convert(kvtrace.read(put(TREE)), ratio=2.0)
    kvtrace.write(trace, "fast.json", format="weka")
    assert np.diff(kvtrace.read("fast.json").timestamp).tolist() == np.diff(trace.timestamp).tolist()


def test_any_trace_becomes_sessions(folder):
    trace = kvtrace.toy("0 1", "0 2", "3", block_size=64, gap_ms=1500.0)
    kvtrace.write(trace, "alone.sessions")
    assert len(list((folder / "alone.sessions").iterdir())) == 3
    read = kvtrace.read("alone.sessions")
    assert read.hash_ids.tolist() == trace.hash_ids.tolist()  # shared between sessions: their scope is global
    assert read.timestamp.tolist() == trace.timestamp.tolist()
    trace.session = np.array([0, 0, 1])
    kvtrace.write(trace, "two.sessions")
    first, second = (json.loads(path.read_text()) for path in sorted((folder / "two.sessions").iterdir()))
    assert first["hash_id_scope"] == second["hash_id_scope"] == "local" and len(first["requests"]) == 2
    assert first["requests"][0] == {"type": "n", "model": "unknown", "t": 0.0, "in": 128, "out": 1, "hash_ids": [0, 1]}
    assert kvtrace.read("two.sessions").session.tolist() == [0, 0, 1]


def test_a_file_holds_one_session(folder):
    with pytest.raises(UsageError, match="a file holds one session, but the trace has 2"):
        kvtrace.write(kvtrace.toy("0", "1"), "t.json", format="weka")
    assert not (folder / "t.json").exists()


def test_a_folder_of_other_files_is_not_replaced(folder):
    (folder / "mine").mkdir()
    (folder / "mine/notes.json").write_text("{}")
    with pytest.raises(UsageError, match="files that are not Weka sessions"):
        kvtrace.write(kvtrace.toy("0"), "mine", format="weka")
    put_all(folder / "old", TREE)
    kvtrace.write(kvtrace.toy("0"), "old", format="weka")  # sessions replace sessions
    assert [path.name for path in (folder / "old").iterdir()] == ["session-00001.json"]


@pytest.mark.parametrize("case", range(300))
def test_a_changed_section_is_one_error_or_none(folder, case):
    draw = random.Random(case)
    trace = kvtrace.read(put(TREE))
    trace.meta = {"weka": json.loads(values_changed(draw, json.dumps(trace.meta["weka"]).encode()))}
    try:
        kvtrace.write(trace, "out", format="weka")
    except KvtraceError as error:
        assert "\n" not in str(error) and not (folder / "out").exists()
    else:
        kvtrace.read("out")


# -- what is broken --------------------------------------------------------------------------------------------------

BROKEN = {
    '{"id": "a", "hash_id_scope": "local", "requ': "the JSON ends early; the file is truncated.",
    '{"hash_id_scope": "local", "requests": nope}': "the file is not JSON from character 40.",
    '{"hash_id_scope": "local", "requests": [{"t": NaN}]}': (
        "a number is NaN or infinite at character 47, which JSON does not have."
    ),
    '{"hash_id_scope": "local"}': "requests is not a list. Is the file a Weka session?",
}
WRONG = [
    (session([], block_size=0), "block_size is not a whole number of tokens from 1 to 16,777,216."),
    (session([], hash_id_scope="x"), "hash_id_scope is neither local nor global."),
    (session([5]), "requests[0] is not an object."),
    (session([request(-1, [])]), "requests[0].t is negative."),
    (session([request("1", [])]), "requests[0].t is not a number of seconds."),
    (session([request(1e300, [])]), "requests[0].t is too large."),
    (session([request(0, [], api_time=-2)]), "requests[0].api_time is negative."),
    (session([request(0, [], -4)]), "requests[0].in is negative."),
    (session([request(0, [], 2**31)]), "requests[0].in is more than 16,777,216 tokens."),
    (session([request(0, [], 4.5)]), "requests[0].in is not a whole number of 64 bits."),
    (session([{"t": 0, "in": 1, "hash_ids": []}]), "requests[0].out is missing."),
    (session([request(0, {})]), "requests[0].hash_ids is not a list."),
    (session([request(0, ["1"], 9)]), "requests[0].hash_ids has a value that is not a whole number of 64 bits."),
    (session([request(0, [-1], 9)]), "requests[0].hash_ids has a negative id."),
    (session([subagent(0, 3)]), "requests[0].requests is not a list."),
    (session([subagent(0, [request(0, {})])]), "requests[0].requests[0].hash_ids is not a list."),
    (session([subagent(0, [subagent(0, [])])]),
     "requests[0].requests[0] is a subagent of a subagent, which is not supported."),
]  # fmt: skip


@pytest.mark.parametrize(("values", "reason"), [*BROKEN.items(), *WRONG])
def test_what_is_broken_is_named(folder, values, reason, capsys):
    put(values)
    with pytest.raises(InputError) as error:
        kvtrace.read("a.json", format="weka")
    assert str(error.value) == f"a.json: {reason}" and error.value.__context__ is None
    put_all(folder / "all", session([request(0, [1])]))
    shutil.copy("a.json", "all/bad.json")
    with pytest.raises(InputError) as error:
        kvtrace.read("all")
    assert str(error.value) == f"all: bad.json: {reason}"
    assert run(["check", "all"]) == 3
    assert f"all: bad.json: {reason}" in capsys.readouterr().out


def test_sessions_of_a_folder_have_one_block_size(folder):
    put_all(folder / "all", session([request(0, [1])]), session([request(0, [1])], block_size=32))
    with pytest.raises(InputError, match=r"all: s1.json: block_size is 32, but 64 in the sessions before it"):
        kvtrace.read("all")


def test_a_folder_holds_sessions_alone(folder):
    (folder / "none").mkdir()
    with pytest.raises(InputError, match="the folder is not a data set and has no Weka sessions"):
        kvtrace.read("none")
    put_all(folder / "some", TREE)
    (folder / "some/README.md").write_text("hello")
    with pytest.raises(InputError, match="holds only .json, .json.gz and .json.zst files. Move "):
        kvtrace.read("some")
    (folder / "some/README.md").rename(folder / "some/.hidden")
    assert len(kvtrace.read("some")) == 4


def test_a_truncated_file_of_a_folder_is_named(folder):
    put_all(folder / "all", TREE)
    (folder / "all/z.json.gz").write_bytes(gzip.compress(json.dumps(TREE).encode())[:60])
    with pytest.raises(InputError, match=r"all: z.json.gz: the gzip data ends early; the file is truncated."):
        kvtrace.read("all")


def test_a_session_without_requests_is_no_trace(folder):
    with pytest.raises(InputError, match="the file has no requests"):
        kvtrace.read(put(session([subagent(0, [])])))


def test_requests_out_of_order_are_sorted_and_told(folder):
    made = session([request(5.0, [1]), request(0.0, [1])])
    trace = kvtrace.read(put(made))
    assert trace.fixes.rows_moved == 1 and back(trace) == made


# -- stated block counts in every engine -----------------------------------------------------------------------------

STATED = session([
    request(0, [1, 2, 3], 64), request(1, [1], 640), request(2, [1, 2, 3, 4], 260), request(3, [1, 2, 9], 9),
    request(4, [], 300), request(5, [1, 2, 3], 0),
])  # fmt: skip


@pytest.mark.parametrize("mode", ["block", "token", "grow"])
@pytest.mark.parametrize("engine", [name for name in engines.ENGINES if name != "lmcache"])
def test_stated_blocks_hit_in_every_engine_and_mode(folder, engine, mode):
    trace = kvtrace.read(put(STATED))
    hits = kvtrace.cache.simulate(trace, 1000, engine=engine, mode=mode).hits
    assert hits.blocks == 14
    assert 9 - 3 <= hits.hit_blocks <= 9  # an engine computes the last token of a prompt again
    if engine == "reference":
        assert (hits.hit_blocks, hits.hit_tokens) == (9, 64 + 192 + 9 + 0)


def test_the_hit_curve_counts_tokens_up_to_the_length(folder):
    trace = kvtrace.read(put(STATED))
    curve = kvtrace.analysis.hit_curve(trace)
    for capacity in range(curve.longest, curve.working_set + 2):
        assert curve.at(capacity) == kvtrace.cache.simulate(trace, capacity).hits


def test_stated_blocks_fold_in_whole_groups(folder):
    folded = kvtrace.trace.fold(kvtrace.read(put(STATED)), 2)
    assert folded.tail == "stated" and folded.prompt_blocks.tolist() == [1, 0, 2, 1, 0, 1]


def test_stated_blocks_survive_other_formats(folder):
    trace = kvtrace.read(put(STATED))
    for name in ("t.jsonl", "t.parquet", "t.dataset"):
        kvtrace.write(trace, name)
        read = kvtrace.read(name)
        assert read.tail == "stated" and (read.hash_ids == trace.hash_ids).all() and not kvtrace.formats.check(name)
        assert (read.fixes.more_blocks, read.fixes.fewer_blocks) == (3, 2)


def test_agentic_rows_get_the_blocks_that_their_tokens_need(folder, capsys):
    put(STATED)
    assert run(["convert", "a.json", "-o", "t.jsonl", "--to", "agentic-mooncake"]) == 0
    said = capsys.readouterr().err
    assert "3 prompts became as long as their blocks" in said and "2 prompts got blocks of their own" in said
    read, trace = kvtrace.read("t.jsonl"), kvtrace.read("a.json")
    assert not kvtrace.formats.check("t.jsonl") and (read.input_length >= trace.input_length).all()
    assert unlimited_hits(read).tolist() == unlimited_hits(trace).tolist()


def test_uses_that_need_whole_prompts_say_so(folder, capsys):
    put(STATED)
    assert run(["release", "a.json", "-o", "out.jsonl"]) == 3
    assert "states other block counts" in capsys.readouterr().err
    for method in ("attach", "tree", "sessions"):
        assert run(f"synthesize a.json -o {method}.jsonl -q --method {method}".split()) == 0
        assert not kvtrace.formats.check(f"{method}.jsonl")
    assert run(["convert", "a.json", "-o", "out.jsonl", "--to", "vllm", "-q"]) == 0
    assert run(["audit", "a.json"]) == 3
    assert "a recording, not a release" in capsys.readouterr().err


# -- the facts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FACTS)
def test_the_recorded_sessions_have_the_figures_of_an_independent_count(shared, name, tmp_path):
    folder = shared / "data/agents" / name
    if not folder.is_dir():
        pytest.skip("no sessions of agents in the shared data")
    count, requests, blocks, distinct, hit_blocks, token_hit_rate, drops = FACTS[name]
    trace = kvtrace.read(folder)
    statistics = kvtrace.analysis.analyze(trace)
    assert statistics.sessions.sessions == count and statistics.basics.requests == requests
    assert (statistics.basics.blocks, statistics.basics.distinct_blocks) == (blocks, distinct)
    assert statistics.basics.hits.hit_blocks == hit_blocks
    assert round(statistics.basics.hits.token_hit_rate, 7) == token_hit_rate
    kvtrace.write(trace, tmp_path / "out", format="weka")
    for path in sorted(folder.iterdir()):
        with gzip.open(path) as one, open(tmp_path / "out" / path.stem) as other:
            assert json.load(one) == json.load(other)
    assert math.isfinite(drops)


def test_columns_of_a_session_are_as_they_stand(folder):
    result = read_columns(put(TREE))
    assert result.format == "weka" and result.sidecar.block_size == 64 and format_table.is_session(b' {"requests": [')


def test_an_entry_with_the_time_of_its_end_begins_its_duration_earlier(folder):
    trace = kvtrace.read(put(ENDED))
    assert trace.timestamp.tolist() == [0, 10_000, 30_000, 60_000]
    waits = trace.dependencies
    assert waits.request.tolist() == [1, 2, 3, 3] and waits.row.tolist() == [0, 1, 0, 2]
    assert waits.delay_ms.tolist() == [1_000, 5_000, 12_000, 12_000]  # the subagent ended at 48 s
    assert run(["convert", "a.json", "-o", "b.json", "--to", "weka", "-q"]) == 0
    assert json.loads(Path("b.json").read_text()) == ENDED


def test_a_subagent_that_starts_with_others_keeps_its_place(tmp_path):
    links = {"session": np.zeros(4, np.int64), "extra": {"agent": np.array([0, 1, 1, 0])}}
    columns = Columns([0.0] * 4, [1, 2, 3, 4], [1] * 4, range(4), range(5), **links)
    trace = kvtrace.Trace.from_columns(columns, block_size=4)
    kvtrace.write(trace, tmp_path / "day.sessions", format="weka", extra=True)
    assert kvtrace.read(tmp_path / "day.sessions").input_length.tolist() == [1, 2, 3, 4]


def test_times_of_centuries_stay_whole():
    late_ms = np.arange(49_999_999_960_000.0, 49_999_999_960_100.0)
    assert (seconds_of(late_ms) == late_ms / 1000).all()
