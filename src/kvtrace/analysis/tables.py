"""The tables of `kvtrace analyze`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from .._base.tables import TextTable, number, printable
from .arrivals import Arrivals
from .distribution import Distribution
from .popularity import DepthBand
from .turns import RequestGroup

TABLE_ROWS = {  # the names that datagen and AIPerf print
    "Input length (ISL)": "input_length",
    "Context length": "context_length",
    "Unique prompt length": "unique_prompt_length",
    "Output length (OSL)": "output_length",
    "Request hit rate": "request_hit_rate",
}
UNKNOWN = "unknown"  # in place of a figure that the trace does not hold
RATES = (
    ("block_hit_rate", "hit blocks / blocks"),
    ("token_hit_rate", "hit tokens / prompt tokens"),
    ("request_hit_rate", "mean of each request's hit / blocks; what datagen and AIPerf print"),
)


def pair_table(title: str, rows: list[tuple[str, str, str]]) -> TextTable:
    """A table of names, values and notes."""
    table = TextTable(title, has_header=False)
    table.add_column()
    table.add_column(right=True)
    table.add_column(dim=True)
    for row in rows:
        table.add_row(*row)
    return table


def distribution_table(title: str, rows: dict[str, Distribution]) -> TextTable:
    """A table with one row for each distribution: the seven figures, and the extra quantiles."""
    table = TextTable(title)
    extra = list(next(iter(rows.values())).quantiles)
    table.add_column("")
    for figure in ["mean", "std", "min", "p25", "median", "p75", "max", *(f"q{q:g}" for q in extra)]:
        table.add_column(figure, right=True, rank={"std": 3, "min": 2}.get(figure, 1))
    table.remedy = "use --json or a wider terminal"
    for name, distribution in rows.items():
        table.add_row(name, *map(number, (*distribution.figures(), *distribution.quantiles.values())))
    return table


def group_table(title: str, name: str, groups: Iterable[RequestGroup]) -> TextTable:
    """A table with one row for each group of requests."""
    table = TextTable(title)
    table.add_column(name)
    table.add_columns(
        ["requests", "mean ISL", "mean OSL", "block hit rate", "token hit rate", "request hit rate"], right=True
    )
    for group in groups:
        rates = [UNKNOWN if group.hits is None else f"{getattr(group.hits, rate):.4f}" for rate, _ in RATES]
        lengths = [number(group.input_length.mean), number(group.output_length.mean)]
        lengths = [UNKNOWN if length == "-" else length for length in lengths]
        table.add_row(printable(group.name), f"{group.requests:,}", *lengths, *rates)
    return table


def depth_table(bands: Iterable[DepthBand]) -> TextTable:
    """A table of sharing by depth."""
    table = TextTable("Sharing by depth")
    table.add_columns(("depth (blocks)", "distinct", "shared", "share", "uses per block"), right=True)
    for band in bands:
        depth = f"{band.low:,}" if band.low == band.high else f"{band.low:,}-{band.high:,}"
        share, uses = band.shared_blocks / band.blocks, band.references / band.blocks
        table.add_row(depth, f"{band.blocks:,}", f"{band.shared_blocks:,}", f"{share:.1%}", f"{uses:,.2f}")
    return table


def arrival_rows(arrivals: Arrivals) -> Iterator[tuple[str, str, str]]:
    """(name, value, note) of each arrival statistic."""
    yield "duration", number(arrivals.duration_ms / 1000), "s"
    yield "requests per second", number(arrivals.requests_per_second), ""
    yield "prompt tokens per second", number(arrivals.prompt_tokens_per_second), ""
    yield "gap", number(arrivals.gap_ms.mean), f"ms on average; median {number(arrivals.gap_ms.median)}"
    yield "gap variation", number(arrivals.gap_cv), "standard deviation / mean: 1 for a Poisson process"
    for window, value in arrivals.dispersion.items():
        yield (
            f"dispersion, {window} s",
            number(value),
            "variance / mean of the requests per window: 1 for a Poisson process",
        )
    yield (
        "concurrency",
        UNKNOWN if arrivals.concurrency is None and arrivals.duration_ms else number(arrivals.concurrency),
        f"on average, at {arrivals.ms_per_token:g} ms per output token",
    )


def scaled(distribution: Distribution, by: float) -> Distribution:
    """The distribution of the values divided by a number, for example milliseconds as seconds."""
    figures = {name: None if figure is None else figure / by for name, figure in distribution.named().items()}
    quantiles = {q: value / by for q, value in distribution.quantiles.items()}
    return replace(distribution, **figures, quantiles=quantiles)  # type: ignore[arg-type]
