"""Policies in Python that misbehave: each is one clear error, and Ctrl-C ends one that does not return."""

import signal
import subprocess
import sys
import threading
import time

import pytest

import kvtrace
from kvtrace.cache.simulation import Setting, simulate_settings
from kvtrace.cli import run
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

class FailsToExpire(Fifo):
    def expired(self):
        raise ValueError("a word")

class ExpiresWithAnArgument(Fifo):
    def expired(self, now):
        return None

class FailsAtAMiss(Fifo):
    def miss(self, block):
        return {}[block]

class MissesWithoutABlock(Fifo):
    def miss(self):
        pass

class Unready(Fifo):
    def __init__(self):
        pass

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
        kvtrace.cache.simulate(toy("0", "1", "2", "3"), 2, f"unruly:{policy}" if ":" not in policy else policy)
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


FAILURES = {
    "FailsToExpire": "ValueError at unruly.py:48: a word",
    "ExpiresWithAnArgument": "TypeError in the call of expired(): ExpiresWithAnArgument.expired() missing 1 required",
    "FailsAtAMiss": "KeyError at unruly.py:56: 0",
    "MissesWithoutABlock": "TypeError in the call of miss(): MissesWithoutABlock.miss() takes 1 positional argument",
    "Unready": "TypeError in the call of Unready(): Unready.__init__() takes 1 positional argument but 2",
}


@pytest.mark.parametrize("command", ["simulate day.jsonl --capacity 2", "report day.jsonl -o page.html"])
def test_each_command_finds_a_policy_in_the_current_folder_and_says_where_it_failed(
    policies, monkeypatch, capsys, command
):
    write(toy("0", "1", "2", "0"), policies / "day.jsonl")
    monkeypatch.chdir(policies)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(policies)])
    assert run([*command.split(), "--policy", "unruly:Fifo", "-q"]) == 0
    for name, said in FAILURES.items():
        assert run([*command.split(), "--policy", f"unruly:{name}", "-q"]) == 2
        assert capsys.readouterr().err.startswith(f"kvtrace: The policy failed: unruly:{name}, {said}")


def test_a_failed_cell_of_a_sweep_names_the_call(policies):
    write(toy("0", "1"), policies / "day.jsonl")
    rows = kvtrace.cache.sweep(
        kvtrace.cache.Grid((f"{policies}/day.jsonl",), ("lru", "unruly:MissesWithoutABlock"), "2")
    ).rows
    assert rows[1]["error"] == "Policy unruly:MissesWithoutABlock failed, TypeError in the call of miss()."


def test_a_class_has_no_parameter_and_runs_in_the_reference_engine(policies):
    assert refusal("unruly:Fifo:300") == (
        "The command line cannot pass a parameter to your class. Write unruly:Fifo, and let its constructor set '300'."
    )
    assert refusal("mine/unruly.py:Fifo") == (
        "'mine/unruly.py' is a file. Run the command in its folder with the module's name: unruly:Fifo."
    )
    with pytest.raises(kvtrace.UsageError, match=r"not a policy\. Write a class as module:Class: unruly:Fifo\."):
        kvtrace.cache.simulate(toy("0"), 1, "unruly.Fifo")
    with pytest.raises(kvtrace.UsageError, match="Try lru. Your own policies run in the reference engine."):
        kvtrace.cache.simulate(toy("0"), 1, "unruly:Fifo", engine="vllm")


@pytest.mark.parametrize("names", ["lru,unruly:Endless", "unruly:Endless,lru"])
def test_ctrl_c_in_a_policy_keeps_the_cells_of_the_others(policies, names):
    write(toy("0", "1"), policies / "day.jsonl")
    command = [
        sys.executable,
        "-m",
        "kvtrace",
        *["sweep", "day.jsonl", "-o", "table.csv", "--capacity", "2,3", "-q", "--policy"],
    ]
    process = subprocess.Popen(
        [*command, names], cwd=policies, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "started\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert "finished work is saved: continue with --resume." in said and process.returncode == 5
    assert len((policies / "table.csv.cells.jsonl").read_text().splitlines()) == 3  # a header and two cells
