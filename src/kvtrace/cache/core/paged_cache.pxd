cimport cython
from kvtrace.cache.core.block_queue cimport BlockQueue
from kvtrace.cache.core.step_cache cimport StepCache


@cython.final
cdef class PagedCache(StepCache):
    cdef readonly BlockQueue queue
    cdef readonly long long block_size
    cdef const long long[::1] tokens  # row -> tokens of the prompt
    cdef int[::1] held  # the physical blocks of live requests, each request in a part of its own
    cdef long long[::1] begin  # row -> start of its part of `held`
    cdef int[::1] count  # row -> blocks that it holds
    cdef int[::1] published  # row -> leading blocks of these that have their hash
    cdef int[::1] room  # row -> size of its part, as a power of two
    cdef list vacant  # size as a power of two -> parts of this size that no request has
    cdef long long top
    cdef int idle_hits  # of the last lookup: hit blocks that no request holds

    cdef long long blocks_of(self, long long tokens) noexcept nogil
    cdef int block_at(self, Py_ssize_t row, int place) noexcept nogil
    cdef int look_up(self, Py_ssize_t row, long long tokens) except -1 nogil
    cdef int start_with(self, Py_ssize_t row, int hits) except -1
    cdef Py_ssize_t _part(self, Py_ssize_t row) except -1
