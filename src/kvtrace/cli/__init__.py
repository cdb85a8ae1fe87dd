"""The command line: arguments in, one library call, a report out. Only this package prints, reads argv or exits.

A command is one file here and one row in the table below.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings

import click

from .. import __version__
from .analyze import analyze
from .anonymize import anonymize
from .audit import audit
from .check import check
from .compare import compare
from .convert import convert
from .curve import curve
from .plan import plan
from .release import release
from .report import report
from .simulate import simulate
from .sweep import sweep
from .synthesize import synthesize
from .texts import texts

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True}


def main(command: click.Command | None = None, name: str = "kvtrace") -> None:
    """Run a console script's command; every failure is one line on stderr and an exit status of docs/cli/cli.md."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries, and lines of code: nothing that a user could normalise
    for stop in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, stop, None)  # not every system has both
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves SIGHUP
            signal.signal(number, _stop)
    sys.exit(run(sys.argv[1:], command, name))


class _Signal(BaseException):
    """Somebody wants the process to end: it does so as from an exception, so that temporary files go."""


def _stop(number, _frame):
    raise _Signal(number)


def run(arguments: list[str], command: click.Command | None = None, name: str = "kvtrace") -> int:
    """The exit status of a command line, of `kvtrace` unless another command is given."""
    from .._base.errors import KvtraceError

    try:
        status = (command or commands).main(arguments or ["--help"], prog_name=name, standalone_mode=False) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a full disk or a closed pipe can still be told
        return status
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.UsageError as error:
        return _fail(f"{error.format_message()} Try {error.ctx.command_path if error.ctx else name} --help.", error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except KvtraceError as error:
        return _fail(_with_notes(str(error), error), error.status)
    except (KeyboardInterrupt, click.Abort) as stop:
        return _stopped("the keyboard", stop.__cause__ or stop, 130)
    except _Signal as stop:
        number = stop.args[0]
        return _stopped(signal.Signals(number).name, stop, 128 + number)
    except BrokenPipeError:
        _forget_stdout()
        return 1
    except OSError as error:  # what no reader or writer expected: no more processes, a stdout that takes no help text
        _forget_stdout()
        return _system(error)
    except MemoryError as error:
        return _fail(_with_notes("out of memory; no output file was written.", error), 5)
    except Exception as error:  # a fault of ours: its message could hold content, its place cannot
        return _internal(error)


def _stopped(by: str, stop: BaseException, status: int) -> int:
    """The end of a run that somebody stopped: status 5 where it can be resumed, else the shell's own."""
    kept = _notes(stop)
    return _fail(f"stopped by {by}; {' '.join(kept) or 'no output file was written.'}", 5 if kept else status)


def _with_notes(message: str, error: BaseException) -> str:
    return " ".join([message, *(note[:1].upper() + note[1:] for note in _notes(error))])


def _notes(error: BaseException) -> list[str]:
    """What was added to an exception on its way here: that what was done is kept."""
    return getattr(error, "__notes__", [])


def _fail(message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # nobody listens: the status must do
        click.echo(f"kvtrace: {' '.join(message.splitlines())}", err=True)  # a file's name may hold a newline
    if status in (1, 5):
        _forget_stdout()
    return status


def _forget_stdout() -> None:
    """Let what stdout could not take go nowhere, or Python complains while it shuts down."""
    try:
        sys.stdout.flush()
    except (AttributeError, ValueError):
        pass  # there is none
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _system(error: OSError) -> int:
    from .._base.output_files import FULL
    from .._base.workers import place_of

    told = f"{error.strerror or 'the system failed'} ({place_of(error)}); no output file was written."
    return _fail(_with_notes(told, error), 5 if error.errno in FULL else 1)


def _internal(error: Exception) -> int:
    from .._base.workers import place_of

    if os.environ.get("KVTRACE_DEBUG"):
        import traceback

        click.echo("".join(traceback.format_tb(error.__traceback__)), err=True, nl=False)
    told = (
        f"internal error: {place_of(error)}; no output file was written. Please report it (KVTRACE_DEBUG=1 shows where, "
        "without content)."
    )
    return _fail(_with_notes(told, error), 1)


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, message="kvtrace %(version)s")
def commands() -> None:
    """Turn raw LLM logs into prefix-cache traces that can be shared, and make those traces useful."""


for command in (anonymize, audit, release, check, analyze, curve, convert, report, simulate, plan, sweep, synthesize, compare, texts):
    commands.add_command(command)
