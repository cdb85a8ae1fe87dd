cimport cython
from kvtrace.cache.core.grouped_cache cimport GroupedCache
from kvtrace.cache.core.step_cache cimport StepCache


@cython.final
cdef class GroupedSteps(StepCache):
    cdef readonly GroupedCache groups
    cdef long long in_flight  # the most tokens of a request whose step has not ended
    # row -> tokens: for which it has blocks; after which the next ones are freed, or can be listed
    cdef long long[::1] room, next_freed, next_listed

    cdef bint _awaits_state(self, Py_ssize_t row, long long hit) noexcept
    cdef long long _reserved(self, Py_ssize_t row, long long hit, long long tokens) noexcept
    cdef bint has_room(self, Py_ssize_t row, long long start, long long end) noexcept nogil
