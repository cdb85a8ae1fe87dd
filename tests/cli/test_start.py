"""`kvtrace start`: ten lines from any log, which name what is unknown or assumed; a part that fails loses no other."""

import doctest
import html
import json
import shlex
from pathlib import Path

import pytest

import kvtrace
from kvtrace import from_log
from kvtrace._base.errors import AuditError, UsageError
from kvtrace.analysis.curves import HitCurve
from kvtrace.cli import run
from kvtrace.report.answer import WIDTH, AnswerLine
from kvtrace.text import trial
from tests.docs import ROOT

LOG = ROOT / "examples/raw_log.jsonl"
RULES = "Answer in one sentence, and name the source of each figure that you give. " * 20
NAMES = ["log", "private", "traffic", "hits", "saved", "memory", "sharing", "run"]


def rows_of(**changes):
    """A log of ten requests in ten minutes, whose system prompt begins with a date."""
    return [
        {"created": 1_790_000_000 + 60 * number, "model": "meta-llama/Llama-3.1-8B-Instruct"}
        | {"messages": [{"role": "system", "content": f"Today is 2031-05-{number + 1:02}. {RULES}"},
                        {"role": "user", "content": f"What is new about number {number}?"}]}
        | {"response": {"choices": [{"message": {"role": "assistant", "content": "Nothing is new."}}]}} | changes
        for number in range(10)
    ]  # fmt: skip


def answer_of(folder, rows, **options):
    """The answer from rows, in a folder."""
    log = folder / "my log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return kvtrace.start(log, output=folder / "answer", **options)


def line(answer, name):
    """The text of the first line of a name."""
    return next(each.text for each in answer.lines if each.name == name)


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    return answer_of(tmp_path_factory.mktemp("start"), rows_of())


def test_an_answer_prints_its_lines_within_eighty_columns(answer):
    assert [each.name for each in answer.lines] == NAMES
    wrapped = [text for each in answer.lines for text in each.wrapped().splitlines()]
    assert max(map(len, wrapped)) <= WIDTH
    assert str(answer).splitlines()[: len(wrapped)] == wrapped


def test_a_function_prints_nothing(tmp_path, capfd):
    answer = kvtrace.start(LOG, output=tmp_path / "answer")
    assert capfd.readouterr() == ("", "") and not trial.hides_panics and "run      1 x H100" in str(answer)


def test_the_page_begins_with_the_answer(answer):
    page = (Path(answer.folder) / "report.html").read_text()
    first = html.unescape(page[page.index("<body>") : page.index("<nav>")])
    assert [line.text in first for line in answer.lines] == [True] * len(answer.lines)


def test_a_hit_curve_is_computed_once(tmp_path, monkeypatch):
    computed = []
    compute = HitCurve.__init__
    monkeypatch.setattr(HitCurve, "__init__", lambda curve, *parts: computed.append(1) or compute(curve, *parts))
    answer_of(tmp_path, rows_of())
    assert len(computed) == 1


def test_an_answer_has_its_parts_and_the_model_of_the_log(answer):
    assert len(answer.trace) == 10
    assert answer.lint.findings[0].kind == "date"
    assert answer.plan.instances.best.instances == 1
    assert "llama-3.1-8b" in line(answer, "memory").lower()
    assert "model" not in answer.assumed
    assert answer.curve.at(answer.curve.working_set).hit_tokens == 0  # each prompt begins with another date
    assert "a date or time" in line(answer, "sharing")


def test_files_are_whole_audited_and_without_text(answer):
    names = ["trace.jsonl", "trace.jsonl.meta.json", "trace.jsonl.card.md", "report.html"]
    assert [name.rpartition("/")[2] for name in answer.files] == names
    assert not [name for name in answer.files if "number 3" in Path(name).read_text(encoding="utf-8")]
    assert kvtrace.audit(answer.files[0]).passed


def test_the_next_commands_run(answer):
    for command in answer.next:
        program, *arguments = shlex.split(command)
        assert program == "kvtrace" and run(arguments) == 0, command


def test_what_hits_save_is_a_share_of_the_prefill(tmp_path):
    rows = [row | {"messages": rows_of()[0]["messages"]} for row in rows_of()]  # ten equal prompts: one is computed
    answer = answer_of(tmp_path, rows, profile="exact")
    best = answer.curve.at(answer.curve.working_set)
    assert line(answer, "hits").startswith(f"{best.token_hit_rate:.2f}: {100 * best.token_hit_rate:.0f} of 100")
    assert best.token_hit_rate == pytest.approx(0.9)
    assert answer.saving.saved_gpu_hours / answer.saving.prefill_gpu_hours == pytest.approx(0.9)
    assert answer.saving.days == pytest.approx(9 / 1440)  # nine minutes


