"""Runs a user's policy written in Python: each verb calls the object's method. Exceptions propagate, except
sys.exit().

The run holds the interpreter lock throughout, so a verb costs as much as a Python call.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy

from kvtrace._base.errors import UsageError


def without_exit(function):
    """The function of a user, which may raise but not end the program: sys.exit() becomes a UsageError."""

    def call(*arguments):
        try:
            return function(*arguments)
        except SystemExit:
            pass
        raise UsageError("the policy called sys.exit(). To stop a run, raise an exception such as ValueError.")

    return call


class PythonPolicy(Policy):
    """Calls the object's methods of the same names; `expired` and `miss` only if the object has them."""

    def __init__(self, context: Context, user_policy):
        Policy.__init__(self, context)
        self.needs_lock = True
        self.user_policy = user_policy
        self._insert, self._use = without_exit(user_policy.insert), without_exit(user_policy.use)
        self._release, self._remove = without_exit(user_policy.release), without_exit(user_policy.remove)
        self._victim = without_exit(user_policy.victim)
        self.expires, self.misses = hasattr(user_policy, "expired"), hasattr(user_policy, "miss")
        self._expired = without_exit(user_policy.expired) if self.expires else None
        self._miss = without_exit(user_policy.miss) if self.misses else None

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
