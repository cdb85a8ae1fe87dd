cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.core.radix cimport Leaves


@cython.final
cdef class PagedRadix(Engine):
    cdef readonly long long page_size, block_size
    cdef readonly long long pages
    cdef public long long free, evictable
    cdef long long own  # the name of request 0's own pages; the others follow
    cdef const long long[::1] tokens  # row -> tokens of the prompt
    cdef const long long[::1] named  # row -> leading tokens of it that have a block id
    # the tree, one value per node; the root is node 0
    cdef int[::1] row_of  # a request with its pages
    cdef long long[::1] first  # the place of its first page in that request
    cdef int[::1] length  # pages; 0 = the node number is unused
    cdef int[::1] parent
    cdef int[::1] children  # number of children
    cdef int[::1] locks
    cdef long long[::1] used  # time of the last use, by a clock that ticks at each use
    cdef int[::1] following  # a node whose first page has the same name, at another place
    cdef int[::1] head  # name -> a node whose first page has it, -1 = none
    cdef int[::1] unused  # a stack of numbers of evicted nodes
    cdef int created, unused_nodes
    cdef Leaves leaves  # the unlocked leaves
    cdef long long clock
    cdef long long matched  # pages that the last walk matched
    cdef long long evicted  # pages

    cdef long long token_name(self, Py_ssize_t row, long long token) noexcept nogil
    cdef int match(self, Py_ssize_t row, long long pages) except -1 nogil
    cdef int insert(self, Py_ssize_t row, long long pages) except -1 nogil
    cdef int lock(self, int node) except -1 nogil
    cdef int unlock(self, int node) except -1 nogil
    cdef int make_room(self, long long pages) except -1 nogil
    cdef int _child(self, Py_ssize_t row, long long page) noexcept nogil
    cdef long long _name(self, Py_ssize_t row, long long page) noexcept nogil
    cdef int _common(self, int node, Py_ssize_t row, long long pages) noexcept nogil
    cdef int _divide(self, int node, int pages) except -1 nogil
    cdef int _add(self, int parent, Py_ssize_t row, long long page, long long pages) except -1 nogil
    cdef int _evict(self, int node) except -1 nogil
    cdef int _list(self, int node) noexcept nogil
    cdef int _unlist(self, int node) noexcept nogil
    cdef int _number(self) except -1 nogil
    cdef _enlarge(self)
    cdef long long _tick(self) noexcept nogil
    cdef int _settle(self, int node) except -1 nogil
