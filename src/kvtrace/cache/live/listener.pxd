cimport cython
from kvtrace.cache.live.sequence cimport Sequence
from kvtrace.cache.live.slot_pool cimport SlotPool


@cython.final
cdef class Listener:
    cdef Py_ssize_t block_size
    cdef object on_read
    cdef object on_write
    cdef object on_evict
    cdef object on_copy
    cdef bint reports_growth
    cdef bint in_callback

    cdef int evicted(self, SlotPool pool) except -1
    cdef int allocated(self, SlotPool pool, Sequence sequence) except -1
    cdef int extended(self, SlotPool pool, Sequence sequence, Py_ssize_t first, int shared) except -1
    cdef int _report_writes(self, Sequence sequence, Py_ssize_t first) except -1
