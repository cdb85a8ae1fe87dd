"""Types of options that hold an amount: numbers, shares and times as people write them (`_base/units.py` parses them)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from .._base import units
from .._base.errors import UsageError


class Amount(click.ParamType):
    """An amount with a parser of its own, and perhaps limits.

    Args:
        parse: Parses the text; its UsageError names the fault and gives examples.
        least, most: The limits; None = no limit.
    """

    name = "amount"
    parse: Callable[[str], Any]
    least: float | None
    most: float | None

    def __init__(self, parse: Callable[[str], Any], least: float | None = None, most: float | None = None) -> None:
        self.parse, self.least, self.most = parse, least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The amount; an error names the option."""
        name = param.opts[-1] if param else "the value"
        if isinstance(value, str):
            try:
                value = self.parse(value)
            except UsageError as error:
                raise click.UsageError(f"{name}: {error}", ctx) from None
        if self.least is not None and not value >= self.least:
            raise click.UsageError(f"{name} must be at least {self.least:,}.", ctx)
        if self.most is not None and not value <= self.most:
            raise click.UsageError(f"{name} must be at most {self.most:,}.", ctx)
        return value


def as_amount(kind: click.ParamType) -> click.ParamType:
    """The type of a number, which then may have separators of thousands; any other type as it is."""
    if isinstance(kind, (Amount, click.types.BoolParamType)):
        return kind
    limits = getattr(kind, "min", None), getattr(kind, "max", None)
    if isinstance(kind, click.types.IntParamType):
        return Amount(units.count, *limits)
    return Amount(units.decimal, *limits) if isinstance(kind, click.types.FloatParamType) else kind