def test_a_price_is_not_an_assumption(tmp_path):
    answer = answer_of(tmp_path, rows_of(), gpu_price=1.5, gpu="h200")
    assert answer.plan.setting.usd_per_instance_hour == 1.5
    assert "1 x H200 (1.50 USD an hour)" in line(answer, "run")
    assert "gpu_price" not in answer.assumed


def test_the_commands_to_paste_have_the_options_of_the_run(tmp_path, capsys):
    options = ["--ttft", "3s", "--quantile", "95%", "--gpu-price", "2.5", "--model", "llama-3.1-70b", "--json"]
    assert run(["start", str(LOG), "-o", str(tmp_path / "answer"), *options]) == 0
    plan, explain, _ = json.loads(capsys.readouterr().out)["next"]
    assert plan.endswith("--model llama-3.1-70b --gpu h100 --gpus 2 --ttft 3s --quantile 0.95 --gpu-price 2.5")
    assert explain.endswith("--gpus 2")


@pytest.mark.parametrize("options", [
    {"target": "ttft=20ms,quantile=99%", "gpu_price": 1.25, "gpu": "h200"},
    {"target": "ttft=1234.567ms", "gpu_price": 2.123456789, "block_size": 16, "model": "llama-3.1-70b"},
])  # fmt: skip
def test_the_pasted_plan_has_the_figures_of_the_answer(answer, tmp_path, capsys, options):
    again = kvtrace.start(answer.files[0], output=tmp_path / "again", **options)
    program, name, *arguments = shlex.split(again.next[0])
    assert (program, name) == ("kvtrace", "plan")
    assert run([name, *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(again.plan.to_dict()))


def test_a_target_and_a_time_that_differ_are_refused(tmp_path, capsys):
    line = ["start", str(LOG), "-o", str(tmp_path / "answer"), "--target", "ttft=1s,quantile=95%"]
    assert run([*line, "--ttft", "3s"]) == 2
    assert "--target and --ttft or --quantile state different targets" in capsys.readouterr().err


def test_answers_of_unknown_length_are_assumed(tmp_path):
    rows = [{name: value for name, value in row.items() if name != "response"} for row in rows_of()]
    answer = answer_of(tmp_path, rows)
    assert "output tokens unknown for 10 requests" in line(answer, "traffic")
    assert line(answer, "run").startswith("with answers of an assumed 128 tokens: 1 x H100")
    assert "--assume-output 128" in answer.next[0]
    assert (answer.trace.output_length == -1).all()


def test_a_log_of_token_ids_needs_no_tokenizer_and_states_its_model(tmp_path):
    model = "Qwen/Qwen2.5-7B-Instruct"
    rows = [
        {
            "arrival_time": 1_790_000_000 + 60 * n,
            "prompt_token_ids": [*range(400), n],
            "token_ids": [5, n],
            "model": model,
        }
        for n in range(10)
    ]
    answer = answer_of(tmp_path, rows)
    assert "token ids as logged" in line(answer, "log") and "tokenizer" not in line(answer, "log")
    assert answer.assumed == ["gpu_price"] and f"for {model};" in line(answer, "memory")


def test_unknown_times_are_assumed(tmp_path):
    rows = [{"id": str(n), "messages": row["messages"]} for n, row in enumerate(rows_of())]
    for row in rows:
        row["messages"] = [*row["messages"], {"role": "assistant", "content": "Nothing."}]
    answer = answer_of(tmp_path, rows)
    assert "at an assumed 1 request a second, as the log has no times" in line(answer, "traffic")
    assert "for this log" in line(answer, "saved")
    assert line(answer, "run").startswith("at an assumed 1 request a second: ")


def test_a_log_of_lengths_is_planned_without_hits(tmp_path):
    rows = [{"timestamp": 1000 * number, "input_length": 900, "output_length": 50} for number in range(100)]
    answer = answer_of(tmp_path, rows)
    assert line(answer, "hits").startswith("unknown: the log has lengths only")
    assert "each 0.1 of hit rate saves" in line(answer, "saved")
    assert line(answer, "memory").startswith("unknown, as the hits are. One H100 has 54 GiB")
    assert line(answer, "sharing").startswith("unknown: ")
    assert line(answer, "run").startswith("without hits, which are unknown: 1 x H100")


def test_conversations_without_times_arrive_at_a_rate_of_conversations(tmp_path):
    turns = [{"role": role, "content": f"It is {word}."} for word in ("one", "two") for role in ("user", "assistant")]
    single = {"messages": [{"role": "user", "content": "Alone."}, {"role": "assistant", "content": "Yes."}]}
    rows = [{"id": str(number), "messages": turns} for number in range(3)]
    answer = answer_of(tmp_path, [*rows, single | {"id": "x"}])
    assert "7 requests at an assumed 1 conversation a second" in line(answer, "traffic")
    assert ", 3 sessions and 1 single request;" in line(answer, "traffic")
    assert line(answer, "run").startswith("at an assumed 1 conversation a second: ")


def test_bad_rows_are_left_out_and_counted(tmp_path):
    bad = [{"created": "never"}, {"created": "never"}, {"messages": [{"role": "user", "content": "Hello"}]}]
    failed = {**rows_of()[0], "response": {"error": {"message": "busy"}}}
    answer = answer_of(tmp_path, [*rows_of(), *bad, failed])
    text = line(answer, "log")
    assert (
        "Left out: 1 failed upstream, 3 bad rows (2 of them: messages: is missing. It must hold the prompt). To list"
        in text
    )
    assert len(answer.trace) == 10
    assert (answer.to_dict()["rejected"], answer.to_dict()["left_out"]["failed upstream"]) == (3, 1)


def test_the_pasted_lint_reads_the_log_as_the_run_did(tmp_path):
    rows = [{"at": row["created"], "asked": row["messages"], "said": "Nothing."} for row in rows_of()]
    fields = {"timestamp": "at", "input": "asked", "output": "said"}
    answer = answer_of(tmp_path, [*rows, {"at": "never"}], map=fields, time_unit="s")
    assert answer.next[2].endswith(
        "--map timestamp=at --map input=asked --map output=said --time-unit s --on-error skip"
    )
    assert run(shlex.split(answer.next[2])[1:]) == 0


def test_fields_that_are_not_found_are_asked_for(tmp_path):
    rows = [{"when_it_was": row["created"], "question": "What is new? " * 99} for row in rows_of()]
    answer = answer_of(tmp_path, rows, map={"input": "question"})
    assert "name their field: --map timestamp=FIELD" in line(answer, "log")
    assert "(name their field: --map output_length=FIELD, or output=FIELD)" in line(answer, "traffic")


def test_a_trace_that_is_not_written_is_a_status(tmp_path, monkeypatch, capsys):
    def fails(*_, **__):
        raise AuditError("the audit failed")

    monkeypatch.setattr("kvtrace.privacy.publishing.publish", fails)
    assert run(["start", str(LOG), "-o", str(tmp_path / "answer"), "--quiet"]) == 4
    assert "private  the audit failed." in capsys.readouterr().out


def test_failed_calls_are_not_called_rows_without_a_prompt(tmp_path):
    failed = [row | {"response": {"error": {"message": "no"}}} for row in rows_of()]
    answer = answer_of(tmp_path, [*rows_of(), *failed])
    assert "Left out: 10 failed upstream." in line(answer, "log")


def test_what_is_not_in_the_prompts_is_said(tmp_path):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    rows = rows_of(tools=[tool])
    for number, row in enumerate(rows):
        row["response"] |= {"usage": {"prompt_tokens": 2000 + number, "completion_tokens": 4}}
    answer = answer_of(tmp_path, rows)
    differing, tools = (each.text for each in answer.lines if each.name == "note")
    assert differing.startswith("Our ") and "prompt tokens are" in differing and "Likely cause: " in differing
    assert tools.startswith("Tools of 10 requests: ")


def test_a_model_is_found_behind_the_name_of_its_provider(tmp_path):
    rows = [row | {"model": name} for row in rows_of() for name in ("gpt-4o", "hosted_vllm/qwen3-8b")]
    assert "Model: qwen3-8b (one of 2 models of the log), in vLLM" in line(answer_of(tmp_path, rows), "run")


def test_prompts_that_the_model_may_not_take_are_counted(tmp_path):
    trace = kvtrace.toy("0 1 2", "0 1", block_size=65_536, gap_ms=60_000.0)
    kvtrace.write(trace, tmp_path / "day.jsonl")
    known, unknown = (
        line(kvtrace.start(tmp_path / "day.jsonl", model=model, output=tmp_path / model), "note")
        for model in ("opt-6.7b", "llama-3.1-8b")
    )
    assert known.startswith("2 prompts are longer than the context of opt-6.7b (2,048 tokens), the longest has 196,608")
    assert unknown.startswith("1 prompt is longer than 131,072 tokens, the longest has 196,608 tokens: it is not known")


def test_a_log_without_hits_saves_nothing(answer):
    assert line(answer, "hits").startswith("0: no prompt begins with 16 tokens or more of an earlier prompt.")
    assert line(answer, "saved").startswith("nothing, without hits. Prefill takes ")


def test_a_trace_needs_no_anonymizing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kvtrace.write(kvtrace.toy("0 1", "0 2", "0 1", block_size=512, gap_ms=60_000.0), tmp_path / "day.jsonl")
    answer = kvtrace.start("day.jsonl")
    assert line(answer, "private") == "the input is a trace already, so it was not anonymized."
    assert "kvtrace lint" in line(answer, "sharing")
    assert "llama-3.1-8b (assumed)" in line(answer, "run")
    assert answer.files == ["kvtrace-day/report.html"]


def test_a_folder_of_traces_is_answered_if_it_holds_one(tmp_path, capsys):
    (tmp_path / "live").mkdir()
    trace = kvtrace.toy("0 1", "0 2", "0 1", block_size=512, gap_ms=60_000.0)
    kvtrace.write(trace, tmp_path / "live/window-1.jsonl")
    answer = kvtrace.start(tmp_path / "live", output=tmp_path / "answer")
    assert line(answer, "log").startswith("window-1.jsonl is a trace") and "live/window-1.jsonl" in answer.next[0]
    kvtrace.write(trace, tmp_path / "live/window-2.jsonl")
    for given in ("live", "live/*.jsonl"):
        assert run(["start", str(tmp_path / given), "-o", str(tmp_path / "other")]) == 2
        assert "kvtrace start takes one trace." in capsys.readouterr().err


def test_a_part_that_fails_loses_no_other(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise UsageError("no plotly is here")

    monkeypatch.setattr("kvtrace.report.html_page.write_report", fails)
    gpu = {"name": "small", "flops": 1e12, "bandwidth": 1e11, "memory": 1e9, "price_per_hour": 0.1}
    (tmp_path / "small.json").write_text(json.dumps(gpu))
    answer = answer_of(tmp_path, rows_of(), model="deepseek-v3", gpu=tmp_path / "small.json")
    assert "no number of small holds deepseek-v3" in line(answer, "memory")
    assert line(answer, "run").startswith("unknown: ")
    assert answer.missing["page"] == "no plotly is here."
    assert [each.name for each in answer.lines] == NAMES
    assert "page     unknown: no plotly is here." in answer.text()


def test_nothing_is_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvtrace-raw_log").mkdir()
    assert run(["start", str(LOG), "--quiet"]) == 0
    assert (tmp_path / "kvtrace-raw_log-2/trace.jsonl").exists()
    assert not [*(tmp_path / "kvtrace-raw_log").iterdir()]
    assert run(["start", str(LOG), "-o", "kvtrace-raw_log"]) == 2
    assert "kvtrace-raw_log exists. Name a new folder: -o FOLDER." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["none.jsonl"], 3, "none.jsonl"),
        (["empty.jsonl"], 3, "the log is empty"),
        (["-"], 2, "cannot be a pipe or stdin"),
        ([str(LOG), "--ttft", "2"], 2, "'2' is not a duration"),
        ([str(LOG), "--target", "2s"], 2, "'2s' is not a target. Example: ttft=2s, or ttft=500ms,quantile=95%."),
        ([str(LOG), "--model", "no-such-model"], 2, "no-such-model"),
        ([str(LOG), "--gpu", "no-such-gpu"], 2, "no-such-gpu"),
        ([str(LOG), "-o", "no/such/folder"], 2, "no/such is not a folder"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(arguments, status, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    assert run(["start", *arguments]) == status
    (message,) = capsys.readouterr().err.splitlines()
    assert sentence in message
    assert [path.name for path in tmp_path.iterdir()] == ["empty.jsonl"]


def test_a_folder_that_cannot_be_written_ends_the_run_before_its_work(tmp_path, monkeypatch, capsys):
    def refuses(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "mkdir", refuses)
    monkeypatch.setattr("kvtrace.from_log._lint", None)  # which would be called
    assert run(["start", str(LOG), "-o", "answer"]) == 1
    assert capsys.readouterr().err == "kvtrace: answer: cannot be written (Permission denied).\n"


def test_json_has_the_lines_and_the_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["start", str(LOG), "--json", "--quiet"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in values["lines"]] == NAMES
    assert (values["requests"], values["deployment"]["gpu"]) == (96, "h100")
    assert values["plan"]["instances"]["best"]["instances"] == 1


def test_a_line_wraps_below_its_text():
    assert AnswerLine("run", "one two three").wrapped(18) == "run      one two\n         three"


def test_the_examples_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert doctest.testmod(from_log).failed == 0


def test_a_trace_that_states_more_blocks_than_its_tokens_is_planned(tmp_path):
    rows = [{"timestamp": 1000 * n, "input_length": 700, "output_length": 5, "hash_ids": [0, 1, 2]} for n in range(4)]
    (tmp_path / "day.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = kvtrace.read(tmp_path / "day.jsonl", block_size=512, tail="stated")
    assert (
        kvtrace.serving.plan(trace, kvtrace.serving.Deployment("llama-3.1-8b", gpu="h100")).instances.best.instances
        == 1
    )
