"""Release profiles: how much of a trace is coarsened before somebody else may see it; each is one row of PROFILES.

What each step is for, and what it costs, is in docs/privacy/privacy.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from .._base.errors import UsageError

TAILS = {"shared": "kept", "unique": "unique", "drop": "dropped"}  # option -> what a Trace calls it
COUNTED = ("auto", "users", "sessions", "requests")


@dataclass(frozen=True)
class Profile:
    """The settings of a release; those of a trace that is not coarsened at all, unless given."""

    name: str
    tail: str = "shared"  # one of TAILS
    k: int = 1  # a block of fewer contributors is split, one copy each; 1 = never
    k_counts: str = "auto"  # who holds a block: users, sessions or requests; auto = the first that the log knows
    time_step_ms: int = 0  # times are rounded down to such steps; 0 = as they are
    round_input: str | int = "exact"  # input lengths up to so many tokens, or to `block`
    round_output: str | int = "exact"  # output lengths up to so many tokens, or to the nearest power of two: `pow2`
    drop_sessions: bool = False  # neither session nor turn nor parent is written

    @property
    def coarsens(self) -> bool:
        """Whether anything is done to a trace at all."""
        return self.settings() != Profile(self.name).settings()

    def settings(self) -> dict[str, Any]:
        """What a sidecar says of it, beside its name."""
        return {name: value for name, value in asdict(self).items() if name != "name"}


PROFILES = {
    "exact": Profile("exact"),
    "standard": Profile("standard", tail="unique", k=3, time_step_ms=1000),
    "strict": Profile(
        "strict", tail="unique", k=10, time_step_ms=60_000, round_input="block", round_output="pow2", drop_sessions=True
    ),
}


def profile(name: str, **settings) -> Profile:
    """The profile of that name with some settings changed (None = the profile's own); UsageError where one is wrong.

    >>> profile("standard", k=5).settings()["k"]
    5
    """
    if name not in PROFILES:
        raise UsageError(f"profile is {name!r}; it is one of {', '.join(PROFILES)}.")
    chosen = replace(PROFILES[name], **{key: value for key, value in settings.items() if value is not None})
    _verify(chosen)
    return chosen


def declared(meta: dict[str, Any]) -> Profile | None:
    """The profile that a sidecar says a trace was released with; None where it says none, or one that is not known.

    >>> declared({"profile": "exact"}).k, declared({})
    (1, None)
    """
    name, settings = meta.get("profile"), meta.get("release")
    if name not in PROFILES:
        return None
    known = {field.name for field in fields(Profile)} - {"name"}
    said = settings.get("settings") if isinstance(settings, dict) else None
    given = {key: value for key, value in said.items() if key in known} if isinstance(said, dict) else {}
    chosen = replace(PROFILES[name], **given)
    try:
        _verify(chosen)
    except (UsageError, TypeError):
        return None
    return chosen


def _verify(chosen: Profile) -> None:
    if chosen.tail not in TAILS:
        raise UsageError(f"tail is {chosen.tail!r}; it is one of {', '.join(TAILS)}.")
    if chosen.k_counts not in COUNTED:
        raise UsageError(f"k counts {chosen.k_counts!r}; it counts one of {', '.join(COUNTED)}.")
    _verify_number("k", chosen.k, 1)
    _verify_number("the time step in ms", chosen.time_step_ms, 0)
    for name, value, word in (("input", chosen.round_input, "block"), ("output", chosen.round_output, "pow2")):
        if value not in ("exact", word):
            _verify_number(f"the rounding of {name} lengths, other than exact and {word},", value, 1)


def _verify_number(what, value, least):
    if type(value) is not int or value < least:
        raise UsageError(f"{what} is {value!r}; it is a whole number, {least} or more.")
