"""The options that `anonymize` and `release` share: a profile, and settings that override it."""

from __future__ import annotations

from typing import Any

import click

from .options import with_options

release_options = with_options(
    click.option("--profile", default="standard", metavar="NAME", help="Release profile: exact (coarsens nothing, for internal use), standard or strict."),
    click.option("--k", type=click.IntRange(1), metavar="N", help="Split blocks shared by fewer than N contributors, one copy each; 1 never splits.  [default: the profile's]"),
    click.option("--k-counts", metavar="KIND", help="Contributors that --k counts: users (accounts first), sessions, requests, or auto (the best known kind).  [default: the profile's]"),
    click.option("--tail", metavar="RULE", help="The last, partial block of a prompt: kept, unique or dropped.  [default: the profile's]"),
    click.option("--time-step", metavar="TIME", help="Round times down to multiples of TIME, such as 1s or 60s; 0 keeps milliseconds.  [default: the profile's]"),
    click.option("--round-input", metavar="TOKENS", help="Round input lengths up to a multiple of TOKENS, or of a `block`; or `exact`.  [default: the profile's]"),
    click.option("--round-output", metavar="TOKENS", help="Round output lengths up to a multiple of TOKENS, or to powers of two (`pow2`); or `exact`.  [default: the profile's]"),
    click.option("--drop-sessions", is_flag=True, help="Write no sessions, turns, agents, dependencies and service times.  [default: the profile's]"),
    click.option("--keep-domains", is_flag=True, default=None, help="Write the isolation domain of each request (tenant, adapter, salt, model) as a number, which links the requests of a tenant.  [default: with --profile exact only]"),
    click.option("--keep-measured", metavar="NAMES", help="Measured columns to write, with commas between: cached_tokens, ttft_ms, e2e_ms, queue_ms.  [default: all with --profile exact, else none]"),
    click.option("--sample-sessions", default=1.0, metavar="SHARE", help="Release this share of the sessions, each whole."),
)


def listed(names: str | None) -> list[str] | None:
    """The names between commas; None if the option was not given.

    >>> listed("cached_tokens, ttft_ms"), listed(None)
    (['cached_tokens', 'ttft_ms'], None)
    """
    return None if names is None else [name.strip() for name in names.split(",")]


def chosen_profile(options: dict[str, Any]):
    """The profile with the settings in the options, which are removed from them."""
    from .._base.errors import AuditError
    from .._base.units import milliseconds
    from ..privacy.profiles import profile
    from ..privacy.weaker_settings import refusal, weaker_settings

    settings = {name: options.pop(name) for name in ("k", "k_counts", "tail", "round_input", "round_output")}
    for name in ("round_input", "round_output"):
        settings[name] = int(settings[name]) if settings[name] and settings[name].isdecimal() else settings[name]
    step, drop_sessions = options.pop("time_step"), options.pop("drop_sessions")
    settings["time_step_ms"] = None if step is None else 0 if step == "0" else round(milliseconds(step))
    settings["drop_sessions"] = drop_sessions or None
    settings["keep_measured"] = listed(options.pop("keep_measured"))
    chosen = profile(options.pop("profile"), **settings)
    if weaker := weaker_settings(chosen):
        fault, remedy = refusal(chosen, weaker)
        raise AuditError(f"{fault}. {remedy}")
    return chosen
