"""`kvtrace start`: from a log to an answer."""

from __future__ import annotations

import os

import click

from ..from_log import ARRIVALS, ENGINE_BLOCK, STEPS, StartOptions, answer_from
from ..ingest.encoding_options import EncodingOptions
from ..privacy.release_options import ReleaseOptions
from ..serving.planning.plan_target import PlanTarget
from .completion import gpus
from .help import Command
from .options import QUIET, record_options, taken
from .output import Outcome, console, echo, is_silent, print_json
from .source_options import LOG_FORMAT, LOGS

OF_ENCODING = {  # defaults that differ from those of kvtrace anonymize
    "block_size": {"help": f"Tokens per block.  [default: that of the log's hashes, else {ENGINE_BLOCK}; 512 above 64 MiB]"},
    "arrivals": {
        "help": "Arrival times for a log without times, such as rate=2/s,think=30s,seed=1: conversations a second.  "
        f"[default: {ARRIVALS}]"
    },
}  # fmt: skip


@click.command("start", cls=Command, page="index.md", groups={"--block-size": "Blocks"}, examples=(
    "kvtrace start log.jsonl",
    "kvtrace start 'logs/*.jsonl' -o answer --model llama-3.1-70b --gpu h200 --ttft 500ms",
))
@LOGS
@record_options(StartOptions, settings={"output": {}, "gpu": {"rows": gpus}})
@record_options(PlanTarget, only=("ttft_s", "quantile", "max_busy", "spare", "gpu_price"))
@LOG_FORMAT
@record_options(EncodingOptions, only=("tokenizer", "block_size", "arrivals"), settings=OF_ENCODING)
@record_options(ReleaseOptions, only=("profile",))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the lines, and the figures of each part.")
@QUIET
def start_command(inputs, as_json, quiet, **options):
    """Answer from a log: how much memory, how many GPUs, and why.

    A LOG is a file, a directory or a glob, also .gz and .zst; or a trace. It is anonymized into a new folder and audited;
    then ten lines follow, a page, and the next commands to paste.
    """
    from ..report.progress import Steps
    from ..text import preload, trial

    trial.hides_panics = not is_silent()  # a Python program may write to stderr from its own threads
    if any(map(os.path.exists, inputs)):
        preload.begin(options["tokenizer"], inputs)
    with Steps(console(), quiet) as steps:
        answer = answer_from(
            inputs, taken(StartOptions, options), taken(PlanTarget, options), taken(EncodingOptions, options),
            taken(ReleaseOptions, options), on_step=lambda step: steps.update(STEPS.index(step), len(STEPS), step),
        )  # fmt: skip
    if as_json:
        print_json(answer.to_dict())
    else:
        echo(answer.text())
    return Outcome(answer, answer.status)
