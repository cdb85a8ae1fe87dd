"""`kvtrace lint`: ten faults of six kinds are found, others at random places too, and sound chats give no finding."""

import json
import os
import random
import warnings
from collections import Counter
from pathlib import Path

import pytest

import kvtrace
from kvtrace._base.errors import InputError, KvtraceError, UsageError
from kvtrace.cli import run
from kvtrace.text import tokenizers
from tests.attacks import examples
from tests.attacks.canary import CANARY, all_of, locals_of, require_none
from tests.conftest import drawn

from . import faulty_chats, sound_chats, test_canary

HERE = Path(__file__).resolve().parents[1]
TINY, TEMPLATE = HERE / "data/tokenizers/tiny", HERE / "data/tokenizers/templates/objects.jinja"
TEN = ("date", "date", "id", "id", "tool_order", "metadata", "metadata", "drift", "lost_history", "lost_history")
TEN_SEED = "ten faults"
EXPECTED = HERE / "vectors/lint.json"  # the ten faults and their findings; python -m tests.ingest.test_lint writes it
SHARED = Path(os.environ.get("KVTRACE_SHARED", "none")) / "data"
OPTIONS = {"tokenizer": str(TINY), "chat_template": TEMPLATE}
SEEDS = 2 * drawn(2)


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def linted(path, rows, **options):
    return kvtrace.ingest.lint(write(path, rows), **(OPTIONS | options))


# -- what it finds ---------------------------------------------------------------------------------------------------


def ten_faults(path):
    """The report on the ten faults, each in an application of its own, and the faults."""
    rows, faults = faulty_chats.chats(TEN_SEED, TEN, clean=2)
    return linted(path, rows, block_size=16), faults


def listed(report, faults):
    """Faults and findings, as the vector has them."""
    return {
        "faults": [[fault.kind, fault.form, fault.application] for fault in faults],
        "findings": [
            [one.kind, one.form, one.role, one.message, one.token, one.block, one.requests, one.tokens]
            for one in report.findings
        ],
    }


def test_ten_faults_of_six_kinds_are_found(tmp_path):
    report, faults = ten_faults(tmp_path / "log.jsonl")
    assert Counter(one.kind for one in report.findings) == Counter(fault.kind for fault in faults) == Counter(TEN)
    tokenizer = tokenizers.load(str(TINY))
    for fault in faults:
        if fault.before is not None:  # the position is that of the first line that differs
            found = [one for one in report.findings if one.kind == fault.kind]
            before = len(tokenizer.encode(fault.before.rpartition("\n")[0]))
            assert any(abs(one.message_token - before) <= 60 for one in found), fault
    assert listed(report, faults) == json.loads(EXPECTED.read_text())


@pytest.mark.parametrize("form", ["messages", "text", "user"])
@pytest.mark.parametrize("kind", faulty_chats.KINDS)
def test_faults_at_random_places_are_found_with_their_kind(kind, form, tmp_path):
    found, wrong, tried = 0, [], 0
    for seed in range(SEEDS):
        for with_sessions in (True, False):
            rows, faults = faulty_chats.chats(f"{seed} {kind} {form}", [kind], with_sessions=with_sessions, form=form)
            kinds = {one.kind for one in linted(tmp_path / "log.jsonl", rows).findings}
            found, tried = found + (kind in kinds), tried + 1
            wrong += [(seed, faults[0].form, other) for other in kinds - {kind}]
    assert found >= 0.9 * tried and len(wrong) <= 0.1 * tried, (found, tried, wrong)


@pytest.mark.parametrize("form", ["messages", "text"])
def test_several_faults_of_one_prompt_are_all_found(form, tmp_path):
    rows, _ = faulty_chats.chats("plain", clean=1, form="messages")
    for number, row in enumerate(rows):
        head, *rest = row["input"][0]["content"].split("\n")
        lines = [head, f"It is {number % 24:02}:{number % 60:02}.", *rest[:3], f"Session 3f{number:06x}ab.", *rest[3:6],
                 f"User: {random.Random(number).choice(faulty_chats.NAMES)}", *rest[6:]]  # fmt: skip
        row["input"][0]["content"] = "\n".join(lines)
        if form == "text":
            row["input"] = faulty_chats.templated(row["input"], row.pop("tools", []))
    report = linted(tmp_path / "log.jsonl", rows)
    assert {one.kind for one in report.findings} == {"date", "id", "metadata"}
    places = {one.kind: one.token for one in report.findings}
    assert places["date"] < places["id"] < places["metadata"]


