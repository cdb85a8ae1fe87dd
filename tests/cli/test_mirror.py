"""Each command is a function of its name in Python, with the same options: no list of ours has to be kept equal."""

import inspect
import keyword
import re
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import click
import numpy as np
import pytest

import kvtrace
from examples import my_policies
from kvtrace._base.errors import AuditError, InputError, UsageError
from kvtrace.cli import commands, functions, mirror
from tools import command_stubs

ROOT = Path(__file__).resolve().parents[2]
NEEDS_MORE = {"LiteLLMCallback"}  # LiteLLM is not installed everywhere
ONLY_IN_A_SHELL = {"completion"}
OPTIONS_ONLY_PRINTED = {  # what a terminal needs and a result does not: `functions.ONLY_PRINTED` says why
    "json", "csv", "quiet", "verbose", "over-time", "by-session", "interval", "fail",
}  # fmt: skip


NO_TRACE = {"start", "lint", "anonymize", "record", "watch", "join", "calibrate", "validate", "models"}
NEEDED = {
    "plan": {"model": "llama-3.1-8b"}, "report": {"output": "page.html"}, "compare": {"b": "trace.jsonl"},
    "texts": {"output": "texts.jsonl", "tokenizer": "deepseek-r1"}, "explain": {"capacity": 3}, "tune": {"capacity": 3},
}  # fmt: skip


class Newest(my_policies.Newest):
    """A policy of this module."""


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
        assert parameters & {f"{word}_" if keyword.iskeyword(word) else word.replace("-", "_") for word in words[param]}


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
    (lambda: kvtrace.models({"hidden_size": 8}), "the fields of a model need gpu"),
    (lambda: kvtrace.curve(["a.jsonl", "b.jsonl"]), "trace must be one path or a Trace, not a list"),
    (lambda: kvtrace.read(["a.jsonl", "b.jsonl"]), "a path of one trace is needed, not a list"),
    (lambda: kvtrace.report(trace(), None), "output is None, not a path"),
    (lambda: kvtrace.write("trace.jsonl", trace()), "the trace comes first"),
    (lambda: kvtrace.simulate(trace(), 3, Newest(None)), "Pass the class Newest itself"),
    (lambda: kvtrace.sweep(trace(), policy="__main__:Newest", runner="ray"), "runner ray needs the policy"),
    (lambda: kvtrace.simulate(kvtrace.toy("0 1 2", block_size=16), "5MiB", model="llama-3.1-8b"),
     "capacity 5MiB (2 blocks) does not hold the longest request"),
    (lambda: kvtrace.curve(trace()).at("5MiB"), "Make the curve with a model."),
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


@pytest.mark.parametrize("name", sorted({*functions.NAMES} - NO_TRACE))
def test_an_empty_trace_has_no_requests_and_no_place(name):
    with pytest.raises(InputError, match=r"^the trace has no requests\.$"):
        getattr(kvtrace, name)(trace()[:0], **NEEDED.get(name, {}))


def test_an_error_of_a_trace_in_memory_does_not_name_the_file_that_held_it():
    sampled = kvtrace.toy("0 1", "0 2", block_size=16)
    with pytest.raises(UsageError) as caught:
        kvtrace.convert(sampled, block_size=8)
    assert str(caught.value).startswith("the trace: ") and "/" not in str(caught.value)


def test_numbers_and_lists_may_be_of_numpy_or_pandas():
    pandas = pytest.importorskip("pandas")
    for given in (
        np.array([3, 4]),
        pandas.Series([3, 4]),
        [np.int64(3), np.int64(4)],
        np.linspace(3, 4, 2),
        range(3, 5),
    ):
        assert [run.setting.capacity for run in kvtrace.simulate(trace(), given)] == [3, 4]
    assert kvtrace.simulate(trace(), np.int64(3)).setting.capacity == 3
    assert kvtrace.curve(trace(), seed=np.int64(3), chain=np.bool_(False)).working_set == 5


