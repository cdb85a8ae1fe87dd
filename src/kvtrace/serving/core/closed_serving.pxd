from kvtrace.serving.core.closed_loop cimport ClosedLoop
from kvtrace.serving.core.instance cimport Instance
from kvtrace.serving.core.serving cimport Serving


cdef class ClosedServing(Serving):
    cdef ClosedLoop loop
    cdef readonly bint over
    # of several instances: the time before which each causes no arrival, and when that was found
    cdef double[::1] horizon, looked
    cdef int[::1] newest  # instance -> its newest request, linked by `older`
    cdef int[::1] older
    cdef int _reach_next_arrival(self) except -1
    cdef double _horizon(self, int i, Instance one, double begin) except? -1
    cdef int _watch(self, Py_ssize_t row) except -1
