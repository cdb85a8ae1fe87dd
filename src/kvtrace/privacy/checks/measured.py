"""measured: what the service measured is there only where it is kept by name, and no finer than the profile states."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...trace.measured import MEASURED, measured_of
from ..profiles import kept_measured
from ..steps import cached_step
from ..timing import finer_than
from .evidence import Evidence
from .finding import Finding, failed, passed, warned

REMEDY = "`kvtrace release` leaves them out, or keeps by name what should be published (--keep-measured NAMES)."
COARSEN = "`kvtrace release` rounds measured numbers down as it does times and input lengths."


def check(evidence: Evidence) -> Finding:
    """Look for measured columns that nobody named, and for numbers that are wrong or finer than the profile states."""
    columns = measured_of(evidence.columns)
    unnamed = [name for name in columns if name not in _named(evidence)]
    figure: dict[str, Any] = {
        "measured_columns": list(columns), "measured_not_named": unnamed,
        "measured_wrong": _count(evidence, _wrong), "measured_finer": _count(evidence, _finer),
    }  # fmt: skip
    if not columns:
        return passed(figure, "no row states what the service measured.")
    listed = ", ".join(columns)
    if unnamed:
        sentence = f"rows state what the service measured: {', '.join(unnamed)}. They tell which prompts were cached."
        return failed(figure, sentence, REMEDY)
    if wrong := figure["measured_wrong"]:
        return failed(figure, f"{wrong:,} measured numbers are no durations, or no tokens of their prompts.", REMEDY)
    step = evidence.profile.time_step_ms
    if finer := figure["measured_finer"]:
        if step > 1 or evidence.profile.round_input != "exact":
            sentence = f"{finer:,} measured numbers are finer than the profile's times and input lengths."
            return failed(figure, sentence, COARSEN)
        return warned(
            figure, f"{finer:,} measured times have digits below a microsecond, which can hide text.", COARSEN
        )
    sentence = f"rows state, as asked for by name, {listed}: others learn how fast each request was served, or what "
    return warned(figure, f"{sentence}the service had of it in its cache.", REMEDY)


def _named(evidence: Evidence) -> set[str]:
    """The columns that the caller or the sidecar names; a trace that is graded as exact has them all."""
    declared = () if evidence.declared is None else evidence.declared.keep_measured or ()
    return {*evidence.allowed_measured, *declared, *kept_measured(evidence.profile)}


def _count(evidence: Evidence, are) -> int:
    """The number of measured numbers of a kind."""
    return sum(int(are(evidence, name, values).sum()) for name, values in measured_of(evidence.columns).items())


def _wrong(evidence: Evidence, name: str, values: np.ndarray) -> np.ndarray:
    return MEASURED[name].is_wrong(values, evidence.columns.input_length)


def _finer(evidence: Evidence, name: str, values: np.ndarray) -> np.ndarray:
    if name != "cached_tokens":
        return finer_than(values, evidence.profile.time_step_ms)
    step = cached_step(evidence.profile.round_input, evidence.block_size or 1)
    return MEASURED[name].is_known(values) & (values % step != 0)
