"""What a trace does not know is never a figure: every command and every public function, on traces that lack something.

COMMANDS and FUNCTIONS have a row for each; one without a row fails. docs/analysis/analyze.md shows the same decisions.
"""

import inspect
import json
import re
from typing import NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

import kvtrace
from kvtrace.cli import commands, datagen, run
from kvtrace.serving.simulation import StepCost
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.meta import PREFIXES_UNKNOWN
from kvtrace.trace.unknown import NEEDS, OUTPUTS, PREFIXES, SESSIONS, TIMES
from tests.docs import ROOT
from tests.house.rooms import public_values

BLOCK = 16
PROMPTS = ["0 1", "2", "0 1 3", "4", "0 1 3"] * 4
SAMPLE = "request_sample"
LACKING = (PREFIXES, OUTPUTS, TIMES, SESSIONS, SAMPLE)
MODEL = str(ROOT / "tests/data/models/llama-3.1-8b.json")
LOG, CHATS = str(ROOT / "tests/data/logs/azure.csv"), str(ROOT / "examples/raw_log.jsonl")
RECORDING = str(ROOT / "examples/recording")
REFUSED, STATED, UNUSED, NOT_RUN = "refused", "stated", "unused", "not run"
A_RATE = re.compile(r"hit[_ ]rate\W{0,4}\s+0(\.0+)?\b|0\.0000|hit[_ ]rate\"?: ?0\b")  # a hit rate of 0


def lacking(what, sessions=True):
    """A trace of 20 requests that lacks one thing."""
    prompts = [str(number) for number in range(20)] if what == PREFIXES else PROMPTS
    trace = kvtrace.toy(*prompts, gap_ms=1000, block_size=BLOCK)
    session = None if what == SESSIONS or not sessions else np.arange(20) % 4
    outputs = np.full(20, -1 if what == OUTPUTS else 3)
    log = {TIMES: {"arrivals": {"model": "poisson"}}, SAMPLE: {"request_sample": 0.01}}.get(what, {})
    meta = ({"log": log} if log else {}) | ({"prefixes": PREFIXES_UNKNOWN} if what == PREFIXES else {})
    columns = replace_columns(trace, session=session, output_length=outputs)
    return kvtrace.Trace.from_columns(columns, block_size=BLOCK, meta=meta)


class Row(NamedTuple):
    """A command, and what it does with a trace that lacks something: REFUSED, STATED or UNUSED."""

    arguments: str  # TRACE is the trace
    prefixes: str = REFUSED
    outputs: str = UNUSED
    times: str = UNUSED
    sessions: str = UNUSED
    request_sample: str = STATED
    reason: str = ""  # why something is UNUSED, where that is not plain


