"""A released trace: a Trace that knows the account of its release, which `publish` passes to the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..trace.trace import Trace

if TYPE_CHECKING:
    from .account import Account


class ReleasedTrace(Trace):
    """A Trace as `release` and `anonymize` return it. Parts and conversions of it are plain Traces."""

    account: Account | None = None  # in memory only: contributors are never written

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle: all but the account."""
        return {name: value for name, value in vars(self).items() if name != "account"}
