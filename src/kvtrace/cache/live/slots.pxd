cimport cython
from kvtrace.cache.policies.base cimport Policy


cdef void* zeros(size_t size) except *
cdef void* resized(void* memory, size_t size) except *


cdef enum:
    NONE = -1
    SPARE = -1  # the length of an unused number

cdef struct Block:
    unsigned long long digest
    int parent  # the block before it; -1 for a root, which has no tokens and represents a tenant
    int next  # the next block in its bucket, or the next unused number
    int slot  # the slot where lookups find it; -1: none, it is only known as the prefix of other blocks
    int holders  # number of slots that contain it, of blocks after it and, for a root, of its live sequences
    int length  # tokens; SPARE if the number is unused



@cython.final
cdef class BlockTable:
    cdef Py_ssize_t block_size
    cdef bint is_direct
    cdef Block* blocks
    cdef unsigned int* own
    cdef Py_ssize_t room
    cdef Py_ssize_t numbers
    cdef Py_ssize_t spare_count
    cdef int spare
    cdef int* buckets
    cdef unsigned long long mask, key0, key1, serial
    cdef public unsigned long long digest_mask
    cdef dict roots
    cdef dict tenants
    cdef int* path
    cdef Py_ssize_t path_room

    cdef Py_ssize_t walk(self, int root, unsigned int* tokens, Py_ssize_t length) except -1
    cdef Py_ssize_t resident(self, Py_ssize_t depth) noexcept
    cdef int find(self, int parent, unsigned int* tokens, Py_ssize_t length) noexcept
    cdef int named(self, int parent, unsigned int* tokens, Py_ssize_t length) noexcept
    cdef int new(self, int parent, unsigned int* tokens, Py_ssize_t length) noexcept
    cdef int let_go(self, int b) except -1
    cdef int reserve(self, Py_ssize_t more) except -1
    cdef int root(self, object salt, object tenant) except -2
    cdef int new_root(self, object salt, object tenant) except -2
    cdef int found_as(self, int b) noexcept
    cdef unsigned int* tokens_of(self, int b) noexcept
    cdef int _find_by(self, unsigned long long digest, int parent, unsigned int* tokens, Py_ssize_t length) noexcept
    cdef int _add(self, unsigned long long digest, int parent, unsigned int* tokens, Py_ssize_t length) noexcept
    cdef int _number(self) noexcept
    cdef void _link(self, int b) noexcept
    cdef void _unlink(self, int b) noexcept
    cdef unsigned long long _digest(self, int parent, unsigned int* tokens, Py_ssize_t length) noexcept


cdef unsigned int token_in(object token) except? 0xFFFFFFFF


@cython.final
cdef class Tokens:
    cdef unsigned int* values
    cdef Py_ssize_t room

    cdef Py_ssize_t read(self, object tokens) except -1
    cdef Py_ssize_t _read_array(self, object tokens) except -1
    cdef int _reserve(self, Py_ssize_t length) except -1


cdef enum:
    FREE = -1  # pins of a free slot


@cython.final
cdef class SlotPool:
    cdef Py_ssize_t count
    cdef Py_ssize_t most_idle
    cdef BlockTable table
    cdef Policy policy
    cdef int* pins
    cdef int* block
    cdef int* unused
    cdef Py_ssize_t free_count
    cdef Py_ssize_t idle_count
    cdef Py_ssize_t found_count
    cdef long long evictions
    cdef list evicted

    cdef int pin(self, int slot) except -1
    cdef int unpin(self, int slot, bint keep) except -1
    cdef int take(self) except -1
    cdef int expire(self) except -1
    cdef void put(self, int b, int slot) noexcept
    cdef void take_out(self, int slot) noexcept
    cdef int _victim(self, int slot) except -1
    cdef int _evict(self, int slot) except -1
    cdef int _vacate(self, int slot) except -1
