cdef _depths(const int[::1] parent, const long long[::1] length, long long[::1] depth)
cdef _paths(const int[::1] node, const long long[::1] offsets, const int[::1] parent, const long long[::1] length,
            const long long[::1] depth, int[::1] first, long long fresh, int[::1] blocks)
