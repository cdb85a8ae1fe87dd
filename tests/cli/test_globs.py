"""Globs and folders in place of a trace: each command takes them, or says in one sentence that it reads one trace."""

import click
import pytest

from kvtrace import cli
from kvtrace.cli.help import Command
from kvtrace.cli.output import TRACES
from kvtrace.trace.building import toy
from tests.cli.test_words import ARGUMENTS
from tests.unaudited import write

TAKERS = [
    pytest.param(command, argument, id=name)
    for name, command in cli.commands.commands.items()
    if isinstance(command, Command)
    for argument in command.params
    if isinstance(argument, click.Argument) and argument.name in TRACES and argument.required and argument.name != "b"
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "days").mkdir()
    for name in ("trace.jsonl", "days/a.jsonl", "days/b.jsonl"):
        write(toy("0 1 2", "0 1 3", "0 1 2", block_size=16), name)


def called(capsys, command, trace):
    arguments = ARGUMENTS.get(command.name, "trace.jsonl").split()
    place = arguments.index("trace.jsonl")
    status = cli.run([command.name, *arguments[:place], trace, *arguments[place + 1 :]])
    return status, capsys.readouterr().err


@pytest.mark.parametrize(("command", "argument"), TAKERS)
def test_a_pattern_without_a_match_is_named(folder, capsys, command, argument):
    status, message = called(capsys, command, "none*.jsonl")
    assert status == 3 and message == "kvtrace: none*.jsonl: no trace matches this pattern.\n"


@pytest.mark.parametrize("several", ["days", "days/*.jsonl"])
@pytest.mark.parametrize(("command", "argument"), TAKERS)
def test_several_traces_are_read_or_refused_in_one_sentence(folder, capsys, command, argument, several):
    if argument.nargs == 1:
        status, message = called(capsys, command, several)
        assert status == 2 and f"{several} names 2 traces, and TRACE of {command.name} is one." in message
    elif command.name != "join":  # of windows of one recording
        status, message = called(capsys, command, several)
        assert status == 0, message


@pytest.mark.parametrize("name", ["analyze", "curve", "check", "simulate"])
def test_a_pattern_of_one_trace_is_that_trace(folder, capsys, name):
    status, message = called(capsys, cli.commands.commands[name], "days/a*")
    assert status == 0, message


def test_a_share_goes_to_each_trace_of_a_pattern(folder, capsys):
    assert cli.run(["synthesize", "days/*.jsonl:0.5", "-o", "out.jsonl", "--requests", "4"]) == 0
