"""A panel as a plotly figure: plain dicts, which a small script on the page draws in the colours of the theme."""

from __future__ import annotations

import base64
import gzip
from functools import cache
from typing import Any

import numpy as np

from .._base.errors import UsageError
from .._base.units import short
from .plots.plot import Axis, Density, Panel, Plot, Series, Spans, even_ticks, fitted, log_ticks

MISSING = "plotly is not installed. Run `pip install 'kvtrace[report]'`."
DIGITS = 5  # significant digits, more than a screen shows
NEARLY = 1.02  # ratio of values that a logarithmic axis does not tell apart
MARGIN = 0.03  # of a logarithmic axis, beyond the first and the last dot
LINES = {"line": "linear", "dash": "linear", "step": "hv", "dots": "linear", "points": "linear"}
# distinct for colour-blind readers, after Okabe and Ito; the page has the first six
PALETTE = ("#0067a5", "#d55e00", "#009e73", "#a6519d", "#8a6d00", "#5d6875", "#56b4e9", "#e69f00")
# for areas side by side, with the blue, the red and the grey above: at least 15 apart in CIE Lab for every kind of
# colour vision; the last one is pale, for what is not the point; the page has lighter ones for a dark theme
TONES = ("#36a0e4", "#513f14", "#6d1d5a", "#2fdf86", "#dbc93e", "#c3cad3", "#9319fb")
MAX_COLUMNS = 2  # of panels in one figure
PANEL_WIDTH, PANEL_HEIGHT = 520, 400  # pixels