NO_TRACE = Row("", UNUSED, UNUSED, UNUSED, UNUSED, UNUSED)
MEASURED = f"{RECORDING} --trace TRACE --model {MODEL} --gpu h100"
FILES = "prints counts of rows and names of files, no hit rate"
COMMANDS = {
    "start": Row("TRACE -o OUT", STATED, STATED, STATED, STATED, STATED),
    "lint": NO_TRACE._replace(reason="reads logs; without prompts it stops"),
    "anonymize": Row(f"{LOG} -o OUT", STATED, UNUSED, UNUSED, STATED, UNUSED, "reads logs; tested below"),
    "check": Row("TRACE", UNUSED, UNUSED, UNUSED, UNUSED, UNUSED, FILES),
    "convert": Row("TRACE -o OUT", UNUSED, UNUSED, UNUSED, UNUSED, UNUSED, FILES),
    "record": NO_TRACE._replace(reason="reads live requests; its windows are traces"),
    "watch": NO_TRACE._replace(reason="reads live requests; tested below"),
    "release": Row("TRACE -o OUT --profile exact", UNUSED, UNUSED, UNUSED, UNUSED, UNUSED, FILES),
    "join": NO_TRACE._replace(reason=FILES),
    "audit": Row("TRACE --profile exact", UNUSED, UNUSED, UNUSED, UNUSED, UNUSED, "checks what a trace reveals"),
    "analyze": Row("TRACE", STATED, STATED, STATED, STATED),
    "curve": Row("TRACE"),
    "compare": Row("TRACE TRACE", REFUSED, REFUSED, STATED),
    "report": Row("TRACE -o PAGE", STATED, STATED, STATED, STATED),
    "simulate": Row("TRACE --capacity 4"),
    "explain": Row("TRACE --capacity 4 --no-cures"),
    "sweep": Row("TRACE --capacity 4"),
    "tune": Row("TRACE --capacity 4 --policy lru,slru --pool flat"),
    "plan": Row(f"TRACE --model {MODEL} --gpu h100 --router round-robin", REFUSED, REFUSED, STATED),
    "calibrate": Row(MEASURED, REFUSED, *[NOT_RUN] * 4, "lengths and times are those of the recording"),
    "validate": Row(MEASURED, REFUSED, *[NOT_RUN] * 4, "lengths and times are those of the recording"),
    "models": NO_TRACE,
    "synthesize": Row("TRACE -o OUT --method attach", REFUSED, REFUSED, UNUSED, UNUSED, STATED, "has its own load"),
    "texts": Row("TRACE -o OUT --tokenizer deepseek-r1", STATED, UNUSED, UNUSED, UNUSED, STATED, FILES),
    "completion": NO_TRACE,
}  # fmt: skip
IN_OTHER_WAYS = {  # options that need more of a trace
    "analyze --basic": Row("analyze TRACE --basic", STATED, STATED, UNUSED, STATED),
    "analyze --json": Row("analyze TRACE --json", STATED, STATED, STATED, STATED),
    "analyze --fold": Row("analyze TRACE --fold 2", REFUSED, STATED, STATED, STATED),
    "curve --json": Row("curve TRACE --json"),
    "curve --csv": Row("curve TRACE --csv"),
    "simulate --json": Row("simulate TRACE --capacity 4 --json"),
    "simulate --csv": Row("simulate TRACE --capacity 4 --csv"),
    "simulate --mode grow": Row("simulate TRACE --capacity 6 --mode grow", REFUSED, REFUSED),
    "simulate --schedule": Row("simulate TRACE --capacity 20 --schedule open-loop:30", REFUSED, REFUSED, STATED),
    "simulate --instances": Row("simulate TRACE --capacity 20 --instances 2", REFUSED, REFUSED, STATED),
    "simulate --gpu": Row(f"simulate TRACE --model {MODEL} --gpu h100", REFUSED, REFUSED, STATED),
    "simulate --over-time": Row("simulate TRACE --capacity 4 --over-time 5s", REFUSED, UNUSED, STATED),
    "explain --gpu": Row(f"explain TRACE --model {MODEL} --gpu h100 --no-cures", REFUSED, REFUSED, STATED),
    "explain --json": Row("explain TRACE --capacity 4 --no-cures --json"),
    "explain --csv": Row("explain TRACE --capacity 4 --csv"),
    "tune --json": Row("tune TRACE --capacity 4 --policy lru --pool flat --json"),
    "sweep --json": Row("sweep TRACE --capacity 4 --json"),
    "compare --json": Row("compare TRACE TRACE --json", REFUSED, REFUSED, STATED),
    "compare --csv": Row("compare TRACE TRACE --csv", REFUSED, REFUSED, STATED),
    "plan --json": Row(f"plan TRACE --model {MODEL} --router round-robin --json", REFUSED, REFUSED, STATED),
    "plan --csv": Row(f"plan TRACE --model {MODEL} --router round-robin --csv", REFUSED, REFUSED, STATED),
    "report --gpu": Row(f"report TRACE -o PAGE --model {MODEL} --gpu h100", REFUSED, REFUSED, STATED, STATED),
    "report TRACE2": Row("report TRACE TRACE -o PAGE", REFUSED, REFUSED, STATED, STATED),
    "synthesize --check": Row("synthesize TRACE --check --method tree", REFUSED, REFUSED, UNUSED, UNUSED, UNUSED),
}
ROWS = {name: row._replace(arguments=f"{name} {row.arguments}") for name, row in COMMANDS.items() if row.arguments}
CASES = [
    (name, what) for name, row in (ROWS | IN_OTHER_WAYS).items() for what in LACKING if getattr(row, what) != NOT_RUN
]


def called(arguments, tmp_path, what):
    """The arguments of a command line on a trace that lacks something."""
    path = tmp_path / "trace.jsonl"
    if not path.exists():
        kvtrace.write(lacking(what), path)
    names = {"TRACE": str(path), "OUT": str(tmp_path / "out.jsonl"), "PAGE": str(tmp_path / "page.html")}
    return [names.get(word, word) for word in arguments.split()]


