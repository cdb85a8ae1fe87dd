


cdef _deal(const double[:, ::1] values, double[:, ::1] error, const double[:, ::1] weights, const long long[::1] cell,
           long long[::1] item, const long long[::1] members, const long long[::1] starts,
           const long long[::1] bounds, unsigned long long seed, long long swaps)
cdef _contexts(const long long[::1] starts, const long long[::1] first, const long long[::1] net, long long[::1] item,
               long long least, long long[::1] tokens)
cdef _arrivals(const long long[::1] base, const long long[::1] completion, const double[::1] delay,
               const double[::1] service, const double[::1] start, const long long[::1] join_offsets,
               const long long[::1] join, double[::1] times)
cdef _paths(const long long[::1] offsets, const long long[::1] source, const long long[::1] keep,
            const long long[::1] root, const long long[::1] numbers, long long[::1] id_of, long long[::1] ids)


cdef _depths(const int[::1] parent, const long long[::1] length, long long[::1] depth)
cdef _core_paths(const int[::1] node, const long long[::1] offsets, const int[::1] parent, const long long[::1] length,
            const long long[::1] depth, int[::1] first, long long fresh, int[::1] blocks)


cdef Py_ssize_t _slot(long long key, long long[::1] keys) noexcept nogil
cdef _core_blocks(const int[::1] blocks, const long long[::1] offsets, const unsigned char[::1] core,
                  long long[::1] counts)
cdef _move(const long long[::1] keys, const int[::1] firsts, long long[::1] new_keys, int[::1] new_firsts)
