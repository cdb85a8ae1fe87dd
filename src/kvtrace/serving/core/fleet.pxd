cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.serving.core.router cimport Router


@cython.final
cdef class Fleet:
    cdef list engines
    cdef Router router
    cdef const long long[::1] held  # request -> tokens that it holds while it is live
    cdef int[::1] instance  # request -> the engine that served it, -1 = none yet
    cdef Py_ssize_t row

    cdef _retire(self, Py_ssize_t row, Engine first)
    cdef _end(self, Py_ssize_t row)
    cdef _count(self, int chosen)
    cdef _tell(self)
