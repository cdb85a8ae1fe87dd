"""Calibrate on a recording's first part, and compare with the rest: `python -m experiments.recording.fit FOLDER`.

Two fits: `calibrate`, which knows the times of requests alone, and one to the measured seconds of the steps. The second
shows how much of an error is that of the form of the cost, or of a machine whose speed changes.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import click
import numpy as np

from kvtrace._base.errors import InputError, KvtraceError
from kvtrace.formats.reading import read
from kvtrace.serving.calibration.calibration import calibrate
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.latencies import StatisticError, errors_of
from kvtrace.serving.recordings import Recording, read_recording
from kvtrace.serving.simulation import StepCost
from kvtrace.serving.validation import validate

from .recorder import served_by

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
    folder = Path(folder)
    recording = read_recording(folder, trace=read(folder / "trace.jsonl"))
    calibration = calibrate(recording, Deployment(folder / "config.json", gpu=folder / "gpu.json"), holdout=holdout)
    if output:
        calibration.costs.save(output)
    click.echo(f"{json.loads((folder / 'meta.json').read_text())['note']} {calibration}")
    _tell("calibrated", calibration.errors)
    _tell("roofline", calibration.unfitted_errors)
    steps = steps_of(folder)
    first_s, ended_s = replayed(recording, steps)
    worst = max(np.abs(first_s - recording.first_s).max(), np.abs(ended_s - recording.ended_s).max())
    click.echo(f"the measured seconds of the steps give the measured times of all requests within {1e6 * worst:.1g} us")
    held = np.arange(len(recording)) >= round((1 - holdout) * len(recording))
    fitted = steps["begin"] < recording.arrival_s[held][0]
    cost = fitted_to_steps({name: values[fitted] for name, values in steps.items()})
    validation = validate(recording, cost, scheduler=recording.scheduler())
    _tell("fitted to steps", errors_of(validation.measured.take(held), validation.simulated.take(held)))
    for name, one in (("calibrated", calibration.costs.step_cost), ("fitted to steps", cost)):
        shares = seconds_of(steps, one)[~fitted] / steps["seconds"][~fitted] - 1
        total = seconds_of(steps, one)[~fitted].sum() / steps["seconds"][~fitted].sum() - 1
        click.echo(
            f"steps of the held-out part, {name}: total {total:+.1%}, median error {np.median(np.abs(shares)):.1%}"
        )
    click.echo(f"all requests, calibrated: {validate(recording, calibration.costs)}")


def _tell(name: str, errors: list[StatisticError]) -> None:
    shown = ", ".join(f"{LATENCY[one.latency]} {one.statistic} {one.error:+.1%}" for one in errors)
    click.echo(f"{name}: {shown}")


def replayed(recording: Recording, steps: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The first token and the end of each request if the simulated steps take the measured seconds, one by one.

    Raises:
        InputError: The simulation takes other steps than those that were recorded.
    """
    scheduler, seconds = recording.scheduler(), iter(zip(steps["tokens"], steps["seconds"], strict=True))
    run, instance, requests, _ = served_by(scheduler, recording.simulated_trace, recording.setting(scheduler).capacity)

    def timer(begin, parts):
        tokens, taken = next(seconds, (None, None))
        if tokens != sum(chunk for _, _, chunk, _ in parts):
            raise InputError(f"steps.csv: the step at {begin:g} s has other tokens in the simulation.")
        return float(taken)

    instance.step_timer = timer
    run.advance(len(recording))
    run.close()
    return requests.outcomes["first"], requests.outcomes["ended"]


def steps_of(folder: str | Path) -> dict[str, np.ndarray]:
    """The columns of steps.csv."""
    with Path(folder, "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def fitted_to_steps(steps: dict[str, np.ndarray]) -> StepCost:
    """The cost, a sum of terms, that is nearest to the measured seconds of the steps, by their relative errors."""
    from scipy.optimize import nnls

    measured = steps["seconds"]
    quantities = np.column_stack([steps[name] for name in ("tokens", "pairs", "context")])
    others = np.column_stack([np.ones(len(measured)), steps["decodes"] + steps["chunks"]])
    terms, _ = nnls(np.hstack([quantities, others]) / measured[:, None], np.ones(len(measured)))
    token, pair, read, overhead, request = terms.tolist()
    return StepCost(token, overhead_s=overhead, request_s=request, attention_pair_s=pair, attention_read_s=read)


def seconds_of(steps: dict[str, np.ndarray], cost: StepCost) -> np.ndarray:
    """The seconds of recorded steps under a cost."""
    seconds = np.maximum(
        cost.token_s * steps["tokens"] + cost.pair_s * steps["pairs"], cost.step_s + cost.read_s * steps["context"]
    )
    seconds += cost.overhead_s + cost.request_s * (steps["decodes"] + steps["chunks"])
    return seconds + cost.attention_pair_s * steps["pairs"] + cost.attention_read_s * steps["context"]


if __name__ == "__main__":
    try:
        main()
    except KvtraceError as error:
        raise SystemExit(f"error: {error}") from None
