from kvtrace.cache.core.hybrid_radix cimport HybridRadix


cdef class WindowRadix(HybridRadix):
    cdef long long window  # blocks that a request must have before it to resume
    cdef long long[::1] freed  # row -> leading blocks whose windows the request has freed, or left to the tree
    cdef long long[::1] locked_from  # row -> the block where its lock of windows begins

    cdef int _refresh(self, int node) noexcept nogil
    cdef int _lock_window(self, Py_ssize_t row) noexcept nogil
    cdef int _unlock_window(self, Py_ssize_t row) noexcept nogil
    cdef int _free_outside(self, Py_ssize_t row, long long blocks, bint partial) noexcept nogil
    cdef int _publish(self, Py_ssize_t row, long long blocks) except -1 nogil
