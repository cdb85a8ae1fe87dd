"""Commands whose --help groups the options and ends with examples, and a list of commands in the order of the work.

An option that is the field of a record states its group there; any other has one row in `GROUPS`. It may have one in
`TYPES`. A command that uses it for another purpose states this in `groups`. Every number may be written as 1,000 (`_base/units.py` parses amounts), and shells complete names and files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from .._base import units
from .._base.errors import UsageError, docs_page, wrong_word
from .._base.lazy_table import LazyTable
from . import completion as names


class AmountType(click.ParamType):
    """An amount with a parser of its own, and perhaps limits.

    Args:
        parse: Parses the text; its UsageError names the fault and gives examples.
        least, most: The limits; None = no limit.
    """

    name = "amount"
    parse: Callable[[str], Any]
    least: float | None
    most: float | None

    def __init__(self, parse: Callable[[str], Any], least: float | None = None, most: float | None = None) -> None:
        self.parse, self.least, self.most = parse, least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The amount; an error names the option."""
        name = param.opts[-1] if param else "the value"
        if isinstance(value, str):
            try:
                value = self.parse(value)
            except UsageError as error:
                raise click.UsageError(f"{name}: {error}", ctx) from None
        if self.least is not None and not value >= self.least:
            raise click.UsageError(f"{name} must be at least {self.least:,}.", ctx)
        if self.most is not None and not value <= self.most:
            unit = " ms" if self.parse is units.milliseconds else ""
            raise click.UsageError(f"{name} must be at most {self.most:,.12g}{unit}.", ctx)
        return value


class Word(click.Choice):  # type: ignore[type-arg]
    """One of a few words; the error for another word names the nearest one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word."""
        if value not in self.choices:
            name = param.opts[-1] if param else ""
            raise click.UsageError(str(wrong_word(value, f"a value of {name}", self.choices)), ctx)
        return value


def as_amount(kind: click.ParamType) -> click.ParamType:
    """The type of a number, which then may have separators of thousands; any other type as it is."""
    if isinstance(kind, (AmountType, click.types.BoolParamType)):
        return kind
    limits = getattr(kind, "min", None), getattr(kind, "max", None)
    if isinstance(kind, click.types.IntParamType):
        return AmountType(units.count, *limits)
    return AmountType(units.decimal, *limits) if isinstance(kind, click.types.FloatParamType) else kind


