"""Calibrate on a recording's first part, and compare with the rest: `python -m experiments.recording.fit FOLDER`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import click
import numpy as np

from kvtrace._base.errors import KvtraceError
from kvtrace.formats.reading import read
from kvtrace.serving.calibration import Calibration, calibrate
from kvtrace.serving.recordings import read_recording
from kvtrace.serving.simulation import StepCost
from kvtrace.serving.validation import Validation, validate

LATENCY = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--holdout",
    default=0.5,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="The share of the requests, the last ones, that are not fitted.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the costs.")
def main(folder, holdout, output):
    """Fit the cost of a step to a recording, and print the errors of the requests that were held out."""
    calibration, validation, steps = fitted(folder, holdout)
    if output:
        calibration.costs.save(output)
    meta = json.loads(Path(folder, "meta.json").read_text())
    click.echo(f"{meta['note']} {calibration}")
    unfitted = {(one.latency, one.statistic): one for one in calibration.unfitted_errors}
    for one in calibration.errors:
        before = unfitted[one.latency, one.statistic].error
        click.echo(
            f"{LATENCY[one.latency]} {one.statistic}: measured {one.measured:.4g} s, error {one.error:+.1%} "
            f"[{one.low:+.1%}, {one.high:+.1%}]; with the roofline {before:+.1%}"
        )
    click.echo(f"all requests: {validation}")
    click.echo(f"steps: {steps['busy']:+.1%} of their total time, {steps['median']:.1%} median error of one step")


def fitted(folder: str | Path, holdout: float = 0.5) -> tuple[Calibration, Validation, dict[str, float]]:
    """The calibration on a folder, its validation on all requests, and the errors of the steps."""
    folder = Path(folder)
    recording = read_recording(folder, trace=read(folder / "trace.jsonl"))
    calibration = calibrate(recording, folder / "config.json", folder / "gpu.json", holdout=holdout)
    return calibration, validate(recording, calibration.costs), step_errors(folder, calibration.costs.step_cost)


def step_errors(folder: str | Path, cost: StepCost) -> dict[str, float]:
    """How far the seconds of the recorded steps under a cost are from the measured ones.

    Returns:
        `busy`, the error of their sum, and `median`, the median of the steps' absolute relative errors.
    """
    with Path(folder, "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    requests = steps["decodes"] + steps["chunks"]
    seconds = np.maximum(
        cost.token_s * steps["tokens"] + cost.pair_s * steps["pairs"], cost.step_s + cost.read_s * steps["context"]
    )
    seconds += cost.overhead_s + cost.request_s * requests
    seconds += cost.attention_pair_s * steps["pairs"] + cost.attention_read_s * steps["context"]
    measured = steps["seconds"]
    return {
        "busy": float(seconds.sum() / measured.sum() - 1),
        "median": float(np.median(np.abs(seconds / measured - 1))),
    }


if __name__ == "__main__":
    try:
        main()
    except KvtraceError as error:
        raise SystemExit(f"error: {error}") from None
