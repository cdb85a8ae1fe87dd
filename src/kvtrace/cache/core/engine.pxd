cimport cython
from kvtrace.cache.policies.base cimport Context


cdef enum:
    NO_ROOM = -2  # nothing was changed; -1 signals an exception
    SERIAL = 0  # the kinds of schedule: each request ends before the next comes,
    CONCURRENCY = 1  # so many live at once,
    OPEN_LOOP = 2  # or an end known for each


cdef class Engine:
    cdef readonly Context context
    cdef readonly object demand
    cdef const int[::1] ids
    cdef const long long[::1] start
    cdef const int[::1] full
    cdef const signed char[::1] tail
    cdef const int[::1] limit
    cdef const int[::1] grown
    cdef const signed char[::1] grown_tail
    cdef const int[::1] fresh
    cdef const double[::1] arrival
    cdef readonly bint grows
    cdef readonly bint needs_lock
    cdef readonly long long evictions, early_frees
    cdef readonly Py_ssize_t row, live
    cdef Py_ssize_t oldest
    cdef signed char[::1] admitted
    cdef int[::1] hit
    cdef int kind
    cdef Py_ssize_t concurrency
    cdef const double[::1] end
    cdef const long long[::1] by_end
    cdef Py_ssize_t ended

    cdef int admit(self, Py_ssize_t row) except -1 nogil
    cdef int grow(self, Py_ssize_t row) except -1 nogil
    cdef int finish(self, Py_ssize_t row) except -1 nogil
    cdef int before(self, Py_ssize_t row) except -1 nogil
    cdef int serve(self, Py_ssize_t row) except -1 nogil
    cdef int peek(self, Py_ssize_t row) except -1 nogil
    cdef int peek_ended(self, Py_ssize_t row, double now) except -1 nogil
    cdef int lower_tier_hits(self, Py_ssize_t row) except -1 nogil
    cdef double fetch_seconds(self, Py_ssize_t row) except -1 nogil
    cdef int _advance(self, Py_ssize_t stop) except -1 nogil
    cdef int _retire(self, Py_ssize_t row) except -1 nogil
    cdef int _end(self, Py_ssize_t row) except -1 nogil
    cdef int _free_oldest(self, Py_ssize_t row) except -1 nogil
    cdef int _finish_all(self) except -1 nogil


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
    cdef long long find(self, Py_ssize_t row, long long tokens) noexcept nogil
    cdef long long chunk_end(self, Py_ssize_t row, long long start, long long end) noexcept nogil
    cdef int admission(self, Py_ssize_t row, long long hit, long long end, long long whole, long long spare) noexcept
    cdef int open(self, Py_ssize_t row, long long hit) except -1
    cdef int slide(self, Py_ssize_t row, long long tokens) except -1
    cdef long long missing(self, Py_ssize_t row, long long start, long long end) noexcept nogil
    cdef bint fits(self, Py_ssize_t row, long long start, long long end) noexcept nogil
    cdef int extend(self, Py_ssize_t row, long long start, long long end) except -1
    cdef int publish(self, Py_ssize_t row, long long tokens) except -1 nogil
    cdef int release(self, Py_ssize_t row) except -1
    cdef long long quiet(self, Py_ssize_t row, long long computed, long long lag, long long ahead) noexcept
