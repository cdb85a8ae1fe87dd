cimport cython
from kvtrace.cache.core.pool cimport Pool
from kvtrace.cache.policies.base cimport Policy

cdef enum:
    ABSENT = -1


@cython.final
cdef class Tier:
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
