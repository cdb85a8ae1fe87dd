cimport cython
from kvtrace.cache.policies.base cimport Context



@cython.final
cdef class Recency:
    cdef Context context
    cdef int[::1] depth
    cdef Py_ssize_t request  # the last row that was stamped
    cdef long long requests  # rows stamped so far
    cdef long long stamp(self, int block) noexcept nogil
