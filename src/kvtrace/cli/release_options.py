"""The options of a release, which `anonymize` and `release` share: a profile, and single settings over it."""

from __future__ import annotations

import click

OPTIONS = [
    click.option("--profile", default="standard", metavar="NAME", help="Release profile: exact (nothing coarsened, for use inside the house), standard or strict."),
    click.option("--k", type=click.IntRange(1), metavar="N", help="Split blocks that fewer than N share, one copy each; 1 never splits.  [default: the profile's]"),
    click.option("--k-counts", metavar="WHO", help="Who shares a block: users, sessions or requests; auto takes the first that is known.  [default: the profile's]"),
    click.option("--tail", metavar="RULE", help="The last, partial block: kept, unique or dropped.  [default: the profile's]"),
    click.option("--time-step", metavar="TIME", help="Round times down to steps, as in 1s, 60s; 0 keeps milliseconds.  [default: the profile's]"),
    click.option("--round-input", metavar="TOKENS", help="Round input lengths up to so many tokens, or to `block`; or `exact`.  [default: the profile's]"),
    click.option("--round-output", metavar="TOKENS", help="Round output lengths up to so many tokens, or to powers of two: `pow2`; or `exact`.  [default: the profile's]"),
    click.option("--drop-sessions", is_flag=True, help="Write neither sessions nor turns.  [default: the profile's]"),
    click.option("--sample-sessions", default=1.0, metavar="SHARE", help="Release this share of the sessions, each whole."),
]


def release_options(command):
    """The command with the options of a release."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def chosen_profile(options: dict):
    """The profile that the options state; they are taken out."""
    from .._base.units import milliseconds
    from ..privacy.profiles import profile

    given = {name: options.pop(name) for name in ("k", "k_counts", "tail", "round_input", "round_output")}
    for name in ("round_input", "round_output"):
        given[name] = int(given[name]) if given[name] and given[name].isdecimal() else given[name]
    step, dropped = options.pop("time_step"), options.pop("drop_sessions")
    given |= {"time_step_ms": None if step is None else 0 if step == "0" else round(milliseconds(step)), "drop_sessions": dropped or None}
    return profile(options.pop("profile"), **given)
