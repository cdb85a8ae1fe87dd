cdef enum:
    TURNS = 0  # the kinds of router: in turns,
    KEYED = 1  # by a number of each request's own,
    OVERLAP = 2  # where most blocks would hit,
    LOADED = 3  # where the fewest tokens are not done yet,
    AWARE = 4  # where the blocks to compute and those that are live are fewest,
    METRIC = 5  # or where tokens to compute times requests that are there are fewest


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
