cimport cython


cdef _segments(const long long[::1] hash_ids, const long long[::1] offsets, Py_ssize_t row, Py_ssize_t first,
               long long active, Py_ssize_t count, int[::1] last_use, long long[::1] weight, long long[:, ::1] runs)


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


cdef struct Sums:  # where a batch goes
    double* sums  # (column, measure, bin): blocks, tokens, shares of requests
    Py_ssize_t bins
    const long long* edges
    const long long* into  # columns
    const double* weights  # of the batch, in each of these columns
    Py_ssize_t columns

cdef void _add(Sums* into, Py_ssize_t bin, double blocks, double tokens, double shares) noexcept nogil
cdef Py_ssize_t _bin_of(const Sums* into, double rank) noexcept nogil
cdef void _runs(Sums* into, const long long[:, :] runs, const long long[::1] blocks, const long long[::1] tokens,
                long long block_size) noexcept nogil
cdef void _add_sample(Sums* into, const long long[:, :] runs, const long long[::1] skipped, const long long[::1] offsets,
                  const long long[::1] depth, const long long[:, :] anchors, const long long[::1] blocks,
                  const long long[::1] tokens, long long block_size, double step, double[:, ::1] hits) noexcept nogil
cdef long long _tokens_of(long long first, long long stop, long long block_size, long long tokens) noexcept nogil
cdef _fill(Sums* target, sums, edges, into, weights)
