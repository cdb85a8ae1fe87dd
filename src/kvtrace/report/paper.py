"""Plots as PNG and SVG files for a paper, drawn by matplotlib from the same data as the page."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from .._base.errors import InputError, UsageError, named_errors
from .._base.output_files import Role, appear_together, write_atomically
from .._base.own_files import make_folders, remove_folders
from .._base.tables import printable
from .._base.units import short
from .interactive import MAX_COLUMNS, colour_of, extent
from .plots.plot import Axis, Panel, Plot, Spans, fitted, log_ticks

WIDTH, HEIGHT, DPI = 3.4, 2.4, 200  # inches of a panel (a column of a paper), dots per inch
LEGEND_ROW, LEGEND_COLUMNS = 0.15, 2  # inches, below the axes; names side by side
MAX_TITLE = 42  # characters of a line of a title
MAX_TICKS = 7  # of a logarithmic axis
MAX_NAME = 30  # characters of a name that has another one beside it
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "text.parse_math": False,  # a dollar sign in a name is not math
    "svg.hashsalt": "kvtrace",  # the same ids, and so the same bytes, each time
}
SUFFIXES = {"--png": ".png", "--svg": ".svg"}


def check_outputs(png: str | None, svg: str | None) -> None:
    """Refuse the names of figures that cannot be written, before any work.

    Raises:
        UsageError: A name does not end in .png or .svg, or matplotlib is not installed.
        KvtraceError: The folder does not exist or is not writable.

    >>> check_outputs("curve.pdf", None)
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: --png curve.pdf: the name must end in .png.
    """
    from ..formats.writing import require_place

    for (option, suffix), name in zip(SUFFIXES.items(), (png, svg), strict=True):
        if name is not None:
            if Path(name).suffix.lower() != suffix or not Path(name).stem:
                raise UsageError(f"{option} {printable(name)}: the name must end in {suffix}.")
            _figure_class(option)
            require_place(name)


def write_plot(plot: Plot, png: str | None = None, svg: str | None = None, *, role: Role = Role.RESULT) -> list[str]:
    """Write the panels of a plot as one PNG or SVG file or both; the same plot gives the same bytes.

    Returns:
        The names of the files.

    Raises:
        InputError: No panel has anything to draw.
        UsageError: matplotlib is not installed.
    """
    panels = [panel for panel in plot.panels if not panel.missing]
    written = [name for name in (png, svg) if name is not None]
    if written and not panels:
        raise InputError(f"there is nothing to draw: {plot.panels[0].missing}")
    for name, form in ((png, "png"), (svg, "svg")):
        if name is not None:
            figure_class, rc_context = _figure_class(f"--{form}")
            with rc_context(STYLE), write_atomically(name, role) as stream:
                draw(figure_class, panels).savefig(stream, format=form, dpi=DPI, metadata=METADATA[form])
    return written


METADATA: dict[str, dict[str, None]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def _figure_class(option: str) -> tuple[Any, Any]:
    """matplotlib's Figure and its context of settings; it needs neither a display nor the network."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(f"{option} needs matplotlib. Run `pip install 'kvtrace[paper]'`.") from None
    return Figure, rc_context


def write_figures(plots: dict[str, Plot], folder: str | Path) -> list[Path]:
    """Write each plot that has data to `<folder>/<name>.png`, all or none, and return the paths.

    Raises:
        UsageError: matplotlib is not installed.
        KvtraceError: The folder is not writable, or the disk is full.
    """
    _figure_class("--png")
    written, folder = [], Path(folder)
    with named_errors(folder):
        made = make_folders(folder)
    try:
        with appear_together():
            for name, plot in plots.items():
                if any(not panel.missing for panel in plot.panels):
                    written += write_plot(plot, png=str(folder / f"{name}.png"), role=Role.BESIDE)
    except BaseException:
        remove_folders(made)
        raise
    return [Path(name) for name in written]


