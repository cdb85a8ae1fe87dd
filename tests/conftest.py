"""Fixtures that all tests share."""

import contextlib
import gc
import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

with contextlib.suppress(ImportError):
    # uvloop keeps the class socket.socket that it finds when it is imported. In a test without sockets that is
    # pytest-socket's, which refuses each connection, and all later servers of the process would never answer.
    import uvloop  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("KVTRACE_SHARED", ROOT.parent / "shared"))


def drawn(count: int) -> int:
    """How many cases a test draws: a quarter of the count, and with KVTRACE_THOROUGH=1 (`make fuzz`) all of them."""
    return count if os.environ.get("KVTRACE_THOROUGH") == "1" else -(-count // 4)


# how long an example takes depends on the machine and its load; `make fuzz` draws other examples each time
settings.register_profile("kvtrace", deadline=None, max_examples=int(os.environ.get("KVTRACE_EXAMPLES", drawn(40))),
                          derandomize="KVTRACE_RANDOM" not in os.environ)  # fmt: skip
settings.load_profile("kvtrace")
# each worker would rewrite the asserts of all tests again, and each command that a test starts compile its sources
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# processes of pytest-xdist have a COLUMNS, at which tables in a pipe would wrap
os.environ.pop("COLUMNS", None)
# `nohup` ignores SIGHUP, and a shell's background job SIGINT; the commands that tests start would ignore them, too
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


# tests, or files of tests, whose cases take two seconds or more together (`pytest --durations=0` tells)
SLOW = {*(ROOT / "tests/slow.txt").read_text().split()}


def pytest_addoption(parser):
    parser.addoption("--one-case", action="append", default=[], metavar="FOLDER",
                     help="run one case only of each test in this folder (`make quick`)")  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for no garbage among thousands of tests while they are made, nor later."""
    gc.disable()
    result = yield
    gc.enable()
    gc.freeze()
    return result


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` chooses, and pytest-xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """Mark what is slow or reads much real data, keep tests that share a fixture of their file in one worker, and leave
    out cases as --one-case says."""
    cases: dict[str, list[str]] = {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        cases.setdefault(test, []).append(item.nodeid)
        if not SLOW.isdisjoint((test, test.partition("::")[0])) or "shared" in item.fixturenames:
            item.add_marker("slow")
        fixtures = getattr(item, "_fixtureinfo", None)
        scopes = {one.scope for each in fixtures.name2fixturedefs.values() for one in each} if fixtures else set()
        if scopes & {"module", "class", "package"} and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    folders = tuple(f"{folder}/" for folder in config.getoption("--one-case"))
    chosen = {min(ids) for ids in cases.values()}
    left_out = [item for item in items if item.nodeid.startswith(folders) and item.nodeid not in chosen]
    if folders and left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in {*left_out}]


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist sends the ids
def pytest_collection_finish(session):
    """Put the groups into the ids: pytest-xdist 3.8 writes them to `_nodeid`, which pytest 9.2 does not read."""
    for item in session.items:
        written = getattr(item, "_nodeid", item.nodeid)
        if written != item.nodeid:
            item._id = type(item._id).parse(written)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the project; tests that want it skip where it is missing."""
    if not (SHARED / "data").is_dir():
        pytest.skip("no shared data beside the project")
    return SHARED


LOADED: dict[tuple[Any, ...], Any] = {}  # library, file, its digest, added tokens -> the tokenizer


@pytest.fixture(scope="session", autouse=True)
def loaded_tokenizers():
    """Load each tokenizer once in a process: that of DeepSeek takes 1.4 s, and each run of a command loads it."""
    from kvtrace.text import preload, tokenizer_libraries

    load, run = tokenizer_libraries.Library._load, preload._Loading.run

    def load_once(library):
        path = library._files.tokenizer
        try:
            digest = hashlib.sha256(path.read_bytes()).digest()
        except OSError:  # a test has left its folder, while a thread still loads for it
            return load(library)
        key = (library.module, str(path), digest, repr(library._files.added_tokens))
        if key not in LOADED:
            tokenizer = load(library)
            if len(LOADED) >= 6:
                del LOADED[next(iter(LOADED))]
            LOADED[key] = tokenizer
        return LOADED[key]

    def run_once(loading):
        if not any(key[:2] == ("fastokens", loading.path) for key in LOADED):
            run(loading)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_libraries.Library, "_load", load_once)
        patch.setattr(preload._Loading, "run", run_once)
        yield


@pytest.fixture
def no_loaded_tokenizers(monkeypatch):
    """For tests of the loading itself."""
    monkeypatch.setattr(sys.modules[__name__], "LOADED", {})