@pytest.mark.parametrize(("name", "what"), CASES, ids=[f"{name}: {what}" for name, what in CASES])
def test_every_command_says_what_a_trace_does_not_know(name, what, tmp_path, capsys):
    row = (ROWS | IN_OTHER_WAYS)[name]
    words = called(row.arguments, tmp_path, what)
    status = run(words)
    printed = capsys.readouterr()
    output = printed.out + printed.err
    if "PAGE" in row.arguments and status == 0:
        output += re.sub(r"<(script|style).*?</\1>", "", (tmp_path / "page.html").read_text(), flags=re.S)
    decision = getattr(row, what)
    if decision == REFUSED:
        assert status == 6, output
        assert printed.out == "" and "unknown" in printed.err and len(printed.err.splitlines()) == 1
        assert NEEDS[what].remedy in printed.err
    else:
        assert status == 0, output
        sentence = "too low" if what == SAMPLE else "of a model" if what == TIMES else "unknown"
        assert (sentence in output) or decision == UNUSED
    if what == PREFIXES:
        assert not A_RATE.search(output), A_RATE.search(output)
    if what == OUTPUTS:
        assert not re.search(r"(?<![\d.\w-])-1(?![\d.\w])", re.sub(r"<[^>]*>", " ", output))  # -1 is no length


def test_every_command_has_a_row():
    assert COMMANDS.keys() == commands.commands.keys()
    assert {what for row in COMMANDS.values() for what in row._fields} >= set(LACKING)


@pytest.mark.parametrize("what", LACKING)
def test_datagen_says_unknown(what, tmp_path):
    kvtrace.write(lacking(what), tmp_path / "trace.jsonl")
    done = CliRunner().invoke(
        datagen.commands, ["analyze", "--input-file", str(tmp_path / "trace.jsonl"), "--block-size", str(BLOCK)]
    )
    assert done.exit_code == 0
    assert ("unknown" in done.output) == (what in (PREFIXES, OUTPUTS))
    assert ("too low" in done.output) == (what == SAMPLE)


# -- functions -------------------------------------------------------------------------------------------------------