def draw(figure_class, panels):
    """A matplotlib figure with the panels in a grid."""
    columns = min(len(panels), MAX_COLUMNS)
    rows = -(-len(panels) // columns)
    legend = max(_legend_rows(panel) for panel in panels) * LEGEND_ROW
    figure = figure_class(figsize=(WIDTH * columns, (HEIGHT + legend) * rows), layout="constrained")
    for number, panel in enumerate(panels, 1):
        _draw_panel(figure, figure.add_subplot(rows, columns, number), panel)
    return figure


def _draw_panel(figure, axes, panel: Panel):
    axes.set_title(fill(panel.title, MAX_TITLE))
    stacked: Any = 0  # x -> height of the bars below
    for series in panel.series:
        colour = colour_of(series.colour)
        name = series.name.replace("$", r"\$")  # matplotlib would read the name of a file as a formula
        if series.style in ("bars", "stack"):
            step = np.diff(series.x).min() if len(series.x) > 1 else 1.0
            width, bottom = (step, stacked) if series.style == "stack" else (0.9 * step, 0)
            axes.bar(series.x, series.y, width, bottom, color=colour, alpha=series.opacity, label=name)
            stacked = bottom + series.y
        elif series.style == "across":
            axes.barh(series.y, series.x, 0.8, color=colour, label=name)
        elif isinstance(series, Spans):
            axes.barh(
                series.y,
                series.length,
                series.height,
                left=series.x,
                color=colour,
                alpha=series.opacity,
                edgecolor=colour,
                linewidth=0.4,
                label=name,
            )
        elif series.style == "step":
            axes.step(series.x, series.y, where="post", color=colour, label=name)
        else:
            line = ":" if series.style == "dash" else "" if series.style == "points" else "-"
            mark = "." if series.style == "dots" or len(series.x) == 1 else "o" if series.style == "points" else ""
            axes.plot(series.x, series.y, linestyle=line, marker=mark, markersize=4, color=colour, label=name)
        if series.low is not None and series.high is not None:
            axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.15, linewidth=0)
    if panel.density is not None:
        axes.grid(False)
        share = np.ma.masked_equal(panel.density.share, 0)
        mesh = axes.pcolormesh(panel.density.x, panel.density.y, share, cmap="cividis", rasterized=True)
        figure.colorbar(mesh, ax=axes, format=lambda value, _: f"{100 * value:.3g}%")
    xs = [series.x for series in panel.series] + ([panel.density.x] if panel.density else [])
    ys = [series.y for series in panel.series] + ([panel.density.y] if panel.density else [])
    _set_axis(axes, "x", panel.x, xs)
    _set_axis(axes, "y", fitted(panel), ys)
    if rows := _legend_rows(panel):  # below the axes and their labels, where no line can be
        columns = -(-len(panel.series) // rows)
        lines = 1 + max((label.count("\n") for label in (panel.x.ticks or {}).values()), default=0)
        below = -(0.17 + 0.08 * lines)
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, below), ncols=columns, handlelength=1.6,
                    columnspacing=1.2, labelspacing=0.25, borderaxespad=0)  # fmt: skip


def _legend_rows(panel: Panel) -> int:
    """Rows of the legend: two names in a row where they are short; none for a single line."""
    names = [series.name for series in panel.series]
    if len(names) < 2 or not panel.legend:
        return 0
    return len(names) if max(map(len, names)) > MAX_NAME else -(-len(names) // LEGEND_COLUMNS)


def _set_axis(axes, which, axis: Axis, values):
    line = getattr(axes, f"{which}axis")
    axes.set(**{f"{which}label": axis.title})
    ticks = axis.ticks or {}
    if axis.log:
        low, high = extent(values)
        axes.set(**{f"{which}scale": "log", f"{which}lim": (low / 1.02, high * 1.05)})
        places = log_ticks(low, high)
        places = places if len(places) <= MAX_TICKS else log_ticks(low, high, (1, 3))
        ticks = ticks or {tick: f"{100 * tick:.3g}%" if axis.percent else short(tick) for tick in places}
        line.set_minor_locator(_no_ticks())
    elif axis.percent:
        line.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    else:
        line.set_major_formatter(lambda value, _: short(value))
    if ticks:
        line.set_ticks(list(ticks), labels=list(ticks.values()))
    if axis.whole:
        line.get_major_locator().set_params(integer=True)
    if axis.limits and not axis.log:
        axes.set(**{f"{which}lim": axis.limits if axis.limits[1] else (0, None)})


def _no_ticks():
    from matplotlib.ticker import NullLocator

    return NullLocator()
