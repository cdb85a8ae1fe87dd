"""Fixtures that all tests share."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

with contextlib.suppress(ImportError):
    # uvloop keeps the class socket.socket that it finds when it is imported. In a test without sockets that is
    # pytest-socket's, which refuses each connection, and all later servers of the process would never answer.
    import uvloop  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
# how long an example takes is the machine's, and what else it does; each run draws other examples
settings.register_profile("kvtrace", deadline=None, max_examples=int(os.environ.get("KVTRACE_EXAMPLES", 40)))
settings.load_profile("kvtrace")
# each worker would rewrite the asserts of all tests again, and each command that a test starts compile its sources
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
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
