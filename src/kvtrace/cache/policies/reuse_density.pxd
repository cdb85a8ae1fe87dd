cimport cython
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.heap cimport Heaps
from kvtrace.cache.structures.path_state cimport PathState
from kvtrace.cache.structures.recency cimport Recency


@cython.final
cdef class ReuseDensity(Policy):
    cdef Recency recency
    cdef PathState state
    cdef Heaps heaps  # one per class
    cdef int classes
    cdef int[::1] class_of_cell
    cdef int[:, ::1] level  # class, age bucket -> level
    cdef double[::1] age_bounds
    cdef int[::1] class_of  # block -> class, as of its last use
    cdef long long[::1] stamp  # block -> recency of its last use
    cdef int[::1] level_now  # class -> level of its candidate, EMPTY if it has none
    cdef double[::1] until_ms  # class -> when its candidate reaches the next age bucket

    cdef bint _less_recent(self, int one, int other) noexcept nogil
    cdef int _look_up(self, int one) noexcept nogil
