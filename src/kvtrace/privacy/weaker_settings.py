"""The settings of a release that promise less than the name of its profile."""

from __future__ import annotations

from typing import Any

from ..trace.columns import TAILS
from .profiles import PROFILES
from .release_options import Profile

WEAK_COUNTS = ("sessions", "requests")  # one account can have several
OPTIONS = {"time_step_ms": "--time-step"}  # setting -> its option, if that has another name


def weaker_settings(profile: Profile, *, name: str | None = None, block_size: int | None = None) -> list[str]:
    """The settings that reveal more than those of a named profile; the default is the profile's own name.

    Without `block_size`, input lengths that are rounded to a number of tokens may be rounded to blocks.

    >>> from .profiles import profile
    >>> weaker_settings(profile("strict", k=3)), weaker_settings(profile("standard", k=10))
    (['k'], [])
    """
    usual = PROFILES[name or profile.name]
    weaker = {
        "tail": TAILS.index(profile.tail) < TAILS.index(usual.tail),
        "k": profile.k < usual.k,
        "k_counts": usual.k > 1 and profile.k_counts in WEAK_COUNTS,
        "time_step_ms": profile.time_step_ms < usual.time_step_ms,
        "round_input": _is_finer(profile.round_input, usual.round_input, block_size or 1),
        "round_output": _is_finer(profile.round_output, usual.round_output),
        "drop_sessions": usual.drop_sessions and not profile.drop_sessions,
        "block_size": block_size == 1 and usual.tail != "kept",  # no tail is partial, and no length is rounded
    }
    return [name for name, is_weaker in weaker.items() if is_weaker]


def satisfied_name(profile: Profile, block_size: int | None = None) -> str:
    """The strictest profile whose promises these settings keep.

    >>> from .profiles import profile
    >>> satisfied_name(profile("strict", k=3)), satisfied_name(profile("strict", tail="kept"))
    ('standard', 'exact')
    """
    names = (name for name in reversed(PROFILES) if not weaker_settings(profile, name=name, block_size=block_size))
    return next(names, "exact")


def refusal(profile: Profile, weaker: list[str], block_size: int | None = None) -> tuple[str, str]:
    """A sentence on the weaker settings, and a remedy.

    >>> from .profiles import profile
    >>> refusal(profile("standard", k=1), ["k"])[0]
    'the trace declares standard but has weaker settings: k is 1 (standard: 3)'
    """
    own: dict[str, Any] = {**profile.settings(), "block_size": block_size}
    usual: dict[str, Any] = {**PROFILES[profile.name].settings(), "block_size": "16 or more"}
    listed = [f"{name} is {_shown(own[name])} ({profile.name}: {_shown(usual[name])})" for name in weaker]
    options = ", ".join(OPTIONS.get(name, f"--{name.replace('_', '-')}") for name in weaker)
    remedy = "Use larger blocks" if weaker == ["block_size"] else f"Leave out {options}"
    return (
        f"the trace declares {profile.name} but has weaker settings: {'; '.join(listed)}",
        f"{remedy}, or declare the profile that these settings satisfy: --profile "
        f"{satisfied_name(profile, block_size)}.",
    )


def _is_finer(own: str | int, usual: str | int, block_size: int | None = None) -> bool:
    """Whether a rounding is finer than the profile's; a number of tokens is, unless it is a whole block."""
    if usual == "exact" or own == usual:
        return False
    return own == "exact" or block_size is None or int(own) < block_size


def _shown(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