FILES = {"LOG", "[LOG]", "TRACE", "TRACE2", "[TRACE2]", "TRACE...", "LOG...", "WINDOW...", "FILE", "FOLDER", "DIR", "PREVIOUS"}  # metavars of paths
GROUPS = {  # group -> its options; a command shows them in this order
    "Input": "--input-file --service-time --users --block-size "
    "--chain --assume-output --recording-format --model-config --model --kv-bytes-per-token",
    "Sources": "--otlp --proxy --upstream --session-header --user-header --follow --from-start --kv-events",
    "Windows": "--window --for --link-windows",
    "Bad rows": "--on-error --max-errors --rejects",
    "Text": "--tokenizer --separator --words",
    "Blocks": "",
    "Selection": "--holdout --start --stop --limit --sample --sample-sessions --seed --seeds",
    "Changes": "--fold --speedup-ratio",
    "Cache": "--half-life --policy --ttl --capacity --points --engine --mode --schedule --warm-up --tiers --inclusive --write-through "
    "--domains",
    "Engine options": "--capacity-counts --pool --free-order --tree --watermark --hicache-write-policy --engine-block-size --retention",
    "Instances and time": "--instances --instances-per-host --router --first-tier --gpu --gpus --costs --extrapolate --step-tokens --max-requests --scheduler",
    "Closed loop": "--loop --lanes --duration --start-inside --idle-cap --tree-idle-cap --think-scale",
    "Target": "--ttft --quantile --max-busy --spare",
    "Prices": "--gpu-price --input-price --output-price",
    "Size and load": "--requests --num-requests --sessions --method --scale --tenants --tenant-skew --tenant-cv --step-rates --rates --rates-period --max-rejections",
    "Shape": "--prefix-len-multiplier --prefix-root-multiplier --prompt-len-multiplier --osl-multiplier --min-isl "
    "--max-isl --min-osl --max-osl",
    "Privacy": "--profile --allow-measured --isolate-tenants --against --key-file",
    "Output": "--output --output-file --suffix --metrics --interval --once --format --to --first-id --extra --keep-order --json --csv --html --png --svg --title --card --basic "
    "--quantiles --fail --ms-per-token --over-time --by-session --per-request --no-gap --no-cures --check --save-model --max --verbose --quiet",
    "Large inputs": "--queue --workers --memory --runner --ray-address --partitions --work-dir --resume",
    "Help": "--help --version",
}
GROUP_OF = {option: group for group, options in GROUPS.items() for option in options.split()}
OTHERS = "Other options"
TYPES: dict[str, click.ParamType] = {  # option -> what it takes, where that is more than a text or a number
    "--policy": names.Name(names.policies, many=True),
    "--engine": names.Name(names.engines, many=True),
    "--router": names.Name(names.routers, many=True),
    "--decode-router": names.Name(names.routers),
    "--mode": names.Name(names.fixed("block", "token", "grow"), many=True),
    "--schedule": names.Name(names.fixed("serial", "concurrency:8", "open-loop:30"), many=True),
    "--capacity-counts": names.Name(names.engine_values("capacity_counts")),
    "--pool": names.Name(names.engine_values("pool")),
    "--free-order": names.Name(names.engine_values("free_order")),
    "--tree": names.Name(names.engine_values("tree")),
    "--watermark": names.Name(names.engine_values("watermark")),
    "--hicache-write-policy": names.Name(names.engine_values("hicache_write_policy")),
    "--gpu": names.Name(names.gpus, files=True),
    "--model-config": names.Name(names.models, files=True),
    "--service-time": names.Name(names.models, files=True),
    "--profile": names.Name(names.profiles),
    "--k-counts": names.Name(names.fixed("auto", "users", "sessions", "requests")),
    "--tail": names.Name(names.fixed("kept", "unique", "dropped")),
    "--round-input": names.Name(names.fixed("exact", "block")),
    "--round-output": names.Name(names.fixed("exact", "pow2")),
    "--format": names.Name(names.formats),
    "--log-format": names.Name(names.log_formats),
    "--recording-format": names.Name(names.recordings),
    "--time-unit": names.Name(names.fixed("auto", "s", "ms", "us", "ns", "iso")),
    "--tokenizer": names.Name(names.fixed("auto", "deepseek-r1", "o200k_base", "cl100k_base"), files=True),
    "--ray-address": names.Name(names.fixed("auto")),
    "--sample": AmountType(units.share),
    "--sample-sessions": AmountType(units.share),
    "--request-sample": AmountType(units.share),
    "--quantile": AmountType(units.share, 0.01, 0.999),
    "--max-busy": AmountType(units.share, 0.01, 1),
    "--spare": AmountType(units.count, 0, 512),
    "--gpu-price": AmountType(units.decimal, 0, 1_000_000_000),
    "--holdout": AmountType(units.share),
    "--ms-per-token": AmountType(units.in_milliseconds, 0),
    **dict.fromkeys(
        ("--duration", "--idle-cap", "--tree-idle-cap", "--ttft", "--over-time", "--start", "--stop", "--window", "--for", "--kv-transfer-latency", "--tpot"),
        AmountType(units.milliseconds),
    ),
    "--workers": AmountType(units.count, 1, 1024),
    "--kv-bytes-per-token": AmountType(units.count, 1, 1_000_000_000),
    "--partitions": AmountType(units.count, 1, 100_000),
    "--half-life": AmountType(units.milliseconds, 1000),
    "--interval": AmountType(units.milliseconds, 100),
}
HELP_NAMES = ["-h", "--help"]
HYPHEN = "\ue000"  # stands for a hyphen at which no line breaks, while click breaks lines


