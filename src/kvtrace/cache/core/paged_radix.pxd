cimport cython
from kvtrace.cache.core.locked_tree cimport LockedTree


@cython.final
cdef class PagedRadix(LockedTree):
    cdef readonly long long page_size, block_size
    cdef readonly long long pages
    cdef long long own  # the name of request 0's own pages; the others follow
    cdef const long long[::1] tokens  # row -> tokens of the prompt
    cdef const long long[::1] named  # row -> leading tokens of it that have a block id
    # one value per node, beside those of LockedTree
    cdef int[::1] row_of  # a request with its pages
    cdef long long[::1] first  # the place of its first page in that request
    cdef int[::1] following  # a node whose first page has the same name, at another place
    cdef int[::1] head  # name -> a node whose first page has it, -1 = none
    cdef int created
    cdef long long evicted  # pages

    cdef long long token_name(self, Py_ssize_t row, long long token) noexcept nogil
    cdef int match(self, Py_ssize_t row, long long pages) except -1 nogil
    cdef int insert(self, Py_ssize_t row, long long pages) except -1 nogil
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
