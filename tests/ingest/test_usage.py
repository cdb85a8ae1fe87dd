"""The log's own counts of prompt tokens: the likely cause of a difference, and when a run stops."""

import json
from pathlib import Path

import pytest

import kvtrace
from kvtrace._base.errors import MismatchError, UsageError
from kvtrace.capture.recorder import Recorder
from kvtrace.cli import run
from kvtrace.ingest.checkpoint import packed, unpacked
from kvtrace.ingest.encoding import Batch
from kvtrace.ingest.usage import ARGUMENTS, MEDIA, TOOLS, UsageCheck
from kvtrace.privacy.publishing import publish
from kvtrace.privacy.sidecar_forms import public
from tests.capture.windows import sealed
from tests.ingest.flat import anonymize_dataset, anonymize_rows

TINY = str(Path(__file__).parents[1] / "data/tokenizers/tiny")
OPTIONS = {"block_size": 4, "profile": "exact"}
WORDS = "boats harbour keeper counts "


def check(*requests, **more):
    """The check of (ours, logged, features, messages) of each request."""
    names = ("ours", "logged", "features", "messages")
    return UsageCheck.of([dict(zip(names, request, strict=False)) | more for request in requests])


def write(path, logged, *, model="tiny", prompt=WORDS, **fields):
    """A log of text prompts, each with a logged count."""
    rows = [
        {"timestamp": i, "prompt": prompt * (1 + i % 3), "output_length": 1, "model": model, "prompt_tokens": count}
        | fields
        for i, count in enumerate(logged)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    """The tokens of 20 prompts, by our count."""
    path = write(tmp_path_factory.mktemp("lengths") / "log.jsonl", [None] * 20)
    return anonymize_rows(path, tokenizer=TINY, **OPTIONS).columns.input_length.tolist()


# -- causes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "cause"),
    [
        ([(30, 130, TOOLS), (30, 30), (50, 50)], "tools"),
        ([(30, 130, TOOLS | MEDIA), (30, 130, TOOLS), (30, 30, MEDIA), (50, 50)], "tools"),
        ([(30, 130, MEDIA), (30, 30), (50, 50)], "images"),
        ([(30, 130, TOOLS | MEDIA), (30, 30, TOOLS), (30, 30, TOOLS)], "images"),
        ([(30, 34, ARGUMENTS), (30, 30), (50, 50)], "template arguments"),
        ([(30, 530, TOOLS), (60, 260, TOOLS)], "tools"),  # all requests have them, and we count fewer
        ([(30, 31), (50, 51), (70, 71)], "the start token"),
        ([(30, 27), (50, 47), (70, 67)], "the start or the end of the chat template (3 tokens more in each request)"),
        ([(30, 36, 0, 1), (50, 60, 0, 3), (70, 82, 0, 4)], "another chat template (a constant a message)"),  # 4 + 2 m
        ([(30, 33, 0, 1), (50, 55, 0, 3), (70, 80, 0, 4)], "another tokenizer"),
    ],
)
def test_the_likely_cause_is_what_differs(requests, cause):
    assert check(*requests).cause.text.startswith(cause)


def test_equal_counts_have_no_cause():
    assert check((30, 30), (50, 50)).cause is None and check((30, 30)).sentence is None


def test_the_sentence_has_totals_the_largest_difference_and_what_to_do():
    assert check((30, 40), (30, 30), (40, 45)).sentence == (
        "our 100 prompt tokens are 13.0 % fewer than the 115 that the log states: 2 of 3 requests differ, the largest "
        "by 10 tokens. Likely cause: another tokenizer or chat template. Name the model's own: --tokenizer NAME, "
        "--chat-template FILE."
    )


@pytest.mark.parametrize(
    ("requests", "thing"),
    [
        ([{"ours": 30, "logged": 0}] * 3, "are all 0"),
        ([{"ours": 30 + i, "logged": 7} for i in range(10)], "are the same for all requests"),
        ([{"ours": 30 + i, "logged": 34 + 3 * i, "output": 4 + 2 * i} for i in range(5)], "include the tokens of the"),
        ([{"ours": 30 + i, "logged": 26 + i, "cached": 4} for i in range(5)], "leave out cached tokens"),
    ],
)
def test_counts_of_another_thing_are_named_and_not_compared(requests, thing):
    usage = UsageCheck.of(requests)
    assert thing in usage.sentence and not usage.is_mismatch and not usage.section()


