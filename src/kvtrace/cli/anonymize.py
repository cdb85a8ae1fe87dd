"""`kvtrace anonymize`: turn raw logs into a trace."""

from __future__ import annotations

import contextlib
import os

import click

from ..ingest.encoding_options import EncodingOptions
from ..privacy.release_options import ReleaseOptions
from .completion import gpus as gpu_names
from .help import Command
from .options import COSTS, RowsOption, record_options, require_memory, taken, taken_release
from .output import console, print_line
from .source_options import BAD_ROWS, LOGS, bad_rows_allowed


@click.command("anonymize", cls=Command, groups={"--first-id": "Blocks", "--resume": "Large inputs", "--gpu": "Input", "--gpus": "Input", "--costs": "Input"}, examples=(
    "kvtrace anonymize log.jsonl -o trace.jsonl",
    "kvtrace anonymize log.jsonl -o fine.jsonl.gz --block-size 16 --profile strict",
    "kvtrace anonymize 'logs/*.jsonl' -o day.dataset --runner local --memory 8GB",
))
@LOGS
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="TRACE",
    help="Trace file to write; - is stdout. The name may end in .gz, .zst, .parquet or .dataset.",
)
@click.option(
    "--format",
    "to",
    metavar="NAME",
    help="Trace format: mooncake, bailian or parquet.  [default: from the file name, else mooncake]",
)
@record_options(ReleaseOptions)
@record_options(EncodingOptions, without=("outputs", "allow_truncated", "on_mismatch"))
@click.option("--first-id", default=0, metavar="N", type=click.IntRange(0), help="First block id in the output.")
@record_options(EncodingOptions, only=("outputs",))
@click.option(
    "--service-time",
    metavar="MODEL",
    help="For sessions of a log without end times and durations: estimate how long each request takes alone, with this model on --gpu.",
)
@click.option("--gpu", "gpu_name", metavar="G", cls=RowsOption, rows=gpu_names, help="With --service-time: {rows}, or a JSON file.")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="With --service-time: GPUs of an instance.  [default: 1; with --costs as many as were measured]")
@COSTS
@click.option("--against", metavar="TRACE", help="Earlier release; fail if its requests can be recognised in this one.")
@click.option(
    "--keep-order", is_flag=True, help="With --profile exact: keep the log's order instead of sorting by time."
)
@record_options(EncodingOptions, only=("allow_truncated", "on_mismatch"))
@click.option(
    "--key-file",
    metavar="FILE",
    help="Key file (mode 0600); created if it does not exist.  [default: a random key, never stored]",
)
@click.option("--resume", is_flag=True, help="With --key-file: continue an interrupted run of the same command.")
@BAD_ROWS
@click.option(
    "--rejects",
    metavar="FILE",
    help="With --on-error skip: write the place and reason of each bad row to FILE, as JSON lines.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of processes; with --runner, of concurrent tasks.  [default: one for each core]",
)
@click.option(
    "--runner",
    type=click.Choice(["local", "ray"]),
    help="For logs larger than memory: work in tasks over files, on this machine or on a Ray cluster.",
)
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    help="With --runner ray: address of the cluster.  [default: start Ray on this machine]",
)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="With --runner: number of parts that the log is divided into, and of tasks in each stage.  [default: by size]",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="With --runner: memory limit on this machine, such as 2GB; TRACE must be a .dataset folder.",
)
@click.option(
    "--work-dir",
    metavar="FOLDER",
    help="With --runner: folder or URL for intermediate files; removed at the end.  [default: beside TRACE]",
)
@click.option("-v", "--verbose", is_flag=True, help="Also print the tokenizer library, and how the chat template is applied.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def anonymize_command(
    inputs,
    output,
    to,
    key_file,
    resume,
    on_error,
    max_errors,
    rejects,
    verbose,
    quiet,
    runner,
    ray_address,
    partitions,
    memory,
    work_dir,
    service_time,
    gpu_name,
    gpus,
    costs_file,
    first_id,
    against,
    keep_order,
    workers,
    **options,
):
    """Turn raw logs into a trace of block ids, without text.

    A LOG is a file, a directory or a glob, also .gz and .zst; - is stdin. The release profile coarsens the trace, and
    an audit checks it before the file appears. Two files are written beside the trace: TRACE.meta.json records how it
    was made, and TRACE.card.md is a data card to publish with it.
    """
    from ..text import preload, trial

    trial.hides_panics = True
    if any(map(os.path.exists, inputs)):  # else an error follows, which should not wait for the tokenizer
        preload.begin(options["tokenizer"])
    from .._base.errors import UsageError
    from .._base.file_locks import only_writer
    from .._base.row_counts import RejectsFile
    from ..formats import writing
    from ..formats.sidecar import sidecar_path
    from ..ingest.keys import load_key
    from ..ingest.pipeline import Listeners
    from ..report import raw_logs
    from ..report.progress import Bar

    if on_error == "stop" and (rejects is not None or max_errors is not None):
        raise UsageError("--rejects and --max-errors require --on-error skip.")
    writing.check_output(output, to)
    if rejects is not None:
        writing.require_place(rejects)
    if runner is None and (ray_address, partitions, memory, work_dir) != (None,) * 4:
        raise UsageError("--ray-address, --partitions, --memory and --work-dir require --runner.")
    estimate = _service_model(service_time, gpu_name, gpus, costs_file)
    checkpoint = _checkpoint(inputs, output, key_file, resume, in_tasks=runner is not None)
    release = taken_release(options)
    encoding = taken(EncodingOptions, options, max_errors=bad_rows_allowed(on_error, max_errors))
    screen = console()

    def start(meta):
        if not quiet:
            for line in raw_logs.opening(meta, verbose=verbose):
                print_line(screen, line)

    def note(text):
        if not quiet:
            screen.print(f"note        {text}", highlight=False, markup=False)

    beside = [sidecar_path(output), writing.card_path(output), *([] if rejects is None else [rejects])]
    with (
        only_writer(output, beside),
        checkpoint or contextlib.nullcontext(),
        RejectsFile(rejects) as bad_rows,
        Bar(screen, quiet) as bar,
    ):
        listeners = Listeners(on_start=start, on_note=note, on_progress=bar.update, on_reject=bad_rows.add)
        common = {
            "key": load_key(key_file) if key_file else None, "service_model": estimate, "keep_order": keep_order,
            "checkpoint": checkpoint, "listeners": listeners,
        }  # fmt: skip
        to_write = {"format": to, "first_id": first_id, "against": against}
        if runner is None:
            results = _in_one_process(inputs, output, to_write, encoding, release, workers=workers, **common)
        else:
            with _tasks(runner, ray_address, workers) as tasks:
                options = _task_options(tasks, output, work_dir, memory, partitions, key_file, checkpoint, quiet)
                results = _in_tasks(inputs, output, to_write, encoding, release, tasks=options, **common)
    if not quiet:
        _print_summary(screen, *results, request_sample=encoding.request_sample)


