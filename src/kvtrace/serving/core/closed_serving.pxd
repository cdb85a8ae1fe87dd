from kvtrace.serving.core.closed_loop cimport ClosedLoop
from kvtrace.serving.core.serving cimport Serving


cdef class ClosedServing(Serving):
    cdef ClosedLoop loop
    cdef readonly bint over
    cdef int _reach_next_arrival(self) except -1
