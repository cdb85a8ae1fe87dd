"""The report page: one HTML file that needs no network and contains no text of prompts.

jinja2 fills page.html.jinja. The page contains the script of plotly once, and the figures as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import orjson

from .._base.files import Content, NamedFile, is_std, require_distinct, require_name
from .._base.output_files import write_atomically
from .._base.tables import TextTable, printable
from .._base.units import GIB, memory_size, short
from ..analysis.comparison import Comparison, compare_prepared
from ..analysis.session_statistics import UNKNOWN
from ..cache.simulation import Simulation
from ..formats.writing import require_place
from ..serving.misses.explanation import Explanation
from ..serving.planning.plan_result import Plan
from ..serving.serving_run import ServingRun
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, PREFIXES, remarks
from . import explanation_tables as explained
from . import interactive, paper, plan_tables
from .plots import PLOTS, hit_rates, planned, plot_named, plots_of_run
from .plots.plot import Plot, Study, time_unit

WIDE = 6  # columns of a table that takes the width of the page

DEFINITIONS = {
    "Block": "A fixed number of tokens of a prompt. Equal block ids mean equal prefixes.",
    "Hit": "The leading run of a prompt's blocks that are in the cache.",
    "Block hit rate": "Hit blocks / blocks, over all requests.",
    "Token hit rate": "Hit tokens / prompt tokens, over all requests: the share of prefill saved.",
    "Request hit rate": "The mean of each request's hit blocks / blocks; what datagen and AIPerf print.",
    "Unlimited": "A cache that never evicts: the upper bound of every policy.",
    "Cause": "Why a prompt token was not a hit; each token has one cause, and they add up to all prompt tokens.",
    "Possible": "Prompt tokens that an earlier request had in its prompt: all but first uses.",
    "Working set": "The distinct blocks of the trace.",
    "Reuse distance": "Distinct blocks used between a use of a block and its next use.",
    "Reuse time": "Time between a use of a block and its next use.",
}


def page(
    trace: Trace,
    other: Trace | None = None,
    *,
    names: tuple[str, str] = ("trace", "other"),
    title: str | None = None,
    kv_bytes_per_token: int | None = None,
    plan: Plan | None = None,
    policies: Sequence[str] = (),
    capacity: int | None = None,
    explanation: Explanation | None = None,
    run: Simulation | None = None,
    lines: Sequence[tuple[str, str]] = (),
) -> str:
    """Build the HTML report of a trace, or of two traces and their differences.

    The same traces give the same page, byte for byte.

    Args:
        trace: The trace.
        other: A second trace to compare with it.
        names: The names of the traces on the page.
        title: The title of the page. Default: the names of the traces.
        kv_bytes_per_token: Bytes of KV cache per token, to show capacities in GiB.
        plan: A result of `kvtrace.serving.plan` to show on the page.
        policies: Eviction policies to compare. Default: four of them, for a trace of at most five million blocks.
        capacity: Blocks of the LRU cache whose hits and misses are drawn. Default: where it has 90 % of the hits.
        explanation: A result of `kvtrace.serving.explain` whose causes are drawn, in place of those of that LRU cache.
        run: A simulation of the trace whose tiers, or whose prefill and decode workers, are drawn over time.

    Raises:
        InputError: A trace has no blocks.
        UsageError: plotly is not installed, or a policy or the capacity is not valid.

    >>> from kvtrace.trace.building import toy
    >>> page(toy("0 1", "0 2"), title="two requests").split("title>")[1]
    'two requests</'
    """
    return _page(
        trace, other, names=names, title=title, kv_bytes_per_token=kv_bytes_per_token, plan=plan, policies=policies,
        capacity=capacity, explanation=explanation, run=run, lines=lines,
    )[0]  # fmt: skip


def write_report(
    path: str | Path,
    trace: Trace,
    other: Trace | None = None,
    *,
    png: str | Path | None = None,
    on_step: Callable[[str], None] | None = None,
    **options: Any,
) -> list[str]:
    """Write the HTML report of a trace, or of two traces and their differences, as `kvtrace report` does.

    Args:
        path: The HTML file; `-` is stdout.
        trace, other: As in `page`.
        png: A folder, for the plots as PNG files.
        on_step: Receives the name of each plot before it is computed.
        options: As in `page`.

    Returns:
        The names of the files.

    Raises:
        InputError: A trace has no blocks.
        UsageError: plotly is not installed, or for PNG files matplotlib.

    >>> import os, tempfile
    >>> from kvtrace.trace.building import toy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [os.path.basename(name) for name in write_report(f"{folder}/two.html", toy("0 1", "0 2"))]
    ['two.html']
    """
    check_output(path)
    require_distinct([], [NamedFile("the page", path), *([NamedFile("png", png)] if png else [])])
    html, plots = _page(trace, other, on_step=on_step, **options)
    figures = paper.write_figures(plots, png) if png else []
    with write_atomically(path) as stream:
        stream.write(html.encode())
    return [*([] if is_std(path) else [str(path)]), *map(str, figures)]


def check_output(path: str | Path) -> None:
    """UsageError or KvtraceError if no HTML file of this name can be written."""
    require_name(path, Content.HTML, "a report")
    require_place(path)


def _page(
    trace,
    other,
    *,
    names=("trace", "other"),
    title=None,
    plan=None,
    explanation=None,
    curve=None,
    run=None,
    on_step=None,
    lines=(),
    **options,
):
    """The page and its plots; the other options are those of a Study."""
    studies = [
        Study(whole, printable(name), explanation=causes, curve=known, **options)
        for whole, name, causes, known in zip([trace, other], names, [explanation, None], [curve, None], strict=False)
        if whole is not None
    ]
    plots = draw(*studies, plan=plan, run=run, on_step=on_step)
    return render(studies, plots, title, plan, lines, run), plots


def draw(
    study: Study, other: Study | None = None, *, plan: Plan | None = None, run: Simulation | None = None,
    on_step: Callable[[str], None] | None = None,
) -> dict[str, Plot]:  # fmt: skip
    """All plots by name: of the plan, the simulation and the first trace and, for two traces, their comparison."""
    on_step = on_step or (lambda name: None)
    plots: dict[str, Plot] = {}
    if plan is not None:
        plots |= {"plan-instances": planned.instances(plan), "plan-sensitivity": planned.sensitivity(plan)}
    if other is not None:
        on_step("compare")
        plots["compare"] = hit_rates.compared_plot(study, other)
        if (behaviour := hit_rates.behaviour_plot(study, other)) is not None:
            plots["compare-behaviour"] = behaviour
    if run is not None:
        plots |= plots_of_run(run)
    for name in PLOTS:
        on_step(name)
        plots[name] = plot_named(name, study)
    return plots


def render(
    studies: list[Study], plots: dict[str, Plot], title: str | None = None, plan: Plan | None = None,
    lines: Sequence[tuple[str, str]] = (), run: Simulation | None = None,
) -> str:  # fmt: skip
    """Build the page from finished plots."""
    return fill(
        plots,
        title=title or " and ".join(study.name for study in studies),
        story=(f"{studies[0].name}: " if len(studies) > 1 else "") + story(studies[0]),
        heads=[{"name": study.name, "tiles": list(tiles(study))} for study in studies],
        tables=[*_explained(studies[0]), *studies[0].summary.tables()],
        notes=[*studies[0].summary.notes, *_expected(run)],
        definitions=DEFINITIONS,
        fidelity=_fidelity(fidelity(*studies)) if len(studies) > 1 else None,
        plan=None if plan is None else _plan(plan),
        lines=lines,
    )


def fill(
    plots: dict[str, Plot],
    *,
    title: str,
    story: str,
    heads: list[dict[str, Any]],
    tables: list[TextTable],
    definitions: dict[str, str],
    notes: Sequence[str] = (),
    fidelity: dict[str, Any] | None = None,
    plan: dict[str, Any] | None = None,
    lines: Sequence[tuple[str, str]] = (),
) -> str:
    """Fill page.html.jinja.

    Args:
        plots: Name -> plot, in the order of the page; those whose names begin with "plan-" belong to the plan.
        title: Title of the page.
        story: The result in a sentence or two.
        heads: The name and the headline numbers (name, value, note) of each trace or run.
        tables: The tables below the plots.
        definitions: Word -> its meaning.
        notes: Sentences below the tables.
        fidelity: The tables and notes of a comparison.
        plan: The tables and the sentence of a plan.
        lines: The answer in lines (name, sentences), for the first screen in place of the story.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    sections = [_section(name, plot) for name, plot in plots.items() if any(not panel.missing for panel in plot.panels)]
    of_plan = [section for section in sections if section["id"].startswith("plan-")]
    figures = {panel["id"]: panel.pop("figure") for section in sections for panel in section["panels"]}
    return environment.from_string(_asset("page.html.jinja")).render(
        title=title,
        story=story,
        lines=lines,
        heads=heads,
        fidelity=fidelity,
        plan=None if plan is None else {"sections": of_plan, **plan},
        sections=[section for section in sections if section not in of_plan],
        tables=[_cells(table) for table in tables],
        definitions=definitions,
        notes=[*notes, *_not_drawn(plots)],
        style=_asset("style.css"),
        script=_asset("draw.js"),
        plotly=interactive.packed_script(),
        figures=_json(figures),
    )