def test_none_is_the_default_of_an_option():
    assert kvtrace.curve(trace(), None, points=None).to_dict() == kvtrace.curve(trace()).to_dict()
    assert len(kvtrace.simulate(trace(), None, None)) == len(kvtrace.simulate(trace())) > 1


def test_one_trace_is_read_from_a_glob_a_folder_or_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    kvtrace.write(trace(), "~/trace.jsonl")
    (tmp_path / "day").mkdir()
    kvtrace.write(trace(), tmp_path / "day/one.jsonl")
    for given in ("~/trace.jsonl", tmp_path / "day", f"{tmp_path}/d*/o*.jsonl"):
        for call in (kvtrace.read, kvtrace.open_trace, lambda path: kvtrace.convert(path, fold=1)):
            assert call(given) == trace()
        assert kvtrace.curve(given).working_set == 5
    kvtrace.write(trace(), tmp_path / "day/two.jsonl")
    for call in (kvtrace.read, kvtrace.open_trace, kvtrace.curve):
        with pytest.raises(UsageError, match="day names 2 traces"):
            call(tmp_path / "day")
    assert len(kvtrace.sweep(tmp_path / "day", capacity=3).rows) == 2
    with pytest.raises(InputError, match="no trace matches this pattern"):
        kvtrace.read(tmp_path / "none*")


def test_figures_for_a_paper_are_drawn_from_python_as_from_a_shell(tmp_path):
    pytest.importorskip("matplotlib")
    kvtrace.curve(trace(), png=tmp_path / "curve.png", svg=tmp_path / "curve.svg")
    kvtrace.report(trace(), tmp_path / "page.html", png=tmp_path / "plots")
    assert (tmp_path / "curve.png").stat().st_size > 1000 and (tmp_path / "curve.svg").stat().st_size > 1000
    assert list((tmp_path / "plots").glob("*.png"))


def test_the_runs_of_simulate_are_a_sequence_and_have_json():
    runs = kvtrace.simulate(trace(), [3, 4], ["lru", "arc"])
    assert len(runs) == len(list(runs)) == 4 and runs[-1].setting.policy == "arc"
    assert [row["capacity"] for row in runs.to_dict()["results"]] == runs.to_pandas()["capacity"].tolist() == [3, 4] * 2
    sized = kvtrace.simulate(trace(), ["6MiB", "10MiB"], model="llama-3.1-8b").to_dict()["results"]
    assert [row["capacity_bytes"] for row in sized] == [3 << 21, 5 << 21]


def test_a_checked_sample_that_is_not_written_is_returned():
    drawn = kvtrace.synthesize(trace(), requests=8, check=True)
    assert len(drawn.trace) == 8 and drawn.files == [] and drawn.fidelity.requests == 4


@pytest.mark.parametrize("name", functions.NAMES)
def test_the_help_of_a_function_is_in_the_words_of_python_and_says_what_it_returns(name):
    text = getattr(mirror, name).__doc__
    assert not re.search(r"(?<![\w-])--[a-z]|\b[Pp]rint|a path, or a Trace where", text)
    returned = text.partition("Returns:")[2].strip()
    assert returned and text in getattr(kvtrace, name).__doc__
    if name in functions.RESULTS:
        module, _, kind = functions.RESULTS[name].rpartition(".")
        result = getattr(import_module(f"kvtrace.{module}"), kind)
        methods = re.findall(r"(\w+)\(\)", returned)
        assert kind in returned and all(callable(getattr(result, method)) for method in methods)
        assert ("plot" in methods) <= hasattr(result, "plot") and (bool(methods) != (kind in functions.WITHOUT_TABLE))


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
    assert {row["policy"]: row["error"] for row in kvtrace.sweep(trace(), policy=["lru", Newest], capacity=3).rows} == {
        "lru": None, "tests.cli.test_mirror:Newest": None,
    }  # fmt: skip
