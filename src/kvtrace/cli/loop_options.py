"""The options of the closed loop, which `kvtrace simulate` and `kvtrace plan` have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from .._base.errors import UsageError
from .._base.units import count, share
from .amounts import Amount

RANGE = "25%-75%"


def shares(text: str) -> tuple[float, float]:
    """A range of shares; UsageError if it is not valid.

    >>> shares("25%-75%")
    (0.25, 0.75)
    """
    low, dash, high = text.partition("-")
    if not dash:
        raise UsageError(f"{text!r} is not a range of shares. Example: {RANGE}.")
    return share(low), share(high)


OPTIONS = (
    click.option("--loop", type=click.Choice(["open", "closed"]), default="open", show_default=True, help="In time: when requests arrive. open: at the times of the trace. closed: when the requests that they wait for have ended, plus their delay; simulate then shows both."),
    click.option("--lanes", type=click.IntRange(1), metavar="N", help="Closed loop: number of sessions that run at once, each with its subagents."),
    click.option("--duration", metavar="TIME", help="Closed loop: length of the run; sessions are played again until then.  [default: each session is played once]"),
    click.option("--start-inside", is_flag=False, flag_value=RANGE, type=Amount(shares), metavar="[RANGE]", help=f"Closed loop: each lane starts inside its first session, at a random share of its time; the request before it primes the cache.  [range: {RANGE}]"),
    click.option("--idle-cap", metavar="TIME", help="Closed loop: longest time without any request; all that wait move forward together."),
    click.option("--tree-idle-cap", metavar="TIME", help="Closed loop: longest time without a request of a session; all its requests move forward together."),
    click.option("--think-scale", type=click.FloatRange(0), metavar="X", help="Closed loop: factor of all delays between requests.  [default: 1]"),
)  # fmt: skip
NAMES = ("lanes", "duration", "start_inside", "idle_cap", "tree_idle_cap", "think_scale")


def loop_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the closed loop to a command."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def closed_loop_of(loop, *, seed, warm_up="0", lanes_wanted=True, **given):
    """The closed loop of a command's options; None for the open loop. UsageError if they do not fit together."""
    from ..serving.closed_loop import ClosedLoop

    if loop == "open":
        for name in NAMES:
            if given[name] is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} needs --loop closed.")
        return None
    if given["lanes"] is None and lanes_wanted:
        raise click.UsageError("--loop closed needs --lanes: the number of sessions that run at once.")
    seconds = {name: None if given[name] is None else given[name] / 1000 for name in ("duration", "idle_cap", "tree_idle_cap")}
    inside = given["start_inside"]
    return ClosedLoop(
        lanes=given["lanes"] or 1, duration_s=seconds["duration"], warm_up=_requests(warm_up),
        start="beginning" if inside is None else "inside", start_range=shares(RANGE) if inside is None else inside,
        think_scale=1.0 if given["think_scale"] is None else given["think_scale"],
        idle_cap_s=seconds["idle_cap"], tree_idle_cap_s=seconds["tree_idle_cap"], seed=seed or 0,
    )  # fmt: skip


def _requests(warm_up: str) -> int:
    """The warm-up requests of each lane."""
    try:
        return count(warm_up)
    except UsageError as error:
        raise click.UsageError(f"--warm-up: {error}") from None
