cimport cython
from kvtrace.cache.live.slots cimport BlockTable, SlotPool, Tokens
from kvtrace.cache.policies.base cimport Context


@cython.final
cdef class Sequence:
    cdef object cache
    cdef int* slots
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef int root
    cdef readonly Py_ssize_t length
    cdef readonly Py_ssize_t hit_blocks
    cdef readonly Py_ssize_t hit_tokens
    cdef readonly bint live

    cdef int reserve(self, Py_ssize_t count) except -1


@cython.final
cdef class Listener:
    cdef Py_ssize_t block_size
    cdef object on_read
    cdef object on_write
    cdef object on_evict
    cdef object on_copy
    cdef bint reports_growth
    cdef bint in_callback

    cdef int evicted(self, SlotPool pool) except -1
    cdef int allocated(self, SlotPool pool, Sequence sequence) except -1
    cdef int extended(self, SlotPool pool, Sequence sequence, Py_ssize_t first, int shared) except -1
    cdef int _report_writes(self, Sequence sequence, Py_ssize_t first) except -1


@cython.final
cdef class PrefixCache:
    cdef readonly Py_ssize_t slots
    cdef readonly Py_ssize_t block_size
    cdef readonly Py_ssize_t most_idle
    cdef readonly object hashing
    cdef readonly BlockTable table
    cdef SlotPool pool
    cdef Context context
    cdef Listener listener
    cdef object clock
    cdef object current_salt
    cdef set sequences  # the live ones
    cdef bint busy  # a change is in progress; stays true if a policy's exception interrupted it

    # work space
    cdef Tokens tokens
    cdef unsigned int* draft  # the tokens of a partial block that is extended

    # counts
    cdef long long requests
    cdef long long requested_blocks
    cdef long long hit_blocks
    cdef long long requested_tokens
    cdef long long hit_tokens
    cdef long long appended
    cdef long long copies

    cdef int _tick(self) except -1
    cdef int _check_live(self, Sequence sequence) except -1
    cdef int _ready(self) except -1
    cdef Sequence _sequence(self, Py_ssize_t length, Py_ssize_t hits)
    cdef int _make_sure_of_room(self, Py_ssize_t count, Py_ssize_t depth) except -1
    cdef int _fill(self, Sequence sequence, Py_ssize_t depth) except -1
    cdef void _count(self, Sequence sequence) noexcept
    cdef int _extend(self, Sequence sequence, unsigned int* tokens, Py_ssize_t length) except -1
    cdef int _lengthen(self, int slot, Py_ssize_t filled, unsigned int* tokens, Py_ssize_t more, bint shared) except -1
