from kvtrace.cache.core.radix cimport Radix


cdef class HybridRadix(Radix):
    # one value per node, beside those of Radix
    cdef signed char[::1] kept  # whether the node has its part of the second pool
    cdef int[::1] second_locks  # number of live requests that lock this part
    cdef int[::1] newer, older  # a ring of the nodes that have it, by their use; the root stands between both ends
    # one value per request
    cdef long long[::1] resumed  # blocks that it hit
    cdef long long[::1] shared  # leading blocks that the first pool had when it was matched
    cdef long long[::1] computed  # blocks that it hit and that its steps have computed since; -1 = none yet
    cdef long long[::1] published  # blocks of it that the tree has
    cdef long long[::1] counted  # blocks of it that it has published itself
    cdef long long step  # blocks that a step computes of a prompt
    cdef long long seats  # requests that may be live
    cdef long long second
    cdef public long long free_second  # blocks or states of no node
    cdef public long long evictable_second  # those of nodes whose part is not locked
    cdef long long resident  # leading blocks of the last matched path that the first pool has

    cdef long long _size(self, int node) noexcept nogil
    cdef int _keep(self, int node) noexcept nogil
    cdef int _lose(self, int node) noexcept nogil
    cdef int _lock_second(self, int node) noexcept nogil
    cdef int _unlock_second(self, int node) noexcept nogil
    cdef int _use(self, int node, int after) noexcept nogil
    cdef int _link(self, int node, int after) noexcept nogil
    cdef int _unlink(self, int node) noexcept nogil
    cdef int _take_second(self, long long number) noexcept nogil
    cdef int _next(self, long long start, long long depth, long long blocks) noexcept nogil
    cdef int _enter(self, int child, int blocks) except -1 nogil
    cdef int _begin(self, Py_ssize_t row) except -1 nogil
    cdef int _hold(self, Py_ssize_t row) except -1 nogil
    cdef int _drop(self, Py_ssize_t row) except -1 nogil
    cdef bint _room(self, Py_ssize_t row, long long blocks, bint first) except -1 nogil
    cdef int _publish_step(self, Py_ssize_t row, long long begin, long long end) except -1 nogil
    cdef int _insert(self, Py_ssize_t row, long long blocks) except -1 nogil
    cdef int _overlap(self, Py_ssize_t row, int node, long long begin, long long end) except -1 nogil
    cdef int _add_rest(self, Py_ssize_t row, int parent, long long blocks) except -1 nogil


cdef class StateRadix(HybridRadix):
    cdef long long every  # blocks between two states that a prefill can record

    cdef int _publish(self, Py_ssize_t row, long long blocks) except -1 nogil
    cdef int _lock_both(self, int node) except -1 nogil
    cdef int _unlock_both(self, int node) except -1 nogil


cdef class WindowRadix(HybridRadix):
    cdef bint ahead  # keys are pairs of tokens, for a drafter
    cdef signed char[::1] partial  # row -> whether a part of a block is left at the end of its prompt's keys
    cdef bint partial_step  # whether it is at the end of another step
    cdef long long window  # blocks that a request must have before it to resume
    cdef long long[::1] freed  # row -> leading blocks whose windows the request has freed, or left to the tree
    cdef long long[::1] locked_from  # row -> the block where its lock of windows begins

    cdef int _refresh(self, int node) noexcept nogil
    cdef int _lock_window(self, Py_ssize_t row) noexcept nogil
    cdef int _unlock_window(self, Py_ssize_t row) noexcept nogil
    cdef int _free_outside(self, Py_ssize_t row, long long blocks, bint partial) noexcept nogil
    cdef int _publish(self, Py_ssize_t row, long long blocks) except -1 nogil
