"""Policies in Python that misbehave: each is one clear error, and Ctrl-C ends one that does not return."""

import signal
import subprocess
import sys
import threading
import time

import pytest

import kvtrace
from kvtrace.cache.many_settings import simulate_settings
from kvtrace.cache.simulation import Setting
from kvtrace.trace.building import toy
from tests.unaudited import write

POLICIES = """
import sys, threading

class Fifo:
    threads = set()

    def __init__(self, context):
        self.order = {}

    def insert(self, block):
        self.threads.add(threading.current_thread())

    def use(self, block):
        self.order.pop(block, None)

    def release(self, block):
        self.order[block] = True

    def victim(self):
        return next(iter(self.order))

    def remove(self, block):
        del self.order[block]

class Exits(Fifo):
    def victim(self):
        sys.exit("a word")

class ExitsAtOnce(Fifo):
    def __init__(self, context):
        sys.exit(0)

class Expires(Fifo):
    answer = 3

    def expired(self):
        return self.answer if self.order else None

class ExpiresTheSame(Fifo):
    def remove(self, block):
        self.order.pop(block, None)

    def expired(self):
        return 0 if self.order or hasattr(self, "looped") else None

class Endless(Fifo):
    def insert(self, block):
        print("started", flush=True)
        while True:
            pass
"""


@pytest.fixture
def policies(tmp_path, monkeypatch):
    (tmp_path / "unruly.py").write_text(POLICIES)
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit('a word')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("unruly", None)


def refusal(policy):
    with pytest.raises(kvtrace.UsageError) as error:
        kvtrace.simulate(toy("0", "1", "2", "3"), 2, f"unruly:{policy}" if ":" not in policy else policy)
    return str(error.value)


@pytest.mark.parametrize("policy", ["Exits", "ExitsAtOnce", "exiting:Any"])
def test_a_policy_that_ends_the_program_is_an_error(policies, policy):
    assert refusal(policy) == (
        "the policy called sys.exit(). To stop a run, raise an exception such as ValueError."
    )  # fmt: skip


def test_an_expired_block_that_is_not_evictable_is_an_error_and_not_an_endless_loop(policies, monkeypatch):
    import unruly

    assert refusal("Expires") == (
        "the policy's expired block is block 3, which is not resident. "
        "Return a block that was released and not used since, or None."
    )
    monkeypatch.setattr(unruly.Expires, "answer", 10**6)
    assert "block 1,000,000, which does not exist" in refusal("Expires")
    monkeypatch.setattr(unruly.ExpiresTheSame, "looped", True, raising=False)
    assert "block 0, which is not resident" in refusal("ExpiresTheSame")


def test_policies_in_python_run_in_the_calling_thread(policies):
    import unruly

    simulate_settings(toy("0", "1", "0"), [Setting(2, "unruly:Fifo"), Setting(2), Setting(1, "unruly:Fifo")])
    assert unruly.Fifo.threads == {threading.main_thread()}


@pytest.mark.parametrize("command", ["simulate day.jsonl", "sweep day.jsonl -o table.csv"])
def test_ctrl_c_ends_a_policy_that_does_not_return(policies, command):
    write(toy("0", "1"), policies / "day.jsonl")
    command = [sys.executable, "-m", "kvtrace", *command.split(), "--capacity", "2", "--policy", "unruly:Endless", "-q"]
    process = subprocess.Popen(command, cwd=policies, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "started\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert said.strip().startswith("kvtrace: stopped by the keyboard;") and process.returncode in (5, 130)
