"""Tasks on Ray: results in order, a bounded number under way, lost workers replaced, errors without content."""

import os
import re
import subprocess
import sys

import pytest

from kvtrace._base import ray_cluster
from kvtrace._base.errors import UsageError
from tests.docs import ROOT

pytestmark = pytest.mark.xdist_group("ray")  # one cluster at a time
# runs in a process of its own, since Ray needs sockets
FACTS = """
import os, signal, sys
from pathlib import Path
from kvtrace._base.errors import InputError, KvtraceError, StoppedError
from kvtrace._base.ray_cluster import connect, connected, ordered

folder = Path(sys.argv[1])
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

class Adds:
    def __init__(self, held): self.held = held
    def __call__(self, task): return self.held + task

def dies_once(task):
    if task == 3 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task

def dies(task):
    os.kill(os.getpid(), signal.SIGKILL)

def refuses(task):
    raise InputError("day.jsonl:3: a clear line")

def fails(task):
    raise ValueError("a secret of the log")

def told(function):
    try:
        list(ordered(function, [1], in_flight=2, retries=0))
    except KvtraceError as error:
        assert error.__context__ is None and error.__cause__ is None
        return type(error).__name__, str(error)

drawn = []
def tasks():
    for task in range(20):
        drawn.append(task)
        yield task

with connected() as ray:
    assert connect() is ray and ray.is_initialized()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    for place, found in enumerate(ordered(Adds(100), tasks(), in_flight=4, retries=0)):
        assert found == 100 + place and len(drawn) <= place + 4, (place, found, drawn)
    assert list(ordered(dies_once, range(6), in_flight=3, retries=2)) == list(range(6))
    assert (folder / "died").exists()
    assert told(refuses) == ("InputError", "day.jsonl:3: a clear line")
    name, line = told(fails)
    assert name == "KvtraceError" and "ValueError at" in line and "secret" not in line, line
    name, line = told(dies)
    assert name == "StoppedError" and "WorkerCrashedError" in line, line
    assert list(ordered(Adds(1), [], in_flight=1, retries=0)) == []
    with connected():
        pass
    assert ray.is_initialized()
    late = ordered(Adds(1), range(9), in_flight=3, retries=0)
    assert next(late) == 1
late.close()
assert not ray.is_initialized()
print("all true")
"""


def test_tasks_on_a_cluster_of_one_machine(tmp_path):
    pytest.importorskip("ray")
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    (tmp_path / "facts.py").write_text(FACTS)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "facts.py"), str(tmp_path)], env=os.environ | {"PYTHONPATH": paths},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.stdout, without_rays_lines(done.stderr)) == ("all true\n", "")


def without_rays_lines(text):
    """What was printed but for what Ray's core logs by itself, as when a process of it ends late."""
    return re.sub(r"^\[[-0-9: ,]+ [EW] .*\.cc:\d+: .*\n", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "here", "ray://127.0.0.1:1", "host:99999999"])
def test_where_nobody_answers_it_says_so_at_once(address, monkeypatch):
    pytest.importorskip("ray")

    def refused(*_, **__):
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.create_connection", refused)
    with pytest.raises(UsageError, match="Cannot reach a Ray cluster at"):
        ray_cluster.connect(address)


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'kvtrace\[ray\]'"):
        ray_cluster.connect()
