cdef int METRIC
cdef int AWARE
cdef int LOADED
cdef int OVERLAP
cdef int KEYED
cdef int TURNS


cdef class Router:
    cdef list engines
    cdef int count, kind
    cdef long long size
    cdef const long long[::1] key
    cdef const long long[::1] tokens
    cdef long long[::1] load
    cdef long long[::1] waiting
    cdef long long[::1] sent
    cdef long long[::1] here
    cdef double[::1] blocks
    cdef int send(self, Py_ssize_t row) except -1
    cdef double _cost(self, Py_ssize_t row, int i) except? -1
