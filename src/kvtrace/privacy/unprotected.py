"""The facts that a release profile does not protect, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .contributors import WORDS
from .release_options import Profile

STRONG = ("accounts", "users")  # kinds of contributors that one sender cannot multiply
SEVERAL = {  # kind -> how one sender counts as k contributors
    "client_users": "k counts users that the client names, and one account can send {k} names",
    "sessions": "k counts sessions, and one account can open {k}",
    "inferred": "k counts inferred conversations, and a guess that extends a prompt counts as the same conversation",
    "requests": "k counts requests, and one account can send {k}",
}


def counted_kind_of(release: Any) -> str | None:
    """The kind of contributors that the section `release` of a sidecar names; None if it names no known one."""
    kind = release.get("k_counted") if isinstance(release, Mapping) else None
    return kind if isinstance(kind, str) and kind in WORDS else None


def protects_senders(profile: Profile, counted: str | None) -> bool:
    """Whether a guessed prompt does not reveal its other senders; `counted` is the kind of contributors that k counted.

    >>> from .profiles import PROFILES
    >>> protects_senders(PROFILES["strict"], "users"), protects_senders(PROFILES["strict"], "inferred")
    (True, False)
    """
    return profile.k > 1 and counted in STRONG


def unprotected(
    profile: Profile, counted: str | None = None, *, domains: bool = False, waits: bool = False, service: bool = False,
    measured: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """The facts that others can still learn under this profile.

    `counted` is the kind of contributors that k counted; `domains` says whether rows name their isolation domain,
    `waits` whether they name what they wait for, and `service` whether they have service times; `measured` names the
    measured columns that they have.

    >>> from .profiles import PROFILES
    >>> unprotected(PROFILES["strict"])[3]
    'when requests arrived, to 60 s, and so the load pattern of the service'
    """
    times = f"to {profile.time_step_ms / 1000:g} s" if profile.time_step_ms > 1 else "to the millisecond"
    exact = [
        name for name, rule in (("input", profile.round_input), ("output", profile.round_output)) if rule == "exact"
    ]
    sharers = f"at least {profile.k} contributors" if profile.k > 1 else "at least two requests"
    listed = [f"which requests share a prefix, and its length, if {sharers} share it"]
    if profile.k > 1:
        listed.append(_of_guesses(profile, counted))
    if profile.tail == "kept":
        listed.append("whether the last few tokens are equal, which can be guessed")
    listed.append(f"exact {' and '.join(exact)} lengths" if exact else "rounded lengths")
    listed.append(f"when requests arrived, {times}, and so the load pattern of the service")
    if not profile.drop_sessions:
        listed.append("which requests are turns of one conversation, if sessions are written")
    else:
        listed.append("conversations, as far as shared blocks reveal them")
    if waits:
        listed.append(
            f"what each turn waits for and how long people and tools took to think, {times}; who waits for whom also "
            "says which of two events within a step was first"
        )
    if service:
        listed.append(
            f"how long each request took, {times}, and so the speed of the service and about how much it wrote"
        )
    if "cached_tokens" in measured:
        listed.append(
            "how much of each prompt the service had in its cache (cached_tokens), and so whether another sender had "
            "sent it; k does not hide that"
        )
    if fast := [name for name in measured if name != "cached_tokens"]:
        listed.append(
            f"how fast the service answered each request ({', '.join(fast)}), {times}, and so its load, and which "
            "prompts it had in its cache"
        )
    if domains:
        listed.append(
            "which requests are of one tenant, adapter, salt or model, and so the volume, times and lengths of each; "
            "k does not hide a tenant"
        )
    if profile.k > 1 and counted == "accounts":
        listed.append("which requests of one account share a prefix, if the log does not name its users")
    return [
        *listed,
        "that a request was made, if an observer knows its lengths, its minute and how its prefix is shared",
    ]


def _of_guesses(profile: Profile, counted: str | None) -> str:
    if counted in SEVERAL:
        return f"whether another sender sent a guessed prompt: {SEVERAL[counted].format(k=profile.k)}"
    return f"the same for a guessed prompt, if one attacker sends it from {profile.k - 1} or more accounts"
