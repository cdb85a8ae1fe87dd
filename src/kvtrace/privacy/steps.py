"""The steps of a release that cost no hits, on columns: lengths, times, links, fields.

docs/privacy/privacy.md explains each; timing.py coarsens times.
"""

from __future__ import annotations

import numpy as np

from .._base.errors import UsageError
from ..trace.columns import Columns, replace_columns
from ..trace.measured import MEASURED, measured_of
from ..trace.unknown import UNKNOWN_LENGTH
from .agents import numbered_agents
from .allowed_fields import EXTRA, MAX_AGENT, MAX_TURN, TYPES
from .profiles import kept_measured
from .release_options import Profile
from .timing import step_times


def coarsened(columns: Columns, profile: Profile, block_size: int, tail: str) -> tuple[Columns, list[str]]:
    """Columns with coarsened lengths, times, links and fields, and the names of the extra columns left out."""
    columns = keep_measured(columns, profile)
    columns = round_lengths(columns, profile.round_input, profile.round_output, block_size=block_size, tail=tail)
    columns = step_times(columns, profile.time_step_ms)
    if profile.drop_sessions:
        columns = drop_sessions(columns)
    return keep_allowed(columns)  # also an exact release: its audit rejects fields that it does not know


def round_lengths(
    columns: Columns, round_input: str | int, round_output: str | int, *, block_size: int, tail: str
) -> Columns:
    """The columns with rounded lengths, without blocks of outputs, which would reveal exact lengths.

    >>> from kvtrace.trace.building import toy
    >>> round_lengths(toy("0 1"), "exact", 8, block_size=1, tail="kept").output_length
    array([8])
    """
    if (round_input, round_output) == ("exact", "exact"):
        return columns
    return replace_columns(
        columns,
        input_length=_rounded_input(columns.input_length, round_input, block_size, tail),
        output_length=rounded_outputs(columns.output_length, round_output),
        output_ids=None,
        output_offsets=None,
        cached_tokens=_rounded_cached(columns.cached_tokens, round_input, block_size),
    )


def keep_measured(columns: Columns, profile: Profile) -> Columns:
    """The columns without the measured ones that the profile does not keep.

    >>> from kvtrace.trace.building import toy
    >>> from .profiles import PROFILES
    >>> keep_measured(replace_columns(toy("0"), cached_tokens=[1]), PROFILES["standard"]).cached_tokens is None
    True
    """
    dropped = set(measured_of(columns)) - set(kept_measured(profile))
    return replace_columns(columns, **dict.fromkeys(dropped)) if dropped else columns


def drop_sessions(columns: Columns) -> Columns:
    """The columns without whatever links requests; only shared blocks still link them.

    Sessions, parents, turns, agents, domains and dependencies are links. Service times go with them: they serve to
    replay sessions, and would otherwise only make a row easier to recognise.
    """
    extra = {name: values for name, values in columns.extra.items() if name not in LINKS}
    without = dict.fromkeys(("session", "parent", "domain", "dependencies", "service_ms"))
    return replace_columns(columns, **without, extra=extra)


LINKS = ("turn", "agent")  # extra columns that go with the sessions


def keep_allowed(columns: Columns) -> tuple[Columns, list[str]]:
    """The columns with the extra columns in EXTRA only, and the names of those left out."""
    extra = {name: values for name, values in columns.extra.items() if name in EXTRA}
    if "type" in extra:
        known = np.isin(extra["type"].astype(str), TYPES)
        extra["type"] = np.where(known, extra["type"], "other").astype(object)
    if "turn" in extra and not are_turns(extra["turn"]):
        del extra["turn"]
    if "agent" in extra:
        agent = extra.pop("agent")
        numbers = numbered_agents(columns.session, agent)
        if columns.session is not None and agent.dtype.kind in "iu" and numbers.max(initial=0) <= MAX_AGENT:
            extra["agent"] = numbers
    return replace_columns(columns, extra=extra), [name for name in columns.extra if name not in extra]


def are_turns(values: np.ndarray) -> bool:
    """Whether each value is a turn that a release may state.

    >>> are_turns(np.array([1, 2])), are_turns(np.array([1, 10_000])), are_turns(np.array([1, None]))
    (True, False, False)
    """
    return values.dtype.kind in "iu" and not ((values < 0) | (values > MAX_TURN)).any()


def cached_step(round_input: str | int, block_size: int) -> int:
    """Released cached tokens are multiples of this: they are rounded down where input lengths are rounded.

    >>> cached_step("exact", 16), cached_step("block", 16), cached_step(4, 16)
    (1, 16, 4)
    """
    return {"exact": 1, "block": block_size}.get(str(round_input)) or int(round_input)


def _rounded_cached(cached, round_input, block_size):
    if cached is None:
        return None
    step = cached_step(round_input, block_size)
    return np.where(MEASURED["cached_tokens"].is_known(cached), cached // step * step, cached)


def _rounded_input(length, to, block_size, tail):
    if to == "exact":
        return length
    step = block_size if to == "block" else int(to)
    if block_size % step:
        raise UsageError(
            f"--round-input {step} does not divide the block size of {block_size:,}, so prompts would not fit their "
            "blocks. Use `block` or a divisor."
        )
    if tail == "dropped":  # rounding up would add a block
        return np.maximum(length // step * step, np.minimum(1, length))
    return -(-length // step) * step


def rounded_outputs(length: np.ndarray, to: str | int) -> np.ndarray:
    """Output lengths, rounded; unknown ones stay unknown.

    >>> rounded_outputs(np.array([-1, 0, 100]), "pow2"), rounded_outputs(np.array([-1, 0, 100]), 64)
    (array([ -1,   0, 128]), array([ -1,   0, 128]))
    """
    if to == "exact":
        return length
    if to == "pow2":
        rounded = np.where(length > 0, 2 ** np.round(np.log2(np.maximum(length, 1))).astype(np.int64), 0)
    else:
        rounded = -(-length // int(to)) * int(to)
    return np.where(length == UNKNOWN_LENGTH, UNKNOWN_LENGTH, rounded)
