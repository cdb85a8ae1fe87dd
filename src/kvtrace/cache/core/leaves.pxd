cdef class Leaves:
    cdef long long[::1] key  # one value a node
    cdef long long[::1] used
    cdef int[::1] place  # node -> position in the heap, -1 = not in it
    cdef int[::1] heap
    cdef int count

    cdef int put(self, int node, long long key, long long used) except -1 nogil
    cdef int drop(self, int node) except -1 nogil
    cdef bint _before(self, int node, int other) noexcept nogil
    cdef int _set(self, int place, int node) except -1 nogil
    cdef int _rise(self, int place) except -1 nogil
    cdef int _sink(self, int place) except -1 nogil