def story(study: Study) -> str:
    """Two sentences on the trace: the upper bound of hits, and the capacity that reaches 90 % of it.

    >>> from kvtrace.trace.building import toy
    >>> print(story(Study(toy("0 1", "0 1"))).replace(". ", ".\\n"))
    A cache that never evicts serves 50.0% of prompt tokens.
    An LRU cache of 2 blocks (100% of the working set) reaches 90 % of that.
    """
    if PREFIXES in study.unknown:
        sentence = study.unknown[PREFIXES]
        return f"What a prefix cache would hit is unknown: {sentence}"
    curve = study.curve
    best = curve.at(curve.working_set)
    if not best.hit_tokens:
        return "No two requests share a prefix, so a prefix cache has nothing to reuse."
    low = study.capacity_of_most_hits
    too_low = remarks(study.trace, study.trace.meta, PREFIXES).get("request_sample", "")
    return (
        f"A cache that never evicts serves {best.token_hit_rate:.1%} of prompt tokens. An LRU cache of {low:,} blocks "
        f"({low / curve.working_set:.0%} of the working set{_gib(study, low)}) reaches 90 % of that."
        f"{' ' if too_low else ''}{too_low}"
    )


def tiles(study: Study) -> Iterator[tuple[str, str, str]]:
    """(name, value, note) of each headline number."""
    summary, trace = study.summary, study.trace
    unit, ms = time_unit(summary.arrivals.duration_ms)
    rate = summary.arrivals.requests_per_second
    yield (
        "requests",
        f"{len(trace):,}",
        f"{summary.sessions.sessions:,} sessions" if summary.sessions else f"sessions {UNKNOWN}",
    )
    yield (
        "duration",
        f"{summary.arrivals.duration_ms / ms:,.3g} {unit}",
        f"{rate:,.3g} requests / s" if rate else "all at the same time",
    )
    outputs = UNKNOWN if OUTPUTS in study.unknown else short(int(trace.output_length.sum()))
    yield "prompt tokens", short(summary.basics.tokens), f"{outputs} output tokens"
    yield "blocks", short(summary.basics.blocks), f"of {trace.block_size:,} tokens"
    yield from _hit_tiles(study)


