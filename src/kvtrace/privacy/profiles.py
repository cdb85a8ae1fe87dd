"""Release profiles: how much a release coarsens a trace. Each profile is one row of PROFILES.

docs/privacy/privacy.md explains the settings and their costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, get_args

from .._base.errors import UsageError
from ..trace.columns import TAILS
from ..trace.measured import MEASURED
from .release_options import Counted, Profile, ProfileName, ReleaseOptions, Tail

COUNTED = get_args(Counted)
LARGEST = 2**31 - 1  # of a setting that is a number: more than any number of contributors, and 24 days in milliseconds


PROFILES = {
    "exact": Profile("exact"),
    "standard": Profile("standard", tail="unique", k=3, time_step_ms=1000),
    "strict": Profile(
        "strict", tail="unique", k=10, time_step_ms=60_000, round_input="block", round_output="pow2", drop_sessions=True
    ),
}


def profile(
    name: Profile | ProfileName,
    *,
    k: int | None = None,
    k_counts: Counted | None = None,
    tail: Tail | None = None,
    time_step_ms: int | None = None,
    round_input: str | int | None = None,
    round_output: str | int | None = None,
    drop_sessions: bool | None = None,
    keep_measured: Iterable[str] | None = None,
) -> Profile:
    """Take a release profile, by its name, with some settings replaced.

    Args:
        name: "exact", "standard" or "strict", or a Profile.
        k: Blocks with fewer contributors than k are split, one copy each; 1 never splits.
        k_counts: What k counts: "users" (accounts first), "sessions", "requests" or "auto" (the best known kind).
        tail: The last, partial block of a prompt: "kept", "unique" or "dropped".
        time_step_ms: Times are rounded down to such steps; 0 keeps milliseconds.
        round_input: Round input lengths up to multiples of this many tokens, or to "block"; "exact" keeps them.
        round_output: Round output lengths up to multiples of this many tokens, or to "pow2"; "exact" keeps them.
        drop_sessions: Leave out sessions, turns and parents.
        keep_measured: Names of measured columns to keep, from `cached_tokens`, `ttft_ms`, `e2e_ms` and `queue_ms`. By
            default an exact release keeps all of them, and any other keeps none.

    Returns:
        The profile; a setting that is None is the profile's own.

    Raises:
        UsageError: The name is unknown, or a setting is out of range.

    >>> profile("standard", k=5).settings()["k"]
    5
    """
    if isinstance(name, str) and name not in PROFILES:
        raise UsageError(f"{name!r} is not a release profile. Choose one of {', '.join(PROFILES)}.")
    own = PROFILES[name] if isinstance(name, str) else name
    given: dict[str, Any] = {
        "k": k, "k_counts": k_counts, "tail": tail, "time_step_ms": time_step_ms, "round_input": round_input,
        "round_output": round_output, "drop_sessions": drop_sessions,
        "keep_measured": None if keep_measured is None else measured_names(keep_measured),
    }  # fmt: skip
    chosen = replace(own, **{key: value for key, value in given.items() if value is not None})
    _verify(chosen)
    return chosen


def chosen_profile(release: ReleaseOptions) -> Profile:
    """The profile of a release, with the settings that replace its own.

    Raises:
        UsageError: The profile is unknown, or a setting is out of range.
    """
    return profile(
        release.profile, k=release.k, k_counts=release.k_counts, tail=release.tail, time_step_ms=release.time_step_ms,
        round_input=release.round_input, round_output=release.round_output, drop_sessions=release.drop_sessions,
        keep_measured=release.keep_measured,
    )  # fmt: skip


def profile_of(values: Mapping[str, Any]) -> Profile:
    """The profile with these fields, as `dataclasses.asdict` and JSON give them.

    >>> import json
    >>> from dataclasses import asdict
    >>> profile_of(json.loads(json.dumps(asdict(PROFILES["strict"])))) == PROFILES["strict"]
    True
    """
    kept = values["keep_measured"]
    return Profile(**{**values, "keep_measured": None if kept is None else tuple(kept)})


def keeps_domains(profile: Profile, asked: bool | None) -> bool:
    """Whether a release has the column of isolation domains: if it is asked for, else if the profile coarsens nothing.

    A domain number links all requests of a tenant, an adapter or a salt, which no other column does.

    Raises:
        UsageError: It is asked for, but the profile drops all links between requests.

    >>> keeps_domains(PROFILES["exact"], None), keeps_domains(PROFILES["standard"], None)
    (True, False)
    """
    if asked and profile.drop_sessions:
        raise UsageError(
            f"--keep-domains links requests, but {profile.name} drops all links (drop_sessions). Leave it out."
        )
    return not (profile.coarsens or profile.drop_sessions) if asked is None else asked


def kept_measured(profile: Profile) -> tuple[str, ...]:
    """The measured columns that a release has: those asked for by name, else all if the profile coarsens nothing.

    >>> kept_measured(PROFILES["standard"]), kept_measured(profile("standard", keep_measured=["ttft_ms"]))
    ((), ('ttft_ms',))
    """
    if profile.keep_measured is not None:
        return profile.keep_measured
    return () if profile.coarsens else tuple(MEASURED)


def measured_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names of measured columns in the order of the table; UsageError for any other name.

    >>> measured_names(["ttft_ms", "cached_tokens"])
    ('cached_tokens', 'ttft_ms')
    """
    chosen = set(names)
    if unknown := sorted(chosen - set(MEASURED)):
        raise UsageError(f"{unknown[0]!r} is not a measured column. Choose from {', '.join(MEASURED)}.")
    return tuple(name for name in MEASURED if name in chosen)


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
    try:
        if "keep_measured" in changes:
            changes["keep_measured"] = measured_names(changes["keep_measured"])
        chosen = replace(PROFILES[name], **changes)
        _verify(chosen)
    except (UsageError, TypeError):
        return None
    return chosen


def _verify(chosen: Profile) -> None:
    if chosen.tail not in TAILS:
        raise UsageError(f"{chosen.tail!r} is not a valid tail. Choose one of {', '.join(TAILS)}.")
    if chosen.k_counts not in COUNTED:
        raise UsageError(f"{chosen.k_counts!r} is not valid for k_counts. Choose one of {', '.join(COUNTED)}.")
    if type(chosen.drop_sessions) is not bool:
        raise UsageError("drop_sessions is not valid. Choose true or false.")
    _verify_number("k must be", chosen.k, 1)
    _verify_number("time_step_ms must be", chosen.time_step_ms, 0)
    for name, value, word in (("input", chosen.round_input, "block"), ("output", chosen.round_output, "pow2")):
        if value not in ("exact", word):
            _verify_number(f"round_{name} must be `exact`, `{word}` or", value, 1)


def _verify_number(rule, value, minimum):
    if type(value) is not int or not minimum <= value <= LARGEST:
        raise UsageError(f"{rule} a whole number from {minimum} to {LARGEST:,}, not {value!r}.")
