"""Each command is a function of its name in Python, with the same options: no list of ours has to be kept equal."""

import inspect
from datetime import timedelta
from pathlib import Path

import click
import pytest

import kvtrace
from kvtrace._base.errors import AuditError, InputError, UsageError
from kvtrace.cli import commands, functions, mirror
from tools import command_stubs

ROOT = Path(__file__).resolve().parents[2]
NEEDS_MORE = {"LiteLLMCallback"}  # LiteLLM is not installed everywhere
ONLY_IN_A_SHELL = {"completion"}
OPTIONS_ONLY_PRINTED = {  # what a terminal needs and a result does not: `functions.ONLY_PRINTED` says why
    "json", "csv", "quiet", "verbose", "over-time", "by-session", "interval", "fail",
}  # fmt: skip


def trace():
    return kvtrace.toy("0 1", "0 1 2", "3 4", "0 1 2", block_size=16, gap_ms=1000.0)


def functions_of_kvtrace():
    values = {name: getattr(kvtrace, name) for name in kvtrace.__all__}
    return {name for name, value in values.items() if name == "report" or getattr(value, "__module__", "") == "kvtrace"}


def test_every_command_is_a_function_and_every_function_a_command():
    assert set(commands.commands) - ONLY_IN_A_SHELL == functions_of_kvtrace() == set(functions.NAMES)


@pytest.mark.parametrize("name", functions.NAMES)
def test_a_function_has_the_options_of_its_command_and_no_others(name):
    options = [param for param in commands.commands[name].params if isinstance(param, click.Option)]
    words = {param: {word[2:] for word in param.opts if word.startswith("--")} for param in options}
    shown = [param for param in options if not words[param] & OPTIONS_ONLY_PRINTED]
    arguments = {param.name for param in commands.commands[name].params if isinstance(param, click.Argument)}
    parameters = inspect.signature(getattr(mirror, name)).parameters.keys() - arguments
    assert len(parameters) == len(shown)
    for param in shown:
        assert parameters & {"for_" if word == "for" else word.replace("-", "_") for word in words[param]}


def test_the_stub_has_the_signatures_of_the_commands():
    assert command_stubs.TARGET.read_text(encoding="utf-8") == command_stubs.text(), "run `make docs`"


def test_the_names_at_the_top_are_few_and_the_others_are_in_their_rooms():
    assert len(kvtrace.__all__) < 60
    rooms = [room for room in kvtrace.__all__ if inspect.ismodule(getattr(kvtrace, room))]
    assert {"cache", "serving", "privacy"} <= set(rooms)
    for room in (getattr(kvtrace, name) for name in rooms):
        assert dir(room) == sorted(room.__all__)
        assert all(getattr(room, name) is not None for name in room.__all__ if name not in NEEDS_MORE)
    with pytest.raises(AttributeError, match=r"It is kvtrace\.serving\.Deployment\."):
        kvtrace.Deployment  # noqa: B018
    with pytest.raises(AttributeError, match="'nothing'"):
        kvtrace.nothing  # noqa: B018


def test_sizes_models_gpus_and_lists_are_written_as_on_the_command_line():
    assert kvtrace.simulate(trace(), "10GiB", model="llama-3.1-8b").setting.capacity == 10 * 2**30 // (16 * 131072)
    assert kvtrace.plan(trace(), "llama-3.1-8b", gpu="h100").setting.gpu == "h100"
    several = kvtrace.simulate(trace(), [3, "100%"], policy=["lru", "sieve"])
    assert {(run.setting.policy, run.setting.capacity) for run in several.runs} == {
        ("lru", 3), ("lru", 5), ("sieve", 3), ("sieve", 5),
    }  # fmt: skip
    assert len(kvtrace.simulate(trace(), gpu="h100", model="llama-3.1-8b").runs) == 1  # the GPU has the capacity
    assert kvtrace.convert(trace(), start="1s", stop="2s") == kvtrace.convert(
        trace(), start=timedelta(seconds=1), limit=1
    )
    assert kvtrace.explain(trace(), 3, engine="vllm").cures is not None
    assert len(kvtrace.models("qwen3")) > 1 and kvtrace.models("llama-3.1-8b", gpu="h100").blocks > 1000


