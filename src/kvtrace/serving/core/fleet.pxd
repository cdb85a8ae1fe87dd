cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.serving.core.router cimport Router


@cython.final
cdef class Fleet:
    cdef list engines
    cdef Router router
    cdef const long long[::1] held  # request -> tokens of its prompt, which a router knows
    cdef int[::1] instance  # request -> index of its engine, -1 = not routed yet
    cdef readonly Py_ssize_t row

    cdef _retire(self, Py_ssize_t row, Engine first)
    cdef _end(self, Py_ssize_t row)
    cdef _recount_load(self, int chosen)
    cdef _update_router(self)
