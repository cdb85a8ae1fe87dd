"""`kvtrace anonymize`: raw logs in, a trace out."""

from __future__ import annotations

import contextlib
import os

import click

from .output import console
from .release_options import chosen_profile, release_options


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="LOG...")
@click.option("-o", "--output", required=True, metavar="TRACE", help="File to write; - is stdout. .gz, .zst, .parquet by name.")
@click.option("--format", "to", metavar="NAME", help="mooncake, bailian or parquet.  [default: by the file's name, else mooncake]")
@click.option("--log-format", default="auto", metavar="NAME", help="A reader of docs/ingest/logs.md; auto looks at the first rows.")
@click.option("--map", "maps", multiple=True, metavar="FIELD=PATH", help="Where a field is, as in session=meta.conversation.")
@click.option("--time-unit", default="auto", metavar="UNIT", help="s, ms, us, ns or iso; auto looks at the first rows.")
@click.option("--tokenizer", default="deepseek-r1", metavar="NAME", help="A built-in name, a tokenizer.json or its folder, or a Hugging Face id.")
@click.option("--chat-template", metavar="FILE", help="A jinja file in place of the tokenizer's own template.")
@click.option("--no-chat-template", is_flag=True, help="Prompts are templated text already.")
@click.option("--generation-prompt", metavar="TEXT", help=r"What ends each prompt in place of the template's own; \n is a newline.")
@click.option("--block-size", type=int, metavar="TOKENS", help="Tokens a block.  [default: 512, or that of the hashes in the log]")
@click.option("--first-id", default=0, metavar="N", type=click.IntRange(0), help="The first id that is written.")
@click.option("--outputs", is_flag=True, help="Also write ids for the blocks of the outputs.")
@release_options
@click.option("--tenant-field", metavar="PATH", help="Where a row names the tenant: k then counts tenants.")
@click.option("--isolate-tenants", is_flag=True, help="Tenants share no blocks, as in engines that keep their caches apart.")
@click.option("--arrivals", metavar="MODEL", help="Times for a log that has none, as in rate=2/s,think=30s,seed=1.")
@click.option("--against", metavar="TRACE", help="An earlier release, which must not be found again in this one.")
@click.option("--keep-order", is_flag=True, help="With --profile exact: number and write the rows as they come, not by time.")
@click.option("--allow-truncated", is_flag=True, help="Take prompts that the logger cut short, or that lack their beginning.")
@click.option("--key-file", metavar="FILE", help="A key to hash with, mode 0600; made if missing.  [default: random, never stored]")
@click.option("--resume", is_flag=True, help="With --key-file: go on with a run of this command that was stopped.")
@click.option("--on-error", default="stop", type=click.Choice(["stop", "skip"]), help="What a bad row does.")
@click.option("--max-errors", type=click.IntRange(0), metavar="N", help="With --on-error skip: stop after so many.  [default: no limit]")
@click.option("--rejects", metavar="FILE", help="With --on-error skip: where and why, a JSON object a bad row.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes, or with --runner tasks at once.  [default: one a core]")
@click.option("--runner", type=click.Choice(["local", "ray"]), help="Work in tasks over files, in bounded memory: on this machine or on a Ray cluster.")
@click.option("--ray-address", metavar="A", help="With --runner ray: join the cluster there.  [default: one of this machine alone]")
@click.option("--partitions", type=click.IntRange(1), metavar="N", help="With --runner: parts of the log, and tasks of each stage.  [default: by size]")
@click.option("--memory", metavar="SIZE", help="With --runner: what may be taken on this machine, as in 2GB; TRACE is a folder of parts.")
@click.option("--work-dir", metavar="FOLDER", help="With --runner: where tasks hand on files, a URL too; it is removed.  [default: beside TRACE]")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def anonymize(inputs, output, to, maps, key_file, resume, no_chat_template, on_error, max_errors, rejects, quiet, runner, ray_address, partitions, memory, work_dir, **options):
    """Turn raw logs into a trace: text replaced by chained, keyed, renumbered block ids.

    A LOG is a file, a directory or a glob; .gz and .zst are read; - is stdin. The trace is coarsened as its release
    profile says, and audited before it gets its name. Written beside it are TRACE.meta.json, which says how it was made,
    and TRACE.card.md, which says so to people.
    """
    from ..text import preload

    if any(map(os.path.exists, inputs)):  # else an error is near, and nobody should wait for it
        preload.begin(options["tokenizer"])
    from .._base.errors import UsageError
    from .._base.rejects import RejectsFile
    from ..formats import writing
    from ..ingest.keys import load_key
    from ..ingest.logs.fieldmap import parse_map
    from ..report import summary as said
    from ..report.progress import Bar

    if on_error == "stop" and (rejects is not None or max_errors is not None):
        raise UsageError("--rejects and --max-errors go with --on-error skip.")
    writing.check_output(output, to)
    if rejects is not None:
        writing.check_output(rejects)
    if runner is None and (ray_address, partitions, memory, work_dir) != (None,) * 4:
        raise UsageError("--ray-address, --partitions, --memory and --work-dir go with --runner.")
    if runner is not None and resume:
        raise UsageError("--resume goes without --runner: a task that died is done again by itself.")
    checkpoint = None if runner else _spool(inputs, output, rejects, key_file, resume)
    _require_apart(inputs, output, rejects, key_file, checkpoint and checkpoint.path)
    options["profile"] = chosen_profile(options)
    screen = console()

    def start(meta):
        if not quiet:
            screen.print("\n".join(said.opening(meta)), highlight=False, markup=False)

    with checkpoint or contextlib.nullcontext(), RejectsFile(rejects) as bad_rows, Bar(screen, quiet) as bar:
        common = {name: value for name, value in options.items() if value is not None} | {
            "field_map": parse_map(maps),
            "use_template": not no_chat_template,
            "key": load_key(key_file) if key_file else None,
            "max_errors": 0 if on_error == "stop" else -1 if max_errors is None else max_errors,
            "on_reject": bad_rows.add,
            "on_start": start,
            "on_progress": bar.update,
        }
        if runner is None:
            made = _in_one(inputs, output, to, checkpoint, **common)
        else:
            tasks = {"partitions": partitions, "key_file": key_file, "quiet": quiet}
            made = _in_tasks(inputs, output, to, runner, ray_address, work_dir, memory, **tasks, **common)
    if not quiet:
        _say(screen, *made)