COST = StepCost(token_s=1e-3)
ONE_BY_ONE = Dependencies.of([[(row - 1, "completion", "sequence", 0.0)] if row else [] for row in range(20)])
SETTING = kvtrace.cache.Setting(20, engine="vllm")
FUNCTIONS = {  # those that take a Trace -> a call, and what the call needs
    "analyze": (kvtrace.analysis.analyze, ()),
    "basics": (kvtrace.analysis.basics, ()),
    "hit_curve": (kvtrace.analysis.hit_curve, (PREFIXES,)),
    "by_block_size": (lambda trace: kvtrace.analysis.by_block_size(trace, [1, 2]), (PREFIXES,)),
    "compare": (lambda trace: kvtrace.analysis.compare(trace, trace), (PREFIXES, OUTPUTS)),
    "count_hits": (lambda trace: kvtrace.trace.count_hits(trace, np.zeros(20, dtype=np.int64)), (PREFIXES,)),
    "unlimited_hits": (kvtrace.trace.unlimited_hits, (PREFIXES,)),
    "infer_sessions": (kvtrace.analysis.infer_sessions, (PREFIXES,)),
    "delivered_hits": (
        lambda trace: kvtrace.analysis.delivered_hits(
            kvtrace.Trace.from_columns(
                replace_columns(trace, cached_tokens=[0] * 20), block_size=BLOCK, meta=trace.meta
            )
        ),
        (PREFIXES,),
    ),
    "simulate": (lambda trace: kvtrace.cache.simulate(trace, 4), (PREFIXES,)),
    "simulate_tiers": (lambda trace: kvtrace.cache.simulate_tiers(trace, {"hbm": 4, "dram": 8}), (PREFIXES,)),
    "simulate_instances": (
        lambda trace: kvtrace.serving.simulate_instances(trace, 2, setting=SETTING),
        (PREFIXES, OUTPUTS),
    ),
    "pool_curve": (
        lambda trace: kvtrace.serving.pool_curve(trace, [4], instances=2, first=4),
        (PREFIXES, OUTPUTS),
    ),
    "open_loop": (lambda trace: kvtrace.serving.open_loop(trace, COST, setting=SETTING), (PREFIXES, OUTPUTS)),
    "closed_loop": (
        lambda trace: kvtrace.serving.closed_loop(
            kvtrace.Trace.from_columns(
                replace_columns(trace, dependencies=ONE_BY_ONE), block_size=BLOCK, meta=trace.meta
            ),
            COST,
            setting=SETTING,
            loop=kvtrace.serving.ClosedLoop(),
        ),
        (PREFIXES, OUTPUTS),
    ),
    "simulate_all": (lambda trace: kvtrace.serving.simulate_all(trace, [4]), (PREFIXES,)),
    "tune": (lambda trace: kvtrace.cache.tune(trace, 4, ["slru"], pools=["flat"]), (PREFIXES,)),
    "explain": (lambda trace: kvtrace.serving.explain(trace, 4), (PREFIXES,)),
    "reachable_hits": (lambda trace: kvtrace.serving.reachable_hits(trace, "gpt-oss-20b"), (PREFIXES,)),
    "plan": (
        lambda trace: kvtrace.serving.plan(
            trace, kvtrace.serving.Deployment(MODEL, gpu="h100"), kvtrace.serving.PlanTarget(routers=("round-robin",))
        ),
        (PREFIXES, OUTPUTS),
    ),
    "fit": (kvtrace.synthesis.fit, (PREFIXES, OUTPUTS)),
    "fit_tree": (kvtrace.synthesis.fit_tree, (PREFIXES, OUTPUTS)),
    "fit_sessions": (kvtrace.synthesis.fit_sessions, (PREFIXES, OUTPUTS)),
}
GIVE_NO_FIGURE = {  # why these functions on traces need no guard
    **dict.fromkeys(("assume_outputs", "convert", "fold", "sample_rows", "sample_sessions", "speed_up", "in_domains",
                     "concat", "release", "ReleasedTrace"), "they give a trace, whose meta stays"),
    **dict.fromkeys(("publish", "write", "release_dataset", "write_prompts"), "they write files"),
    **dict.fromkeys(("first_seen", "forest"), "they give the ids as they are"),
    **dict.fromkeys(("count_domains", "audit", "write_card"), "they count no hits of a trace"),
    **dict.fromkeys(("read", "open_trace"), "they give a trace that they get as it is"),
    **dict.fromkeys(("write_report",), "the page; see report"),
    **dict.fromkeys(("read_recording",), "it gives a recording; see calibrate and validate"),
}  # fmt: skip


def takes_a_trace(public):
    """Whether a function has a Trace among its parameters."""
    if inspect.isclass(public) or not callable(public):
        return False
    parameters = inspect.signature(public).parameters.values()
    return any("Trace" in str(one.annotation) or "Columns" in str(one.annotation) for one in parameters)


def test_every_function_on_traces_has_a_row():
    on_traces = {name for name, value in public_values().items() if takes_a_trace(value)}
    assert on_traces - FUNCTIONS.keys() - GIVE_NO_FIGURE.keys() == set()


@pytest.mark.parametrize("what", LACKING)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_refuses_what_it_needs(name, what):
    call, needs = FUNCTIONS[name]
    trace = lacking(what)
    if what in needs:
        with pytest.raises(kvtrace.UnknownError, match=re.escape(NEEDS[what].remedy)):
            call(trace)
    elif name != "fit_sessions":  # it also needs dependencies
        call(trace)


def test_reading_a_figure_of_shared_prefixes_is_refused():
    summary = kvtrace.analysis.analyze(lacking(PREFIXES))
    basics = summary.basics
    for figure in ("hits", "distinct_blocks", "prefix_groups", "repeated_blocks", "reuse_ratio", "context_length",
                   "unique_prompt_length", "request_hit_rate"):  # fmt: skip
        with pytest.raises(kvtrace.UnknownError, match="Log the prompts"):
            getattr(basics, figure)
    for figure in ("popularity", "sharing_by_depth", "reuse_time_ms", "reuse_distance", "hits_with_outputs"):
        with pytest.raises(kvtrace.UnknownError, match="Log the prompts"):
            getattr(summary, figure)
    values = json.loads(json.dumps(summary.to_dict()))
    assert values["block_hit_rate"] is values["reuse_distance"] is values["working_set_bytes"] is None
    assert values["unknown"][PREFIXES].endswith("For prompts under another name: --map input=FIELD.")
    assert "hit rates unknown" in repr(summary) and "unknown" in summary._repr_html_()
    assert {"block_hit_rate", "reuse_time_ms"}.isdisjoint(summary.distributions())
    assert set(summary.to_pandas()["name"]) >= {"input_length", "output_length", "gap_ms"}


