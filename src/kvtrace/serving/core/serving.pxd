from kvtrace.serving.core.requests cimport Requests
from kvtrace.serving.core.router cimport Router


cdef class Serving:
    cdef list instances
    cdef Router router
    cdef Requests requests
    cdef long long capacity
    cdef readonly Py_ssize_t row  # requests that have arrived
    cdef int _arrive(self, Py_ssize_t row) except -1
    cdef _update_router(self, double now)