def test_checks_add_up_over_batches_and_survive_the_checkpoint():
    requests = [{"ours": 20 + i, "logged": 20 + i * i, "features": i % 3, "messages": i} for i in range(30)]
    whole = UsageCheck.of(requests)
    parts = [UsageCheck.of(requests[start : start + 7]) for start in range(0, 30, 7)]
    assert sum(parts, UsageCheck()) == whole
    assert unpacked(packed(Batch(usage=whole))).usage == whole and unpacked(packed(Batch())).usage is None


def test_a_count_beyond_all_reason_does_not_overflow():
    assert check((30, 2**62), (30, 2**62), (30, 30)).whole.distance == 2 * (2**62 - 30)


# -- when a run stops ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("more", "stops"), [(-21, True), (-20, False), (-19, False), (19, False), (21, True)])
def test_a_run_stops_above_two_percent_of_the_logs_total(more, stops):
    usage = check((100 + more, 100), (99, 100), *[(100, 100)] * 7) + check((101, 100))
    assert usage.whole.logged == 1000 and usage.is_mismatch is stops


def test_few_requests_and_one_odd_one_stop_no_run():
    assert not check(*[(100, 200)] * 9).is_mismatch
    assert check(*[(100, 200)] * 9, (50, 110)).is_mismatch
    assert not check(*[(100, 100)] * 20, (100, 10**9)).is_mismatch


def test_a_run_stops_before_anything_is_written(tmp_path, lengths):
    log = write(tmp_path / "log.jsonl", [count + 5 for count in lengths])
    with pytest.raises(MismatchError, match=r"To go on: --on-mismatch warn\.") as error:
        kvtrace.ingest.anonymize(log, tokenizer=TINY, **OPTIONS)
    assert error.value.status == 7 and WORDS.split()[0] not in str(error.value)
    command = ["anonymize", str(log), "-o", str(tmp_path / "trace.jsonl"), "--tokenizer", TINY, "--block-size", "4"]
    assert run([*command, "-q"]) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
    assert run([*command, "-q", "--on-mismatch", "warn"]) == 0


def test_with_warn_it_goes_on_and_states_the_difference(tmp_path, lengths):
    log, notes = write(tmp_path / "log.jsonl", [count + 5 for count in lengths]), []
    rows = anonymize_rows(log, tokenizer=TINY, on_mismatch="warn", on_note=notes.append, **OPTIONS)
    assert len([note for note in notes if "5 tokens fewer in each request" in note]) == 1
    total = sum(lengths)
    assert rows.meta["usage"] == {"requests": 20, "difference": round(-100 / (total + 100), 3)}
    assert public(rows.meta)["usage"] == rows.meta["usage"]


def test_a_tokenizer_that_is_not_known_to_be_the_models_only_warns(tmp_path, lengths):
    log, notes = write(tmp_path / "log.jsonl", [count + 5 for count in lengths], model="ours-7b"), []
    anonymize_rows(log, tokenizer=TINY, on_note=notes.append, **OPTIONS)
    assert len(notes) == 1 and notes[0].startswith("our ")


def test_equal_counts_say_nothing(tmp_path, lengths):
    log, notes = write(tmp_path / "log.jsonl", lengths), []
    rows = anonymize_rows(log, tokenizer=TINY, on_note=notes.append, **OPTIONS)
    assert notes == [] and rows.meta["usage"] == {"requests": 20, "difference": 0.0}


def test_a_sample_does_not_state_what_the_whole_log_has(tmp_path, lengths):
    log = write(tmp_path / "log.jsonl", lengths, session_id="s")
    rows = anonymize_rows(log, tokenizer=TINY, sample_sessions=0.9999, **OPTIONS)
    assert "usage" not in rows.meta and "counts" not in rows.meta


def test_another_value_of_the_option_is_refused(tmp_path, lengths):
    with pytest.raises(UsageError, match="--on-mismatch"):
        anonymize_rows(write(tmp_path / "log.jsonl", lengths), on_mismatch="ask", **OPTIONS)


