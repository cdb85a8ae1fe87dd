"""`kvtrace release` and the release in `kvtrace anonymize`, as their user meets them."""

import json

import pytest

import kvtrace
from kvtrace._base.input_files import open_read
from kvtrace.cli import run


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A trace for use inside the house: 60 requests of 12 sessions and 4 users on three documents, times in ms."""
    monkeypatch.chdir(tmp_path)
    rows, users = [], []
    for row in range(60):
        document, user = row % 3, row * 7 % 12
        tokens = [1, 2, 3, 4, *(10 + document for _ in range(8)), 100 + user, 100 + user, 5, row % 5]
        rows.append({"timestamp": 700 * row, "input": tokens, "output": 3 + row % 9, "session": f"s{user}"})
        users.append(f"user{user % 4}")
    rows[10], rows[11] = rows[11], rows[10]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--block-size", "4", "--profile", "exact", "--format", "bailian", "-q"]
    assert run(["anonymize", "log.jsonl", "-o", "house.jsonl", *options]) == 0
    (tmp_path / "users.txt").write_text("".join(f"{user}\n" for user in users))
    return tmp_path


def released(*options, to="public.jsonl"):
    status = run(["release", "house.jsonl", "-o", to, *options])
    return status, kvtrace.read(to) if status == 0 else None


def test_a_release_is_coarser_audited_and_has_a_card(house, capsys):
    status, trace = released()
    shown = capsys.readouterr().err
    assert status == 0 and trace.tail == "unique" and (trace.timestamp % 1000 == 0).all()
    for word in ("profile standard", "original", "tails unique", "k-sharing", "audit", "PASS", "0 FAIL", ".card.md"):
        assert word in shown
    assert trace.meta["profile"] == "standard" and trace.meta["release"]["k_counted"] == "sessions"
    assert "not" in (house / "public.jsonl.card.md").read_text()
    assert run(["audit", "public.jsonl", "-q"]) == 0


def test_strict_has_no_sessions_and_rounds_everything(house):
    _, trace = released("--profile", "strict", "-q")
    assert trace.session is None and (trace.timestamp % 60_000 == 0).all() and (trace.input_length % 4 == 0).all()


@pytest.mark.parametrize("to", ["public.jsonl.gz", "public.parquet", "public.jsonl"])
def test_a_release_in_any_format_is_the_same_trace(house, to):
    _, plain = released("-q", to="plain.jsonl")
    status, trace = released("-q", to=to)
    assert status == 0
    same = ("timestamp", "input_length", "output_length", "hash_ids")
    assert all((getattr(trace, name) == getattr(plain, name)).all() for name in same)


def test_a_release_can_go_down_a_pipe(house, capfdbinary):
    assert run(["release", "house.jsonl", "-o", "-", "-q"]) == 0
    assert released("-q")[0] == 0
    assert capfdbinary.readouterr().out == (house / "public.jsonl").read_bytes()


def test_users_are_counted_and_never_written(house, capfd):
    status, trace = released("--users", "users.txt", "--k", "4")
    assert status == 0 and trace.meta["release"]["k_counted"] == "users"
    files = [path.read_bytes() for path in house.glob("public.jsonl*")]
    shown = capfd.readouterr()
    assert len(files) == 3 and not any(b"user1" in text for text in (*files, shown.out.encode(), shown.err.encode()))
    _, apart = released("--users", "users.txt", "--isolate-tenants", "-q", to="apart.jsonl")
    assert (
        kvtrace.trace.count_hits(apart, kvtrace.trace.unlimited_hits(apart)).hit_blocks
        < kvtrace.trace.count_hits(trace, kvtrace.trace.unlimited_hits(trace)).hit_blocks
    )


def test_users_go_with_their_rows_when_rows_are_put_in_order(house, monkeypatch):
    lines = (house / "house.jsonl").read_text().splitlines(keepends=True)
    users = (house / "users.txt").read_text().splitlines(keepends=True)
    _, trace = released("--users", "users.txt", "-q")
    (house / "house.jsonl").write_text("".join(lines[1:40] + lines[:1] + lines[40:]))
    (house / "users.txt").write_text("".join(users[1:40] + users[:1] + users[40:]))
    assert released("--users", "users.txt", "-q", to="moved.jsonl")[1] == trace


def test_a_sample_shows_neither_its_share_nor_the_size_of_the_whole(house):
    status, trace = released("--sample-sessions", "0.5", "--seed", "3", "-q")
    said = (house / "public.jsonl.meta.json").read_text()
    assert status == 0 and 0 < len(trace) < 60 and trace.meta["release"]["sampled"]
    assert "counts" not in trace.meta and "0.5" not in said
    assert released("--sample-sessions", "0.5", "--seed", "3", "-q", to="again.jsonl")[1] == trace


def test_a_release_that_is_an_earlier_one_again_is_refused_and_nothing_is_written(house, capsys):
    assert released("-q")[0] == 0
    status, _ = released("--against", "public.jsonl", "-q", to="second.jsonl")
    assert status == 4 and "nothing was written" in capsys.readouterr().err
    assert not list(house.glob("*second*"))


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--users", "none.txt"], 3, "none.txt: no such file"),
        (["--users", "short.txt"], 3, "short.txt: the file has 1 lines, but the trace has 60 rows"),
        (["--isolate-tenants"], 2, "needs --users FILE"),
        (["--round-input", "3"], 2, "divide the block size of 4"),
        (["--round-input", "pow3"], 2, "not valid for round_input. Did you mean pow2?"),
        (["--time-step", "5"], 2, "not a duration"),
        (["--profile", "loose"], 2, "'loose' is not a release profile"),
        (["--sample-sessions", "0"], 2, "--sample-sessions must be above 0"),
        (["--sample-sessions", "0.000001"], 2, "contains none"),
        (["--against", "none.jsonl"], 3, "none.jsonl: no such file"),
    ],
)
def test_what_does_not_fit_is_one_line_and_leaves_nothing(house, capsys, options, status, said):
    (house / "short.txt").write_text("a\n")
    before = set(house.iterdir())
    assert released(*options)[0] == status
    line = capsys.readouterr().err
    assert len(line.splitlines()) == 1 and said in line and set(house.iterdir()) == before


def test_anonymize_says_what_its_profile_cost_and_who_was_counted(house, capsys):
    assert run(["anonymize", "log.jsonl", "-o", "out.jsonl.gz", "--block-size", "4"]) == 0
    shown = capsys.readouterr().err
    for word in ("profile standard", "k-sharing", "k counts sessions", "0 FAIL", "out.jsonl.gz.card.md"):
        assert word in shown
    with open_read("out.jsonl.gz") as stream:
        assert len(stream.read().splitlines()) == 60


def test_a_log_of_lengths_only_has_no_hit_rates(house, capsys):
    rows = "".join(f"2023-11-16 18:15:{row:02}.5,{30 + row},{row + 1}\n" for row in range(20))
    (house / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    assert run(["anonymize", "azure.csv", "-o", "out.jsonl"]) == 0
    trace, shown = kvtrace.read("out.jsonl"), capsys.readouterr().err
    assert "the log has lengths only" in shown and "hit rate" not in shown.replace("hit rates", "")
    assert trace.distinct == len(trace.hash_ids) and "hits" not in trace.meta["figures"]
