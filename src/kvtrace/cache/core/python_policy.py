"""Runs a policy that a user wrote in Python: each verb calls the object's method, and exceptions pass through.

The lock is held for the whole run, so a call costs what a call from Python costs.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy

from kvtrace._base.errors import UsageError


class PythonPolicy(Policy):
    """Calls an object's methods of the same names; `expired` and `miss` only where the object has them."""

    def __init__(self, context: Context, held):
        Policy.__init__(self, context)
        self.needs_lock = True
        self.held = held
        self._insert, self._use, self._release = held.insert, held.use, held.release
        self._victim, self._remove = held.victim, held.remove
        self._expired = getattr(held, "expired", None)
        self.expires = self._expired is not None
        self._miss = getattr(held, "miss", None)
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


def _number(answer):
    """A block's number; NONE for None and for numbers below 0."""
    if answer is None:
        return NONE
    if not hasattr(answer, "__index__"):
        raise UsageError(f"the policy named a {type(answer).__name__} as its victim. Return a block's number.")
    number = answer.__index__()
    return NONE if number < 0 or number > 0x7FFFFFFF else number
