"""The command line: arguments in, one library call, a report out. Only this file prints, reads argv or exits."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings

import click

from . import __version__

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True}


def main(command: click.Command | None = None, name: str = "kvtrace") -> None:
    """Run a console script's command; every failure is one line on stderr and an exit status of docs/cli.md."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries, and lines of code: nothing that a user could mend
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
    from .errors import KvtraceError

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
        return _fail(str(error), error.status)
    except (KeyboardInterrupt, click.Abort):
        return _fail("stopped by the keyboard; no output file was written.", 130)
    except _Signal as stop:
        number = stop.args[0]
        return _fail(f"stopped by {signal.Signals(number).name}; no output file was written.", 128 + number)
    except BrokenPipeError:
        _forget_stdout()
        return 1
    except OSError as error:  # what no reader or writer expected: no more processes, a stdout that takes no help text
        _forget_stdout()
        return _system(error)
    except MemoryError:
        return _fail("out of memory; no output file was written.", 1)
    except Exception as error:  # a fault of ours: its message could hold content, its place cannot
        return _internal(error)


def _fail(message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # nobody listens: the status must do
        click.echo(f"kvtrace: {' '.join(message.splitlines())}", err=True)  # a file's name may hold a newline
    if status == 1:
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
    from .workers import place_of

    return _fail(f"{error.strerror or 'the system failed'} ({place_of(error)}); no output file was written.", 1)


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
@click.option("--first-id", default=0, metavar="N", type=click.IntRange(0), help="The first id that is written.")
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
    from . import preload

    if any(map(os.path.exists, inputs)):  # else an error is near, and nobody should wait for it
        preload.begin(options["tokenizer"])
    from . import formats
    from .anonymize import anonymize_rows, summary
    from .errors import UsageError
    from .keys import load_key
    from .logs.fieldmap import parse_map
    from .rejects import RejectsFile
    from .report import summary as said
    from .report.progress import Bar

    if on_error == "stop" and (rejects is not None or max_errors is not None):
        raise UsageError("--rejects and --max-errors go with --on-error skip.")
    formats.check_output(output, to)
    if rejects is not None:
        formats.check_output(rejects)
    _require_apart(inputs, output, rejects, key_file)
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


def _require_apart(inputs, *outputs):
    """No file that is written is another one, or a log that is read: it would be lost."""
    from .errors import UsageError
    from .files import is_regular
    from .logs import sources

    taken = {os.path.realpath(source.path) for source in sources.find(inputs)}
    for path in outputs:
        if path is not None and (path == "-" or is_regular(path)):
            place = "stdout" if path == "-" else os.path.realpath(path)
            if place in taken:
                raise UsageError(f"{path}: is named twice, and would be written over. Name another file.")
            taken.add(place)


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


@commands.command()
@click.argument("trace", metavar="TRACE")
@click.option("--basic", is_flag=True, help="Only the statistics of datagen and AIPerf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; docs/analyze.md lists its keys.")
@click.option("--quantiles", metavar="Q,...", help="Further quantiles of every distribution, as in 0.9,0.99.")
@click.option("--fold", "factors", metavar="N,...", help="Also hit rates where so many blocks are one, as in 1,2,4.")
@click.option("--ms-per-token", default=30.0, type=click.FloatRange(0), metavar="MS", help="Time of a generated token that the concurrency assumes.")
@click.option("--model-config", metavar="FILE", help="A model's config.json, for bytes of KV cache.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache a token, in place of --model-config.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.  [default: the sidecar's, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
def analyze(trace, basic, as_json, quantiles, factors, ms_per_token, model_config, kv_bytes_per_token, block_size, chain):
    """Say what a trace is like: lengths, hit rates, reuse, arrivals, conversations; TRACE - is stdin."""
    from . import formats
    from .analyze import analyze as analyzed
    from .analyze import basics, by_block_size
    from .kv_bytes import chosen
    from .lists import factors as parse_factors
    from .lists import quantiles as parse_quantiles
    from .report import analysis

    wanted, sizes = parse_quantiles(quantiles), parse_factors(factors)
    kv_bytes = chosen(model_config, kv_bytes_per_token)
    read = formats.read(trace, block_size=block_size, extra="ignore" if basic else "keep")
    read = read.chained() if chain else read
    if basic:
        found = basics(read, wanted)
        tables = analysis.basic_tables(found)
    else:
        found = analyzed(read, quantiles=wanted, ms_per_token=ms_per_token, kv_bytes_per_token=kv_bytes)
        tables = analysis.tables(found)
    folded = by_block_size(read, sizes)
    if as_json:
        print_json(found.to_dict() | ({"by_block_size": [size.to_dict() for size in folded]} if sizes else {}))
    else:
        print_tables([*tables, *([analysis.block_sizes(folded)] if sizes else [])])


def print_json(values) -> None:
    """Print one JSON object on stdout."""
    import orjson

    click.echo(orjson.dumps(values, option=orjson.OPT_INDENT_2))


def print_tables(tables) -> None:
    """Print tables on stdout, apart by empty lines: in colour on a terminal, plain and never wrapped in a pipe."""
    from rich.console import Console

    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console.width = 240  # a pipe has no width to wrap at
    with console.capture() as kept:
        for number, table in enumerate(tables):
            console.print(*([""] if number else []), table, sep="\n")
    click.echo("".join(f"{line.rstrip()}\n" for line in kept.get().splitlines()), nl=False)


@commands.command()
@click.argument("trace", metavar="TRACE")
@click.option("--capacity", default="auto", metavar="LIST", help="Capacities, as in 1000,64ktokens,24GiB,50%; a number alone is blocks, % is of the working set. auto: from the longest request to the working set.")
@click.option("--points", default=25, type=click.IntRange(1, 10_000), metavar="N", help="How many capacities auto takes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; docs/curve.md lists its keys.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header.")
@click.option("--sample", type=float, metavar="SHARE", help="Estimate from this share of the blocks, with errors.  [default: all, exact]")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="What the sample is drawn with.")
@click.option("--model-config", metavar="FILE", help="A model's config.json, for bytes of KV cache.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache a token, in place of --model-config.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.  [default: the sidecar's, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
def curve(trace, capacity, points, as_json, as_csv, sample, seed, model_config, kv_bytes_per_token, block_size, chain):
    """Say how often an LRU cache of each capacity hits, exactly, in one pass; TRACE - is stdin."""
    from . import formats
    from .capacity import parse_capacities
    from .errors import UsageError
    from .kv_bytes import chosen
    from .report import curve as shown
    from .reuse import hit_curve

    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other. Give one of them.")
    kv_bytes = chosen(model_config, kv_bytes_per_token)
    read = formats.read(trace, block_size=block_size, extra="ignore")
    found = hit_curve(read.chained() if chain else read, sample=sample, seed=seed)
    units = {"block_size": found.block_size, "working_set": found.working_set, "kv_bytes_per_token": kv_bytes}
    wanted = found.capacities(points) if capacity == "auto" else parse_capacities(capacity, **units)
    values = found.to_dict(sorted(set(wanted)), kv_bytes_per_token=kv_bytes)
    if as_json:
        print_json(values)
    elif as_csv:
        click.echo(shown.as_csv(values), nl=False)
    else:
        print_tables([shown.table(values)])
        for line in shown.notes(values):
            click.echo(line)


@commands.command()
@click.argument("trace", metavar="TRACE")
@click.option("-o", "--output", required=True, metavar="FILE", help="File to write; - is stdout. .gz, .zst, .parquet by name.")
@click.option("--to", metavar="NAME", help="A format (mooncake, bailian, parquet) or a client: aiperf, vllm, sglang, guidellm, dynamo, llm-d, vidur, azure, burstgpt, lmcache, libcachesim.  [default: by the file's name, else mooncake]")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block of TRACE.  [default: the sidecar's, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
@click.option("--start", metavar="TIME", help="Leave out what arrives before, as in 90s, 10m, 1.5h.  [default: the beginning]")
@click.option("--stop", metavar="TIME", help="Leave out what arrives then or later.  [default: the end]")
@click.option("--sample-sessions", default=1.0, metavar="SHARE", help="Keep this share of the sessions, each whole.")
@click.option("--sample", default=1.0, metavar="SHARE", help="Keep this share of the requests.")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="What the samples are drawn with.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Keep the first N requests.  [default: all]")
@click.option("--fold", default=1, metavar="FACTOR", help="Make this many blocks one.")
@click.option("--speed-up", default=1.0, metavar="RATIO", help="Divide times by this.")
@click.option("--first-id", default=0, metavar="N", type=click.IntRange(0), help="The first id that is written.")
@click.option("--extra", is_flag=True, help="Also write sessions and extra columns where the format has no place for them.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def convert(trace, output, to, block_size, start, stop, sample_sessions, sample, seed, fold, speed_up, first_id, extra, quiet, **options):
    """Convert a trace: to another format, for a client, or to a part of it; TRACE - is stdin.

    The steps come in this order: --chain, --start and --stop, --sample-sessions, --sample, --limit, --fold, --speed-up.
    """
    from . import clients, formats
    from .convert import convert as converted
    from .convert import meta_of
    from .durations import milliseconds

    is_client = to is not None and to not in formats.FORMATS
    (clients if is_client else formats).check_output(output, to)
    steps = options | {
        "start_ms": milliseconds(start) if start else 0.0,
        "stop_ms": milliseconds(stop) if stop else float("inf"),
        "session_share": sample_sessions,
        "row_share": sample,
        "factor": fold,
        "ratio": speed_up,
    }
    whole = formats.read(trace, block_size=block_size)
    part = converted(whole, **steps, seed=seed)
    meta = meta_of(part, whole, ratio=speed_up)
    if is_client:
        done = clients.write(part, output, to, first_id=first_id, meta=meta)
    else:
        done = clients.Written(formats.write(part, output, format=to, first_id=first_id, extra=extra, meta=meta), [], [])
    if not quiet:
        _say_converted(whole, part, done)


def _say_converted(whole, part, done):
    console = _console()
    if said := str(whole.repairs):
        console.print(f"mended      {said}", highlight=False, markup=False)
    console.print(f"converted   {len(part):,} of {len(whole):,} requests, blocks of {part.block_size:,} tokens", highlight=False, markup=False)
    for name, lines in (("lost", done.losses), ("wrote", [" and ".join(done.files)]), ("use", done.usage)):
        for line in lines:
            console.print(f"{name:<12}{line}", highlight=False, markup=False)


@commands.command()
@click.argument("trace", metavar="TRACE")
@click.argument("other", metavar="[TRACE2]", required=False)
@click.option("-o", "--output", required=True, metavar="FILE", help="HTML file to write; - is stdout.")
@click.option("--png", metavar="DIR", help="Also write the plots as figures for a paper into this folder.")
@click.option("--title", metavar="TEXT", help="What the page is called.  [default: the names of the traces]")
@click.option("--model-config", metavar="FILE", help="A model's config.json, for bytes of KV cache.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache a token, in place of --model-config.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.  [default: the sidecar's, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def report(trace, other, output, png, title, model_config, kv_bytes_per_token, block_size, chain, quiet):
    """Show a trace on one page of plots and tables that needs no network; with TRACE2, how the two differ."""
    from . import formats
    from .files import name_of, write_atomically
    from .kv_bytes import chosen
    from .report import interactive, page, paper
    from .report.analysis import plain

    interactive.script()  # before any work: it says what is not installed
    formats.check_output(output)
    paths = [path for path in (trace, other) if path is not None]
    _require_unread(output, paths)
    kv_bytes, studies = chosen(model_config, kv_bytes_per_token), []
    names = [os.path.basename(name_of(path)) for path in paths]
    names = names if len(set(names)) == len(paths) else paths  # of one name in two folders
    for path, name in zip(paths, names, strict=True):
        read = formats.read(path, block_size=block_size)
        studies.append(page.Study(read.chained() if chain else read, plain(name), kv_bytes))
    plots = page.draw(*studies)
    html = page.render(studies, plots, title)
    figures = paper.write_figures(plots, png) if png else []
    with write_atomically(output) as stream:
        stream.write(html.encode())
    if not quiet:
        for name in (*([] if output == "-" else [output]), *figures):
            _console().print(f"wrote       {name}", highlight=False, markup=False)


def _require_unread(output, inputs):
    """What is written is none of the files that are read."""
    from .errors import UsageError

    if output != "-" and os.path.realpath(output) in {os.path.realpath(path) for path in inputs if path != "-"}:
        raise UsageError(f"{output}: is the trace itself, and would be written over. Name another file.")
