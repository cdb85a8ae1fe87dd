cimport cython
from kvtrace.cache.policies.base cimport Context



@cython.final
cdef class Recency:
    cdef Context context
    cdef int[::1] depth
    cdef long long stamp(self, int block) noexcept nogil
