"""The plots of the report as PNG files for a paper, drawn by matplotlib from the same data as the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .._base.errors import InputError, UsageError
from .interactive import extent
from .plots.plot import Axis, Panel, Plot, log_ticks, short

PALETTE = (
    "#0067a5",
    "#d55e00",
    "#009e73",
    "#a6519d",
    "#8a6d00",
    "#5d6875",
)  # distinct for colour-blind readers, after Okabe and Ito
WIDTH, HEIGHT, DPI = 3.4, 2.6, 200  # inches of a panel (a column of a paper), dots per inch
MAX_COLUMNS = 3  # of panels in one figure
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "text.parse_math": False,  # a dollar sign in a name is not math
}


def write_figures(plots: dict[str, Plot], folder: str | Path) -> list[Path]:
    """Write each plot that has data to `<folder>/<name>.png`, and return the paths.

    Raises:
        UsageError: matplotlib is not installed.
        InputError: The folder is not writable.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("--png needs matplotlib. Run `pip install 'kvtrace[paper]'`.") from None
    written, folder = [], Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(STYLE):
            for name, plot in plots.items():
                panels = [panel for panel in plot.panels if not panel.missing]
                if panels:
                    written.append(folder / f"{name}.png")
                    draw(Figure, panels).savefig(written[-1], dpi=DPI, metadata={"Software": None})
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or 'cannot write to this folder'}.") from None
    return written


def draw(figure_class, panels):
    """A matplotlib figure with the panels in a grid."""
    columns = min(len(panels), MAX_COLUMNS)
    rows = -(-len(panels) // columns)
    figure = figure_class(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
    for number, panel in enumerate(panels, 1):
        _draw_panel(figure, figure.add_subplot(rows, columns, number), panel)
    return figure


def _draw_panel(figure, axes, panel: Panel):
    axes.set_title(panel.title)
    for series in panel.series:
        colour = PALETTE[series.colour % len(PALETTE)]
        name = series.name.replace("$", r"\$")  # matplotlib would read the name of a file as a formula
        if series.style == "bars":
            width = np.diff(series.x).min(initial=1.0) * 0.9 if len(series.x) > 1 else 0.9
            axes.bar(series.x, series.y, width, color=colour, label=name)
        elif series.style == "step":
            axes.step(series.x, series.y, where="post", color=colour, label=name)
        else:
            line = ":" if series.style == "dash" else "-"
            mark = "." if series.style == "dots" or len(series.x) == 1 else ""
            axes.plot(series.x, series.y, line, marker=mark, color=colour, label=name)
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
    _set_axis(axes, "y", panel.y, ys)
    if len(panel.series) > 1:
        axes.legend(fontsize=7)


def _set_axis(axes, which, axis: Axis, values):
    line = getattr(axes, f"{which}axis")
    axes.set(**{f"{which}label": axis.title})
    ticks = axis.ticks or {}
    if axis.log:
        low, high = extent(values)
        axes.set(**{f"{which}scale": "log", f"{which}lim": (low / 1.02, high * 1.05)})
        ticks = ticks or {tick: f"{100 * tick:.3g}%" if axis.percent else short(tick) for tick in log_ticks(low, high)}
        line.set_minor_locator(_no_ticks())
    elif axis.percent:
        line.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    else:
        line.set_major_formatter(lambda value, _: short(value))
    if ticks:
        line.set_ticks(list(ticks), labels=list(ticks.values()))
    if axis.limits and not axis.log:
        axes.set(**{f"{which}lim": axis.limits if axis.limits[1] else (0, None)})


def _no_ticks():
    from matplotlib.ticker import NullLocator

    return NullLocator()
