"""Options of commands that read what an engine or a benchmark measured: the same requests as a trace, and its scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from ..serving.deployment import Deployment
from ..serving.run_options import TimeSetup
from .deployment_options import deployment_of
from .options import BLOCK_SIZE_OF_TRACE, record_options, with_options

TRACE_OF_LOG = with_options(
    click.option("--trace", "trace", metavar="TRACE", help="The same requests in the same order as in LOG, with the ids of their blocks.  [default: no two requests share a block]"),
    BLOCK_SIZE_OF_TRACE,
)  # fmt: skip
SCHEDULER = record_options(TimeSetup, only=("scheduler",), settings={"scheduler": {"help": "Options of the engine's scheduler, with its own names. Example: max_num_seqs=128.  [default: from LOG]"}})


def recording_of(log: str, options: dict[str, Any]) -> Any:
    """The recording of a command's LOG, with the blocks of its --trace."""
    from ..formats import reading
    from ..serving.recordings import read_recording

    trace = reading.read(options["trace"], block_size=options["block_size"]) if options["trace"] else None
    return read_recording(log, format=options["recording_format"], trace=trace)


def recorded_deployment(recording: Any, options: dict[str, Any]) -> Deployment:
    """The deployment of a recording, with what the options add; UsageError if they contradict it."""
    recorded = recording.settings.deployment
    base = replace(recorded, model=options["model_config"] or recorded.model, engine=options["engine"] or recorded.engine)
    return deployment_of(dict(options), base, source="LOG")


def scheduler_of(recording: Any, options: dict[str, Any]) -> Any:
    """The scheduler of the recorded engine, or of --engine, with the options of --scheduler."""
    from ..serving.schedulers.base import with_options as with_changes

    scheduler = recording.scheduler(options["engine"])
    return with_changes(scheduler, options["scheduler"]) if options["scheduler"] else scheduler


def contradictions(recording: Any, options: dict[str, Any]) -> list[str]:
    """A sentence for --engine, if it contradicts the recording, and for a model whose cache groups are not simulated."""
    from ..serving.models.engine_layout import has_groups

    model = options["model_config"]
    groups = model is not None and has_groups(model)
    hybrid = ["the model has windows or states: its cache is simulated as full attention."] if groups else []
    return [*recording.settings.contradictions(engine=options["engine"]), *hybrid]