@cache
def script() -> str:
    """The JavaScript of plotly, which the page contains once; UsageError if plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UsageError(MISSING) from None
    return get_plotlyjs()


@cache
def packed_script() -> str:
    """The same script as gzip in base64, 40 % of its size; the page unpacks it with the browser's DecompressionStream.

    >>> import base64, gzip
    >>> gzip.decompress(base64.b64decode(packed_script())).decode() == script()
    True
    """
    return base64.b64encode(gzip.compress(script().encode(), 9, mtime=0)).decode()


def plotly_figure(plot: Plot) -> Any:
    """The panels of a plot as one plotly Figure, for a notebook.

    Raises:
        UsageError: plotly is not installed.

    >>> panel = Panel("", Axis("x"), Axis("y"), [Series("a", np.array([1]), np.array([3]))])
    >>> plotly_figure(Plot("", "", [panel])).data[0].y
    (3,)
    """
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        raise UsageError(MISSING) from None
    columns = min(len(plot.panels), MAX_COLUMNS)
    rows = -(-len(plot.panels) // columns)
    titles = [
        _escaped(panel.title) + f"<br><sub>{_escaped(panel.note)}</sub>" * bool(panel.note) for panel in plot.panels
    ]
    cells: list[dict[str, Any] | None] = [{} for _ in titles]
    cells += [None] * (rows * columns - len(cells))  # no axes in the last place if it is empty
    drawn = make_subplots(
        rows, columns, subplot_titles=titles, vertical_spacing=0.3 / rows, horizontal_spacing=0.12,
        specs=[cells[row * columns : (row + 1) * columns] for row in range(rows)],
    )  # fmt: skip
    for number, panel in enumerate(plot.panels):
        _add_panel(drawn, panel, number, *(1 + place for place in divmod(number, columns)))
    drawn.update_annotations(yshift=26)
    drawn.update_layout(
        width=PANEL_WIDTH * columns, height=PANEL_HEIGHT * rows, template="plotly_white", title=_escaped(plot.title),
        bargap=0.08, margin={"t": 110},
    )  # fmt: skip
    return drawn


def _add_panel(drawn, panel: Panel, number: int, row: int, column: int) -> None:
    """Draw one panel in its place; its legend stands above its axes."""
    if panel.missing:
        drawn.add_annotation(text=_escaped(panel.missing), showarrow=False, row=row, col=column, x=0.5, y=0.5)
        drawn.update_xaxes(visible=False, row=row, col=column)
        drawn.update_yaxes(visible=False, row=row, col=column)
        return
    parts, legend = figure(panel), f"legend{number + 1}" if number else "legend"
    for series in parts["data"]:
        if series["type"] == "heatmap":
            drawn.add_trace(series | {"meta": None, "colorscale": "Cividis", "showscale": False}, row=row, col=column)
            continue
        colour = {"color": colour_of(series["meta"])}
        style = {"marker": colour} | ({"line": series["line"] | colour} if "line" in series else {})
        shown = {"legend": legend, "showlegend": parts["layout"]["showlegend"]}
        drawn.add_trace(series | style | shown | {"meta": None}, row=row, col=column)
    drawn.update_xaxes(**parts["layout"]["xaxis"], row=row, col=column)
    drawn.update_yaxes(**parts["layout"]["yaxis"], row=row, col=column)
    if "barmode" in parts["layout"] and drawn.layout.barmode != "stack":  # which leaves bars with a base in their place
        drawn.update_layout(barmode=parts["layout"]["barmode"])
    axis = str(number + 1) if number else ""
    left, top = drawn.layout[f"xaxis{axis}"].domain[0], drawn.layout[f"yaxis{axis}"].domain[1]
    place = {"orientation": "h", "x": left, "y": top, "xanchor": "left", "yanchor": "bottom", "font": {"size": 10}}
    drawn.update_layout({legend: place})


def colour_of(number: int) -> str:
    """The colour of a series by its number.

    >>> colour_of(0), colour_of(8), colour_of(-1)
    ('#0067a5', '#0067a5', '#36a0e4')
    """
    return TONES[-number - 1] if number < 0 else PALETTE[number % len(PALETTE)]


def figure(panel: Panel) -> dict[str, Any]:
    """The data and the layout of a plotly figure; `meta` of a series is its colour in the palette.

    >>> drawn = figure(Panel("", Axis("x"), Axis("y"), [Series("a", np.array([1, 2]), np.array([3, 4]))]))
    >>> drawn["data"][0]["y"]
    [3, 4]
    """
    data = [_trace(series, panel) for series in panel.series]
    if panel.density is not None:
        data.append(_heat(panel.density))
    xs = [series.x for series in panel.series] + ([panel.density.x] if panel.density else [])
    ys = [series.y for series in panel.series] + ([panel.density.y] if panel.density else [])
    ys += [ends for series in panel.series for ends in (series.low, series.high) if ends is not None]
    margin = MARGIN if any(series.style in ("dots", "points") for series in panel.series) else 0.0
    x, y = _axis(panel.x, xs, margin), _axis(fitted(panel), ys, margin)
    layout = {"xaxis": x, "yaxis": y, "showlegend": panel.legend and len(panel.series) > 1}
    if any(isinstance(series, Spans) for series in panel.series):
        layout["barmode"] = "overlay"  # spans of several series share their rows
    if any(series.style == "stack" for series in panel.series):
        layout["barmode"] = "stack"
    return {"data": data, "layout": layout}


def _trace(series: Series, panel: Panel) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "name": _escaped(series.name),
        "x": _numbers(series.x),
        "y": _numbers(series.y),
        "meta": series.colour,
    } | ({"opacity": series.opacity} if series.opacity < 1 else {})
    if series.style == "across":
        value = _hover(panel.x, "x", _name(panel.x))
        return trace | {
            "type": "bar",
            "orientation": "h",
            "hovertemplate": f"%{{y}}<br>{_name(panel.x)}: {value}<extra></extra>",
        }
    if isinstance(series, Spans):
        return trace | _spans(series, panel)
    if series.low is not None and series.high is not None:
        above, below = series.high - series.y, series.y - series.low
        bars = {"array": _numbers(np.maximum(above, 0)), "arrayminus": _numbers(np.maximum(below, 0))}
        trace["error_y"] = {"type": "data", "symmetric": False, "thickness": 1, "width": 3} | bars
    x, y = _hover(panel.x, "x", _name(panel.x)), _hover(panel.y, "y", _escaped(series.name))
    interval = " (+%{error_y.array:,.2~r}, -%{error_y.arrayminus:,.2~r})" if "error_y" in trace else ""
    trace["hovertemplate"] = f"{_name(panel.x)}: {x}<br>{_escaped(series.name)}: {y}{interval}<extra></extra>"
    if series.style in ("bars", "stack"):
        return trace | {"type": "bar"}
    line = {"shape": LINES[series.style], "width": 1.5 if series.style == "dash" else 2}
    line |= {"dash": "dot"} if series.style == "dash" else {}
    mode = "lines+markers" if series.style == "dots" or len(series.x) == 1 else "lines"
    mode = "markers" if series.style == "points" else mode
    return trace | {"type": "scatter", "mode": mode, "line": line, "cliponaxis": False}


def _spans(series: Spans, panel: Panel) -> dict[str, Any]:
    """Bars to the right that begin at x; the pointer shows the row, the length and the details of each."""
    shown = [
        f"{_escaped(name)}: %{{customdata[{number}]:{'.1%' if values.dtype.kind == 'f' else ','}}}"
        for number, (name, values) in enumerate(series.details.items())
    ]
    length = _hover(panel.x, "x", "")
    start = [f"{_name(panel.x)}: {_hover(panel.x, 'base', '')}"] * series.shows_start
    lines = ["%{y}", *start, f"{_escaped(series.name)}: {length}", *shown]
    details = zip(*map(_numbers, series.details.values()), strict=True)
    return {
        "type": "bar", "orientation": "h", "base": _numbers(series.x), "x": _numbers(series.length),
        "width": series.height, "customdata": [list(row) for row in details],
        "hovertemplate": f"{'<br>'.join(lines)}<extra></extra>",
    }  # fmt: skip


def _name(axis: Axis) -> str:
    """The title of an axis without its unit."""
    return _escaped(axis.title.partition(" (")[0])


def _hover(axis: Axis, letter: str, label: str) -> str:
    """The template of a value under the pointer, with its unit unless the label before it is that unit."""
    if axis.percent:
        return f"%{{{letter}:.2%}}"
    unit = _escaped(axis.unit)
    return f"%{{{letter}:,.6~r}}" + (f" {unit}" if unit and unit != label else "")


def _heat(density: Density) -> dict[str, Any]:
    share = np.where(density.share > 0, density.share, np.nan)
    rows = [[None if np.isnan(value) else float(f"{value:.{DIGITS}g}") for value in row] for row in share]
    return {
        "type": "heatmap", "x": _numbers(density.x), "y": _numbers(density.y), "z": rows, "meta": "density",
        "hovertemplate": "%{x:,.4~r} by %{y:,.4~r} tokens: %{z:.2%}<extra></extra>",
        "colorbar": {"tickformat": ".1~%", "thickness": 10, "outlinewidth": 0},
    }  # fmt: skip


def _axis(axis: Axis, values: list[np.ndarray], margin: float = 0.0) -> dict[str, Any]:
    options: dict[str, Any] = {"title": {"text": _escaped(axis.title)}}
    if axis.percent:
        options["tickformat"] = ".4~%"
    if axis.log:
        low, high = (float(end) for end in extent(values))
        beyond = margin * (np.log10(high) - np.log10(low))
        options |= {"type": "log", "range": [_rounded(np.log10(low) - beyond), _rounded(np.log10(high) + beyond)]}
        ticks = axis.ticks or {
            tick: f"{100 * tick:.3g}%" if axis.percent else short(tick) for tick in log_ticks(low, high)
        }
    else:
        ticks = axis.ticks or {}
        if axis.limits:
            options |= {"rangemode": "tozero"} if axis.limits[1] == 0 else {"range": list(map(_rounded, axis.limits))}
        if axis.whole and not ticks:
            low, high = axis.limits if axis.limits and axis.limits[1] else extent(values)
            low = min(low, axis.limits[0]) if axis.limits else low
            ticks = {tick: short(tick) for tick in even_ticks(low, high, least=1)}
    if ticks:
        labels = [_escaped(label).replace("\n", "<br>") for label in ticks.values()]
        options |= {"tickmode": "array", "tickvals": list(map(_rounded, ticks)), "ticktext": labels}
    return options


def extent(values: list[np.ndarray]) -> tuple[float, float]:
    """The smallest and the largest positive value; a range around them if they are nearly equal.

    >>> extent([np.array([0, 2]), np.array([5])]), extent([np.array([7, 7.0001])])
    ((2.0, 5.0), (3.5, 14.0002))
    """
    together = np.concatenate([np.asarray(part, dtype=np.float64) for part in values])
    low, high = float(together[together > 0].min()), float(together.max())
    return (low, high) if high > NEARLY * low else (low / 2, high * 2)


def _numbers(values: np.ndarray) -> list[Any]:
    if values.dtype.kind in "iu":
        return values.tolist()
    return [_rounded(value) for value in values.tolist()]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _escaped(text: str) -> str:
    """Escape text for labels: plotly reads a few HTML tags in them."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "% {")