def test_a_path_may_stand_for_a_trace_and_a_trace_for_a_path(tmp_path):
    path = tmp_path / "trace.jsonl"
    kvtrace.write(trace(), path)
    for given in (path, str(path), trace()):
        assert kvtrace.curve(given).working_set == 5
        assert kvtrace.analyze(given).basics.requests == 4
        assert kvtrace.simulate(given, 3).hits.blocks == 10
        assert kvtrace.check(given) == []
        assert kvtrace.convert(given, fold=2).block_size == 32
        assert kvtrace.audit(given).status in (0, 4)
        assert kvtrace.compare(given, path).overall == 1
        assert len(kvtrace.sweep(given, capacity=3).rows) == 1
    assert kvtrace.convert(path, tmp_path / "first.jsonl", limit=1).requests == 1
    assert kvtrace.report(trace(), tmp_path / "page.html") == [str(tmp_path / "page.html")]


def test_without_an_output_a_command_that_makes_a_trace_returns_it():
    assert len(kvtrace.synthesize(trace(), requests="3x")) == 12
    assert kvtrace.release(trace()).meta["profile"] == "standard"
    log = ROOT / "examples/raw_log.jsonl"
    assert isinstance(kvtrace.anonymize(log, tokenizer="deepseek-r1", block_size=16), kvtrace.Trace)
    assert kvtrace.watch(follow=log, from_start=True, block_size=16, once=True)["since_start"]["requests"] > 0


def test_nothing_is_printed(capfd):
    kvtrace.analyze(trace()), kvtrace.plan(trace(), "llama-3.1-8b"), kvtrace.compare(trace(), trace())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("call", "message"), [
    (lambda: kvtrace.simulate(trace(), 3, engine="vlm"), "'vlm' is not an engine"),
    (lambda: kvtrace.plan(trace()), "Missing option 'model'"),
    (lambda: kvtrace.plan(trace(), "llama-3.1-8b", gpu="h1000"), "Did you mean h100"),
    (lambda: kvtrace.convert(trace(), start=1000), "'1000' is not a duration. Examples: 30s"),
    (lambda: kvtrace.curve(None), "trace is None, not a path"),
    (lambda: kvtrace.lint(trace()), "inputs must be a path, not a Trace"),
    (lambda: kvtrace.simulate(trace(), object()), "object is not a value of an option"),
    (lambda: kvtrace.simulate(trace(), 3, block_size=8), "the trace has 16, not block_size 8"),
    (lambda: kvtrace.convert(trace(), chain="yes"), "chain must be True or False"),
    (lambda: kvtrace.simulate(trace(), 3, kv_bytes_per_token="many"), "kv_bytes_per_token"),
    (lambda: kvtrace.simulate(trace(), 3, max_num_seqs=4), "max_num_seqs and scheduler need gpu, costs or engine"),
])  # fmt: skip
def test_a_wrong_value_is_an_error_in_the_words_of_python(call, message):
    with pytest.raises(UsageError) as caught:
        call()
    assert message in str(caught.value) and "--" not in str(caught.value)


def test_a_wrong_name_of_an_option_names_the_right_one():
    with pytest.raises(TypeError, match=r"kvtrace\.curve has no option 'sampel'\. Did you mean sample\?"):
        kvtrace.curve(trace(), sampel=0.5)
    with pytest.raises(AuditError, match="k is 2"):
        kvtrace.release(trace(), k=2)


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    missing = tmp_path / "missing.jsonl"
    for call in (kvtrace.read, kvtrace.curve, kvtrace.lint, kvtrace.anonymize, kvtrace.check, kvtrace.audit):
        with pytest.raises(FileNotFoundError) as caught:
            call(missing)
        assert isinstance(caught.value, (InputError, UsageError)) and "missing.jsonl" in str(caught.value)
    with pytest.raises(FileNotFoundError):
        kvtrace.serving.read_recording(missing)
    with pytest.raises(FileNotFoundError):
        kvtrace.simulate(trace(), 3, costs=missing)


def test_a_trace_is_a_sequence_of_requests(tmp_path):
    requests = trace()
    assert len(requests) == len(list(requests)) == 4
    assert requests[-1].hash_ids.tolist() == [0, 1, 2] and requests[1].timestamp == 1000 and requests[1].session is None
    assert [request.input_length for request in requests] == requests.input_length.tolist()
    with pytest.raises(IndexError, match="request 4 does not exist: the trace has 4 requests"):
        requests[4]
    kvtrace.write(requests, tmp_path / "day.dataset")
    streamed = kvtrace.open_trace(tmp_path / "day.dataset")  # its ids stay in the file
    assert streamed[3].hash_ids.tolist() == [0, 1, 2] and len(list(streamed)) == 4


def test_a_policy_may_be_a_class(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from my_policies import Random

    assert [run.setting.policy for run in kvtrace.simulate(trace(), 3, ["lru", Random]).runs] == [
        "lru",
        "my_policies:Random",
    ]
    assert kvtrace.simulate(trace(), 3, Random).hits.blocks == 10
