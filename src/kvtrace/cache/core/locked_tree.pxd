from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.core.leaves cimport Leaves

cdef enum:
    ROOT = 0


cdef class LockedTree(Engine):
    # one value per node; the root is node 0
    cdef int[::1] length  # blocks, or pages; 0 = the node number is unused
    cdef int[::1] parent
    cdef int[::1] children  # number of children
    cdef int[::1] locks  # number of live requests whose path contains it
    cdef long long[::1] used  # time of the last use, by a clock that ticks at each use
    cdef int[::1] unused  # a stack of unused node numbers
    cdef Py_ssize_t unused_nodes
    cdef Leaves leaves  # the unlocked leaves
    cdef public long long free  # blocks, or pages, of no node
    cdef public long long evictable  # those of unlocked nodes
    cdef long long clock
    cdef long long matched  # blocks, or pages, that the last walk matched

    cdef int lock(self, int node, int above) except -1 nogil
    cdef int unlock(self, int node) except -1 nogil
    cdef long long _tick(self) noexcept nogil
    cdef int _settle(self, int node) except -1 nogil
    cdef long long _key(self, int node) noexcept nogil
    cdef int _remove(self, int node) except -1 nogil
