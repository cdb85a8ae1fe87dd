"""A scheduler's options as people write them: `watermark=0.01,async_scheduling=off`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ..._base import units
from ..._base.errors import UsageError
from .base import Scheduler

SWITCH = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


def with_options(scheduler: Scheduler, text: str) -> Scheduler:
    """The scheduler with options in their own names.

    Args:
        scheduler: The scheduler with the values of all other options.
        text: NAME=VALUE pairs, separated by commas. Switches are on or off.

    Raises:
        UsageError: A name or a value is not one of the scheduler's.

    >>> from kvtrace.serving.schedulers.vllm import VllmScheduler
    >>> with_options(VllmScheduler(), "max_num_seqs=64, async_scheduling=off").async_scheduling
    False
    """
    defaults = {field.name: getattr(scheduler, field.name) for field in fields(scheduler)}  # type: ignore[arg-type]
    known = {name: value for name, value in defaults.items() if value is None or isinstance(value, (int, float, str))}
    if not known:
        raise UsageError(f"The scheduler {scheduler.name} has no options. Leave out --scheduler, or try --engine vllm.")
    chosen: dict[str, Any] = {}
    for pair in text.split(","):
        name, _, value = (part.strip() for part in pair.partition("="))
        if name not in known or not value:
            raise UsageError(
                f"{pair.strip()!r} is not an option of {scheduler.name}'s scheduler. Write NAME=VALUE with one of "
                f"{', '.join(known)}."
            )
        chosen[name] = _value(name, value, known[name])
    return replace(scheduler, **chosen)  # type: ignore[type-var]


def _value(name: str, text: str, default: Any) -> Any:
    """The value of an option, of the type of its default. The scheduler checks its range."""
    if isinstance(default, bool):
        if text.lower() not in SWITCH:
            raise UsageError(f"{name} is on or off, not {text!r}.")
        return SWITCH[text.lower()]
    if default is None or isinstance(default, int):  # None: a number that is chosen elsewhere
        return units.count(text)
    if isinstance(default, float):
        return units.share(text) if "%" in text else units.decimal(text)
    return text
