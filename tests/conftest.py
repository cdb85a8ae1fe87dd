"""Fixtures that all tests share."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

with contextlib.suppress(ImportError):
    # uvloop keeps the class socket.socket that it finds when it is imported. In a test without sockets that is
    # pytest-socket's, which refuses each connection, and all later servers of the process would never answer.
    import uvloop  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent


def drawn(count: int) -> int:
    """How many cases a test draws: a quarter of the count, and with KVTRACE_THOROUGH=1 (`make fuzz`) all of them."""
    return count if os.environ.get("KVTRACE_THOROUGH") == "1" else -(-count // 4)


# how long an example takes is the machine's, and what else it does; each run draws other examples
settings.register_profile("kvtrace", deadline=None, max_examples=int(os.environ.get("KVTRACE_EXAMPLES", drawn(40))))
settings.load_profile("kvtrace")
# processes of pytest-xdist have a COLUMNS, at which tables in a pipe would wrap
os.environ.pop("COLUMNS", None)
# `nohup` ignores SIGHUP, and a shell's background job SIGINT; the commands that tests start would ignore them, too
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the project; tests that want it skip where it is missing."""
    folder = Path(os.environ.get("KVTRACE_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip("no shared data beside the project")
    return folder


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items):
    """Keep a file's tests in one worker where they share a fixture that is made once for the file."""
    for item in items:
        fixtures = getattr(item, "_fixtureinfo", None)
        scopes = {one.scope for found in fixtures.name2fixturedefs.values() for one in found} if fixtures else ()
        if {"module", "class", "package"}.intersection(scopes) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
