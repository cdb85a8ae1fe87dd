from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.policies.base cimport Policy

cdef enum:
    ABSENT = -1  # pins of a block that is not resident
    FAR = 24  # prefetch distance in blocks, for pins and the policy's state
    NEAR = 12  # prefetch distance in blocks, for state that depends on the first prefetch
    LARGE = 1 << 17  # number of blocks above which their state exceeds a processor's cache


cdef class Pool(Engine):
    cdef readonly Policy policy
    cdef long long capacity, unhashed
    cdef readonly long long resident, idle
    cdef bint total, leaf_first, parents_last, fetches, one_block_path
    cdef int[::1] pins
    cdef int[::1] children
    cdef const int[::1] parent
    cdef int resident_run(self, Py_ssize_t row) except -1 nogil
    cdef int _make_room(self) except -1 nogil
    cdef int _serve_one(self, Py_ssize_t row, Py_ssize_t i) except -1 nogil
    cdef int _fetch(self, Py_ssize_t start, Py_ssize_t stop) except -1 nogil
    cdef int _evict(self, int block) except -1 nogil
    cdef int _insert(self, int block) except -1 nogil
    cdef int _unpin(self, int block) except -1 nogil
    cdef bint _fits(self, Py_ssize_t row, Py_ssize_t start, Py_ssize_t gap, Py_ssize_t stop) noexcept nogil
    cdef int _victim(self) except -1 nogil
    cdef int _expired(self) except? -1 nogil
    cdef _described(self, int block)