# -- what it does not find -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["messages", "text", "one session"])
@pytest.mark.parametrize("pattern", sound_chats.PATTERNS)
def test_sound_chats_give_no_finding(pattern, form, tmp_path):
    for seed in range(drawn(2)):
        rows = sound_chats.rows(pattern, seed)
        for row in rows:
            if form == "text":
                row["input"] = faulty_chats.templated(row["input"], row.pop("tools", []))
            elif form == "one session":
                row["session_id"] = "one"
        assert linted(tmp_path / "log.jsonl", rows).findings == ()


@pytest.mark.parametrize("form", ["messages", "text", "user"])
def test_chats_without_a_fault_give_no_finding(form, tmp_path):
    for seed in range(SEEDS):
        rows, _ = faulty_chats.chats(seed, clean=3, with_sessions=seed % 2 == 0, form=form)
        assert linted(tmp_path / "log.jsonl", rows).findings == ()


@pytest.mark.parametrize(
    "name", ["chats/tau_airline_gpt4o", "chats/swe_agent", "agent_logs/magagent", "agent_logs/miniswe"]
)
def test_real_chats_give_no_finding(name):
    path = SHARED / f"{name}.jsonl"
    if not path.exists():
        pytest.skip("needs the shared data")
    report = kvtrace.ingest.lint(path)
    assert report.findings == () and report.requests > 200


# -- what it costs ---------------------------------------------------------------------------------------------------


def test_the_tokens_of_a_date_are_those_that_hit_without_it(tmp_path):
    rows, _ = faulty_chats.chats("dates", clean=1, with_sessions=False)
    plain = linted(tmp_path / "plain.jsonl", rows, block_size=1)
    for number, row in enumerate(rows):
        row["input"][0]["content"] = f"Today is 2031-05-02 at 09:{number:02}.\n{row['input'][0]['content']}"
    dated = linted(tmp_path / "dated.jsonl", rows, block_size=1)
    assert plain.findings == () and [one.kind for one in dated.findings] == ["date"]
    assert dated.lost_tokens + dated.hit_tokens == pytest.approx(plain.hit_tokens, rel=0.02)
    assert dated.hit_tokens < 0.5 * plain.hit_tokens


def test_the_tokens_of_a_log_are_those_that_anonymize_counts(tmp_path):
    rows, _ = faulty_chats.chats("tokens", clean=1)
    path = write(tmp_path / "log.jsonl", rows)
    trace = kvtrace.ingest.anonymize(path, **OPTIONS, profile="exact", block_size=16)
    assert kvtrace.ingest.lint(path, **OPTIONS).prompt_tokens == trace.input_length.sum()


def test_a_log_is_compared_window_by_window(tmp_path, monkeypatch):
    rows, _ = faulty_chats.chats(5, ["date"])
    whole = linted(tmp_path / "log.jsonl", rows)
    monkeypatch.setattr("kvtrace.ingest.linting.linter.WINDOW_CHARACTERS", 5_000)
    monkeypatch.setattr("kvtrace.ingest.logs.sources.PIECE_BYTES", 100_000)
    parts = linted(tmp_path / "log.jsonl", rows)
    assert whole.windows == 1 < parts.windows
    assert parts.prompt_tokens == whole.prompt_tokens and parts.requests == whole.requests
    assert {one.kind for one in parts.findings} == {"date"} and parts.hit_tokens == whole.hit_tokens


# -- no word gets out ------------------------------------------------------------------------------------------------


