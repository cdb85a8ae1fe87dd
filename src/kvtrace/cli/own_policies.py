"""Policies of the user's: every command with --policy finds their classes, and reports their exceptions, alike."""

from __future__ import annotations

import sys
from contextlib import contextmanager


@contextmanager
def own_policies():
    """Import policy classes from the current folder, and report their exceptions as usage errors."""
    from .._base.errors import UsageError

    sys.path.insert(0, "")
    try:
        yield
    except Exception as error:
        from ..cache.core.pool import failure

        if (failed := failure(error)) is None:
            raise
        policy, place = failed
        message = f": {error}" if str(error) else ""  # safe: a policy sees numbers only, no content
        raise UsageError(f"The policy failed: {policy}, {place}{message}") from error
    finally:
        sys.path.remove("")
