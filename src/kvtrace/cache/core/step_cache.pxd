cimport cython
from kvtrace.cache.core.engine cimport Engine

cdef enum:
    FITS = 0
    NO_BLOCKS = 1  # as long as no block is freed or cached
    NOT_NOW = 2  # in this step; the next one may have room for it


cdef class StepCache(Engine):
    cdef readonly long long size  # blocks
    cdef public object lower  # the LowerTier below, or None
    cdef double step_ends  # when the present step ends, in seconds
    cdef bint slides  # blocks are freed while their request runs: each of its steps calls `slide` and `publish`
    cdef bint splits  # `chunk_end` can shorten a chunk

    cdef long long free(self) noexcept nogil
    cdef int begin_step(self) noexcept
    cdef long long find(self, Py_ssize_t row, long long known) noexcept nogil
    cdef long long chunk_end(self, Py_ssize_t row, long long start, long long end) noexcept nogil
    cdef int admission(self, Py_ssize_t row, long long hit, long long end, long long whole, long long spare) noexcept
    cdef int open(self, Py_ssize_t row, long long hit) except -1
    cdef int slide(self, Py_ssize_t row, long long tokens) except -1
    cdef long long missing(self, Py_ssize_t row, long long start, long long end) noexcept nogil
    cdef bint fits(self, Py_ssize_t row, long long start, long long end) noexcept nogil
    cdef int extend(self, Py_ssize_t row, long long start, long long end) except -1
    cdef int publish(self, Py_ssize_t row, long long tokens) except -1 nogil
    cdef int release(self, Py_ssize_t row) except -1
    cdef long long quiet(self, Py_ssize_t row, long long done, long long lag) noexcept
