"""`kvtrace anonymize`: turn raw logs into a trace."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from .._base.errors import UsageError
from .._base.options import option
from ..ingest.encoding_options import EncodingOptions
from ..privacy.release_options import ReleaseOptions
from .completion import gpus as gpu_names
from .help import Command
from .options import (
    RowsOption,
    record_options,
    size_of,
    taken,
    taken_publishing,
    taken_release,
    tasks_of,
)
from .output import Outcome, console, is_silent, print_line, print_rows, print_table
from .source_options import BAD_ROWS, LOGS, bad_rows_allowed

if TYPE_CHECKING:
    from ..ingest.encoding_tasks import TaskCheckpoint
    from ..privacy.numbering.run import Runner, TaskOptions

LARGE = "Large inputs"  # group of --help


@dataclass(frozen=True)
class TaskChoices:
    """How many processes work, and whether in tasks over files: where these run, and how much they hold."""

    workers: int | None = option(
        None, "Number of processes; with --runner, of concurrent tasks.  [default: one for each core]",
        metavar="N", minimum=1, group=LARGE,
    )  # fmt: skip
    runner: str | None = option(
        None, "For logs larger than memory: work in tasks over files, on this machine or on a Ray cluster.",
        choices=("local", "ray"), group=LARGE,
    )  # fmt: skip
    ray_address: str | None = option(
        None, "With --runner ray: address of the cluster.  [default: start Ray on this machine]", metavar="ADDRESS",
        group=LARGE,
    )  # fmt: skip
    partitions: int | None = option(
        None,
        "With --runner: number of parts that the log is divided into, and of tasks in each stage.  [default: by size]",
        metavar="N", minimum=1, group=LARGE,
    )  # fmt: skip
    memory: int | None = option(
        None, "With --runner: memory limit on this machine, such as 2GB; TRACE must be a .dataset folder.",
        metavar="SIZE", parse=size_of, group=LARGE,
    )  # fmt: skip
    work_dir: str | None = option(
        None, "With --runner: folder or URL for intermediate files; removed at the end.  [default: beside TRACE]",
        metavar="FOLDER", group=LARGE,
    )  # fmt: skip

    def run(self) -> contextlib.AbstractContextManager[Runner]:
        """The runner of --runner."""
        from .._base.memory import keep_little
        from ..privacy.numbering.run import LocalRunner, on_ray

        keep_little()
        local = self.runner == "local"
        return contextlib.nullcontext(LocalRunner(self.workers)) if local else on_ray(self.ray_address, self.workers)

    def options(
        self, runner: Runner, output: str, key_file: str | None, checkpoint: TaskCheckpoint | None, quiet: bool
    ) -> TaskOptions:
        """Where the tasks of a runner work, and how much they hold."""
        work = self.work_dir or (checkpoint.work if checkpoint else None)
        settings = {"partitions": self.partitions, "key_file": key_file}
        return tasks_of(runner, output, self.memory, work=work, quiet=quiet, **settings)


@click.command("anonymize", cls=Command, page="ingest/anonymize.md", groups={"--first-id": "Blocks", "--resume": "Large inputs", "--gpu": "Input", "--gpus": "Input", "--costs": "Input"}, examples=(
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
@click.option("--costs", "costs_file", metavar="FILE", help="Costs that kvtrace calibrate wrote, in place of --gpu. --service-time then names another model than the measured one.")
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
@record_options(TaskChoices)
@click.option("-v", "--verbose", is_flag=True, help="Also print the tokenizer library, and how the chat template is applied.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def anonymize_command(inputs, output, key_file, resume, rejects, keep_order, verbose, quiet, **options):
    """Turn raw logs into a trace of block ids, without text.

    A LOG is a file, a directory or a glob, also .gz and .zst; - is stdin. The release profile coarsens the trace, and
    an audit checks it before the file appears. Two files are written beside the trace: TRACE.meta.json records how it
    was made, and TRACE.card.md is a data card to publish with it.
    """
    from ..text import preload, trial

    trial.hides_panics = not is_silent()  # a Python program may write to stderr from its own threads
    if any(map(os.path.exists, inputs)):  # else an error follows, which should not wait for the tokenizer
        preload.begin(options["tokenizer"], inputs)
    from .._base.file_locks import only_writer
    from .._base.row_counts import RejectsFile
    from ..formats import writing
    from ..formats.sidecar import sidecar_path
    from ..ingest.keys import run_key
    from ..ingest.pipeline import Listeners
    from ..report import raw_logs
    from ..report.progress import Bar

    on_error, max_errors = options.pop("on_error"), options.pop("max_errors")
    if on_error == "stop" and (rejects is not None or max_errors is not None):
        raise UsageError("--rejects and --max-errors require --on-error skip.")
    to_write = taken_publishing(options)
    writing.check_output(output, to_write["format"])
    if rejects is not None:
        writing.require_place(rejects)
    chosen = taken(TaskChoices, options)
    if chosen.runner is None and replace(chosen, workers=None) != TaskChoices():
        raise UsageError("--ray-address, --partitions, --memory and --work-dir require --runner.")
    estimate = _service_model(*map(options.pop, ("service_time", "gpu_name", "gpus", "costs_file")))
    checkpoint = _checkpoint(inputs, output, key_file, resume, in_tasks=chosen.runner is not None)
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
        run_key(key_file, lambda: checkpoint is not None and os.path.exists(checkpoint.path)) as key,
        checkpoint or contextlib.nullcontext(),
        RejectsFile(rejects) as bad_rows,
        Bar(screen, quiet) as bar,
    ):
        listeners = Listeners(on_start=start, on_note=note, on_progress=bar.update, on_reject=bad_rows.add)
        common = {
            "key": key, "service_model": estimate, "keep_order": keep_order, "checkpoint": checkpoint,
            "listeners": listeners,
        }  # fmt: skip
        if chosen.runner is None:
            results = _in_one_process(inputs, output, to_write, encoding, release, workers=chosen.workers, **common)
        else:
            with chosen.run() as runner:
                tasks = chosen.options(runner, output, key_file, checkpoint, quiet)
                results = _in_tasks(inputs, output, to_write, encoding, release, tasks=tasks, **common)
    if not quiet:
        _print_summary(screen, *results, request_sample=encoding.request_sample)
    return Outcome(results[-1])


def _service_model(service_time, gpu_name, gpus, costs_file):
    """The model that estimates service times; None without --service-time and --costs."""

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


def _in_tasks(inputs, output, to_write, encoding, release, *, tasks, **options):
    """Anonymise in tasks over files. Returns figures, counts, usage, release and written files."""
    from ..ingest.pipeline_tasks import anonymize_dataset
    from ..privacy.publishing import publish

    with anonymize_dataset(inputs, encoding, release, tasks=tasks, **options) as dataset:
        released = dataset.made
        written = publish(released, output, memory=tasks.memory, **to_write)
        return released.figures, dataset.counts, dataset.usage, released.account, written


def _print_summary(screen, trace_figures, counts, usage, account, written, *, request_sample):
    """Print the counts of the log, the costs of the release, and the written files."""
    from ..report import raw_logs, release_tables

    print_rows(screen, raw_logs.closing(trace_figures, counts, usage.rows(), request_sample))
    for warning in raw_logs.not_rendered(counts.not_rendered, counts.unsized_media):
        print_line(screen, f"warning     {warning}")
    if account and len(account.steps) > 1:
        print_table(screen, release_tables.costs(account))
    for line in (*(release_tables.notes(account) if account else ()), *release_tables.audited(written)):
        print_line(screen, line)


def _checkpoint(inputs, output, key_file, resume, *, in_tasks):
    """The checkpoint of the run; None if the run cannot be resumed. UsageError if it cannot but --resume is given."""
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
