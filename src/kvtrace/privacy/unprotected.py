"""What a release profile does not protect, in words."""

from __future__ import annotations

from ..trace.columns import TAILS
from .profiles import PROFILES, Profile


def unprotected(profile: Profile) -> list[str]:
    """What others can still learn from a trace of this profile.

    >>> unprotected(PROFILES["strict"])[3]
    'when requests arrived, to 60 s, and so the rhythm of the service'
    """
    times = f"to {profile.time_step_ms / 1000:g} s" if profile.time_step_ms > 1 else "to the millisecond"
    exact = [
        name for name, rule in (("input", profile.round_input), ("output", profile.round_output)) if rule == "exact"
    ]
    sharers = f"at least {profile.k} contributors" if profile.k > 1 else "at least two requests"
    listed = [f"which requests share a prefix, and its length, if {sharers} share it"]
    if profile.k > 1:
        listed.append(f"the same for a guessed prompt, if one party sends it from {profile.k - 1} or more accounts")
    if profile.tail == "kept":
        listed.append("whether the last few tokens are equal, which can be guessed")
    listed.append(f"exact {' and '.join(exact)} lengths" if exact else "rounded lengths")
    listed.append(f"when requests arrived, {times}, and so the rhythm of the service")
    if not profile.drop_sessions:
        listed.append("which requests are turns of one conversation, if sessions are written")
    else:
        listed.append("conversations, as far as shared blocks reveal them")
    return [
        *listed,
        "that a request was made, for an observer who knows its lengths, its minute and the sharing of its prefix",
    ]


def weaker_settings(profile: Profile) -> list[str]:
    """The settings that reveal more than the defaults of the profile's name."""
    usual = PROFILES[profile.name]
    weaker = {
        "tail": TAILS.index(profile.tail) < TAILS.index(usual.tail),
        "k": profile.k < usual.k,
        "k_counts": profile.k > 1 and profile.k_counts == "requests",
        "time_step_ms": profile.time_step_ms < usual.time_step_ms,
        "round_input": profile.round_input == "exact" != usual.round_input,
        "round_output": profile.round_output == "exact" != usual.round_output,
        "drop_sessions": usual.drop_sessions and not profile.drop_sessions,
    }
    return [name for name, is_weaker in weaker.items() if is_weaker]
