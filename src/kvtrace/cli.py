"""The command line: arguments in, one library call, a report out. Only this file prints, reads argv or exits."""

from __future__ import annotations

import os
import sys

import click

from . import __version__

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True}


def main() -> None:
    """Run the command; every failure is one line on stderr and an exit status of docs/cli.md."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit status of a command line."""
    from .errors import KvtraceError

    try:
        return commands.main(arguments, prog_name="kvtrace", standalone_mode=False) or 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KvtraceError as error:
        return _fail(str(error), error.status)
    except (KeyboardInterrupt, click.Abort):
        return _fail("stopped by the keyboard; no output file was written.", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains while it shuts down
        return 1
    except MemoryError:
        return _fail("out of memory; no output file was written.", 1)
    except Exception as error:  # a fault of ours: its message could hold content, its place cannot
        return _internal(error)


def _fail(message: str, status: int) -> int:
    click.echo(f"kvtrace: {message}", err=True)
    return status


def _internal(error: Exception) -> int:
    from .workers import place_of

    if os.environ.get("KVTRACE_DEBUG"):
        import traceback

        click.echo("".join(traceback.format_tb(error.__traceback__)), err=True, nl=False)
    return _fail(
        f"internal error: {place_of(error)}; no output file was written. Please report it (KVTRACE_DEBUG=1 shows where, "
        "without content).",
        1,
    )


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, message="kvtrace %(version)s")
def commands() -> None:
    """Turn raw LLM logs into prefix-cache traces that can be shared, and make those traces useful."""


@commands.command()
@click.argument("inputs", nargs=-1, required=True, metavar="LOG...")
@click.option("-o", "--output", required=True, metavar="TRACE", help="File to write; - is stdout. .gz, .zst, .parquet by name.")
@click.option("--format", "to", metavar="NAME", help="mooncake, bailian or parquet.  [default: by the file's name, else mooncake]")
@click.option("--log-format", default="auto", metavar="NAME", help="block-hash, openai, tokens; auto looks at the first rows.")
@click.option("--map", "maps", multiple=True, metavar="FIELD=PATH", help="Where a field is, as in session=meta.conversation.")
@click.option("--time-unit", default="auto", metavar="UNIT", help="s, ms, us, ns or iso; auto looks at the first rows.")
@click.option("--tokenizer", default="deepseek-r1", metavar="NAME", help="A built-in name, a tokenizer.json or its folder, or a Hugging Face id.")
@click.option("--chat-template", metavar="FILE", help="A jinja file in place of the tokenizer's own template.")
@click.option("--no-chat-template", is_flag=True, help="Prompts are templated text already.")
@click.option("--generation-prompt", metavar="TEXT", help=r"What ends each prompt in place of the template's own; \n is a newline.")
@click.option("--block-size", default=512, metavar="TOKENS", help="Tokens a block.")
@click.option("--first-id", default=0, metavar="N", help="The first id that is written.")
@click.option("--tail", default=None, metavar="RULE", help="The last, partial block: shared, unique or drop.  [default: the profile's]")
@click.option("--outputs", is_flag=True, help="Also write ids for the blocks of the outputs.")
@click.option("--profile", default="exact", metavar="NAME", help="Release profile. exact: nothing coarsened, for use inside the house.")
@click.option("--keep-order", is_flag=True, help="Number and write the rows as they come, not by time.")
@click.option("--allow-truncated", is_flag=True, help="Take prompts that the logger cut short.")
@click.option("--key-file", metavar="FILE", help="A key to hash with, mode 0600; made if missing.  [default: random, never stored]")
@click.option("--on-error", default="stop", type=click.Choice(["stop", "skip"]), help="What a bad row does.")
@click.option("--max-errors", type=click.IntRange(0), metavar="N", help="With --on-error skip: stop after so many.  [default: no limit]")
@click.option("--rejects", metavar="FILE", help="With --on-error skip: where and why, a JSON object a bad row.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes.  [default: one a core]")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def anonymize(inputs, output, to, maps, key_file, no_chat_template, on_error, max_errors, rejects, quiet, first_id, **options):
    """Turn raw logs into a trace: text replaced by chained, keyed, renumbered block ids.

    A LOG is a file, a directory or a glob; .gz and .zst are read; - is stdin. Written beside the trace is
    TRACE.meta.json, which says how it was made.
    """
    from . import formats
    from .anonymize import anonymize_rows, summary
    from .keys import load_key
    from .logs.fieldmap import parse_map
    from .rejects import RejectsFile
    from .report import summary as said
    from .report.progress import Bar

    formats.check_output(output, to)
    console = _console()

    def start(meta):
        if not quiet:
            console.print("\n".join(said.opening(meta)), highlight=False, markup=False)

    with RejectsFile(rejects) as bad_rows, Bar(console, quiet) as bar:
        rows = anonymize_rows(
            inputs,
            field_map=parse_map(maps),
            use_template=not no_chat_template,
            key=load_key(key_file) if key_file else None,
            max_errors=0 if on_error == "stop" else -1 if max_errors is None else max_errors,
            on_reject=bad_rows.add,
            on_start=start,
            on_progress=bar.update,
            **{name: value for name, value in options.items() if value is not None},
        )
        figures = summary(rows)
        written = formats.write(
            rows.columns, output, format=to, first_id=first_id, block_size=rows.block_size, tail=rows.tail,
            meta=rows.meta | {"figures": figures},
        )  # fmt: skip
    if not quiet:
        console.print(said.closing(figures, rows.counts))
        console.print(f"wrote       {' and '.join(map(str, written))}", highlight=False, markup=False)


def _console():
    """Where progress and summaries go: stderr, so that a trace can go to stdout."""
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True)
    if not console.is_terminal:
        console.width = 160  # a pipe has no width to wrap at
    return console


@commands.command()
@click.argument("trace", metavar="TRACE")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.  [default: the sidecar's, else inferred]")
@click.option("--most", default=20, metavar="N", help="Violations of a kind to list.")
@click.option("-q", "--quiet", is_flag=True, help="Print violations only.")
def check(trace, block_size, most, quiet):
    """Check the invariants of any trace file: one line a violation, exit status 3 if there is one."""
    from .check import check as violations_of

    violations = violations_of(trace, block_size=block_size, most=most)
    for violation in violations:
        click.echo(str(violation))
    if not violations and not quiet:
        click.echo(f"{trace}: a trace that holds every invariant.")
    return 3 if violations else 0
