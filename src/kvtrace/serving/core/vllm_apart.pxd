from kvtrace.cache.core.blocks cimport PagedCache
from kvtrace.serving.core.vllm cimport VllmInstance


cdef class VllmWorker(VllmInstance):
    cdef PagedCache paged  # the cache, as its class
    cdef const long long[::1] local  # request -> its prompt is computed here
    cdef list holding  # a heap of those that hold blocks
    cdef signed char[::1] stage  # row -> LOADING, ARRIVED, READ, or 0
    cdef list come  # rows whose KV cache has been read, which no step has reported
    cdef list reported  # those that the flying step reports
    cdef long long ready  # requests in `holding` whose report was read
    cdef long long held_order
    cdef double idle_since  # when a step without tokens was run

    cdef int _read(self, list rows) except -1
    cdef long long _reserved(self, list skipped)
    cdef long long _remaining(self, Py_ssize_t row) noexcept
    cdef int _load(self, Py_ssize_t row, int hits) except -1
    cdef int _hold(self, tuple item) except -1
