cimport cython
from kvtrace.cache.core.grouped_cache cimport GroupedCache
from kvtrace.cache.core.step_cache cimport StepCache


@cython.final
cdef class GroupedSteps(StepCache):
    cdef readonly GroupedCache groups
    cdef readonly object lower  # None: there is no lower tier
    cdef long long in_flight  # the most tokens of a request whose step has not ended

    cdef bint _awaits_state(self, Py_ssize_t row, long long hit) noexcept
    cdef bint _is_behind(self, Py_ssize_t row, long long tokens) noexcept
    cdef long long _reserved(self, Py_ssize_t row, long long hit, long long tokens) noexcept


cdef long long to_multiple(long long value, long long of) noexcept nogil
