cimport cython


@cython.final
cdef class LiveRecency:
    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t room  # blocks that the table takes before old ones are dropped
    cdef readonly Py_ssize_t held  # blocks in the list
    cdef readonly Py_ssize_t sampled  # of them in the sample
    cdef readonly bint dropped  # whether a block was ever dropped
    cdef readonly Py_ssize_t reach  # the shortest that the list was after a drop; its room before the first one
    cdef unsigned long long[::1] _keys  # place -> key
    cdef int[::1] _last  # place -> slot of the key's last request, 0 = free
    cdef int[::1] _tree  # Fenwick tree: slot -> blocks last used by its request
    cdef int[::1] _marks  # mark -> last slot that was in use when it was set
    cdef signed char[::1] _whole  # mark -> whether the list still holds all blocks used since
    cdef unsigned long long _mask
    cdef unsigned long long _seed
    cdef unsigned long long _threshold
    cdef bint _samples
    cdef int _slots  # number of slots; slot 0 is not used
    cdef int _used  # slots in use: 1 to this one
    cdef Py_ssize_t _count  # runs of the present batch

    cdef Py_ssize_t _walk(self, const unsigned long long[:] keys, const long long[::1] offsets, Py_ssize_t row,
                          long long[:, ::1] rows, long long[:, ::1] runs) noexcept nogil
    cdef Py_ssize_t _place(self, unsigned long long key) noexcept nogil
    cdef void _add(self, int slot, int blocks) noexcept nogil
    cdef Py_ssize_t _up_to(self, int slot) noexcept nogil
    cdef int _oldest(self, Py_ssize_t blocks) noexcept nogil
    cdef void _make_room(self, Py_ssize_t needed) noexcept nogil
    cdef void _drop_before(self, int floor) noexcept nogil
    cdef void _remove_before(self, int floor) noexcept nogil

cdef bint _in_sample(unsigned long long key, unsigned long long seed, unsigned long long threshold) noexcept nogil
cdef Py_ssize_t _sample(const unsigned long long[:] keys, unsigned long long seed, unsigned long long threshold,
                        long long[::1] positions) noexcept nogil
