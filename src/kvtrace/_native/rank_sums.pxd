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
cdef void _sample(Sums* into, const long long[:, :] runs, const long long[::1] skipped, const long long[::1] offsets,
                  const long long[::1] depth, const long long[:, :] anchors, const long long[::1] blocks,
                  const long long[::1] tokens, long long block_size, double step, double[:, ::1] hits) noexcept nogil
cdef long long _tokens_of(long long first, long long stop, long long block_size, long long tokens) noexcept nogil
cdef _fill(Sums* target, sums, edges, into, weights)
