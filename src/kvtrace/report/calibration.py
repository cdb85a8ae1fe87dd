"""The tables and the warnings of `kvtrace calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby

from .._base.tables import TextTable, number
from ..serving.calibration.calibration import Calibration
from ..serving.calibration.costs import LABELS
from .validation import UNITS, signed


def tables(calibration: Calibration) -> list[TextTable]:
    """The errors of the statistics, the worth of each term, and the operating range."""
    return [_errors(calibration), _terms(calibration), _forms(calibration), _range(calibration)]


def sentence(calibration: Calibration) -> str:
    """How well the costs predict, in a sentence."""
    which = f"{calibration.held_out:,} held-out" if calibration.held_out else f"{calibration.requests:,} fitted"
    means = [one for one in calibration.errors if one.statistic == "mean"]
    errors = ", ".join(f"{UNITS[one.latency][0].split()[0]} {signed(one.error)}" for one in means)
    return f"The error of the simulated means of the {which} requests: {errors}."


def warnings(calibration: Calibration) -> list[str]:
    """What limits the costs, one sentence each."""
    sentences = []
    if calibration.left_out:
        sentences.append(
            f"{calibration.left_out:,} requests failed and are left out; the engine may have worked on them."
        )
    if not calibration.held_out:
        sentences.append("no request is held out, so the errors are those of the fit itself. Try --holdout 50%.")
    queued = [one for one in calibration.errors if (one.latency, one.statistic) == ("ttft_s", "mean")]
    if queued and abs(queued[0].error) > WRONG:
        sentences.append(
            f"the mean TTFT is off by {signed(queued[0].error)}. Check the engine's settings: --scheduler, --model and "
            "--gpu."
        )
    return sentences


WRONG = 0.2  # an error of the mean TTFT that no noise explains


def _errors(calibration: Calibration) -> TextTable:
    which = "Held-out requests" if calibration.held_out else "Fitted requests"
    table = TextTable(
        f"{which}: simulated against measured",
        caption="interval: bootstrap over windows of requests; unfitted: with the roofline of the GPU",
    )
    table.add_column("")
    table.add_column("statistic", rank=0)
    table.add_columns(["measured", "simulated", "error", "90 % interval", "unfitted", "fitted part"], right=True)
    rows = zip(calibration.errors, calibration.unfitted_errors, calibration.fitted_errors, strict=True)
    for latency, group in groupby(rows, lambda row: row[0].latency):
        name, factor = UNITS[latency]
        for place, (one, unfitted, fitted) in enumerate(group):
            table.add_row(
                "" if place else name, one.statistic, number(factor * one.measured), number(factor * one.simulated),
                signed(one.error), f"{signed(one.low)} to {signed(one.high)}", signed(unfitted.error),
                signed(fitted.error),
            )  # fmt: skip
    return table


def _terms(calibration: Calibration) -> TextTable:
    table = TextTable(
        "Terms of a step",
        caption="worth: the mean error of the statistics above without the term, the others fitted again",
    )
    table.add_column("term", rank=0)
    table.add_columns(["seconds", "of the roofline", "worth"], right=True)
    multiples = calibration.costs.for_gpus().multiples
    for name, worth in calibration.worth.items():
        seconds, multiple = calibration.costs.terms[name], multiples.get(name)
        table.add_row(name, f"{seconds:.3g}", "" if multiple is None else f"{multiple:.2f}", f"{worth:.2%}")
    return table


def _forms(calibration: Calibration) -> TextTable:
    table = TextTable("Forms of the cost", caption="error: the mean of a fitted request's errors of TTFT and E2E")
    table.add_column("form", rank=0)
    table.add_columns(["error", "chosen"], right=True)
    for name, error in calibration.forms.items():
        table.add_row(name, f"{error:.2%}", "yes" if name == calibration.costs.form else "")
    return table


def _range(calibration: Calibration) -> TextTable:
    table = TextTable(
        "Operating range", caption="the largest values that were measured; other runs should not exceed them"
    )
    table.add_column("", rank=0)
    table.add_columns(["largest"], right=True)
    for name, value in asdict(calibration.costs.seen).items():
        table.add_row(LABELS[name], f"{value:,}")
    return table
