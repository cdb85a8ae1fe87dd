"""Release profiles: how much a release coarsens a trace, what weakens a profile, and what it does not protect.

Each profile is one row of PROFILES. docs/privacy/privacy.md explains the settings and their costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

from .._base.errors import UsageError, wrong_word
from ..trace.columns import MEASURED, TAILS, Tail
from .contributors import WARNINGS, WORDS
from .release_options import Counted, Profile, ProfileName, ReleaseOptions

COUNTED = get_args(Counted)
LARGEST = 2**31 - 1  # of a setting that is a number: more than any number of contributors, and 24 days in milliseconds


PROFILES = {
    "exact": Profile("exact"),
    "standard": Profile("standard", tail="unique", k=3, time_step_ms=1000),
    "strict": Profile(
        "strict", tail="unique", k=10, time_step_ms=60_000, round_input="block", round_output="pow2", drop_sessions=True
    ),
    "public": Profile(
        "public",
        tail="unique",
        k=10,
        time_step_ms=60_000,
        round_input="block",
        round_output="pow2",
        drop_sessions=True,
        resample=True,
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
    alike: int | None = None,
    resample: bool | None = None,
    keep_measured: Iterable[str] | None = None,
) -> Profile:
    """Take a release profile, by its name, with some settings replaced.

    Args:
        name: "exact", "standard", "strict" or "public", or a Profile.
        k: Blocks with fewer contributors than k are split, one copy each; 1 never splits.
        k_counts: What k counts: "users" (accounts first), "sessions", "requests" or "auto" (the best known kind).
        tail: The last, partial block of a prompt: "kept", "unique" or "dropped".
        time_step_ms: Times are rounded down to such steps; 0 keeps milliseconds.
        round_input: Round input lengths up to multiples of this many tokens, to "block", "pow2" (of blocks) or "exact".
        round_output: Round output lengths up to multiples of this many tokens, or to "pow2"; "exact" keeps them.
        drop_sessions: Leave out sessions, turns and parents.
        alike: Rows whose rounded lengths fewer contributors have are left out; 1 keeps all.
        resample: Write new rows, made of what k contributors of a random draw have in common.
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
        raise wrong_word(name, "a release profile", PROFILES)
    own = PROFILES[name] if isinstance(name, str) else name
    given: dict[str, Any] = {
        "k": k, "k_counts": k_counts, "tail": tail, "time_step_ms": time_step_ms, "round_input": round_input,
        "round_output": round_output, "drop_sessions": drop_sessions, "alike": alike, "resample": resample,
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
        alike=release.alike, resample=release.resample,
        keep_measured=release.keep_measured,
    )  # fmt: skip


def profile_of(values: Mapping[str, Any]) -> Profile:
    """The profile with these fields, as `dataclasses.asdict` and JSON give them.

    Raises:
        UsageError, TypeError, KeyError: They are not the fields of a profile, or a setting is out of range.

    >>> import json
    >>> from dataclasses import asdict
    >>> profile_of(json.loads(json.dumps(asdict(PROFILES["strict"])))) == PROFILES["strict"]
    True
    """
    kept = values["keep_measured"]
    own = Profile(**{**values, "keep_measured": None if kept is None else measured_names(kept)})
    if own.name not in PROFILES:
        raise UsageError(f"not a release profile. Choose one of {', '.join(PROFILES)}.")
    _verify(own)
    return own


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
        raise wrong_word(unknown[0], "a measured column", MEASURED)
    return tuple(name for name in MEASURED if name in chosen)


def declared(meta: dict[str, Any]) -> Profile | None:
    """The profile that a sidecar declares; None if it declares none, or an invalid one.

    >>> declared({"profile": "exact"}).k, declared({})
    (1, None)
    """
    name, settings = meta.get("profile"), meta.get("release")
    if name not in PROFILES:
        return None
    settable = {field.name for field in fields(Profile)} - {"name"}
    values = settings.get("settings") if isinstance(settings, dict) else None
    changes = {key: value for key, value in values.items() if key in settable} if isinstance(values, dict) else {}
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
        raise wrong_word(chosen.tail, "a valid tail", TAILS)
    if chosen.k_counts not in COUNTED:
        raise wrong_word(chosen.k_counts, "valid for k_counts", COUNTED)
    for name in ("drop_sessions", "resample"):
        if type(getattr(chosen, name)) is not bool:
            raise UsageError(f"{name} is not valid. Choose true or false.")
    if chosen.resample and not (chosen.k > 1 and chosen.drop_sessions):
        raise UsageError(
            "--resample makes rows of what --k contributors share, and writes no sessions. Use --profile public."
        )
    _verify_number("k must be", chosen.k, 1)
    _verify_number("alike must be", chosen.alike, 1)
    _verify_number("time_step_ms must be", chosen.time_step_ms, 0)
    _verify_rounding("round_input", chosen.round_input, "exact", "block", "pow2")
    _verify_rounding("round_output", chosen.round_output, "exact", "pow2")


def _verify_rounding(name, value, *words):
    if isinstance(value, str) and value not in words:
        raise wrong_word(value, f"valid for {name}", words, ", or a whole number")
    if value not in words:
        _verify_number(f"{name} must be {', '.join(words)} or", value, 1)


def _verify_number(rule, value, minimum):
    if type(value) is not int or not minimum <= value <= LARGEST:
        raise UsageError(f"{rule} a whole number from {minimum} to {LARGEST:,}, not {value!r}.")


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
        "alike": profile.alike < usual.alike,
        "resample": usual.resample and not profile.resample,
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
    if usual == "exact" or own in (usual, "pow2"):
        return False
    return own == "exact" or block_size is None or int(own) < block_size


def _shown(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    return profile.k > 1 and (counted in STRONG or profile.resample)


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
    if profile.resample:
        return _unprotected_by_draws(profile, counted)
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


def _unprotected_by_draws(profile: Profile, counted: str | None) -> list[str]:
    listed = [
        f"lengths and reuse that {profile.k} or more drawn contributors have in common, on a grid of powers of two",
        "the number of requests, their mean rate and the usual pause of a contributor, to a power of two",
        "that one contributor was in the log, for up to 57 right guesses of 100 by who knows all others; "
        "a person who is several contributors is hidden less",
    ]
    if counted in STRONG:
        return [f"prefixes that {profile.k} or more drawn {WORDS[counted]} share, and how often", *listed]
    return [*listed, *([WARNINGS[counted] or ""] if counted in WARNINGS else [])]


def _of_guesses(profile: Profile, counted: str | None) -> str:
    if counted in SEVERAL:
        return f"whether another sender sent a guessed prompt: {SEVERAL[counted].format(k=profile.k)}"
    return f"the same for a guessed prompt, if one attacker sends it from {profile.k - 1} or more accounts"
