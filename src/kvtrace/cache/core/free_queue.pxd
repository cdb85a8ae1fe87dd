cimport cython
from kvtrace.cache.core.block_queue cimport BlockQueue
from kvtrace.cache.core.engine cimport Engine


@cython.final
cdef class FreeQueue(Engine):
    cdef BlockQueue queue
    cdef int[::1] held  # the physical blocks of live requests, in order of admission
    cdef long long[::1] begin  # row -> start of its physical blocks in `held`
    cdef long long top

    cdef int _take(self) except -1 nogil