def _unbroken(text: str) -> str:
    """A text whose options, such as --warm-up, stay on one line."""
    return re.sub(r"(?<=\w)-(?=\w)", HYPHEN, text)


class RowsOption(click.Option):
    """An option whose help names the rows of a table in place of `{rows}`; the table is imported only to print it."""

    def __init__(self, *arguments: Any, rows: Callable[[], Sequence[str]] = list, **options: Any):
        super().__init__(*arguments, **options)
        self.rows = rows

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The name and the help."""
        self.help = (self.help or "").replace("{rows}", ", ".join(self.rows()))
        return super().get_help_record(ctx)


class RecordOption(RowsOption):
    """An option that is the field of a record, with its group in --help."""

    def __init__(self, *arguments: Any, group: str, **options: Any):
        super().__init__(*arguments, **options)
        self.group = group


class PageOption(click.Option):
    """An option that a page of the docs explains."""

    def __init__(self, *arguments: Any, page: str, **options: Any):
        super().__init__(*arguments, **options)
        self.page = page


class Command(click.Command):
    """A command with grouped options, examples, and the address of its page of the docs.

    Args:
        examples: Command lines that a reader can run, and a test does.
        page: The page; the default is that of its --json.
        groups: Option -> group, where it differs from GROUPS.
        types: Option -> type, where it differs from TYPES.
    """

    examples: Sequence[str]
    groups: Mapping[str, str]
    page: str | None

    def __init__(
        self,
        *arguments: Any,
        examples: Sequence[str] = (),
        page: str | None = None,
        groups: Mapping[str, str] | None = None,
        types: Mapping[str, click.ParamType] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.context_settings.setdefault("help_option_names", HELP_NAMES)  # also when called without its group
        self.examples, self.groups = examples, groups or {}
        self.page = page or next((param.page for param in self.params if isinstance(param, PageOption)), None)
        for param in self.params:
            param.type = (types or {}).get(param.opts[-1]) or _type_of(param)

    def group_of(self, option: click.Parameter) -> str:
        """The group of an option in --help."""
        names = [name for name in option.opts if name.startswith("--")]
        own = dict.fromkeys(names, option.group) if isinstance(option, RecordOption) else {}
        by_name = {**GROUP_OF, **own, **self.groups}
        return next((by_name[name] for name in names if name in by_name), OTHERS)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        grouped: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                name, text = record
                grouped.setdefault(self.group_of(param), []).append((_unbroken(name), _unbroken(text)))
        for group in (*GROUPS, OTHERS):
            if group in grouped:
                with formatter.section(group):
                    formatter.write_dl(grouped[group])

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description."""
        text, self.help = self.help, self.help and _unbroken(self.help)
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = text

    def get_help(self, ctx: click.Context) -> str:
        """The text of --help."""
        return super().get_help(ctx).replace(HYPHEN, "-")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, one a line, so that each can be copied, and the address of the page."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in self.examples))
        if self.page:
            with formatter.section("Docs"):
                formatter.write(f"  {docs_page(self.page)}\n")


def _type_of(param: click.Parameter) -> click.ParamType:
    """The values that a word, a file or a number accepts."""
    if isinstance(param.type, click.Choice):
        return Word(param.type.choices)
    if param.opts[-1] in TYPES:
        return TYPES[param.opts[-1]]
    is_text = isinstance(param.type, click.types.StringParamType)
    return names.FileName() if is_text and param.metavar in FILES else as_amount(param.type)


class Group(click.Group):
    """A group of commands in sections, in the order of the work.

    Args:
        sections: Section -> its commands, with the first sentence of each: a list of them loads none.
        load: The command of a name.
    """

    def __init__(
        self,
        *arguments: Any,
        sections: Mapping[str, Mapping[str, str]],
        load: Callable[[str], click.Command],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.sections = sections
        self.commands = LazyTable([name for members in sections.values() for name in members], load)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of the sections."""
        return [*self.commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line for each command, section by section."""
        widest = max(map(len, self.commands))
        for section, members in self.sections.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(widest), sentence) for name, sentence in members.items()])