def canary_rows():
    """Chats with all six kinds of faults, and the canary in every text."""
    rows, _ = faulty_chats.chats("canary", [*faulty_chats.KINDS])

    def planted(value):
        if isinstance(value, dict):
            return {key: planted(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [planted(inner) for inner in value]
        is_text = isinstance(value, str) and len(value) > 20 and value[0] != "{"  # arguments are JSON
        return f"{CANARY} {value} {CANARY}" if is_text else value

    return [row | {"input": planted(row["input"]), "tools": planted(row.get("tools"))} for row in rows]


@pytest.mark.parametrize("options", [[], ["--json"], ["--fail"]])
def test_the_canary_is_in_no_report(options, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("KVTRACE_DEBUG", "1")
    path = write(tmp_path / "log.jsonl", canary_rows())
    command = ["lint", str(path), "--tokenizer", str(TINY), "--chat-template", str(TEMPLATE), *options]
    assert run(command) == (3 if options == ["--fail"] else 0)
    shown = capfd.readouterr()
    require_none(shown.out + shown.err, where="the report")
    assert "date" in shown.out and "lost_history" in shown.out
    assert [one.name for one in tmp_path.iterdir()] == ["log.jsonl"]  # nothing is written
    report = kvtrace.ingest.lint(path, **OPTIONS)
    require_none(f"{report!r} {report.to_dict()} {report._repr_html_()} {vars(report)}", where="the result")
    assert {one.kind for one in report.findings} == {*faulty_chats.KINDS}


@pytest.mark.parametrize("example", examples.files(), ids=lambda path: path.name)
def test_the_canary_is_in_nothing_that_lint_prints(example, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("KVTRACE_DEBUG", "1")
    lines, options = test_canary.lines_and_options(example, None, "")
    kept = [word for word in ("--log-format", "--map") if word in options]
    chosen = [part for word in kept for part in (word, options[options.index(word) + 1])]
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join(lines[:200]) + b"\n")
    for more in (["--on-error", "skip", "--json"], []):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            status = run(["lint", str(path), "--tokenizer", str(TINY), "--allow-truncated", *chosen, *more])
        shown = capfd.readouterr()
        require_none(shown.out + shown.err + "".join(str(one.message) for one in warned), where="what was said")
        assert status in (0, 2, 3) and "internal error" not in shown.err


def test_the_canary_is_in_no_local_variable_of_an_error(tmp_path):
    rows = canary_rows()
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + f'{{"input": "{CANARY}", \n')
    with pytest.raises(KvtraceError) as caught:
        kvtrace.ingest.lint(path, **OPTIONS)
    require_none(all_of(caught.value), where="an exception")
    for shown in locals_of(caught.value):
        require_none(shown, where="a local variable")


def test_a_bug_shows_its_place_only(tmp_path, capfd, monkeypatch):
    def fail(self, match):
        raise ValueError(f"a bug, with {self._texts}")

    monkeypatch.setattr("kvtrace.ingest.linting.judging.Judge.occurrences", fail)
    path = write(tmp_path / "log.jsonl", canary_rows())
    assert run(["lint", str(path), "--tokenizer", str(TINY), "--chat-template", str(TEMPLATE)]) == 1
    shown = capfd.readouterr()
    require_none(shown.out + shown.err, where="what was said")
    assert "internal error: ValueError at test_lint.py" in shown.err


# -- its options -----------------------------------------------------------------------------------------------------


def test_a_log_without_text_is_refused():
    with pytest.raises(InputError, match="no prompts"):
        kvtrace.ingest.lint(HERE / "data/logs/azure.csv", **OPTIONS)
    with pytest.raises(InputError, match="no prompt with text"):
        kvtrace.ingest.lint(HERE / "data/logs/tokens.jsonl", **OPTIONS)
    with pytest.raises(UsageError, match="--block-size"):
        kvtrace.ingest.lint(HERE / "data/logs/tokens.jsonl", block_size=0)


def test_max_errors_needs_skip(capsys, tmp_path):
    assert run(["lint", str(write(tmp_path / "log.jsonl", canary_rows()[:3])), "--max-errors", "1"]) == 2
    assert "--on-error skip" in capsys.readouterr().err


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        EXPECTED.write_text(json.dumps(listed(*ten_faults(Path(folder) / "log.jsonl")), indent=1) + "\n")
