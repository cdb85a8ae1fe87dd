cdef _count(const long long[::1] ids, const long long[::1] offsets, const long long[::1] order,
            const long long[::1] contributor, int[::1] count, long long[::1] last)
cdef _split(const long long[::1] ids, const long long[::1] offsets, const long long[::1] order,
            const long long[::1] contributor, const unsigned char[::1] is_split, long long[::1] copy, long long[::1] last,
            unsigned char[::1] taken, long long fresh, long long[::1] new)
cdef _infer(const long long[::1] ids, const long long[::1] offsets, Py_ssize_t first, int tails, int fresh,
            const int[::1] blocks, int[::1] last, int[:, ::1] users, unsigned char[::1] several, int[::1] session)
