cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.policies.base cimport Policy



@cython.final
cdef class Chunks(Engine):
    cdef Policy policy
    cdef int factor
    cdef long long capacity  # chunks
    cdef long long resident  # chunks
    cdef signed char[::1] is_resident  # block -> 1 if the chunk that ends with it is resident
    cdef bint watermark
    cdef long long ticks  # ticks of the watermark clock so far

    cdef int _chunk(self, Py_ssize_t row, int number) noexcept nogil
    cdef int _touch(self, Py_ssize_t row, int chunks) except -1 nogil
    cdef int _store(self, Py_ssize_t row, int hit, int chunks) except -1 nogil
    cdef int _store_all(self, Py_ssize_t row, int hit, int chunks) except -1 nogil
    cdef int _put(self, int chunk) except -1 nogil
    cdef int _evict(self) except -1 nogil
    cdef int _evict_share(self) except -1 nogil
