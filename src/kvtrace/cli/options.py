"""Options that several commands share, and what the commands do with them.

A data set larger than memory is read as a stream; its memory bound is printed before it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any

import click

from .._base.options import Record
from .help import PageOption, RecordOption
from .help import RowsOption as RowsOption
from .output import print_lines

MEMORY = click.option("--memory", metavar="SIZE", help="Stop if a data set may need more memory than SIZE, such as 2GB.")


def load(path: str, memory: str | None, quiet: bool, need: Callable[[Any], Any], **options: Any) -> Any:
    """The trace of a command, which needs `need(dataset)` for a data set; `options` are those of `open_trace`."""
    from ..formats.lazy import open_trace

    return open_trace(path, memory=size_of(memory), need=need, on_need=None if quiet else print_need, **options)


def opened(path: str, memory: str | None, block_size: int | None = None) -> tuple[Any, int | None]:
    """The data set at a path and the memory limit in bytes; (None, None) for any other trace."""
    from ..formats.lazy import dataset_at

    max_bytes = size_of(memory)
    return dataset_at(path, block_size=block_size, memory=max_bytes), max_bytes


def require_memory(need: Any, max_bytes: int | None, quiet: bool) -> None:
    """UsageError if the need exceeds the limit; otherwise print the need."""
    from ..formats import lazy

    lazy.require_memory(need, max_bytes, None if quiet else print_need)


def size_of(memory: str | None) -> int | None:
    """The bytes of --memory, or None."""
    from .._base.memory import parse_memory

    return None if memory is None else parse_memory(memory)


def tasks_of(runner: Any, output: str, memory: int | None, *, work: str | None, quiet: bool, **options: Any) -> Any:
    """The TaskOptions of a command, which work beside the output by default; UsageError if `memory` bytes are too few.

    The other options are those of TaskOptions.
    """
    import os

    from .._base.file_locks import temporary_name
    from ..privacy.numbering.run import TaskOptions
    from ..privacy.numbering.task_plan import blocks_within, require_folder, running

    require_folder(memory, output)
    blocks = blocks_within(memory, runner.workers)
    require_memory(running(runner.workers, blocks), memory, quiet)
    folder = work or temporary_name(os.path.realpath(output), "work")
    return TaskOptions(runner, folder, task_blocks=blocks, memory=memory, **options)


def print_need(need: object) -> None:
    """Print the memory that a data set needs."""
    print_lines([("memory", need)])


Decorator = Callable[[Any], Any]  # of a command


BLOCK_SIZE = click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens per block.  [default: from the sidecar, else inferred]")
BLOCK_SIZE_OF_TRACE = click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens per block of TRACE.  [default: from the sidecar, else inferred]")
CHAIN = click.option("--chain", is_flag=True, help="Re-chain the ids of a trace whose blocks were hashed without their prefix.")
PNG = click.option("--png", metavar="FILE", help="Also draw the result into this PNG file, for a paper.")
SVG = click.option("--svg", metavar="FILE", help="Also draw the result into this SVG file.")
ASSUME_OUTPUT = click.option("--assume-output", type=click.IntRange(0), metavar="TOKENS", help="Output length of requests whose log has no answer. Results then state the assumption.  [default: results that need it are unknown]")
CSV = click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.")
ENGINE_BLOCK_SIZE = click.option("--engine-block-size", type=click.IntRange(1), metavar="N", help="For a --model with windows or states: tokens per block of the engine, a multiple of the trace's.  [default: the trace's, or more if the engine needs more]")
RETENTION = click.option("--retention", metavar="N", help="For a --model with windows or states: tokens between the checkpoints that are kept. 0 keeps those at the ends of prompts and of shared prefixes only, dense keeps all. (vllm)  [default: 0]")
DOMAINS = click.option("--domains", metavar="VIEW", help="Isolation domains of the trace, such as tenants, adapters or salts: split keeps their blocks apart, merge shares equal blocks, shared:N shares the first N tokens of prompts.  [default: split]")
FIRST_ID = click.option("--first-id", default=0, metavar="N", type=click.IntRange(0), help="First block id in the output.")
KV_BYTES = click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache per token, in place of --model.")
MODEL_CONFIG = click.option("--model", "--model-config", "model_config", metavar="M", help="Model that sets the bytes of KV cache per token: a name that kvtrace models lists, or its config.json.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="Print only results and errors.")
QUIET_ERRORS = click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
SAME_BYTES = click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="The same seed gives the same bytes.")
WARM_UP = click.option("--warm-up", default="0", metavar="N", help="Do not count the first requests: a number (1000), a share (10%) or a time (10m).")


def json_option(page: str) -> Decorator:
    """The option --json, and the page of docs with its keys, whose address ends the help of the command."""
    return click.option("--json", "as_json", is_flag=True, cls=PageOption, page=page, help="Print one JSON object; its keys are on the page below.")


def figure_writer(png: str | None, svg: str | None, quiet: bool = False) -> Callable[..., None]:
    """A function that draws a result, or a Plot, into the files; names that cannot be written are refused now.

    The function takes the result and the options of `plot_of`. Without files it does nothing and imports nothing.
    """
    if not (png or svg):
        return lambda result, **options: None
    from ..report import paper

    paper.check_outputs(png, svg)

    def write(result, **options):
        from ..report.figures import plot_of
        from ..report.plots.plot import Plot

        drawn = result if isinstance(result, Plot) else plot_of(result, **options)
        names = paper.write_plot(drawn, png, svg)
        if not quiet:
            notes = [("note", f"{panel.title}: {panel.note}") for panel in drawn.panels if panel.note]
            print_lines([*notes, *(("wrote", name) for name in names)])

    return write


def viewed(trace: Any, domains: str | None) -> tuple[Any, dict[str, Any], list[str]]:
    """A trace in a view of its domains, the JSON keys that state the view, and a note; both are empty without domains."""
    from ..trace.domains import SPLIT, count_domains, in_domains

    view, count = in_domains(trace, domains), count_domains(trace)
    if not count:
        return view, {}, []
    how = {"merge": "shared", "split": "kept apart"}.get(domains or SPLIT, "kept apart after the shared tokens")
    note = f"blocks of {count:,} domain{'' if count == 1 else 's'} are {how} (--domains {domains or SPLIT})."
    return view, {"domains": {"domains": count, "view": domains or SPLIT}}, [note]


def assumed(trace: Any, assume_output: int | None) -> Any:
    """The trace with the output length of --assume-output, if that is given."""
    from ..trace.conversion import assume_outputs

    return trace if assume_output is None else assume_outputs(trace, assume_output)


def remarks_of(trace: Any, *needs: str) -> dict[str, str]:
    """The sentences beside a result of a trace: what is unknown or assumed, and whether hit rates are too low."""
    from ..trace.unknown import remarks

    return remarks(trace, trace.meta, *needs)


def with_options(*options: Decorator) -> Decorator:
    """Add options to a command, in this order."""

    def add(command):
        for option in reversed(options):
            command = option(command)
        return command

    return add


FIGURE = with_options(PNG, SVG)
STREAMED = with_options(MODEL_CONFIG, KV_BYTES, BLOCK_SIZE, CHAIN, MEMORY, QUIET)  # of analyze, curve and simulate


@dataclass(frozen=True)
class Streamed:
    """The options of STREAMED: how a trace is read, and the model whose KV cache it fills."""

    model_config: str | None
    kv_bytes_per_token: int | None
    block_size: int | None
    chain: bool
    memory: str | None
    quiet: bool

    def load(self, path: str, need: Callable[[Any], Any], **options: Any) -> Any:
        """The trace, as `load`."""
        return load(path, self.memory, self.quiet, need, block_size=self.block_size, chain=self.chain, **options)

    def kv_bytes(self) -> int | None:
        """Bytes of KV cache per token; None if neither the model nor a number is given."""
        if self.model_config is None:  # the catalog of models need not be loaded
            return self.kv_bytes_per_token
        from ..serving.models.layers import chosen

        return chosen(self.model_config, self.kv_bytes_per_token)


def engine_units(layout: Any, block_size: int, units: dict[str, Any], gpus: int = 1) -> dict[str, Any]:
    """The units of capacities for an engine on GPUs: with cache groups, a block holds fewer tokens of all layers."""
    from math import ceil

    if layout is None:
        return units
    working_set = ceil(units["working_set"] * block_size / layout.tokens_per_block)
    return units | {"block_size": layout.tokens_per_block, "working_set": working_set, "block_bytes": gpus * layout.block_bytes}


def require_one(as_json: bool, as_csv: bool) -> None:
    """UsageError if both formats are chosen."""
    from .._base.errors import UsageError

    if as_json and as_csv:
        raise UsageError("--json and --csv cannot be combined. Use one of them.")


def extrapolations(costs: Any, runs: list[Any], *, allowed: bool) -> list[str]:
    """Warnings about runs beyond what the costs were measured for; UsageError if that is not allowed."""
    if costs is None:
        return []
    from ..serving.calibration.costs import excess

    if not allowed:
        for run in runs:
            costs.require_seen(run)
    over = [costs.extrapolation(run) for run in runs]
    return [f"the run goes beyond what the costs were measured for ({excess(beyond)})." for beyond in over if beyond]


def record_options(
    record: type[Any],
    *,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Decorator:
    """The options that the fields of a record are, in the order of the fields or of `only`.

    Args:
        record: A record whose fields were made by `_base.options.option`; other fields are no options.
        only, without: Names of fields.
        settings: Field -> further settings of its `click.option`.
    """
    parts = {part.name: part for part in fields(record) if part.metadata and part.name not in without}
    return with_options(*(_option_of(parts[name], (settings or {}).get(name, {})) for name in only or parts))


def _option_of(part: Field[Any], further: Mapping[str, Any]) -> Decorator:
    """The option of a field; without a default of its own where its help states one."""
    about, flag = part.metadata, str(part.type).startswith("bool")
    name = about["name"] or part.name.replace("_", "-")
    settings: dict[str, Any] = {"help": about["help"], "metavar": about["metavar"], "cls": RecordOption, "group": about["group"]}
    if flag:
        return click.option(*about["aliases"], f"--{name}", part.name, is_flag=True, default=None, **settings)
    if about["choices"]:
        settings["type"] = click.Choice(about["choices"])
    elif about["minimum"] is not None:
        settings["type"] = (click.FloatRange if str(part.type).startswith("float") else click.IntRange)(about["minimum"])
    elif str(part.type).startswith(("int", "float")) and not about["parse"]:
        settings["type"] = int if str(part.type).startswith("int") else float
    stated = part.default == () or "[default: " in about["help"]
    default = () if about["many"] else None if stated else about["shown"] or part.default
    if default is not None:  # one that is None would satisfy `required`
        settings["default"] = default
    return click.option(*about["aliases"], f"--{name}", part.name, **{"multiple": about["many"], **settings, **further})


def given(record: type[Any], options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record that the options state; they are taken from the options."""
    values = {}
    for part in (part for part in fields(record) if part.metadata):
        value = options.pop(part.name, None)
        if value in (None, ()):
            continue
        if str(part.type).startswith("bool"):
            value = value != (part.metadata["name"] or "").startswith("no-")
        values[part.name] = part.metadata["parse"](value) if part.metadata["parse"] else value
    return values


def taken(record: type[Record], options: dict[str, Any], **others: Any) -> Record:
    """The record that the options make up; they are taken from the options. `others` are fields that are no options."""
    return record(**others | given(record, options))


def taken_publishing(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `publish` among the options of a command; they are taken from these."""
    return {"format": options.pop("to"), "first_id": options.pop("first_id"), "against": options.pop("against")}


def taken_release(options: dict[str, Any]) -> Any:
    """The ReleaseOptions that the options make up, as `taken`; AuditError if a setting promises less than the profile's name."""
    from .._base.errors import AuditError
    from ..privacy.profiles import chosen_profile, refusal, weaker_settings
    from ..privacy.release_options import ReleaseOptions

    release = taken(ReleaseOptions, options)
    profile = chosen_profile(release)
    if weaker := weaker_settings(profile):
        fault, remedy = refusal(profile, weaker)
        raise AuditError(f"{fault}. {remedy}")
    return release
