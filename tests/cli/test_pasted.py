"""Commands that messages suggest can be pasted into a shell, whatever the names of the files."""

import json
import os
import shlex
import subprocess
import sys

import pytest

import kvtrace
from kvtrace.cli import run
from kvtrace.formats.targets import TARGETS
from tests.unaudited import write

NAMES = ["my logs/day 1.jsonl", "my logs/it's $HOME `id`.jsonl"]
PROGRAMS = ("aiperf", "vllm", "guidellm", "cachesim", "lmcache", "python")


@pytest.fixture(params=NAMES)
def name(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("my logs")
    os.mkdir("bin")
    for program in PROGRAMS:  # each prints its arguments
        with open(f"bin/{program}", "w") as file:
            file.write(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
        os.chmod(f"bin/{program}", 0o755)
    with open("bin/kvtrace", "w") as file:
        file.write(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kvtrace "$@"\n')
    os.chmod("bin/kvtrace", 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    write(kvtrace.toy("0 1", "0 2", "0 1 3", block_size=16, gap_ms=60_000), request.param)
    return request.param


def paste(command):
    return subprocess.run(command, shell=True, capture_output=True, text=True)


@pytest.mark.parametrize("client", TARGETS)
def test_the_commands_for_a_client_name_the_file(name, client, capsys):
    output = f"{os.path.splitext(name)[0]} out{'.csv' if client in ('vidur', 'azure', 'burstgpt') else '.jsonl'}"
    output = output.replace(".jsonl", ".oracleGeneral") if client == "libcachesim" else output
    assert run(["convert", name, "-o", output, "--to", client]) == 0
    lines = [line[12:] for line in capsys.readouterr().err.splitlines() if line.startswith("use ")]
    commands = [line for line in lines if line.startswith((*PROGRAMS, "PYTHONHASHSEED="))]
    assert commands or client in ("azure", "dynamo", "dynamo-agentic", "llm-d")
    for command in commands:
        done = paste(command)
        assert done.returncode == 0, (command, done.stderr)
        assert any(argument == output or f"={output}," in argument for argument in json.loads(done.stdout)), command
    if client == "dynamo":
        called = []
        module = type("Module", (), {"run_mocker_trace_replay": staticmethod(lambda paths, **_: called.extend(paths))})
        exec(lines[0], {"dynamo": type("Dynamo", (), {"_core": module})})
        assert called == [output]


def test_the_commands_for_prompts_name_the_file(name, capsys):
    for form in ("vllm", "sglang", "aiperf"):
        output = f"{name[:-6]} {form}.jsonl"
        assert run(["texts", name, "-o", output, "--tokenizer", "deepseek-r1", "--to", form]) == 0
        (command,) = [line[12:] for line in capsys.readouterr().err.splitlines() if line.startswith("use ")]
        assert output in json.loads(paste(command).stdout)


def test_the_audit_that_a_release_suggests_can_be_pasted_and_counts_the_same(name, capsys):
    for number, profile in enumerate(("exact", "standard", "strict")):
        output = f"{name[:-6]} {number}.jsonl"
        with open("users.txt", "w") as file:
            file.write("a\nb\nc\n")
        assert run(["release", name, "-o", output, "--profile", profile, "--users", "users.txt"]) == 0
        err = capsys.readouterr().err
        (line,) = [line for line in err.splitlines() if line.startswith("audit ")]
        counts, _, command = line[12:].partition(" (")
        done = paste(f"{command.removesuffix(' prints each check)')} --json")
        assert done.returncode == 0, done.stderr
        levels = [finding["level"] for finding in json.loads(done.stdout)["findings"]]
        assert counts == ", ".join(f"{levels.count(level)} {level}" for level in ("PASS", "WARN", "FAIL"))
        assert ("an audit of the file alone" in err) == (profile != "exact")
        if profile == "strict":
            assert "--profile strict" not in done.stdout


def test_a_refusal_of_memory_suggests_a_command_that_works(name, capsys):
    assert run(["analyze", name, "--memory", "1GB"]) == 2
    command = capsys.readouterr().err.split("`")[1] if "`id`" not in name else None
    if command is not None:
        assert paste(command).returncode == 0 and os.path.isdir("FOLDER")
