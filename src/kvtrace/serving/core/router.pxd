cdef enum:
    TURNS = 0  # the kinds of router: round robin,
    KEYED = 1  # by a key of the request,
    OVERLAP = 2  # most hit blocks,
    LOADED = 3  # fewest prompt tokens of requests that have not ended,
    AWARE = 4  # fewest blocks to compute plus live blocks,
    METRIC = 5  # or least product of tokens to compute and active requests + 1


cdef class Router:
    cdef list engines
    cdef int count, kind
    cdef long long size
    cdef const long long[::1] key
    cdef const long long[::1] tokens
    cdef Py_ssize_t turn  # requests that have arrived before
    cdef long long[::1] load
    cdef long long[::1] waiting
    cdef long long[::1] sent
    cdef long long[::1] active
    cdef double[::1] blocks
    cdef int send(self, Py_ssize_t row) except -1
    cdef double _cost(self, Py_ssize_t row, int i) except? -1
