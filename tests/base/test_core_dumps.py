"""No process that may hold the text of a log writes its memory to a disk when it crashes."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvtrace
from kvtrace._base import process
from kvtrace._base.workers import ordered_map, retrying_map

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
CHECK = (
    "import resource, ctypes; print(*resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
)
ALLOW = (
    "import resource\nhard = resource.getrlimit(resource.RLIMIT_CORE)[1]\n"
    "resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\n"
)
FORBIDDEN = "0 0 0"  # soft limit, hard limit, PR_GET_DUMPABLE


def limits(_=None):
    """The limits of this process."""
    import ctypes
    import resource

    return "{} {} {}".format(*resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))


def in_child(code):
    """What a new process prints; its limit allows core dumps."""
    paths = os.pathsep.join([str(Path(kvtrace.__file__).parent.parent), str(Path(__file__).resolve().parents[2])])
    return subprocess.run(
        [sys.executable, "-c", ALLOW + code], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": paths},
    ).stdout.strip()  # fmt: skip


@pytest.mark.parametrize("program", ["", ".datagen"])
def test_a_command_forbids_core_dumps(program):
    code = (
        f"import sys, atexit\ndef show():\n    {CHECK}\natexit.register(show)\nsys.argv = ['x', '--help']\n"
        f"from kvtrace.cli{program} import main\nmain()"
    )
    assert in_child(code).splitlines()[-1] == FORBIDDEN


@pytest.mark.parametrize("mapped", [ordered_map, retrying_map])
def test_workers_forbid_core_dumps_whoever_starts_them(mapped):
    before = limits()
    assert set(mapped(limits, range(4), 2)) == {FORBIDDEN} and limits() == before


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.xdist_group("ray")
def test_tasks_of_ray_forbid_core_dumps():
    from kvtrace._base.ray_cluster import connected, ordered

    with connected():
        assert set(ordered(limits, range(2), in_flight=2, retries=0)) == {FORBIDDEN}


def test_a_system_without_limits_is_left_as_it_is(monkeypatch):
    calls = []
    monkeypatch.setattr(process.sys, "platform", "darwin")
    monkeypatch.setattr("kvtrace._base.process.prctl", lambda *arguments: calls.append(arguments))
    monkeypatch.setitem(sys.modules, "resource", None)
    process.forbid_core_dumps()
    assert not calls
