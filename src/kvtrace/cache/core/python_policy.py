"""Runs a user's policy written in Python: each verb calls the object's method. Exceptions propagate, except
sys.exit(); `failure` names the policy that raised one.

The run holds the interpreter lock throughout, so a verb costs as much as a Python call.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy

from kvtrace._base.errors import KvtraceError, UsageError
from kvtrace._base.workers import place_of


def users_function(function, policy, verb):
    """The function of a user's policy: sys.exit() becomes a UsageError, and `failure` knows what else it raises."""

    def call(*arguments):
        try:
            return function(*arguments)
        except SystemExit:
            pass
        except Exception as error:
            if not isinstance(error, (KvtraceError, MemoryError)):
                inside = error.__traceback__.tb_next is not None  # else the call failed, before the user's first line
                place = place_of(error) if inside else f"{type(error).__name__} in the call of {verb}()"
                error.kvtrace_failure = policy, place
            raise
        raise UsageError("the policy called sys.exit(). To stop a run, raise an exception such as ValueError.")

    return call


def failure(error):
    """(policy, place) of an exception that a user's policy raised, such as ("mine:Cls", "ValueError at mine.py:7").

    None for any other exception.
    """
    return getattr(error, "kvtrace_failure", None)


class PythonPolicy(Policy):
    """Calls the object's methods of the same names; the optional ones only if the object has them.

    `name` is the policy in errors; the default is "module:Class".
    """

    def __init__(self, context: Context, user_policy, name=None):
        Policy.__init__(self, context)
        self.needs_lock = True
        self.user_policy = user_policy
        kind = type(user_policy)
        name = name or f"{kind.__module__}:{kind.__qualname__}"
        self._insert = users_function(user_policy.insert, name, "insert")
        self._use = users_function(user_policy.use, name, "use")
        self._release = users_function(user_policy.release, name, "release")
        self._victim = users_function(user_policy.victim, name, "victim")
        self._remove = users_function(user_policy.remove, name, "remove")
        self.expires, self.misses = hasattr(user_policy, "expired"), hasattr(user_policy, "miss")
        self.follows_requests = hasattr(user_policy, "request_started") or hasattr(user_policy, "request_ended")
        started, ended = (getattr(user_policy, f"request_{verb}", _nothing) for verb in ("started", "ended"))
        self._request_started = users_function(started, name, "request_started")
        self._request_ended = users_function(ended, name, "request_ended")
        self._expired = users_function(user_policy.expired, name, "expired") if self.expires else None
        self._miss = users_function(user_policy.miss, name, "miss") if self.misses else None

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

    def request_started(self, row):
        with cython.gil:
            self._request_started(row)
        return 0

    def request_ended(self, row):
        with cython.gil:
            self._request_ended(row)
        return 0


def _nothing(row):
    """The verb that a user's policy leaves out."""


def _number(result):
    """The block number that a method returned; NONE for None and for negative numbers."""
    if result is None:
        return NONE
    if not hasattr(result, "__index__"):
        raise UsageError(f"the policy returned a {type(result).__name__} as its victim. Return a block number or None.")
    number = result.__index__()
    return NONE if number < 0 or number > 0x7FFFFFFF else number