def _in_one(inputs, output, to, checkpoint, *, first_id, against=None, **options):
    """Anonymise in this process and its workers; what there is to say of it."""
    from ..ingest.pipeline import anonymize_rows
    from ..privacy.publishing import publish
    from ..trace.trace_figures import figures

    rows = anonymize_rows(inputs, checkpoint=checkpoint, **options)
    found, released = figures(rows.trace()), rows.released
    written = publish(
        rows.columns, output, format=to, first_id=first_id, block_size=rows.block_size, tail=rows.tail,
        meta=rows.meta | {"figures": found}, contributors=released and released.contributors, against=against,
    )  # fmt: skip
    return found, rows.counts, released, written


def _in_tasks(inputs, output, to, runner, ray_address, work_dir, memory, *, quiet, first_id, against=None, workers=None, **options):
    """Anonymise in tasks over files; what there is to say of it."""
    from .._base.memory import keep_little, parse_memory
    from .._base.output_files import temporary_name
    from ..ingest.pipeline_tasks import anonymize_dataset
    from ..privacy.numbering.bound import blocks_within, require_folder, running
    from ..privacy.numbering.local_runner import LocalRunner
    from ..privacy.numbering.ray_runner import on_ray
    from ..privacy.publishing import publish_chunks
    from .large import require_memory

    keep_little()
    most = None if memory is None else parse_memory(memory)
    require_folder(most, output)
    work = work_dir or temporary_name(os.path.realpath(output))
    with contextlib.nullcontext(LocalRunner(workers)) if runner == "local" else on_ray(ray_address, workers) as tasks:
        blocks = blocks_within(most, tasks.workers)
        require_memory(running(tasks.workers, blocks), most, quiet)
        with anonymize_dataset(inputs, runner=tasks, work=work, task_blocks=blocks, **options) as done:
            made = done.made
            written = publish_chunks(
                made.columns(), output, format=to, first_id=first_id, block_size=made.plan.block_size, tail=made.plan.tail,
                meta=made.meta | {"figures": made.figures}, contributors=made.contributors(), against=against, memory=most,
            )  # fmt: skip
            return made.figures, done.counts, made.account, written


def _say(screen, found, counts, account, written):
    """What was read, what the release cost, and what was written."""
    from ..report import release_costs as told
    from ..report import summary as said

    screen.print(said.closing(found, counts))
    if account and len(account.steps) > 1:
        screen.print(told.costs(account))
    for line in (*(told.notes(account) if account else ()), *told.audited(written)):
        screen.print(line, highlight=False, markup=False)


def _spool(inputs, output, rejects, key_file, resume):
    """What keeps the run's work until it is done; None where it can't be resumed, an error if --resume asks for it."""
    from .._base.errors import UsageError
    from ..formats import writing
    from ..formats.sidecar import sidecar_path
    from ..ingest.checkpoint import Checkpoint, path_beside, why_not

    reason = why_not(inputs, output, key_file)
    if reason is None:
        files = (output, sidecar_path(output), writing.card_path(output), *([] if rejects is None else [rejects]))
        return Checkpoint(path_beside(output), resume=resume, outputs=files)
    if resume:
        raise UsageError(reason)
    return None


def _require_apart(inputs, *outputs):
    """No file that is written is another one, or a log that is read: it would be lost."""
    from .._base.errors import UsageError
    from .._base.files import is_regular
    from ..ingest.logs import sources

    taken = {os.path.realpath(source.path) for source in sources.find(inputs)}
    for path in outputs:
        if path is not None and (path == "-" or is_regular(path)):
            place = "stdout" if path == "-" else os.path.realpath(path)
            if place in taken:
                raise UsageError(f"{path}: is named twice, and would be written over. Name another file.")
            taken.add(place)
