"""The tables and sentences of `kvtrace validate` and `kvtrace calibrate`; the CSV and the HTML page of a validation."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from .._base.files import is_std
from .._base.output_files import write_atomically
from .._base.results import column, columns_in
from .._base.tables import TextTable, number, printable
from ..analysis.session_statistics import UNKNOWN
from ..serving.calibration.costs import LABELS
from ..serving.calibration.kernels import KindError
from ..serving.latencies import StatisticError, signed
from ..serving.validation import Validation, ValidationDict

if TYPE_CHECKING:
    from ..serving.calibration.calibration import Calibration
    from ..serving.calibration.costs import Costs
    from ..serving.calibration.kernels import KernelFit


UNITS = {"ttft_s": ("TTFT (s)", 1), "tpot_s": ("TPOT (ms)", 1000), "e2e_s": ("E2E (s)", 1)}
MOMENTS = 12  # rows of the table over time


def tables(validation: Validation, costs: str = "") -> list[TextTable]:
    """One table for each question.

    Args:
        validation: The result.
        costs: Where the costs come from, in words.
    """
    values = validation.to_dict()
    return [
        _setting(validation, values, costs),
        _errors(validation),
        _ranks(values),
        _whole(values),
        _over_time(values),
    ]


def sentence(validation: Validation) -> str:
    """The errors of the means in a sentence."""
    means = [error for error in validation.errors if error.statistic == "mean"]
    parts = [f"{UNITS[error.latency][0].split()[0]} {signed(error.error)}" for error in means]
    return f"The error of the simulated means: {', '.join(parts)} (simulated / measured - 1)."


def warnings(validation: Validation) -> list[str]:
    """What limits the comparison, one sentence each."""
    recording, run = validation.recording, validation.run
    sentences = [*recording.settings.not_simulated]
    if recording.left_out:
        sentences.append(
            f"{recording.left_out:,} requests failed and are left out; the engine may have worked on them."
        )
    if run.rejected:
        sentences.append(f"{run.rejected:,} requests do not fit into the simulated KV cache. Give a larger --capacity.")
    if validation.capacity is None:
        sentences.append("the size of the KV cache is not known, so nothing is preempted. Give --capacity.")
    if validation.extrapolation:
        over = ", ".join(f"{LABELS[name]}: {times:.3g} times" for name, times in validation.extrapolation.items())
        sentences.append(f"the run goes beyond what the costs were measured for ({over}).")
    return sentences


def write_per_request(validation: Validation, stream: BinaryIO) -> None:
    """Write CSV, one line for each request, in order of arrival; a time that is not known is empty."""
    columns = validation.per_request()
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    writer.writerows([_cell(value) for value in row] for row in rows)
    text.detach()


def _cell(value: Any) -> Any:
    """A number with the digits that a clock has; empty if it is not known."""
    if not isinstance(value, float):
        return value
    return "" if value != value else round(value, 9)


def _setting(validation: Validation, values: ValidationDict, costs: str) -> TextTable:
    table = TextTable("Recording and simulation", has_header=False)
    table.add_column("")
    table.add_column("", dim=True, rank=0)
    recording = validation.recording
    table.add_row(
        "recording", f"{recording.format or 'made'}, {values['requests']:,} requests, {values['left_out']:,} left out"
    )
    if recording.model:
        table.add_row("model", printable(recording.model))
    if len(validation.run.timelines) > 1:
        table.add_row("data-parallel ranks", f"{len(validation.run.timelines):,}, {validation.run.router}")
    if values["warm_up"]:
        table.add_row("counted", f"the last {values['requests'] - values['warm_up']:,} requests")
    table.add_row("scheduler", values["scheduler"])
    size = "not known, unlimited" if values["capacity"] is None else f"{values['capacity']:,} blocks"
    table.add_row("KV cache", f"{size} of {values['block_size']:,} tokens")
    if costs:
        table.add_row("costs", costs)
    if validation.expected_error:
        table.add_row("expected", validation.expected_error.text)
    return table


SHOWN = ("latency", "statistic", "measured", "simulated", "error", "interval")


def _errors(validation: Validation) -> TextTable:
    table = TextTable("Simulated against measured", caption="interval: bootstrap over windows of requests")
    return table.add_results(columns_in(StatisticError), _rows(validation.errors), SHOWN)


def _rows(errors: Iterable[StatisticError]) -> list[dict[str, Any]]:
    """The rows of a table of errors, in the unit of each latency, which the first of its rows names."""
    rows = []
    for latency, group in groupby(errors, lambda error: error.latency):
        name, factor = UNITS[latency]
        for place, error in enumerate(group):
            scaled = {"measured": factor * error.measured, "simulated": factor * error.simulated}
            rows.append(error.to_dict() | {"latency": "" if place else name} | scaled)
    return rows


def _ranks(values: ValidationDict) -> TextTable:
    table = TextTable("Rank correlation of the requests' times", caption="Spearman; 1: the same requests are slow")
    table.add_columns([UNITS[name][0].split()[0] for name in values["rank_correlation"]], right=True)
    table.add_row(*(number(value) for value in values["rank_correlation"].values()))
    return table


def _whole(values: ValidationDict) -> TextTable:
    table = TextTable("The whole run")
    table.add_column("")
    table.add_columns(["measured", "simulated", "error"], right=True)
    state = values["over_time"]
    rows: dict[str, tuple[float | None, float | None]] = {
        "requests / s": (values["requests_per_s"], values["simulated_requests_per_s"]),
        "output tokens / s": (values["output_tokens_per_s"], values["simulated_output_tokens_per_s"]),
        "cached prompt tokens": (values["cached_tokens"], values["simulated_cached_tokens"]),
        "preemptions": (None, values["simulated_preemptions"]),
        "most running requests": (max(state["running"]), max(state["simulated_running"])),
        "most waiting requests": (max(state["waiting"]), max(state["simulated_waiting"])),
    }
    for name, (measured, simulated) in rows.items():
        error = signed(simulated / measured - 1) if measured and simulated is not None else ""
        cells = number(measured), UNKNOWN if simulated is None else number(simulated)
        table.add_row(name, *cells, error)
    uses = [state["kv_use"], state["simulated_kv_use"]]
    if any(use is not None for use in uses):
        table.add_row("mean KV use", *("-" if use is None else f"{np.mean(use):.1%}" for use in uses), "")
    return table


OVER_TIME = {"seconds": column("seconds", ",.1f", rank=0)} | {
    key: column(key.replace("_", " ").replace("kv", "KV"), text, none="-")
    for name, text in {"running": ",", "waiting": ",", "kv_use": ".1%"}.items()
    for key in (name, f"simulated_{name}")
}


def _over_time(values: ValidationDict) -> TextTable:
    state: dict[str, Any] = {**values["over_time"]}
    moments = np.unique(np.linspace(0, len(state["seconds"]) - 1, MOMENTS).round().astype(int)).tolist()
    rows = [{key: state[key] and state[key][moment] for key in OVER_TIME} for moment in moments]
    table = TextTable("Requests that run and wait, and KV use, over time")
    return table.add_results(OVER_TIME, rows, tuple(OVER_TIME))


def calibration_tables(calibration: Calibration) -> list[TextTable]:
    """The errors of the statistics, the worth of each term, and the operating range."""
    costs = calibration.costs
    return [
        _calibration_errors(calibration), _terms(costs, calibration.worth), _forms(calibration.forms, costs),
        _range(costs, "were measured"),
    ]  # fmt: skip


NOT_MEASURED = "nothing was measured: the tables are of kernels, and no error of a simulated time is known."


def kernel_tables(fit: KernelFit) -> list[TextTable]:
    """How far the costs are from the kernel tables that they are fitted to, their terms, and the range of the grid."""
    errors = TextTable("Fitted against the tables", caption=fit.source)
    errors.add_results(columns_in(KindError), [error.to_dict() for error in fit.errors])
    return [errors, _terms(fit.costs, {}), _forms(fit.forms, fit.costs, "of a step"), _range(fit.costs, "the grid has")]


def calibration_sentence(calibration: Calibration) -> str:
    """How well the costs predict, in a sentence."""
    which = f"{calibration.held_out:,} held-out" if calibration.held_out else f"{calibration.requests:,} fitted"
    means = [error for error in calibration.errors if error.statistic == "mean"]
    errors = ", ".join(f"{UNITS[error.latency][0].split()[0]} {signed(error.error)}" for error in means)
    return f"The error of the simulated means of the {which} requests: {errors}."


def calibration_warnings(calibration: Calibration) -> list[str]:
    """What limits the costs, one sentence each."""
    sentences = []
    if calibration.left_out:
        sentences.append(
            f"{calibration.left_out:,} requests failed and are left out; the engine may have worked on them."
        )
    if not calibration.held_out:
        sentences.append("no request is held out, so the errors are those of the fit itself. Try --holdout 50%.")
    queued = [error for error in calibration.errors if (error.latency, error.statistic) == ("ttft_s", "mean")]
    if queued and abs(queued[0].error) > WRONG:
        sentences.append(
            f"the mean TTFT is off by {signed(queued[0].error)}. Check the engine's settings: --scheduler, --model and "
            "--gpu."
        )
    return sentences


WRONG = 0.2  # an error of the mean TTFT that no noise explains


def _calibration_errors(calibration: Calibration) -> TextTable:
    which = "Held-out requests" if calibration.held_out else "Fitted requests"
    table = TextTable(
        f"{which}: simulated against measured",
        caption="interval: bootstrap over windows of requests; unfitted: with the roofline of the GPU",
    )
    columns = {"unfitted": column("unfitted", signed), "fitted": column("fitted part", signed)}
    others = zip(calibration.unfitted_errors, calibration.fitted_errors, strict=True)
    rows = [
        row | {"unfitted": unfitted.error, "fitted": fitted.error}
        for row, (unfitted, fitted) in zip(_rows(calibration.errors), others, strict=True)
    ]
    return table.add_results(columns_in(StatisticError) | columns, rows, (*SHOWN, *columns))


def _terms(costs: Costs, worth: Mapping[str, float]) -> TextTable:
    without = "worth: the mean error of the statistics above without the term, the others fitted again"
    table = TextTable("Terms of a step", caption=without if worth else "")
    table.add_column("term", rank=0)
    table.add_columns(["seconds", "of the roofline", *(["worth"] if worth else [])], right=True)
    multiples = costs.for_gpus().multiples
    for name in worth or multiples:
        seconds, multiple = costs.terms[name], multiples.get(name)
        cells = name, f"{seconds:.3g}", "" if multiple is None else f"{multiple:.2f}"
        table.add_row(*cells, *([f"{worth[name]:.2%}"] if worth else []))
    return table


def _forms(forms: Mapping[str, float], costs: Costs, of: str = "of a fitted request's TTFT and E2E") -> TextTable:
    table = TextTable("Forms of the cost", caption=f"error: the mean error {of}")
    table.add_column("form", rank=0)
    table.add_columns(["error", "chosen"], right=True)
    for name, error in forms.items():
        table.add_row(name, f"{error:.2%}", "yes" if name == costs.form else "")
    return table


def _range(costs: Costs, what: str) -> TextTable:
    table = TextTable("Operating range", caption=f"the largest values that {what}; other runs should not exceed them")
    table.add_column("", rank=0)
    table.add_columns(["largest"], right=True)
    for name, value in asdict(costs.seen).items():
        table.add_row(LABELS[name], f"{value:,}")
    return table


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
    from . import html_page
    from .plots import validated

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
    from . import html_page

    html_page.check_output(path)
    html = page(validation, title=title, costs=costs)
    with write_atomically(path) as stream:
        stream.write(html.encode())
    return [] if is_std(path) else [str(path)]


def tiles(validation: Validation) -> Iterator[tuple[str, str, str]]:
    """(name, value, note) of each headline number."""
    values = validation.to_dict()
    model = validation.recording.model
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
