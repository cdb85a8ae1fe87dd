"""What a release coarsens: the options that `anonymize`, `record` and `release` share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .._base.options import option
from .._base.units import milliseconds

if TYPE_CHECKING:
    from .profiles import Profile

ProfileName = Literal["exact", "standard", "strict"]  # the rows of profiles.PROFILES
Tail = Literal["kept", "unique", "dropped"]
Counted = Literal["auto", "users", "sessions", "requests"]


def listed(names: str) -> list[str]:
    """The names between commas.

    >>> listed("cached_tokens, ttft_ms")
    ['cached_tokens', 'ttft_ms']
    """
    return [name.strip() for name in names.split(",")]


def _length(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def _step_ms(text: str) -> int:
    return 0 if text == "0" else round(milliseconds(text))


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions:
    """A release profile, settings that replace single ones of it, and what a release keeps. None = the profile's."""

    profile: Profile | ProfileName = option(
        "standard",
        "Release profile: exact (coarsens nothing, for internal use), standard or strict.",
        metavar="NAME",
        group="Privacy",
    )
    k: int | None = option(
        None,
        "Split blocks shared by fewer than N contributors, one copy each; 1 never splits.  [default: the profile's]",
        metavar="N", minimum=1, group="Privacy",
    )  # fmt: skip
    k_counts: Counted | None = option(
        None,
        "Contributors that --k counts: users (accounts first), sessions, requests, or auto (the best known kind).  "
        "[default: the profile's]",
        metavar="KIND",
        group="Privacy",
    )
    tail: Tail | None = option(
        None,
        "The last, partial block of a prompt: kept, unique or dropped.  [default: the profile's]",
        metavar="RULE",
        group="Privacy",
    )
    time_step_ms: int | None = option(
        None,
        "Round times down to multiples of TIME, such as 1s or 60s; 0 keeps milliseconds.  [default: the profile's]",
        name="time-step", metavar="TIME", parse=_step_ms, group="Privacy",
    )  # fmt: skip
    round_input: str | int | None = option(
        None,
        "Round input lengths up to a multiple of TOKENS, or of a `block`; or `exact`.  [default: the profile's]",
        metavar="TOKENS", parse=_length, group="Privacy",
    )  # fmt: skip
    round_output: str | int | None = option(
        None,
        "Round output lengths up to a multiple of TOKENS, or to powers of two (`pow2`); or `exact`.  "
        "[default: the profile's]",
        metavar="TOKENS", parse=_length, group="Privacy",
    )  # fmt: skip
    drop_sessions: bool | None = option(
        None,
        "Write no sessions, turns, agents, dependencies and service times.  [default: the profile's]",
        group="Privacy",
    )
    keep_domains: bool | None = option(
        None,
        "Write the isolation domain of each request (tenant, adapter, salt, model) as a number, which links the "
        "requests of a tenant.  [default: with --profile exact only]",
        group="Privacy",
    )
    keep_measured: Iterable[str] | None = option(
        None,
        "Measured columns to write, with commas between: cached_tokens, ttft_ms, e2e_ms, queue_ms.  "
        "[default: all with --profile exact, else none]",
        metavar="NAMES", parse=listed, group="Privacy",
    )  # fmt: skip
    sample_sessions: float = option(
        1.0,
        "Release this share of the sessions, each whole.",
        metavar="SHARE",
        group="Privacy",
    )

    def chosen(self) -> Profile:
        """The profile, with the settings that replace its own.

        Raises:
            UsageError: The profile is unknown, or a setting is out of range.
        """
        from . import profiles

        return profiles.profile(
            self.profile, k=self.k, k_counts=self.k_counts, tail=self.tail, time_step_ms=self.time_step_ms,
            round_input=self.round_input, round_output=self.round_output, drop_sessions=self.drop_sessions,
            keep_measured=self.keep_measured,
        )  # fmt: skip
