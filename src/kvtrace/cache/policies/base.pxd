cdef enum:
    NONE = -2  # no block; -1 signals an exception


cdef class Context:
    cdef readonly Py_ssize_t blocks
    cdef readonly long long capacity
    cdef readonly object trace
    cdef readonly object demand
    cdef public Py_ssize_t request
    cdef public Py_ssize_t order
    cdef public double now
    cdef readonly bint in_loop
    cdef double[::1] due


cdef class Policy:
    cdef readonly Context context
    cdef readonly bint needs_lock
    cdef readonly bint expires
    cdef readonly bint misses
    cdef readonly bint follows_requests
    cdef readonly bint keeps_parents

    # required
    cdef int insert(self, int block) except -1 nogil
    cdef int use(self, int block) except -1 nogil
    cdef int release(self, int block) except -1 nogil
    cdef int victim(self) except -1 nogil
    cdef int remove(self, int block) except -1 nogil

    # optional
    cdef int expired(self) except -1 nogil
    cdef int miss(self, int block) except -1 nogil
    cdef int request_started(self, Py_ssize_t row) except -1 nogil
    cdef int request_ended(self, Py_ssize_t row) except -1 nogil
    cdef int hit_idle(self, int block) except -1 nogil
    cdef int insert_idle(self, int block) except -1 nogil
    cdef int likely_victim(self) noexcept nogil
    cdef int prefetch(self, int far, int near) except -1 nogil
