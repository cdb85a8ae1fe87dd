cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.core.tier_blocks cimport TierBlocks
from kvtrace.cache.core.tier_orders cimport TierOrder


@cython.final
cdef class LowerTier(TierBlocks):
    cdef readonly Engine above
    cdef readonly long long capacity, size, idle, evictions
    cdef public double fetch_seconds, store_seconds  # of a block
    cdef TierOrder order
    cdef readonly int[::1] hits
    cdef dict marks

    cdef int block_at(self, Py_ssize_t row, int place) noexcept nogil
    cdef int prepare_load(self, Py_ssize_t row, int first, int end) except -1
    cdef bint prepare_store(self, Py_ssize_t row, int first, int end, list absent) except -1
    cdef int complete(self, list blocks, bint is_load) except -1
    cdef int finish(self, Py_ssize_t row) except -1
    cdef bint _evict(self, long long count) except -1
    cdef bytearray _marks(self, Py_ssize_t row)
    cdef int _see(self, Py_ssize_t row, int place, bytearray marks) except -1
