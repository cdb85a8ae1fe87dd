"""Release profiles: how much a release coarsens a trace. Each profile is one row of PROFILES.

docs/privacy/privacy.md explains the settings and their costs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from .._base.errors import UsageError
from ..trace.columns import TAILS

COUNTED = ("auto", "users", "sessions", "requests")


@dataclass(frozen=True)
class Profile:
    """The settings of a release. The defaults coarsen nothing."""

    name: str
    tail: str = "kept"  # one of TAILS
    k: int = 1  # split blocks with fewer contributors, one copy each; 1 = never
    k_counts: str = "auto"  # the contributors: users, sessions or requests; auto = the first that the log knows
    time_step_ms: int = 0  # round times down to multiples of this; 0 = exact
    round_input: str | int = "exact"  # round input lengths up to a multiple of this many tokens, or of a `block`
    round_output: str | int = "exact"  # round output lengths up to a multiple, or to the nearest power of two (`pow2`)
    drop_sessions: bool = False  # write no session, turn or parent

    @property
    def coarsens(self) -> bool:
        """Whether any setting changes a trace."""
        return self.settings() != Profile(self.name).settings()

    def settings(self) -> dict[str, Any]:
        """All settings except the name, for a sidecar."""
        return {name: value for name, value in asdict(self).items() if name != "name"}


PROFILES = {
    "exact": Profile("exact"),
    "standard": Profile("standard", tail="unique", k=3, time_step_ms=1000),
    "strict": Profile(
        "strict", tail="unique", k=10, time_step_ms=60_000, round_input="block", round_output="pow2", drop_sessions=True
    ),
}


def profile(name: str, **settings) -> Profile:
    """A profile by name, with some settings changed (None = the profile's own); UsageError for an invalid one.

    >>> profile("standard", k=5).settings()["k"]
    5
    """
    if name not in PROFILES:
        raise UsageError(f"{name!r} is not a release profile. Choose one of {', '.join(PROFILES)}.")
    chosen = replace(PROFILES[name], **{key: value for key, value in settings.items() if value is not None})
    _verify(chosen)
    return chosen


def declared(meta: dict[str, Any]) -> Profile | None:
    """The profile that a sidecar declares; None if it declares none, or an invalid one.

    >>> declared({"profile": "exact"}).k, declared({})
    (1, None)
    """
    name, settings = meta.get("profile"), meta.get("release")
    if name not in PROFILES:
        return None
    known = {field.name for field in fields(Profile)} - {"name"}
    values = settings.get("settings") if isinstance(settings, dict) else None
    changes = {key: value for key, value in values.items() if key in known} if isinstance(values, dict) else {}
    chosen = replace(PROFILES[name], **changes)
    try:
        _verify(chosen)
    except (UsageError, TypeError):
        return None
    return chosen


def _verify(chosen: Profile) -> None:
    if chosen.tail not in TAILS:
        raise UsageError(f"{chosen.tail!r} is not a valid tail. Choose one of {', '.join(TAILS)}.")
    if chosen.k_counts not in COUNTED:
        raise UsageError(f"{chosen.k_counts!r} is not valid for k_counts. Choose one of {', '.join(COUNTED)}.")
    _verify_number("k must be", chosen.k, 1)
    _verify_number("time_step_ms must be", chosen.time_step_ms, 0)
    for name, value, word in (("input", chosen.round_input, "block"), ("output", chosen.round_output, "pow2")):
        if value not in ("exact", word):
            _verify_number(f"round_{name} must be `exact`, `{word}` or", value, 1)


def _verify_number(rule, value, minimum):
    if type(value) is not int or value < minimum:
        raise UsageError(f"{rule} a whole number of at least {minimum}, not {value!r}.")
