"""The steps of a release that cost no hits, on columns: lengths, times, links, fields, agents.

docs/privacy/privacy.md explains each. Times become those of a log whose clock has the profile's step. A service time is
the difference of two such clock readings, the start and the end of a request; a delay is the difference of the reading
when what a request waits for happens, and the reading when the request starts. So a start, an end and a delay together
reveal no instant more finely than a timestamp does, and the released times still agree: start + service time + delay is
the released start of the request that waits. Rounding each number by itself would reveal more, because the sum of three
rounded numbers narrows down what was rounded. Service time + delay keeps its mean, and so does each of both over all
phases of the clock; if the log's own clock shows whole steps, a service time loses up to half a step on average, which
the delay after it gains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .._base.errors import UsageError
from ..trace.columns import MEASURED, Columns, measured_of, numbers_of, replace_columns
from ..trace.dependencies import COMPLETION
from ..trace.unknown import UNKNOWN_LENGTH
from .allowed_values import EXTRA, MAX_AGENT, MAX_TURN, TYPES
from .profiles import kept_measured
from .release_options import Profile


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
        is_standard = np.isin(extra["type"].astype(str), TYPES)
        extra["type"] = np.where(is_standard, extra["type"], "other").astype(object)
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
    return {"exact": 1, "block": block_size, "pow2": block_size}.get(str(round_input)) or int(round_input)


def _rounded_cached(cached, round_input, block_size):
    if cached is None:
        return None
    step = cached_step(round_input, block_size)
    return np.where(MEASURED["cached_tokens"].is_known(cached), cached // step * step, cached)


def _rounded_input(length, to, block_size, tail):
    if to == "exact":
        return length
    step = block_size if to in ("block", "pow2") else int(to)
    if to == "pow2":
        blocks = blocks_in_powers(length // step if tail == "dropped" else -(-length // step))
        return np.where(blocks > 0, blocks * step, np.minimum(1, length))
    if block_size % step:
        raise UsageError(
            f"--round-input {step} does not divide the block size of {block_size:,}, so prompts would not fit their "
            "blocks. Use `block` or a divisor."
        )
    if tail == "dropped":  # rounding up would add a block
        return np.maximum(length // step * step, np.minimum(1, length))
    return -(-length // step) * step


def blocks_in_powers(blocks: np.ndarray) -> np.ndarray:
    """Numbers of blocks, rounded up to powers of two; 0 stays 0.

    >>> blocks_in_powers(np.array([0, 1, 3, 4, 5]))
    array([0, 1, 4, 4, 8])
    """
    return np.where(blocks > 0, 1 << np.frexp(np.maximum(blocks, 1) - 0.5)[1].astype(np.int64), 0)


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


def numbered_agents(session: np.ndarray | None, agent: np.ndarray) -> np.ndarray:
    """The agents, numbered 1, 2, ... in each session by their first requests; 0 for main agents, and without a session.

    A number that a log gives to an agent could be an identifier; these are a count.

    >>> numbered_agents(np.array([0, 0, 1, 0, 0]), np.array([0, 7, 7, 3, 7]))
    array([0, 1, 1, 2, 1])
    """
    numbers = np.zeros(len(agent), dtype=np.int64)
    if session is None or agent.dtype.kind not in "iu":
        return numbers
    rows = np.flatnonzero((session >= 0) & (agent > 0))
    pairs, first, pair = np.unique(
        np.stack([session[rows], agent[rows]]), axis=1, return_index=True, return_inverse=True
    )
    by_session = np.lexsort((first, pairs[0]))
    of_session = pairs[0][by_session]
    rank = np.empty(len(first), dtype=np.int64)
    rank[by_session] = np.arange(len(first)) - np.searchsorted(of_session, of_session) + 1
    numbers[rows] = rank[pair.reshape(-1)]
    return numbers


def agents_in_order(columns: Columns) -> bool:
    """Whether the column of agents, if there is one, has these numbers.

    >>> from kvtrace.trace.building import toy
    >>> agents_in_order(toy("0"))
    True
    """
    agent = columns.extra.get("agent")
    return agent is None or np.array_equal(numbered_agents(columns.session, agent), agent)


DIGITS = 3  # of instants in ms: sums of times in seconds are equal to the microsecond


def step_times(columns: Columns, step_ms: int) -> Columns:
    """The columns with times rounded down to multiples of a step; rows keep their order.

    Service times, delays and measured times become the differences of instants that are rounded down likewise, so they
    are multiples of the step, too.

    >>> from kvtrace.trace.building import toy
    >>> step_times(toy("0", "1", "2", gap_ms=700.0), 1000).timestamp
    array([   0.,    0., 1000.])
    """
    waits = columns.dependencies
    if step_ms <= 1:
        return _without_noise(columns)
    time = columns.timestamp
    read = _clock(time, step_ms)
    changed: dict[str, Any] = {"timestamp": read}
    for name, values in durations_of(columns).items():
        changed[name] = _clock(time + values, step_ms) - read
    if waits is not None:
        request = waits.request
        happens = _clock(time[request] - waits.delay_ms, step_ms)  # what the request waits for
        changed["dependencies"] = replace(waits, delay_ms=read[request] - happens)
    return replace_columns(columns, **changed)


def durations_of(columns: Columns) -> dict[str, np.ndarray]:
    """The columns of measured times that start with a request, by name: service times and others.

    >>> from kvtrace.trace.building import toy
    >>> list(durations_of(replace_columns(toy("0"), cached_tokens=[1], ttft_ms=[2.5])))
    ['ttft_ms']
    """
    return {name: values for name, values in numbers_of(columns).items() if values.dtype == np.float64}


def finer_than(durations: np.ndarray, step_ms: int) -> np.ndarray:
    """Whether each duration is known and no multiple of a step; steps below 2 ms mean a microsecond.

    >>> finer_than(np.array([3000.0, 2500.0, np.nan]), 1000), finer_than(np.array([0.125, 0.12345]), 0)
    (array([False,  True, False]), array([False,  True]))
    """
    coarse = durations // step_ms * step_ms if step_ms > 1 else _to_microseconds(durations)
    return ~np.isnan(durations) & (durations != coarse)


def late_starts(columns: Columns) -> np.ndarray:
    """Rows whose dependencies give another start than their timestamp, by more than a microsecond.

    A request is only looked at if all that it waits for have known times: a completion needs a service time.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.dependencies import Dependencies
    >>> waits = Dependencies.of([[], [(0, "completion", "sequence", 400.0)]])
    >>> trace = replace_columns(toy("0", "1", gap_ms=1000.0), dependencies=waits, service_ms=[600.0, np.nan])
    >>> late_starts(trace), late_starts(replace_columns(trace, service_ms=[500.0, 1.0]))
    (array([], dtype=int64), array([1]))
    """
    waits, time = columns.dependencies, columns.timestamp
    if waits is None or not len(waits.row):
        return np.empty(0, dtype=np.int64)
    service = np.full(len(time), np.nan) if columns.service_ms is None else columns.service_ms
    happens = time[waits.row] + np.where(waits.trigger == COMPLETION, service[waits.row], 0.0)
    some = np.flatnonzero(np.diff(waits.offsets))
    start = np.maximum.reduceat(happens + waits.delay_ms, waits.offsets[some])  # NaN if one is unknown
    return some[np.abs(start - time[some]) > 10.0**-DIGITS]


def _without_noise(columns: Columns) -> Columns:
    """The columns with times to the microsecond: digits below it are noise of sums, or hide text."""
    waits, times = columns.dependencies, {"timestamp": columns.timestamp, **durations_of(columns)}
    return replace_columns(
        columns, **{name: _to_microseconds(values) for name, values in times.items()},
        dependencies=None if waits is None else replace(waits, delay_ms=_to_microseconds(waits.delay_ms)),
    )  # fmt: skip


def _to_microseconds(times_ms: np.ndarray) -> np.ndarray:
    """Times rounded to the microsecond; whole milliseconds stay, also where a double has no more digits."""
    return np.where(times_ms == np.floor(times_ms), times_ms, np.round(times_ms, DIGITS))


def _clock(instant: np.ndarray, step_ms: int) -> np.ndarray:
    """The instants as a clock with this step shows them."""
    return np.round(instant, DIGITS) // step_ms * step_ms
