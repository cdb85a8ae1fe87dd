from kvtrace.cache.core.hybrid_radix cimport HybridRadix


cdef class StateRadix(HybridRadix):
    cdef long long every  # blocks between two states that a prefill can record

    cdef int _publish(self, Py_ssize_t row, long long blocks) except -1 nogil
    cdef int _lock_both(self, int node) except -1 nogil
    cdef int _unlock_both(self, int node) except -1 nogil
