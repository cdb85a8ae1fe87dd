"""Which eviction orders a live cache can have: those that need no trace and know no block that is gone."""

from __future__ import annotations

from typing import Any

from ..._base.errors import UsageError
from .. import policies
from ..policies.base import Context


def live_policy(policy: Any, context: Context) -> Any:
    """The order that a name or a user's class stands for, for the slots of a live cache.

    UsageError where it is none, or a live cache can't have it.

    >>> live_policy("lru", Context(blocks=4, capacity=2)).keeps_parents
    True
    """
    from ..core.pool import PythonPolicy

    if isinstance(policy, str):
        row = policies.POLICIES.get(policy.partition(":")[0])
        if row is not None and row.bound:
            raise UsageError(f"{policy} is an upper bound that needs the future; a live cache cannot use it. Try lru.")
        if row is not None and row.ghosts:
            raise UsageError(f"{policy} remembers evicted blocks, but a live cache reuses their slots. Try lru.")
        return policies.make(policy, context)
    missing = [verb for verb in policies.VERBS if not callable(getattr(policy, verb, None))]
    if missing or not callable(policy):
        raise UsageError(f"a policy is a name or a class with the verbs {', '.join(policies.VERBS)}; see the docs.")
    return PythonPolicy(context, policy(context))
