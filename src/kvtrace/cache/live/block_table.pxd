cimport cython

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
    cdef Py_ssize_t made
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
    cdef Py_ssize_t resident(self, Py_ssize_t known) noexcept
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
