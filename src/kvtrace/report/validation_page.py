"""The page of a validation: the same HTML as a report, with measured and simulated times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .._base.files import is_std
from .._base.output_files import write_atomically
from .._base.tables import number, printable
from ..serving.validation import Validation
from . import html_page
from .plots import validated
from .validation_tables import UNITS, sentence, tables, warnings

DEFINITIONS = {
    "TTFT": "Time to first token, from the arrival of the request.",
    "TPOT": "Time per output token after the first one.",
    "E2E": "Time from the arrival to the last token.",
    "Error": "Simulated / measured - 1, of a statistic over the same requests.",
    "90 % interval": "Where the error lies in 90 % of the samples of a bootstrap over windows of consecutive requests.",
    "Rank correlation": "Spearman's: 1 if the simulation orders the requests by their times as the engine did.",
    "Running": "Admitted requests: they hold blocks, and get tokens.",
    "Waiting": "Requests that have arrived, or were preempted, and are not admitted.",
    "KV use": "The share of the KV cache's blocks that requests hold.",
}


def page(validation: Validation, *, title: str | None = None, costs: str = "") -> str:
    """Build the HTML page of a validation. The same validation gives the same page, byte for byte.

    Args:
        validation: The result of `validate`.
        title: The title of the page.
        costs: Where the costs come from, in words.

    Raises:
        UsageError: plotly is not installed.
    """
    notes = [text[:1].upper() + text[1:] for text in warnings(validation)]
    return html_page.fill(
        validated.plots(validation),
        title=title or "Simulated against measured",
        story=" ".join([sentence(validation), *notes]),
        heads=[{"name": "", "tiles": list(tiles(validation))}],
        tables=tables(validation, costs),
        definitions=DEFINITIONS,
    )


def write_page(path: str | Path, validation: Validation, *, title: str | None = None, costs: str = "") -> list[str]:
    """Write the HTML page of a validation, as `kvtrace validate --html` does.

    Args:
        path: The HTML file; `-` is stdout.
        validation, title, costs: As in `page`.

    Returns:
        The names of the files.
    """
    html_page.check_output(path)
    html = page(validation, title=title, costs=costs)
    with write_atomically(path) as stream:
        stream.write(html.encode())
    return [] if is_std(path) else [str(path)]


def tiles(validation: Validation) -> Iterator[tuple[str, str, str]]:
    """(name, value, note) of each headline number."""
    values = validation.to_dict()
    model = validation.recording.settings.model
    yield "requests", f"{values['requests']:,}", printable(model) if model else values["format"]
    for error in validation.errors:
        if error.statistic == "mean":
            name, factor = UNITS[error.latency]
            word, unit = name.rstrip(")").split(" (")
            measured, simulated = (number(factor * value) for value in (error.measured, error.simulated))
            both = f"{measured} {unit} measured, {simulated} {unit} simulated"
            yield f"error of mean {word}", f"{error.error:+.1%}", both
    rate = values["simulated_output_tokens_per_s"] / max(values["output_tokens_per_s"], 1e-9) - 1
    yield "error of throughput", f"{rate:+.1%}", f"{values['output_tokens_per_s']:,.0f} output tokens / s measured"
    ranks = [(name, rank) for name, rank in values["rank_correlation"].items() if rank is not None]
    for name, rank in ranks[:1]:
        yield "rank correlation", f"{rank:.3f}", f"of the requests' {UNITS[name][0].split()[0]}"
    yield "preemptions", f"{values['simulated_preemptions']:,}", "simulated"
    size = values["capacity"]
    yield "KV cache", "-" if size is None else f"{size:,}", "blocks" if size else "size not known"
