cimport cython
from kvtrace.cache.policies.base cimport Context
from kvtrace.cache.structures.recency cimport Recency


cdef int bucket(const double[::1] bounds, double value) noexcept nogil


@cython.final
cdef class PathState:
    cdef const int[::1] ids
    cdef const long long[::1] start
    cdef const int[::1] full
    cdef int[::1] depth  # block -> number of blocks before it
    cdef const long long[::1] tokens  # request -> prompt tokens
    cdef long long block_size
    cdef Py_ssize_t prompt_blocks  # blocks from here on are of outputs
    cdef const double[::1] turn_bounds
    cdef const double[::1] use_bounds
    cdef const double[::1] new_bounds
    cdef const double[::1] gap_bounds
    cdef bint knows_turns
    cdef int[::1] turn  # request -> its turn, from 1
    cdef int[::1] session  # request -> the first request of its session
    cdef double[::1] arrived  # request -> ms
    cdef int[::1] owner  # block -> the request that used it last, or -1
    cdef int[::1] uses  # block -> its uses so far
    cdef signed char[::1] is_shared  # block -> 1 if two sessions have used it
    cdef signed char[::1] is_later  # block -> 1 if it was new in a second or later turn
    cdef Py_ssize_t row  # the request that began last, and the cells of its blocks
    cdef int tail_cell, first_shared, first_turn_cell, later_turn_cell

    cdef int begin(self, Py_ssize_t row, double now) noexcept nogil
    cdef double _continue(self, Py_ssize_t row, int known, double now) noexcept nogil
    cdef double used_ms(self, int block) noexcept nogil
    cdef int use(self, int block) noexcept nogil
