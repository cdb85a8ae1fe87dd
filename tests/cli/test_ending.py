"""How a command ends when a signal comes at its end: no traceback, no false statement, all of its outputs or none."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import kvtrace
from kvtrace._base import process
from kvtrace._base.output_files import appear_together, write_atomically
from kvtrace._base.process import uninterrupted

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")
WAIT = "import sys, time, atexit\ndef wait():\n    print('here', flush=True)\n    time.sleep(30)\n"
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def started(code, *arguments):
    """A process that runs `main` after some code, up to the line that the code prints."""
    code = f"{WAIT}{code}\nfrom kvtrace.cli import main\nmain()"
    paths = {"PYTHONPATH": str(Path(kvtrace.__file__).parent.parent)}
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | paths,
    )  # fmt: skip
    while child.stdout.readline() not in ("here\n", ""):
        pass
    return child


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kvtrace.write(kvtrace.toy("0 1", "0 2", "0 1 3", block_size=16), "day.jsonl")
    os.unlink("day.jsonl.meta.json")
    return tmp_path


@pytest.mark.parametrize("hook", ["atexit.register", "threading._register_atexit"])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_python_exits_ends_it_without_a_word(number, hook):
    child = started(f"import threading\n{hook}(wait)", "--version")
    child.send_signal(number)
    assert child.communicate(timeout=20)[1] == "" and child.returncode == -number


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_a_destructor_is_neither_lost_nor_a_traceback(trace, number):
    code = (
        "import signal\nimport kvtrace.cli.convert as convert\n"
        f"class Destroyed:\n    def __del__(self):\n        signal.raise_signal({number})\n"
        "convert.print_lines = lambda *_: (Destroyed() and None, wait())"
    )
    child = started(code, "convert", "day.jsonl", "-o", "out.jsonl", "--block-size", "16")
    name = "the keyboard" if number == signal.SIGINT else number.name
    error = child.communicate(timeout=20)[1].removeprefix("\n")
    assert error == f"kvtrace: stopped by {name}; the output is complete.\n" and child.returncode == 128 + number


def test_a_signal_among_the_locks_of_imports_comes_when_they_are_released():
    """A KeyboardInterrupt at a line of `_ModuleLock.release` left the lock taken, and the next import never ended."""
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    inside = SimpleNamespace(f_code=importlib._bootstrap._ModuleLock.release.__code__)
    try:
        process._raise(signal.SIGTERM, inside)
        with pytest.raises(process.SignalReceived):
            time.sleep(20)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_after_the_output_is_written_does_not_deny_it(trace, number):
    code = "import kvtrace.cli.convert as convert\nconvert.print_lines = lambda *_: wait()"
    child = started(code, "convert", "day.jsonl", "-o", "out.jsonl", "--block-size", "16")
    child.send_signal(number)
    name = "the keyboard" if number == signal.SIGINT else number.name
    said = child.communicate(timeout=20)[1].removeprefix("\n")
    assert said == f"kvtrace: stopped by {name}; the output is complete.\n"
    assert child.returncode == 128 + number and {"out.jsonl", "out.jsonl.meta.json"} <= {*os.listdir()}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_synthesize_leaves_model_and_sample_or_neither(trace, number):
    code = "import kvtrace.synthesis.sampling as s\ns.write_drawn = lambda *a, **k: wait()"
    options = ["-o", "more.jsonl", "--save-model", "model.json", "--block-size", "16"]
    child = started(code, "synthesize", "day.jsonl", *options)
    child.send_signal(number)
    child.communicate(timeout=20)
    assert not {"model.json", "more.jsonl"} & {*os.listdir()}
    from kvtrace.cli import run

    assert run(["synthesize", "day.jsonl", *options, "-q"]) == 0
    assert {"model.json", "more.jsonl", "more.jsonl.meta.json"} <= {*os.listdir()}


def test_a_failure_between_files_leaves_none(trace):
    with pytest.raises(ZeroDivisionError), appear_together():
        with write_atomically("first") as stream:
            stream.write(b"1")
        assert not os.path.exists("first")
        raise ZeroDivisionError
    assert os.listdir() == ["day.jsonl"]
    with appear_together():
        for name in ("first", "second"):
            with write_atomically(name) as stream:
                stream.write(b"1")
    assert {*os.listdir()} == {"day.jsonl", "first", "second"}


def test_a_signal_waits_for_the_end_of_a_step():
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert done == [1] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_comes_before_a_wait_or_inside_one_ends_the_wait():
    """A service waits for its end; the handler must need no lock of the wait, nor the wait a signal to end."""
    code = (
        "import signal, threading\nfrom kvtrace.cli.source_options import stop_event\n"
        "with stop_event() as stopped, stopped._cond:\n"  # where a wait begins
        "    signal.raise_signal(signal.SIGTERM)\n    assert stopped.wait() and stopped.is_set()\n"
    )
    paths = {"PYTHONPATH": str(Path(kvtrace.__file__).parent.parent)}
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | paths, timeout=60).returncode == 0
