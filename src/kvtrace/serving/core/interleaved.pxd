from kvtrace.serving.core.serving cimport Serving


cdef class InterleavedServing(Serving):
    cdef list events  # a heap: (seconds, kind, row)
    cdef int running  # the instance that runs a turn now, -1 = none
    cdef readonly long long turns  # calls of `run`, for tests

    cdef int at(self, double seconds, int kind, Py_ssize_t row) except -1
    cdef int happen(self, double seconds, int kind, Py_ssize_t row) except -1
    cdef int settle(self, double seconds) except -1
    cdef double horizon(self, int i) except? -1
    cdef int run_until(self, double until) except -1
    cdef int _turn(self, double until) except -1
