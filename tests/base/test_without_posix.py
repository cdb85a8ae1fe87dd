"""Commands run without the modules and functions of POSIX that Windows lacks; what needs them says so in one line."""

import subprocess
import sys

import pytest

from tests.docs import ROOT

# Takes away what Python has on POSIX alone, as far as one process can, and runs the command line.
PROGRAM = """
import os, signal, sys

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "register_at_fork", "geteuid", "getuid", "sched_getaffinity", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGALRM", "SIGHUP", "SIGKILL", "alarm"):
    if hasattr(signal, name):
        delattr(signal, name)
os.supports_dir_fd.clear()

from kvtrace.cli import main

main()
"""
LOG = str(ROOT / "examples/raw_log.jsonl")


def kvtrace(folder, *arguments):
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a trace that was made without POSIX."""
    folder = tmp_path_factory.mktemp("plain")
    done = kvtrace(folder, "anonymize", "--quiet", LOG, "-o", "trace.jsonl", "--block-size", "16")
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "check trace.jsonl",
        "audit trace.jsonl",
        "release trace.jsonl -o strict.jsonl --profile strict",
        "curve trace.jsonl --capacity 100",
        "simulate trace.jsonl --engine vllm --capacity 400",
    ],
)
def test_a_command_runs_without_posix(folder, command):
    done = kvtrace(folder, *command.split())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "options, message",
    [
        (["--key-file", "key", "--resume"], "--resume requires file locks, which this system does not have."),
        (
            ["--tokenizer", str(ROOT / "tests/data/tokenizers/tiny")],
            "this system cannot fork. Use Linux, macOS or WSL.",
        ),
    ],
)
def test_an_option_that_needs_posix_says_so_in_one_line(folder, options, message):
    done = kvtrace(folder, "anonymize", LOG, "-o", "other.jsonl", "--block-size", "16", *options)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and message in done.stderr