def _hit_tiles(study: Study) -> Iterator[tuple[str, str, str]]:
    """(name, value, note) of the numbers that need shared prefixes; unknown without them."""
    sharing = study.summary.basics.sharing
    blocks = UNKNOWN if sharing is None else short(sharing.distinct_blocks)
    size = "" if sharing is None else _gib(study, study.curve.working_set)
    yield "distinct blocks", blocks, f"the working set{size}"
    notes = {"block": "without eviction", "token": "without eviction", "request": "mean over requests"}
    for kind, note in notes.items():
        rate = UNKNOWN if sharing is None else f"{getattr(sharing.hits, f'{kind}_hit_rate'):.1%}"
        yield f"{kind} hit rate", rate, note


def fidelity(study: Study, other: Study) -> Comparison:
    """The fidelity of the second trace to the first, as in `kvtrace compare`."""
    return compare_prepared(hit_rates.prepared(study), hit_rates.prepared(other), (study.name, other.name))


def _fidelity(two: Comparison) -> dict[str, Any]:
    return {"tables": [_cells(table) for table in two.tables()], "notes": two.notes}


def _expected(run: Simulation | None) -> list[str]:
    """What to expect of the times of a run, if no recording is behind them."""
    error = run.expected_error if isinstance(run, ServingRun) else None
    return [] if error is None else [error.text]


def _plan(plan: Plan) -> dict[str, Any]:
    """The answer of a plan in a sentence, the reasons for it, and the tables."""
    answer, *tables = plan_tables.tables(plan)
    return {
        "tables": [_cells(table) for table in tables],
        "sentence": answer.title,
        "reasons": answer.rows,
    }


def _explained(study: Study) -> list[TextTable]:
    """The table of causes, if a cache was simulated."""
    return [] if study.explanation is None else [explained.cause_table(study.explanation)]


def _gib(study, blocks):
    if not study.kv_bytes_per_token:
        return ""
    size = memory_size(blocks * study.trace.block_size * study.kv_bytes_per_token / GIB)
    return ", " + size.replace(" ", "\u00a0")


def _not_drawn(plots: dict[str, Plot]) -> list[str]:
    """The reasons for missing drawings, one sentence each, with the titles of plots or of their panels."""
    reasons: dict[str, list[str]] = {}
    for plot in plots.values():
        missing = [panel for panel in plot.panels if panel.missing]
        for panel in missing[:1] if len(missing) == len(plot.panels) else missing:
            title = plot.title if len(missing) == len(plot.panels) else panel.title
            reasons.setdefault(panel.missing.rstrip("."), []).append(title)
    return [f"Not drawn: {reason} ({', '.join(titles)})." for reason, titles in reasons.items()]


def _section(name: str, plot: Plot) -> dict[str, Any]:
    panels = [
        {"id": f"{name}-{number}", "title": panel.title, "note": panel.note, "figure": interactive.figure(panel)}
        for number, panel in enumerate(plot.panels, 1)
        if not panel.missing
    ]
    heading = name.replace("-", " ").capitalize()
    return {"id": name, "name": heading, "title": plot.title, "explanation": plot.explanation, "panels": panels}


def _cells(table: TextTable) -> dict[str, Any]:
    """A table as the template expects it."""
    return {
        "title": table.title,
        "head": [column.name for column in table.columns] if table.has_header else [],
        "right": [column.right for column in table.columns],
        "wraps": [column.dim for column in table.columns],
        "wide": len(table.columns) >= WIDE,
        "note": f"{table.caption[:1].upper()}{table.caption[1:]}." if table.caption else "",
        "rows": [list(row) for row in table.rows],
    }


def _json(value: Any) -> str:
    """JSON that is safe inside a script element: it cannot end the element."""
    return orjson.dumps(value).decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
