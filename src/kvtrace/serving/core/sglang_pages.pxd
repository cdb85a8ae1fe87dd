from kvtrace.serving.core.sglang_queue cimport SglangQueue


cdef class SglangPages(SglangQueue):
    cdef int _checkpoint(self, Py_ssize_t row) except -1
    cdef int _publish(self, Py_ssize_t row, long long tokens) except -1
    cdef int _drop(self, Py_ssize_t row, long long others) except -1
    cdef int _release(self, Py_ssize_t row) except -1
    cdef int _take_pages(self, long long pages) except -1
    cdef long long _pages(self, long long tokens) noexcept
    cdef long long _paged(self, long long tokens) noexcept
    cdef long long _with_evictable(self) noexcept
