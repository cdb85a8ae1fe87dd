"""What a release profile does not protect, in sentences."""

from __future__ import annotations

from ..trace.columns import TAILS
from .profiles import PROFILES, Profile


def unprotected(profile: Profile) -> list[str]:
    """What others can still learn from a trace of this profile.

    >>> unprotected(PROFILES["strict"])[-1]
    'that a request was made at all, to who knows its lengths, its minute and its place in the sharing'
    """
    times = f"to {profile.time_step_ms / 1000:g} s" if profile.time_step_ms > 1 else "to the millisecond"
    exact = [
        name for name, rule in (("input", profile.round_input), ("output", profile.round_output)) if rule == "exact"
    ]
    shared = f"{profile.k} contributors or more" if profile.k > 1 else "two requests or more"
    listed = [f"which requests share a prefix, and how long it is, where {shared} have it"]
    if profile.k > 1:
        listed.append(f"that, to {profile.k - 1} or more accounts of one party that send what they guess")
    if profile.tail == "kept":
        listed.append("equal last few tokens, which can be guessed")
    listed.append(f"exact {' and '.join(exact)} lengths" if exact else "lengths as rounded")
    listed.append(f"when requests came, {times}, and so the rhythm of the service")
    if not profile.drop_sessions:
        listed.append("which requests are turns of one conversation, where sessions are written")
    else:
        listed.append("conversations, as far as shared blocks show them")
    return [
        *listed,
        "that a request was made at all, to who knows its lengths, its minute and its place in the sharing",
    ]


def weaker_settings(profile: Profile) -> list[str]:
    """The settings that show more than those of the profile's name do."""
    usual = PROFILES[profile.name]
    order = list(TAILS)
    weaker = {
        "tail": order.index(profile.tail) < order.index(usual.tail),
        "k": profile.k < usual.k,
        "k_counts": profile.k > 1 and profile.k_counts == "requests",
        "time_step_ms": profile.time_step_ms < usual.time_step_ms,
        "round_input": profile.round_input == "exact" != usual.round_input,
        "round_output": profile.round_output == "exact" != usual.round_output,
        "drop_sessions": usual.drop_sessions and not profile.drop_sessions,
    }
    return [name for name, is_weaker in weaker.items() if is_weaker]
