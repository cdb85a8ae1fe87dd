"""The tables of `kvtrace analyze`: what a trace is like, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..analysis.distribution import Distribution
    from ..analysis.summary import Basics, Folded, Summary

ROWS = {  # the names that datagen and AIPerf print
    "Input length (ISL)": "input_length",
    "Context length": "context_length",
    "Unique prompt length": "unique_prompt_length",
    "Output length (OSL)": "output_length",
    "Request hit rate": "request_hit_rate",
}
RATES = (
    ("block_hit_rate", "hit blocks / blocks"),
    ("token_hit_rate", "hit tokens / prompt tokens"),
    ("request_hit_rate", "mean of each request's hit / blocks; what datagen and AIPerf print"),
)


def basic_tables(found: Basics) -> Iterator[Table]:
    """Counts, the three hit rates, and the statistics of datagen and AIPerf."""
    yield pairs("Trace", [
        ("requests", f"{found.requests:,}", ""),
        ("blocks", f"{found.blocks:,}", "in prompts"),
        ("distinct blocks", f"{found.distinct_blocks:,}", "the working set; AIPerf's unique prefixes"),
        ("prefix groups", f"{found.prefix_groups:,}", "first blocks that two requests or more begin with"),
        ("reuse ratio", f"{found.reuse_ratio:.4f}", "references to blocks that occur more than once"),
    ])  # fmt: skip
    yield pairs("Hit rates, nothing ever evicted", [(n, f"{getattr(found.hits, n):.4f}", note) for n, note in RATES])
    yield distributions("Per request", {name: getattr(found, field) for name, field in ROWS.items()})


def tables(found: Summary) -> Iterator[Table]:
    """Everything, section by section."""
    yield from basic_tables(found.basics)
    yield distributions("Reuse", {
        "Reuse time (s)": _scaled(found.reuse_time_ms, 1000),
        "Reuse distance (blocks)": found.reuse_distance,
    })  # fmt: skip
    popular = found.popularity
    yield pairs("Popularity", [
        ("blocks used again", f"{popular.reused_blocks:,}", f"of {found.basics.distinct_blocks:,}"),
        ("most used block", f"{popular.most_used:,}", "uses"),
        *((f"top {share:.0%} of blocks", f"{part:.1%}", "of all reuse") for share, part in popular.top_share.items()),
    ])  # fmt: skip
    yield depths(found)
    yield pairs("Arrivals", list(_arrivals(found.arrivals)))
    if found.sessions:
        yield distributions("Conversations", {
            "Turns": found.sessions.turns,
            "Time to the next turn (s)": _scaled(found.sessions.think_ms, 1000),
            "Context growth (tokens)": found.sessions.growth,
        })  # fmt: skip
        yield groups("By turn", "turn", found.sessions.by_turn)
    if found.by_type:
        yield groups("By type", "type", found.by_type)
    if found.hits_with_outputs:
        note = "where the blocks of outputs stay resident too"
        yield pairs("Outputs", [(n, f"{getattr(found.hits_with_outputs, n):.4f}", note) for n, _ in RATES])
    if found.kv_bytes_per_token and found.working_set_bytes:
        gib = found.working_set_bytes / 2**30
        yield pairs("KV cache", [
            ("bytes a token", f"{found.kv_bytes_per_token:,}", "over all layers"),
            ("working set", f"{gib:,.2f}", "GiB, to hold every distinct block"),
        ])  # fmt: skip


def pairs(title: str, rows: list[tuple[str, str, str]]) -> Table:
    """Names, values, and a note on each."""
    table = _table(title, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def distributions(title: str, rows: dict[str, Distribution]) -> Table:
    """One distribution a row, in the seven figures and the quantiles asked for."""
    table = _table(title)
    extra = list(next(iter(rows.values())).quantiles)
    table.add_column("", no_wrap=True)
    for name in ("mean", "std", "min", "p25", "median", "p75", "max", *(f"q{q:g}" for q in extra)):
        table.add_column(name, justify="right", no_wrap=True)
    for name, found in rows.items():
        table.add_row(name, *map(number, (*found.figures(), *found.quantiles.values())))
    return table


def groups(title: str, name: str, found) -> Table:
    """Requests of a kind, a row each."""
    table = _table(title)
    table.add_column(name, no_wrap=True)
    for column in ("requests", "mean ISL", "mean OSL", "block hit rate", "token hit rate", "request hit rate"):
        table.add_column(column, justify="right", no_wrap=True)
    for group in found:
        rates = [f"{getattr(group.hits, rate):.4f}" for rate, _ in RATES]
        lengths = number(group.input_length.mean), number(group.output_length.mean)
        table.add_row(Text(plain(group.name)), f"{group.hits.requests:,}", *lengths, *rates)
    return table


def block_sizes(found: list[Folded]) -> Table:
    """Hit rates against block size."""
    table = _table("By block size")
    for column in ("block size", "blocks", "distinct", "block hit rate", "token hit rate", "request hit rate"):
        table.add_column(column, justify="right", no_wrap=True)
    for size in found:
        rates = [f"{getattr(size.hits, rate):.4f}" for rate, _ in RATES]
        table.add_row(f"{size.block_size:,}", f"{size.blocks:,}", f"{size.distinct_blocks:,}", *rates)
    return table


def datagen_table(found: Basics) -> Table:
    """The table of `datagen analyze`: its rows, its columns."""
    table = _table("Statistics")
    table.add_column("", no_wrap=True)
    for name in ("Mean", "Std Dev", "Min", "P25", "Median", "P75", "Max"):
        table.add_column(name, justify="right", no_wrap=True)
    names = ("Input Length", "Context Length", "Unique Prompt Length", "Output Length", "Theoretical Hit Rates")
    for name, values in zip(names, found.distributions().values(), strict=True):
        table.add_row(name, *("-" if figure is None else f"{figure:,.2f}" for figure in values.figures()))
    return table


def depths(found: Summary) -> Table:
    """How much is shared at which depth."""
    table = _table("Sharing by depth")
    for column in ("depth (blocks)", "distinct", "shared", "share", "uses a block"):
        table.add_column(column, justify="right", no_wrap=True)
    for band in found.sharing_by_depth:
        depth = f"{band.low:,}" if band.low == band.high else f"{band.low:,}-{band.high:,}"
        share, uses = band.shared_blocks / band.blocks, band.references / band.blocks
        table.add_row(depth, f"{band.blocks:,}", f"{band.shared_blocks:,}", f"{share:.1%}", f"{uses:,.2f}")
    return table


def plain(name: str) -> str:
    """A name out of a trace, without what a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in name)


def _arrivals(found):
    yield "duration", number(found.duration_ms / 1000), "s"
    yield "requests per second", number(found.requests_per_second), ""
    yield "prompt tokens per second", number(found.prompt_tokens_per_second), ""
    yield "gap", number(found.gap_ms.mean), f"ms on average; median {number(found.gap_ms.median)}"
    yield "gap variation", number(found.gap_cv), "standard deviation / mean: 1 for a Poisson process"
    for window, value in found.dispersion.items():
        yield f"dispersion, {window} s", number(value), "variance / mean of requests a window: 1 for a Poisson process"
    yield "concurrency", number(found.concurrency), f"on average, at {found.ms_per_token:g} ms a generated token"


def _scaled(found: Distribution, by: float) -> Distribution:
    figures = {name: None if figure is None else figure / by for name, figure in found.named().items()}
    return replace(found, **figures, quantiles={q: value / by for q, value in found.quantiles.items()})  # type: ignore[arg-type]


def number(value: float | None) -> str:
    """A figure with as many digits as one reads: 12,035.1, 0.3843; - where there is none."""
    if value is None:
        return "-"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.4f}" if abs(value) < 1 else f"{value:,.2f}"


def _table(title: str, **options) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0), **options
    )
