"""Reads a caller's tokens (lists, buffers or arrays) as 32-bit integers."""

from collections.abc import Sequence as AnySequence
from operator import index

import cython
import numpy as np
from cython.cimports.kvtrace.cache.live.buffers import resized
from cython.cimports.libc.stdlib import free as give_back

from kvtrace._base.errors import UsageError


class Tokens:
    """A buffer, `values`, for the tokens of the last `read`."""

    def __dealloc__(self):
        give_back(self.values)

    def read(self, tokens):
        """Copy a caller's tokens to `values`; returns their number."""
        i: cython.Py_ssize_t = 0
        if not isinstance(tokens, (list, tuple)):
            if isinstance(tokens, AnySequence) and not isinstance(tokens, (str, bytes, bytearray, memoryview)):
                tokens = list(tokens)
            else:
                return self._read_array(tokens)
        length: cython.Py_ssize_t = len(tokens)
        self._reserve(length)
        for token in tokens:
            if i == length:
                raise UsageError("the list of tokens changed while it was read.")
            try:
                self.values[i] = token_in(token)
            except UsageError:
                raise UsageError(f"token {i:,} is not a whole number from 0 to 4,294,967,295.") from None
            i += 1
        return i

    def _read_array(self, tokens):
        i: cython.Py_ssize_t
        ints: cython.const[cython.int][::1]
        longs: cython.const[cython.longlong][::1]
        bad: cython.Py_ssize_t = -1
        try:
            array = np.asarray(memoryview(tokens))
        except TypeError:
            raise UsageError(
                f"tokens must be a list or an array of whole numbers, not {type(tokens).__name__}."
            ) from None
        if array.ndim != 1 or array.dtype.kind not in "iu" or isinstance(tokens, (bytes, bytearray)):
            raise UsageError(f"tokens must be a list or an array of whole numbers, not {type(tokens).__name__}.")
        length: cython.Py_ssize_t = array.shape[0]
        self._reserve(length)
        if array.dtype == np.int32:
            ints = np.ascontiguousarray(array)
            for i in range(length):
                if ints[i] < 0:
                    bad = i
                self.values[i] = cython.cast(cython.uint, ints[i])
        else:
            longs = np.ascontiguousarray(array, dtype=np.int64)
            for i in range(length):
                if longs[i] < 0 or longs[i] > 0xFFFFFFFF:
                    bad = i
                self.values[i] = cython.cast(cython.uint, longs[i])
        if bad >= 0:
            raise UsageError(f"token {bad:,} is not a whole number from 0 to 4,294,967,295.")
        return length

    def _reserve(self, length):
        if length > self.room:
            self.values = cython.cast(cython.p_uint, resized(self.values, 2 * length * cython.sizeof(cython.uint)))
            self.room = 2 * length
        return 0


def token_in(token):
    """A token as a 32-bit integer; else UsageError."""
    value: cython.longlong
    try:
        value = token if type(token) is int else index(token)
    except (TypeError, OverflowError):
        value = -1
    if value < 0 or value > 0xFFFFFFFF:
        raise UsageError("a token must be a whole number from 0 to 4,294,967,295.")
    return cython.cast(cython.uint, value)
