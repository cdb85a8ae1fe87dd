"""What a release coarsens: the options that `anonymize`, `record` and `release` share; and those of its audit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from .._base.options import option
from .._base.units import milliseconds

if TYPE_CHECKING:
    from ..trace.columns import Tail
    from .contributors import Contributors

ProfileName = Literal["exact", "standard", "strict", "public"]  # the rows of profiles.PROFILES
Counted = Literal["auto", "users", "sessions", "requests"]


class ProfileSettings(TypedDict):
    """The result of `Profile.settings`."""

    tail: str
    k: int
    k_counts: str
    time_step_ms: int
    round_input: str | int
    round_output: str | int
    drop_sessions: bool
    alike: int
    resample: bool
    keep_measured: NotRequired[list[str]]  # where they were asked for by name


@dataclass(frozen=True)
class Profile:
    """The settings of a release. The defaults coarsen nothing."""

    name: str
    tail: Tail = "kept"
    k: int = 1  # split blocks with fewer contributors, one copy each; 1 = never
    k_counts: str = "auto"  # the contributors: users, sessions or requests; auto = the first that the log knows
    time_step_ms: int = 0  # round times down to multiples of this; 0 = exact
    round_input: str | int = "exact"  # round input lengths up to a multiple of this many tokens, `block` or `pow2`
    round_output: str | int = "exact"  # round output lengths up to a multiple, or to the nearest power of two (`pow2`)
    drop_sessions: bool = False  # write no session, turn or parent
    alike: int = 1  # leave out rows whose lengths fewer contributors have
    resample: bool = False  # write new rows, made of what k drawn contributors have in common
    keep_measured: tuple[str, ...] | None = None  # measured columns to write; None = none if any setting coarsens

    @property
    def needs_all_rows(self) -> bool:
        """Whether a step needs the blocks of all rows in one process."""
        return self.resample or self.alike > 1 or self.round_input == "pow2"

    @property
    def is_sample(self) -> bool:
        """Whether a release says nothing about the number of rows of the log."""
        return self.resample or self.alike > 1

    @property
    def coarsens(self) -> bool:
        """Whether any setting changes the requests of a trace; measured columns are beside them."""
        return replace(self, keep_measured=None).settings() != Profile(self.name).settings()

    def settings(self) -> ProfileSettings:
        """The settings without the name, as a sidecar file states them; measured columns only if asked for by name."""
        settings: ProfileSettings = {
            "tail": self.tail, "k": self.k, "k_counts": self.k_counts, "time_step_ms": self.time_step_ms,
            "round_input": self.round_input, "round_output": self.round_output, "drop_sessions": self.drop_sessions,
            "alike": self.alike, "resample": self.resample,
        }  # fmt: skip
        if self.keep_measured is not None:
            settings["keep_measured"] = list(self.keep_measured)
        return settings


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
        "Release profile: exact (coarsens nothing, for internal use), standard, strict or public.",
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
        "Round input lengths up to a multiple of TOKENS, or of a `block`, or to 1, 2, 4, ... blocks (`pow2` adds "
        "blocks to prompts); or `exact`.  [default: the profile's]",
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
    alike: int | None = option(
        None,
        "Leave out requests with rounded lengths that fewer than N contributors have; 1 keeps all.  "
        "[default: the profile's]",
        metavar="N", minimum=1, group="Privacy",
    )  # fmt: skip
    resample: bool | None = option(
        None,
        "Write new requests, made of what --k contributors of a random draw have in common, in place of the log's. "
        "Needs accounts or sessions.  [default: with --profile public only]",
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


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditOptions:
    """What an audit reads beside a trace, and the profile that it grades against."""

    against: str | Path | None = option(
        None, "Earlier release: look for requests that are in both.", metavar="PREVIOUS", group="Privacy"
    )
    users: str | Path | None = option(
        None, "File with one user per line, one line for each row, to count contributors; never part of an output.",
        metavar="FILE", group="Input",
    )  # fmt: skip
    profile: ProfileName | None = option(
        None,
        "Profile to grade against: exact, standard, strict or public.  [default: the declared profile, else standard]",
        metavar="NAME", group="Privacy",
    )  # fmt: skip
    allow_measured: Iterable[str] = option(
        (),
        "Measured columns that TRACE may have, with commas between: cached_tokens, ttft_ms, e2e_ms, queue_ms.  "
        "[default: those that its sidecar names]",
        metavar="NAMES", parse=listed, group="Privacy",
    )  # fmt: skip
    block_size: int | None = option(
        None, "Tokens per block.  [default: from the sidecar, else inferred]", metavar="TOKENS", minimum=1,
        group="Input",
    )  # fmt: skip
    format: str | None = option(
        None, "Trace format: mooncake, bailian, agentic-mooncake, parquet or dataset.  [default: from the content]",
        metavar="NAME", group="Input",
    )  # fmt: skip
    sidecar: dict[str, Any] | None = None  # the sidecar's values, in place of `<path>.meta.json`
    contributors: Contributors | None = None  # the contributor of each row, in place of `users`
    memory: int | None = None  # bytes that the audit of a data set may use
