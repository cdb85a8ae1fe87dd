from kvtrace.serving.core.vllm cimport HoldingInstance


cdef class VllmWorker(HoldingInstance):
    cdef const long long[::1] local  # request -> its prompt is computed here
    cdef list come  # rows whose KV cache has been read, which no step has reported
    cdef list reported  # those that the flying step reports
    cdef long long ready  # requests in `holding` whose report was read
    cdef double idle_since  # when a step without tokens was run

    cdef int _read(self, list rows) except -1
