"""A panel as a plotly figure: plain dicts, which a small script on the page draws in the colours of the theme."""

from __future__ import annotations

import base64
import gzip
from functools import cache
from typing import Any

import numpy as np

from .._base.errors import UsageError
from .plots.plot import Axis, Density, Panel, Series, log_ticks, short

DIGITS = 5  # significant digits, more than a screen shows
LINES = {"line": "linear", "dash": "linear", "step": "hv", "dots": "linear"}


@cache
def script() -> str:
    """The JavaScript of plotly, which the page contains once; UsageError if plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UsageError("plotly is not installed. Run `pip install 'kvtrace[report]'`.") from None
    return get_plotlyjs()


@cache
def packed_script() -> str:
    """The same script as gzip in base64, 40 % of its size; the page unpacks it with the browser's DecompressionStream.

    >>> import base64, gzip
    >>> gzip.decompress(base64.b64decode(packed_script())).decode() == script()
    True
    """
    return base64.b64encode(gzip.compress(script().encode(), 9, mtime=0)).decode()


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
    layout = {"xaxis": _axis(panel.x, xs), "yaxis": _axis(panel.y, ys), "showlegend": len(panel.series) > 1}
    return {"data": data, "layout": layout}


def _trace(series: Series, panel: Panel) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "name": _escaped(series.name),
        "x": _numbers(series.x),
        "y": _numbers(series.y),
        "meta": series.colour,
    }
    if series.low is not None and series.high is not None:
        above, below = series.high - series.y, series.y - series.low
        bars = {"array": _numbers(np.maximum(above, 0)), "arrayminus": _numbers(np.maximum(below, 0))}
        trace["error_y"] = {"type": "data", "symmetric": False, "thickness": 1, "width": 3} | bars
    x, y = _hover(panel.x, "x"), _hover(panel.y, "y")
    interval = " (+%{error_y.array:.2~g}, -%{error_y.arrayminus:.2~g})" if "error_y" in trace else ""
    trace["hovertemplate"] = f"{_name(panel.x)}: {x}<br>{_escaped(series.name)}: {y}{interval}<extra></extra>"
    if series.style == "bars":
        return trace | {"type": "bar"}
    line = {"shape": LINES[series.style], "width": 1.5 if series.style == "dash" else 2}
    line |= {"dash": "dot"} if series.style == "dash" else {}
    mode = "lines+markers" if series.style == "dots" or len(series.x) == 1 else "lines"
    return trace | {"type": "scatter", "mode": mode, "line": line, "cliponaxis": False}


def _name(axis: Axis) -> str:
    """The title of an axis without its unit."""
    return _escaped(axis.title.partition(" (")[0])


def _hover(axis: Axis, letter: str) -> str:
    """The template of a value under the pointer, with its unit."""
    if axis.percent:
        return f"%{{{letter}:.2%}}"
    return f"%{{{letter}:,.4~g}}" + (f" {_escaped(axis.unit)}" if axis.unit else "")


def _heat(density: Density) -> dict[str, Any]:
    share = np.where(density.share > 0, density.share, np.nan)
    rows = [[None if np.isnan(value) else float(f"{value:.{DIGITS}g}") for value in row] for row in share]
    return {
        "type": "heatmap", "x": _numbers(density.x), "y": _numbers(density.y), "z": rows, "meta": "density",
        "hovertemplate": "%{x:,.4~g} by %{y:,.4~g} tokens: %{z:.2%}<extra></extra>",
        "colorbar": {"tickformat": ".1~%", "thickness": 10, "outlinewidth": 0},
    }  # fmt: skip


def _axis(axis: Axis, values: list[np.ndarray]) -> dict[str, Any]:
    options: dict[str, Any] = {"title": {"text": _escaped(axis.title)}}
    if axis.percent:
        options["tickformat"] = ".4~%"
    if axis.log:
        low, high = (float(end) for end in extent(values))
        options |= {"type": "log", "range": [_rounded(np.log10(low)), _rounded(np.log10(high))]}
        ticks = axis.ticks or {
            tick: f"{100 * tick:.3g}%" if axis.percent else short(tick) for tick in log_ticks(low, high)
        }
    else:
        ticks = axis.ticks or {}
        if axis.limits:
            options |= {"rangemode": "tozero"} if axis.limits[1] == 0 else {"range": list(map(_rounded, axis.limits))}
    if ticks:
        labels = [_escaped(label).replace("\n", "<br>") for label in ticks.values()]
        options |= {"tickmode": "array", "tickvals": list(map(_rounded, ticks)), "ticktext": labels}
    return options


def extent(values: list[np.ndarray]) -> tuple[float, float]:
    """The smallest and the largest positive value; a range around the value if they are equal.

    >>> extent([np.array([0, 2]), np.array([5])])
    (2.0, 5.0)
    """
    together = np.concatenate([np.asarray(part, dtype=np.float64) for part in values])
    low, high = float(together[together > 0].min()), float(together.max())
    return (low, high) if high > low else (low / 2, high * 2)


def _numbers(values: np.ndarray) -> list:
    if values.dtype.kind in "iu":
        return values.tolist()
    return [_rounded(value) for value in values.tolist()]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _escaped(text: str) -> str:
    """Escape text for labels: plotly reads a few HTML tags in them."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "% {")