def _service_model(service_time, gpu_name, gpus, costs_file):
    """The model that estimates service times; None without --service-time and --costs."""
    from .._base.errors import UsageError

    if service_time is None and costs_file is None:
        if gpu_name is not None or gpus is not None:
            raise UsageError("--gpu and --gpus need --service-time MODEL.")
        return None
    from ..serving.service_times import service_model

    return service_model(service_time, gpu_name, gpus=gpus, costs=costs_file)


def _in_one_process(inputs, output, to_write, encoding, release, **options):
    """Anonymise in this process and its workers. Returns figures, counts, usage, release and written files."""
    from ..ingest.pipeline import anonymize_rows
    from ..privacy.publishing import publish, publish_columns
    from ..trace.meta import merge
    from ..trace.trace_figures import figures

    rows = anonymize_rows(inputs, encoding, release, **options)
    trace = rows.trace()
    if options["keep_order"]:  # rows in the order of the log are no Trace
        settings = {"meta": merge(rows.meta, {"figures": figures(trace)}), "block_size": rows.block_size, "tail": rows.tail}
        written = publish_columns(rows.columns, output, **settings, **to_write)
    else:
        written = publish(trace, output, **to_write)
    return written.figures, rows.counts, rows.usage, rows.released, written


def _tasks(runner, ray_address, workers):
    """The runner of --runner, as a context manager."""
    from .._base.memory import keep_little
    from ..privacy.numbering.run import LocalRunner, on_ray

    keep_little()
    return contextlib.nullcontext(LocalRunner(workers)) if runner == "local" else on_ray(ray_address, workers)


def _task_options(tasks, output, work_dir, memory, partitions, key_file, checkpoint, quiet):
    """Where tasks work, and how much they hold."""
    from .._base.file_locks import temporary_name
    from .._base.memory import parse_memory
    from ..privacy.numbering.run import TaskOptions
    from ..privacy.numbering.task_plan import blocks_within, require_folder, running

    memory_bytes = None if memory is None else parse_memory(memory)
    require_folder(memory_bytes, output)
    work = work_dir or (checkpoint.work if checkpoint else temporary_name(os.path.realpath(output)))
    blocks = blocks_within(memory_bytes, tasks.workers)
    require_memory(running(tasks.workers, blocks), memory_bytes, quiet)
    return TaskOptions(tasks, work, partitions, task_blocks=blocks, memory=memory_bytes, key_file=key_file)


def _in_tasks(inputs, output, to_write, encoding, release, *, tasks, **options):
    """Anonymise in tasks over files. Returns figures, counts, usage, release and written files."""
    from ..ingest.pipeline_tasks import anonymize_dataset
    from ..privacy.publishing import publish

    with anonymize_dataset(inputs, encoding, release, tasks=tasks, **options) as done:
        made = done.made
        written = publish(made, output, memory=tasks.memory, **to_write)
        return made.figures, done.counts, done.usage, made.account, written


def _print_summary(screen, trace_figures, counts, usage, account, written, *, request_sample):
    """Print the counts of the log, the costs of the release, and the written files."""
    from ..report import raw_logs, release_tables

    screen.print(raw_logs.closing(trace_figures, counts, usage.rows(), request_sample))
    for warning in raw_logs.not_rendered(counts.not_rendered, counts.unsized_media):
        print_line(screen, f"warning     {warning}")
    if account and len(account.steps) > 1:
        screen.print(release_tables.costs(account))
    for line in (*(release_tables.notes(account) if account else ()), *release_tables.audited(written)):
        print_line(screen, line)


def _checkpoint(inputs, output, key_file, resume, *, in_tasks):
    """The checkpoint of the run; None if the run cannot be resumed. UsageError if it cannot but --resume is given."""
    from .._base.errors import UsageError
    from ..ingest.checkpoint import Checkpoint, path_beside, why_not_resumable

    reason = why_not_resumable(inputs, output, key_file)
    if reason is None and in_tasks:
        from ..ingest.encoding_tasks import TaskCheckpoint

        return TaskCheckpoint(path_beside(output), resume=resume)
    if reason is None:
        return Checkpoint(path_beside(output), resume=resume)
    if resume:
        raise UsageError(reason)
    return None
