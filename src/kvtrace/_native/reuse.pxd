cdef _segments(const long long[::1] hash_ids, const long long[::1] offsets, Py_ssize_t row, Py_ssize_t first,
               long long active, Py_ssize_t count, int[::1] last_use, long long[::1] weight, long long[:, ::1] found)
