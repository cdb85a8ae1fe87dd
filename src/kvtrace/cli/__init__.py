"""The command line: parse arguments, call one library function, print its result.

Only this room prints, reads argv or exits. Each command has one module, and one row in `SECTIONS` below.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from importlib import import_module
from typing import Any

import click

from .. import __version__
from .._base.process import SignalReceived, forbid_core_dumps, forget_handlers, note_status, raise_signals
from .help import HELP_NAMES, Group
from .output import Outcome, keep_inputs

CONTEXT: dict[str, Any] = {"help_option_names": HELP_NAMES, "max_content_width": 120, "show_default": True}


def main(command: click.Command | None = None, name: str = "kvtrace") -> None:
    """Run the command of a console script. Each failure prints one line on stderr; docs/reference.md lists exit statuses."""
    status = 1
    try:
        raise_signals()
        if not sys.warnoptions:
            warnings.simplefilter("ignore")  # warnings of libraries, which a user cannot act on
        forbid_core_dumps()
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's start takes half as long without these threads
        status = run(sys.argv[1:], command, name)
        forget_handlers()  # Python's exit takes a moment, in which an exception would be a traceback
    except KeyboardInterrupt:  # before the command began, or after it had ended
        status = 130
    except SignalReceived as interrupt:
        status = 128 + interrupt.args[0]
    sys.exit(note_status(status))


def run(arguments: list[str], command: click.Command | None = None, name: str = "kvtrace") -> int:
    """Run a command line and return its exit status. The default command is `kvtrace`."""
    from .._base import output_files
    from .._base.errors import KvtraceError, nearest

    output_files.forget_results()
    try:
        outcome = (command or commands).main(arguments or ["--help"], prog_name=name, standalone_mode=False)
        status = outcome.status if isinstance(outcome, Outcome) else outcome or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk or a closed pipe can still be reported here
        return status
    except click.exceptions.Exit as exit_request:
        return exit_request.exit_code
    except click.UsageError as error:
        if isinstance(error, click.NoSuchOption) and error.ctx:  # Click's own choice counts the dashes as letters
            options = [name for parameter in error.ctx.command.params for name in parameter.opts if name[:2] == "--"]
            error = click.NoSuchOption(error.option_name, possibilities=nearest(error.option_name, options), ctx=error.ctx)
        return _fail(f"{error.format_message()} Try {error.ctx.command_path if error.ctx else name} --help.", error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except KvtraceError as error:
        return _fail(_with_notes(str(error), error), error.status)
    except (KeyboardInterrupt, click.Abort) as interrupt:
        return _fail_interrupted("the keyboard", interrupt.__cause__ or interrupt, 130)
    except SignalReceived as interrupt:
        number = interrupt.args[0]
        return _fail_interrupted(signal.Signals(number).name, interrupt, 128 + number)
    except BrokenPipeError:
        _forget_stdout()
        return 1
    except OSError as error:  # not handled by a reader or writer: for example, no more processes, or a closed stdout
        return _fail_system(error, is_stdout=_forget_stdout() or _was_printed(error))
    except MemoryError as error:
        return _fail(_with_notes(f"out of memory; {_results()}", error), 5)
    except Exception as error:  # a bug: the message could contain content of the log, the source line cannot
        return _fail_internal(error)


def _fail_interrupted(by: str, interrupt: BaseException, status: int) -> int:
    """Report an interrupted run: status 5 if it can be resumed, else the status that shells expect."""
    notes = _notes(interrupt)
    return _fail(f"stopped by {by}; {' '.join(notes) or _results()}", 5 if notes else status)


def _results() -> str:
    """A sentence on the outputs of a failed run: they appear whole or not at all, but a run may fail after that."""
    from .._base.output_files import count_results

    return "the output is complete." if count_results() else "no output file was written."


def _with_notes(message: str, error: BaseException) -> str:
    return " ".join([message, *(note[:1].upper() + note[1:] for note in _notes(error))])


def _notes(error: BaseException) -> list[str]:
    """The notes of an exception: that the finished work is saved, and how to resume it."""
    return getattr(error, "__notes__", [])


def _fail(message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # stderr is closed: only the status remains
        click.echo(f"kvtrace: {' '.join(message.splitlines())}", err=True)  # a file name may contain a newline
    if status in (1, 5):
        _forget_stdout()
    return status


def _forget_stdout() -> bool:
    """Redirect stdout to null if it takes nothing, so that Python reports it no more at exit; whether it does."""
    try:
        sys.stdout.flush()
    except (AttributeError, ValueError):
        pass  # stdout is closed
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _was_printed(error: OSError) -> bool:
    """Whether an error came from printing: stderr raises none, and files have names."""
    from traceback import walk_tb

    modules = {frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)}
    return error.filename is None and not modules.isdisjoint(("click.utils", "rich.console"))


def _fail_system(error: OSError, *, is_stdout: bool) -> int:
    from .._base.errors import FULL, unwritable
    from .._base.workers import place_of

    message = f"{error.strerror or 'system error'} ({place_of(error)}); {_results()}"
    if is_stdout:
        message = str(unwritable("stdout", error))
    return _fail(_with_notes(message, error), 5 if error.errno in FULL else 1)


def _fail_internal(error: Exception) -> int:
    from .._base.workers import place_of

    if os.environ.get("KVTRACE_DEBUG"):
        import traceback

        click.echo("".join(traceback.format_tb(error.__traceback__)), err=True, nl=False)
    message = (
        f"internal error: {place_of(error)}; {_results()} Please report it (KVTRACE_DEBUG=1 prints the "
        "source lines, without content)."
    )
    return _fail(_with_notes(message, error), 1)


SECTIONS = {  # section -> its commands in the order of the work, and the first sentence of each
    # NAME is NAME_command of NAME.py, which is loaded when it is used
    "From a log to an answer": {
        "start": "Answer from a log: how much memory, how many GPUs, and why.",
    },
    "From logs to traces": {
        "lint": "Find what breaks the sharing of prefixes in a raw log.",
        "anonymize": "Turn raw logs into a trace of block ids, without text.",
        "check": "Check a trace file, and list all violations.",
        "convert": "Convert a trace to another format, block size or time span.",
    },
    "Live": {
        "record": "Record live requests as traces, without storing text.",
        "watch": "Show live hit rates, and what more memory would bring.",
    },
    "Publish": {
        "release": "Coarsen a trace for publication, audit it, and write it.",
        "join": "Join linked windows of a recording to one audited trace.",
        "audit": "Audit what a trace reveals before you publish it.",
    },
    "Analyze": {
        "analyze": "Print statistics: lengths, hit rates, reuse, arrivals.",
        "curve": "Print the hit rate of an LRU cache at each capacity.",
        "compare": "Score how similar two traces are.",
        "report": "Write an HTML page of plots and tables.",
    },
    "Caches and serving": {
        "simulate": "Simulate prefix caches: engines, policies, capacities.",
        "explain": "Explain misses: one cause for each prompt token.",
        "sweep": "Run many simulations and write one table of results.",
        "tune": "Find the best setting of each eviction policy.",
        "plan": "Plan capacity: memory, instances for a target, costs.",
        "calibrate": "Fit the time of a step to a recording, or to kernel tables.",
        "validate": "Compare simulated with measured times: errors, intervals.",
        "models": "List the models that --model knows by name.",
    },
    "Synthesize": {
        "synthesize": "Synthesize a trace of any size that behaves like another.",
        "texts": "Generate prompts with the lengths and sharing of a trace.",
    },
    "Shell": {
        "completion": "Print the completion script of a shell.",
    },
}


def _loaded(name: str) -> click.Command:
    return keep_inputs(getattr(import_module(f"{__name__}.{name}"), f"{name}_command"))


@click.group(cls=Group, sections=SECTIONS, load=_loaded, context_settings=CONTEXT, epilog="Run kvtrace COMMAND --help for the options of a command and for examples.")
@click.version_option(__version__, message="kvtrace %(version)s")
def commands() -> None:
    """Turn raw LLM logs into KV-cache block traces that you can share; analyze, simulate and synthesize such traces."""
