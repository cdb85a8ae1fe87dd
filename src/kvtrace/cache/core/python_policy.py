"""Runs a user's policy written in Python: each verb calls the object's method. Exceptions propagate.

The run holds the interpreter lock throughout, so a verb costs as much as a Python call.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy

from kvtrace._base.errors import UsageError


class PythonPolicy(Policy):
    """Calls the object's methods of the same names; `expired` and `miss` only if the object has them."""

    def __init__(self, context: Context, user_policy):
        Policy.__init__(self, context)
        self.needs_lock = True
        self.user_policy = user_policy
        self._insert, self._use, self._release = user_policy.insert, user_policy.use, user_policy.release
        self._victim, self._remove = user_policy.victim, user_policy.remove
        self._expired = getattr(user_policy, "expired", None)
        self.expires = self._expired is not None
        self._miss = getattr(user_policy, "miss", None)
        self.misses = self._miss is not None

    def insert(self, block):
        with cython.gil:
            self._insert(block)
        return 0

    def use(self, block):
        with cython.gil:
            self._use(block)
        return 0

    def release(self, block):
        with cython.gil:
            self._release(block)
        return 0

    def victim(self):
        with cython.gil:
            return _number(self._victim())

    def remove(self, block):
        with cython.gil:
            self._remove(block)
        return 0

    def expired(self):
        with cython.gil:
            return _number(self._expired())

    def miss(self, block):
        with cython.gil:
            self._miss(block)
        return 0


def _number(result):
    """The block number that a method returned; NONE for None and for negative numbers."""
    if result is None:
        return NONE
    if not hasattr(result, "__index__"):
        raise UsageError(f"the policy returned a {type(result).__name__} as its victim. Return a block number or None.")
    number = result.__index__()
    return NONE if number < 0 or number > 0x7FFFFFFF else number
