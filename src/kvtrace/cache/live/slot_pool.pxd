cimport cython
from kvtrace.cache.live.block_table cimport BlockTable
from kvtrace.cache.policies.base cimport Policy

cdef enum:
    FREE = -1  # pins of a free slot


@cython.final
cdef class SlotPool:
    cdef Py_ssize_t count
    cdef Py_ssize_t most_idle
    cdef BlockTable table
    cdef Policy policy
    cdef int* pins
    cdef int* block
    cdef int* unused
    cdef Py_ssize_t free_count
    cdef Py_ssize_t idle_count
    cdef Py_ssize_t found_count
    cdef long long evictions
    cdef list evicted

    cdef int pin(self, int slot) except -1
    cdef int unpin(self, int slot, bint keep) except -1
    cdef int take(self) except -1
    cdef int expire(self) except -1
    cdef void put(self, int b, int slot) noexcept
    cdef void take_out(self, int slot) noexcept
    cdef int _victim(self, int slot) except -1
    cdef int _evict(self, int slot) except -1
    cdef int _vacate(self, int slot) except -1
