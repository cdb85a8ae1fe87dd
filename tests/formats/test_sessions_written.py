"""Sessions and turns that were read are written; what a format or a client cannot hold is said in one line."""

import json
from pathlib import Path

import numpy as np
import pytest

import kvtrace
from kvtrace.cli import run
from kvtrace.formats.left_out import MissingColumns, left_out
from kvtrace.trace.columns import rows_of

CLIENTS = ("aiperf", "vllm", "sglang", "guidellm", "dynamo")  # rows of a session are increments, or cumulative, to some
ROWS = [  # two conversations of three and two turns, and a request of none; 16 tokens a block
    ([0, 1], 0, 1), ([2, 3], 1, 1), ([0, 1, 4], 0, 2), ([5], None, 1), ([2, 3, 6], 1, 2), ([0, 1, 4, 7], 0, 3),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = []
    for number, (ids, session, turn) in enumerate(ROWS):
        row = {"timestamp": number * 60_000, "input_length": 16 * len(ids), "output_length": 4, "hash_ids": ids}
        lines.append(row | {"turn": turn} | ({} if session is None else {"session_id": session}))
    Path("day.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return tmp_path


def written(name):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def summary(capsys, word):
    lines = capsys.readouterr().err.splitlines()
    return [line[12:] for line in lines if line.startswith(word)]


def test_sessions_and_turns_are_written_as_they_were_read(folder, capsys):
    day = kvtrace.read("day.jsonl")
    kvtrace.write(day, "again.jsonl")
    assert Path("again.jsonl").read_bytes() == Path("day.jsonl").read_bytes()
    assert run(["convert", "day.jsonl", "-o", "converted.jsonl"]) == 0
    assert Path("converted.jsonl").read_bytes() == Path("day.jsonl").read_bytes() and not summary(capsys, "lost")
    assert kvtrace.read("converted.jsonl") == day


@pytest.mark.parametrize("form", ["parquet", "dataset", "bailian"])
def test_a_conversion_there_and_back_keeps_them(folder, form):
    assert run(["convert", "day.jsonl", "-o", "other", "--to", form, "-q"]) == 0
    assert run(["convert", "other", "-o", "back.jsonl", "-q"]) == 0
    day, back = kvtrace.read("day.jsonl"), kvtrace.read("back.jsonl")
    known = day.session >= 0
    assert kvtrace.read("other").session[known].tolist() == back.session[known].tolist()
    assert len(set(zip(day.session[known].tolist(), back.session[known].tolist(), strict=True))) == 2
    if form != "bailian":  # there a request of no session is its own, and has a turn
        assert Path("back.jsonl").read_bytes() == Path("day.jsonl").read_bytes()


def test_a_row_of_no_session_has_no_session_key(folder):
    kvtrace.write(kvtrace.read("day.jsonl"), "again.jsonl")
    assert [set(row) & {"session_id", "turn"} for row in written("again.jsonl")][3] == {"turn"}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_would_add_up_turns_gets_none_and_the_command_says_so(folder, capsys, client):
    assert run(["convert", "day.jsonl", "-o", "out.jsonl", "--to", client]) == 0
    assert "2 sessions were left out: rows are independent." in summary(capsys, "lost")
    assert all(set(row) == {"timestamp", "input_length", "output_length", "hash_ids"} for row in written("out.jsonl"))


def test_other_columns_that_a_format_does_not_have_are_said_to_be_lost(folder, capsys):
    day = kvtrace.read("day.jsonl")
    day.extra["type"] = np.array(["text", "image"] * 3, dtype=object)
    day.extra["mine"] = np.arange(6)
    kvtrace.write(day, "rich.dataset")
    for source in ("rich.dataset", "rich.jsonl"):
        assert run(["convert", source, "-o", "plain.jsonl"]) == 0
        sentence = (
            "2 extra columns were left out: the format mooncake does not have them. Add --extra to keep extra columns."
        )
        assert summary(capsys, "lost") == [sentence]
        assert (
            run(["convert", source, "-o", "rich.jsonl" if source == "rich.dataset" else "twice.jsonl", "--extra"]) == 0
        )
        assert summary(capsys, "lost") == []
    assert Path("twice.jsonl").read_bytes() == Path("rich.jsonl").read_bytes()
    assert run(["convert", "rich.jsonl", "-o", "chat.jsonl", "--to", "bailian"]) == 0
    assert [line for line in summary(capsys, "lost") if "extra" in line] == [
        "1 extra column was left out: the format bailian does not have it. Add --extra to keep extra columns."
    ]


def test_a_type_that_is_text_in_each_row_is_no_loss():
    trace = kvtrace.toy("0 1", "0 2", block_size=16)
    trace.extra["type"] = np.array(["text", "text"], dtype=object)
    assert left_out(trace, "mooncake") == []
    trace.extra["type"][1] = "image"
    assert left_out(trace, "mooncake") == ["1 extra column was left out: the format mooncake does not have it."]


def branching():
    """A conversation whose third request continues its first."""
    trace = kvtrace.toy("0 1", "0 1 2", "0 1 3", "4", "0 1 3 5", block_size=16)
    trace.session, trace.parent = np.array([0, 0, 0, 1, 0]), np.array([-1, 0, 0, -1, 2])
    return trace


def test_parents_that_a_session_does_not_give_are_said_to_be_lost(folder, capsys):
    kvtrace.write(branching(), "tree.dataset")
    assert run(["convert", "tree.dataset", "-o", "tree.jsonl"]) == 0
    (line,) = summary(capsys, "lost")
    assert line.startswith("1 parent was left out: this format has sessions only.")
    assert run(["convert", "tree.dataset", "-o", "chat.jsonl", "--to", "bailian"]) == 0 and not summary(capsys, "lost")
    assert kvtrace.read("chat.jsonl").parent.tolist() == branching().parent.tolist()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_chunks_lose_what_the_whole_trace_loses(size):
    tree = branching()
    done = MissingColumns("mooncake")
    parts = [rows_of(tree, start, min(start + size, 5)) for start in range(0, 5, size)]
    assert len(list(done.watch(parts))) == len(parts)
    assert done.sentences() == left_out(tree, "mooncake")


@pytest.mark.parametrize("source", ["day.jsonl", "day.dataset"])
def test_a_standard_release_has_sessions_and_a_strict_one_says_that_it_drops_them(folder, capsys, source):
    kvtrace.write(kvtrace.read("day.jsonl"), "day.dataset")
    note = "sessions and turns were left out, so rows do not name their conversation."
    for profile in ("standard", "strict"):
        assert run(["release", source, "-o", f"{profile}.jsonl", "--profile", profile]) == 0
        notes, rows = summary(capsys, "note"), written(f"{profile}.jsonl")
        assert (note in notes) == (profile == "strict")
        sessions = [row.get("session_id") for row in rows]
        assert sessions == ([0, 1, 0, None, 1, 0] if profile == "standard" else [None] * 6)
        assert run(["audit", f"{profile}.jsonl", "-q"]) == 0
    plain = kvtrace.toy("0 1", "0 2", block_size=16)
    kvtrace.write(plain, "plain.jsonl")
    assert run(["release", "plain.jsonl", "-o", "out.jsonl", "--profile", "strict"]) == 0
    assert note not in summary(capsys, "note")


def test_a_log_in_memory_and_in_tasks_gives_the_same_rows_and_notes(folder, capsys):
    rows = [
        {"timestamp": 60 * number, "input": list(range(40)) + [number], "output": 2, "session": f"s{number % 3}"}
        for number in range(12)
    ]
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for profile in ("standard", "strict"):
        notes = []
        for name, runner in (
            ("a.jsonl", []),
            ("b.jsonl", ["--runner", "local", "--partitions", "3", "--workers", "1"]),
        ):
            assert run(["anonymize", "log.jsonl", "-o", name, "--block-size", "16", "--profile", profile, *runner]) == 0
            notes.append(summary(capsys, "note"))
        assert notes[0] == notes[1] and Path("a.jsonl").read_bytes() == Path("b.jsonl").read_bytes()
        trace = kvtrace.read("a.jsonl")
        assert (trace.session is None) == (profile == "strict")
        if profile == "standard":
            assert trace.session.tolist() == [0, 1, 2] * 4
            assert trace.extra["turn"].tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_a_release_of_before_without_sessions_keeps_its_verdict(folder):
    assert run(["release", "day.jsonl", "-o", "now.jsonl", "-q"]) == 0
    kept = ("timestamp", "input_length", "output_length", "hash_ids")
    rows = [{name: row[name] for name in kept} for row in written("now.jsonl")]
    Path("before.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("before.jsonl.meta.json").write_bytes(Path("now.jsonl.meta.json").read_bytes())
    levels = {finding.name: finding.level for finding in kvtrace.privacy.audit("before.jsonl").findings}
    assert (
        levels["canonical"] == levels["fields"] == levels["session_links"] == "PASS" and "FAIL" not in levels.values()
    )


def test_a_session_id_with_more_than_a_number_fails_the_audit(folder):
    assert run(["release", "day.jsonl", "-o", "now.jsonl", "-q"]) == 0
    text = Path("now.jsonl").read_text()
    for old, new in (
        ('"session_id": 1', '"session_id": "kim"'),
        ('"session_id": 1', '"session_id": 4'),
        ('"turn": 2', '"turn": 2.0'),
    ):
        Path("now.jsonl").write_text(text.replace(old, new))
        assert not kvtrace.privacy.audit("now.jsonl").passed, new


def test_real_agents_keep_their_sessions(folder, shared):
    log = shared / "data/agent_logs/miniswe.jsonl"
    sessions = {json.loads(line)["session_id"] for line in log.read_text().splitlines()}
    assert run(["anonymize", str(log), "-o", "agents.jsonl", "-q"]) == 0
    trace = kvtrace.read("agents.jsonl")
    assert len(np.unique(trace.session)) == len(sessions)
    kvtrace.privacy.publish(trace, "again.jsonl")
    assert Path("again.jsonl").read_bytes() == Path("agents.jsonl").read_bytes()
