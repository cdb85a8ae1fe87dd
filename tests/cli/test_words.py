"""Mistyped words: each option that takes a word of a list answers a wrong one with the nearest one."""

import shutil
from pathlib import Path

import click
import pytest

import kvtrace
from kvtrace import cli
from kvtrace._base.errors import UsageError
from kvtrace.cli.completion import Name
from kvtrace.cli.help import Command, Word
from kvtrace.serving.models.config import IDS, model_name
from kvtrace.trace.building import toy
from tests.docs import ROOT
from tests.unaudited import write

MODEL = "--model llama-3.1-8b --gpu h100"
ARGUMENTS = {  # command -> what it needs beside the option; the default is a trace
    "start": "log.jsonl -o out", "lint": "log.jsonl", "anonymize": "log.jsonl -o out.jsonl",
    "convert": "trace.jsonl -o out.jsonl",
    "record": "-o out --otlp 127.0.0.1:0 --for 1s", "watch": "--otlp 127.0.0.1:0",
    "release": "trace.jsonl -o out.jsonl", "join": "trace.jsonl -o out.jsonl",
    "analyze": "trace.jsonl --model llama-3.1-8b", "compare": "trace.jsonl trace.jsonl",
    "report": "trace.jsonl -o out.html", "simulate": "trace.jsonl --capacity 8", "explain": "trace.jsonl --capacity 8",
    "tune": "trace.jsonl --capacity 8", "plan": f"trace.jsonl {MODEL}", "calibrate": f"recording -o out.json {MODEL}",
    "validate": f"recording {MODEL}", "models": MODEL.removeprefix("--model "),
    "synthesize": "trace.jsonl -o out.jsonl", "texts": "trace.jsonl -o out.jsonl",
}  # fmt: skip
NEEDS = {  # option -> what it is refused without, where the command has that
    "--router": ["--instances 2", "--first-tier 50"], "--free-order": ["--engine vllm"], "--tree": ["--engine sglang"],
    "--watermark": ["--engine lmcache"], "--hicache-write-policy": ["--engine sglang"],
    "--service-time": ["--gpu h100"],
    "--gpu": ["--model llama-3.1-8b", "--service-time llama-3.1-8b"],
}  # fmt: skip
FREE = {"--schedule", "--ray-address"}  # words before a number, and an address


def words_of(option):
    """The words that a user of the option may mistype: those of five letters or more."""
    kind = option.type
    words = kind.names() if isinstance(kind, Name) else kind.choices if isinstance(kind, Word) else ()
    return [word for word in words if len(word) >= 5 and ":" not in word]


CASES = [
    pytest.param(command, option.opts[-1], max(words_of(option), key=len), id=f"{name} {option.opts[-1]}")
    for name, command in cli.commands.commands.items()
    if isinstance(command, Command)
    for option in command.params
    if isinstance(option, click.Option) and option.opts[-1] not in FREE and words_of(option)
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(toy("0 1 2", "0 1 3", "0 1 2", block_size=16), "trace.jsonl")
    shutil.copy(ROOT / "examples" / "raw_log.jsonl", "log.jsonl")
    shutil.copytree(ROOT / "examples" / "recording", "recording")


@pytest.mark.enable_socket
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the server of `record` and `watch`
@pytest.mark.parametrize(("command", "option", "word"), CASES)
def test_each_option_names_the_word_that_is_meant(folder, capsys, command, option, word):
    arguments = ARGUMENTS.get(command.name, "trace.jsonl").split()
    names = {name for param in command.params for name in param.opts}
    for needed in (each.split() for each in NEEDS.get(option, [])):
        arguments += needed if needed[0] in names else []
    assert cli.run([command.name, *arguments, option, f"{word[:-1]}{word[-1] * 2}"]) == 2
    assert f"Did you mean {word}" in capsys.readouterr().err
    assert not list(Path().glob("out*"))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda trace: kvtrace.simulate(trace, 4, policy="lruu"), "lru"),
        (lambda trace: kvtrace.simulate(trace, 4, policy="S3FIFO"), "s3fifo"),
        (lambda trace: kvtrace.simulate(trace, 4, engine="vlm"), "vllm"),
        (lambda trace: kvtrace.simulate(trace, 4, mode="bloc"), "block"),
        (lambda trace: kvtrace.privacy.profile("standrad"), "standard"),
    ],
)
def test_a_word_in_python_is_answered_in_the_same_way(call, word):
    with pytest.raises(UsageError, match=f"Did you mean {word}[?]"):
        call(toy("0 1", "0 2", block_size=16))


def test_a_word_that_is_like_none_gets_the_list(folder, capsys):
    assert cli.run(["simulate", "trace.jsonl", "--capacity", "8", "--policy", "qqqq"]) == 2
    assert "Try lru, " in capsys.readouterr().err


def test_the_models_of_a_hub_are_known_by_their_ids():
    assert model_name("meta-llama/Llama-3.1-8B-Instruct") == "meta-llama/Llama-3.1-8B-Instruct"
    assert {model_name(name) for name in IDS} == {name for name, _ in IDS.values()}