def test_tools_that_the_template_leaves_out_are_the_cause(tmp_path):
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    tool = {"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}
    plain = write(tmp_path / "plain.jsonl", [None] * 20)
    counts = anonymize_rows(plain, tokenizer=TINY, **OPTIONS).columns.input_length.tolist()
    rows = [
        {"created": 10**9 + i, "model": "tiny", "messages": [{"role": "user", "content": WORDS * (1 + i % 3)}],
         "choices": [{"message": {"content": "x"}}],
         "usage": {"prompt_tokens": count + 90 * (i % 2), "completion_tokens": 1}}
        | ({"tools": [tool]} if i % 2 else {})
        for i, count in enumerate(counts)
    ]  # fmt: skip
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        MismatchError, match=r"10 of 20 requests differ, the largest by \d+ tokens. Likely cause: tools"
    ):
        kvtrace.ingest.anonymize(log, tokenizer=TINY, chat_template=template, **OPTIONS)


# -- the same in all runs --------------------------------------------------------------------------------------------


def test_tasks_count_what_one_process_counts(tmp_path, lengths):
    log = write(tmp_path / "log.jsonl", [count + i % 2 for i, count in enumerate(lengths)])
    whole = anonymize_rows(log, tokenizer=TINY, on_mismatch="warn", **OPTIONS)
    tasks = {
        "runner": kvtrace.privacy.LocalRunner(1),
        "work": tmp_path / "work",
        "partitions": 3,
        "on_mismatch": "warn",
    }
    with anonymize_dataset(log, tokenizer=TINY, **tasks, **OPTIONS) as done:
        assert done.usage == whole.usage and done.made.meta["usage"] == whole.meta["usage"]
    tasks["on_mismatch"] = "stop"
    with pytest.raises(MismatchError), anonymize_dataset(log, tokenizer=TINY, **tasks, **OPTIONS):
        pass


@pytest.mark.parametrize("tasks", [[], ["--runner", "local", "--partitions", "3"]])
def test_a_run_that_stopped_goes_on_with_the_option(tmp_path, lengths, tasks, capsys):
    log = write(tmp_path / "log.jsonl", [count + i for i, count in enumerate(lengths)])
    command = ["anonymize", str(log), "--tokenizer", TINY, "--block-size", "4", "--key-file", str(tmp_path / "key")]
    assert run([*command, "-o", str(tmp_path / "whole.jsonl"), "--on-mismatch", "warn", "-q"]) == 0
    output = ["-o", str(tmp_path / "trace.jsonl"), *tasks, "-q"]
    assert run([*command, *output]) == 7
    assert run([*command, *output, "--resume", "--on-mismatch", "warn"]) == 0, capsys.readouterr().err
    for name in ("{}.jsonl", "{}.jsonl.meta.json"):
        assert (tmp_path / name.format("trace")).read_bytes() == (tmp_path / name.format("whole")).read_bytes()


def test_a_recorder_warns_once_a_window_and_never_stops(tmp_path, lengths):
    log = write(tmp_path / "log.jsonl", [count + 5 for count in lengths])
    messages: list[str] = []
    with Recorder(tmp_path / "windows", tokenizer=TINY, on_message=messages.append, **OPTIONS) as recorder:
        assert all(recorder.put("follow", line) for line in log.read_bytes().splitlines())
    (window,) = sealed(tmp_path / "windows")
    assert kvtrace.read(window).meta["usage"]["requests"] == 20
    assert [message.count("5 tokens fewer in each request") for message in messages] == [1]


def test_the_card_states_the_difference(tmp_path, lengths):
    log = write(tmp_path / "log.jsonl", [count + 5 for count in lengths])
    trace = kvtrace.ingest.anonymize(log, tokenizer=TINY, on_mismatch="warn", block_size=4)
    publish(trace, tmp_path / "trace.jsonl")
    share = -trace.meta["usage"]["difference"]
    text = (tmp_path / "trace.jsonl.card.md").read_text()
    assert f"* prompt lengths: {100 * share:.1f} % fewer than the log states (of about 20 requests)" in text
