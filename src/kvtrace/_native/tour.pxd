cdef _preorder(const int[::1] parent, int[::1] place, int[::1] below)
cdef _neighbours(const int[::1] parent, const long long[::1] tip, const long long[::1] depth,
                 const long long[::1] group, long long[::1] gap)
cdef _remove_latest(const long long[::1] place, long long[::1] before, long long[::1] after, long long[::1] gap,
                    long long[::1] found)
