"""The shell lines of the docs: kvtrace and datagen run in this process, all else in a shell."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import warnings
from pathlib import Path

from kvtrace.cli import datagen, run

# One of our commands, and what follows it: a pipe, or a file for its output. Its words have nothing that a shell would
# replace. With a limit of memory it needs a process of its own, of which that memory is counted.
OURS = re.compile(
    r"(?P<words>(kvtrace|datagen)( (?!--memory)(?!2>)[^\s|>$`*?;&<'\"\\#~]+)+)"
    r"(?P<both> 2>&1)?( \| (?P<rest>[^|].*)| > (?P<file>\S+))?"
)


def lines_of(code):
    """The lines of a block of shell code, continuation lines joined; comments left out."""
    joined = re.sub(r"\s*\\\n\s*", " ", code)
    return [line.strip() for line in joined.splitlines() if line.strip() and line.lstrip()[0] != "#"]


def called(line):
    """The exit status of a line in the current folder, and what it prints on stdout and stderr."""
    match = OURS.fullmatch(re.sub(" +", " ", line))
    if not match:
        return _in_a_shell(line)
    program, *arguments = shlex.split(match["words"])
    status, stdout, both = in_process(
        lambda: run(arguments, datagen.commands if program == "datagen" else None, program)
    )
    if match["rest"]:
        return _in_a_shell(match["rest"], both if match["both"] else stdout)
    if match["file"]:
        Path(match["file"]).write_bytes(stdout)
        return status, ""
    return status, both.decode()


def in_process(function):
    """What a function returns, and the bytes that it prints: those on stdout, and those on stdout and stderr."""
    both = io.BytesIO()
    out, err = _Stream(both), _Stream(both)
    with (
        contextlib.redirect_stdout(io.TextIOWrapper(out, encoding="utf-8", write_through=True)) as stdout,
        contextlib.redirect_stderr(io.TextIOWrapper(err, encoding="utf-8", write_through=True)) as stderr,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        returned = function()
        stdout.flush()
        stderr.flush()
        return returned, out.getvalue(), both.getvalue()


class _Stream(io.BytesIO):
    """A stream that keeps what is written, and writes it to another one, too."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def write(self, data):
        self.other.write(data)
        return super().write(data)


def _in_a_shell(line, given=b""):
    environment = {**os.environ}  # the process has a COLUMNS that readline set, which os.environ does not know
    done = subprocess.run(
        ["sh", "-c", line], input=given, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.returncode, done.stdout.decode()