def test_unknown_outputs_are_left_out_of_figures():
    trace = lacking(OUTPUTS)
    trace = kvtrace.Trace.from_columns(
        replace_columns(trace, output_length=np.array([7, 9, *[-1] * 18])), block_size=BLOCK
    )
    summary = kvtrace.analysis.analyze(trace)
    assert (summary.basics.output_length.count, summary.basics.output_length.mean) == (2, 8)
    assert summary.arrivals.concurrency is None
    assert "Output lengths are unknown for 18 of 20 requests. Log the answers or their token counts." in summary.notes
    assumed = kvtrace.trace.assume_outputs(trace, 8)
    assert assumed.output_length.tolist() == [7, 9, *[8] * 18]
    assert (
        "Unknown output lengths are assumed to be 8 tokens (--assume-output)."
        in kvtrace.analysis.analyze(assumed).notes
    )


def test_an_assumed_output_length_is_named_beside_the_result(tmp_path, capsys):
    words = called("simulate TRACE --capacity 6 --mode grow --assume-output 8 --json", tmp_path, OUTPUTS)
    assert run(words) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["remarks"] == {
        "assumed_output": "Unknown output lengths are assumed to be 8 tokens (--assume-output)."
    }


def test_what_the_service_delivered_is_known_without_prefixes():
    columns = replace_columns(lacking(PREFIXES), cached_tokens=np.array([8, 8, *[-1] * 18]))
    trace = kvtrace.Trace.from_columns(columns, block_size=BLOCK, meta={"prefixes": PREFIXES_UNKNOWN})
    notes = " ".join(kvtrace.analysis.analyze(trace).notes)
    assert "The service took 16 of 32 prompt tokens (50.0%) from its cache, in the 2 requests" in notes


def test_anonymize_says_that_a_sample_by_request_is_too_low(tmp_path, capsys):
    out = str(tmp_path / "trace.jsonl")
    assert run(["anonymize", CHATS, "-o", out, "--request-sample", "1%"]) == 0
    assert "too low" in capsys.readouterr().err
    assert json.loads((tmp_path / "trace.jsonl.meta.json").read_text())["log"]["request_sample"] == 0.01
    assert "The log is a sample by request (1%)" in (tmp_path / "trace.jsonl.card.md").read_text()
    assert run(["curve", out]) == 0
    assert "--sample-sessions 1% of the whole log" in " ".join(capsys.readouterr().out.split())
    assert run(["audit", out]) == 0


@pytest.mark.parametrize("share", ["0", "2", "-1%", "x"])
def test_a_wrong_share_of_a_sample_is_named(share, tmp_path, capsys):
    assert run(["anonymize", CHATS, "-o", str(tmp_path / "t.jsonl"), f"--request-sample={share}"]) == 2
    assert "--request-sample" in capsys.readouterr().err


def test_anonymize_of_lengths_says_unknown(tmp_path, capsys):
    assert run(["anonymize", LOG, "-o", str(tmp_path / "trace.jsonl")]) == 0
    printed = capsys.readouterr().err
    assert re.search(r"hit rates +unknown +the log has lengths only", printed)
    assert "unknown distinct" in printed and "more reuse" not in printed


def test_watch_of_lengths_says_unknown(tmp_path, capsys):
    assert run(["watch", "--follow", LOG, "--from-start", "--once", "--json"]) == 0
    window = json.loads(capsys.readouterr().out.splitlines()[-1])["since_start"]
    assert window["possible"]["token_hit_rate"] is None and window["curve"] == []
    assert run(["watch", "--follow", LOG, "--from-start", "--once"]) == 0
    assert "it is unknown which prompts share a prefix" in capsys.readouterr().out


def test_validate_without_a_trace_simulates_no_cached_tokens(capsys):
    assert run(["validate", RECORDING, "--model", MODEL, "--gpu", "h100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["simulated_cached_tokens"] is None
    recording = kvtrace.serving.read_recording(RECORDING)
    with pytest.raises(kvtrace.UnknownError):
        kvtrace.analysis.hit_curve(recording.trace)
