cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.policies.base cimport Policy
from kvtrace.cache.structures.queues cimport HierarchicalBitset


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


@cython.final
cdef class PoolTier:
    cdef Policy policy
    cdef long long capacity
    cdef long long size
    cdef int[::1] hits  # row -> hit blocks that came from this tier


@cython.final
cdef class Tiers(Pool):
    cdef list tiers
    cdef int count
    cdef signed char[::1] below  # block -> the lower tier that holds it, from 1; 0 = none
    cdef long long last_tier_evictions
    cdef const double[::1] block_seconds  # lower tier, from 0 -> seconds to fetch a block

    cdef int _take(self, int block, Py_ssize_t row, bint is_hit) except -1 nogil


cdef int _number(object result) except -1


@cython.final
cdef class PythonPolicy(Policy):
    cdef object user_policy
    cdef object _insert
    cdef object _use
    cdef object _release
    cdef object _victim
    cdef object _remove
    cdef object _expired
    cdef object _miss
    cdef object _request_started
    cdef object _request_ended


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


cdef _retain(const int[::1] next_row, const int[::1] blocks, const long long[::1] first, long long capacity,
             int[::1] held, HierarchicalBitset due)
