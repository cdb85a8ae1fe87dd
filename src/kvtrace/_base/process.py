"""The process: signals that end a run, no core dumps, and compiled modules that fit their sources.

The memory of a process that reads a log holds its text, and a core dump would write it to a disk. Python would run an
uncompiled .py in place of a missing extension module, 100 times slower.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from types import FrameType

from .errors import NotCompiledError

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that arrive in the block are handled when it ends. The block must be short.

    >>> import os
    >>> steps = []
    >>> try:
    ...     with uninterrupted():
    ...         signal.raise_signal(signal.SIGINT)
    ...         steps.append("the step")
    ... except KeyboardInterrupt:
    ...     print(steps)
    ['the step']
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread
        return
    arrived: list[int] = []
    handlers = ((number, signal.getsignal(number)) for number in STOPPING)
    before = {number: handler for number, handler in handlers if handler not in (None, signal.SIG_IGN)}
    held = True

    def handle(number, frame):
        """Also right if one signal ends the block while the handlers of the others are set or restored."""
        if held:
            arrived.append(number)
        elif callable(before[number]):
            before[number](number, frame)
        else:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        held = False
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived[:1]:
            signal.raise_signal(number)


class SignalReceived(BaseException):
    """A signal to end the process, raised as an exception so that temporary files are removed."""


IMPORTS = "<frozen importlib._bootstrap>"
LATER_S = 0.02


def raise_signals() -> None:
    """From here on, the first signal becomes an exception of the main thread, and a second one ends the process.

    The exception comes a moment later where it would do harm: Python drops it in a destructor or a callback, with a
    traceback, and among the locks of its imports it could leave one taken, so that the process never ends.
    """
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _raise)
    before = sys.unraisablehook

    def hook(fault: sys.UnraisableHookArgs) -> None:
        if not isinstance(fault.exc_value, (KeyboardInterrupt, SignalReceived)):
            before(fault)
        else:
            _raise_later(fault.exc_value.args[0] if isinstance(fault.exc_value, SignalReceived) else signal.SIGINT)

    sys.unraisablehook = hook


def _raise(number: int, frame: FrameType | None) -> None:
    forget_handlers()
    if frame is not None and frame.f_code.co_filename == IMPORTS and _raise_later(number):
        return
    raise KeyboardInterrupt if number == signal.SIGINT else SignalReceived(number)


def _raise_later(number: int) -> bool:
    """Raise a signal in a moment; False where there are no timers (Windows)."""
    if not hasattr(signal, "setitimer"):
        return False
    signal.signal(signal.SIGALRM, lambda _, frame: _raise(number, frame))
    signal.setitimer(signal.ITIMER_REAL, LATER_S)
    return True


def forget_handlers() -> None:
    """From here on, a signal ends the process at once, as the system does it: nothing is left to clean up."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)  # that of a signal that would be raised again
    for number in STOPPING:
        if signal.getsignal(number) not in (None, signal.SIG_IGN):
            signal.signal(number, signal.SIG_DFL)


_STATUS: list[int] = []  # that the process ends with


def note_status(status: int) -> int:
    """The exit status, noted for `skip_teardown`."""
    _STATUS[:] = [status]
    return status


def skip_teardown() -> None:
    """Let a command's process end without taking the interpreter apart, a tenth of the time of a short command.

    Call it first: the handler of an end that is registered first runs last, after threads were joined and the handlers
    of libraries have run.
    """
    atexit.register(_leave)


def _leave() -> None:
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):  # Python reports it
        return
    if _STATUS:
        os._exit(_STATUS[0])


PR_SET_DUMPABLE = 4


def forbid_core_dumps() -> None:
    """From here on, a crash of this process or of its children writes no memory to a disk.

    On Linux, other processes of the user cannot read its memory either. A process that executes another program, as
    spawned workers do, must call this again. Systems without such limits are left as they are.
    """
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass  # no limits here, or not ours to set
    if sys.platform == "linux":
        prctl(PR_SET_DUMPABLE, 0)  # a handler of dumps, such as systemd's, ignores the limit


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process on Linux."""
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


ADVICE = "Run `make build` in the source folder, or `pip install .` (both need a C compiler)."


def require_built(init: str) -> None:
    """Raise NotCompiledError unless each compiled file beside the given __init__.py has an extension module that fits.

    A file is compiled when it is a .pyx, or a .py with a .pxd beside it. In a source folder the module must also be
    newer than its sources; an installed copy is written in one go, so there the times say nothing.
    """
    folder = os.path.dirname(init)
    times = {entry.name: entry.stat().st_mtime for entry in os.scandir(folder) if not entry.name.startswith("__")}
    is_installed = "site-packages" in folder
    missing: list[str] = []
    foreign: list[str] = []
    stale: list[str] = []
    for name in sorted({name.rpartition(".")[0] for name in times if name.endswith((".pxd", ".pyx"))}):
        sources = [times[name + suffix] for suffix in (".py", ".pyx", ".pxd") if name + suffix in times]
        if name + ".py" not in times and name + ".pyx" not in times:
            continue  # C declarations alone
        built = [times[name + suffix] for suffix in EXTENSION_SUFFIXES if name + suffix in times]
        if not built:
            others = [other for other in times if other.startswith(name + ".") and other.endswith((".so", ".pyd"))]
            (foreign if others else missing).append(name)
        elif not is_installed and max(sources) > max(built):
            stale.append(name)
    faults = {"not compiled": missing, "compiled for another Python": foreign, "changed since it was compiled": stale}
    for fault, names in faults.items():
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise NotCompiledError(f"{fault}: {shown} (in {folder}). {ADVICE}")
