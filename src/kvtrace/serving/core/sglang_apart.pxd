from kvtrace.serving.core.sglang_prefill cimport SglangPrefill


cdef class SglangApart(SglangPrefill):
    cdef bint keeps  # a decode worker has a radix cache
    cdef long long reserve  # tokens that a decode worker keeps free for the next outputs of each request
    cdef list incoming  # rows without room for their KV cache
    cdef long long coming  # requests whose KV cache is on the way
    cdef list come  # rows whose KV cache has come
    cdef list joining  # rows that wait for a seat in the batch
    cdef list offloaded  # retracted rows, whose KV cache is in host memory

    cdef bint _has_news(self) except -1
    cdef int _receive(self) except -1
    cdef int _resume(self) except -1
    cdef int _reserve_incoming(self) except -1
    cdef int _join(self) except -1
    cdef double _budget(self, long long retractable) noexcept
    cdef int _end(self, Py_ssize_t row) except -1
