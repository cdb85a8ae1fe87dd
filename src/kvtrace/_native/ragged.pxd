cdef _take(const long long[::1] values, const long long[::1] offsets, const long long[::1] rows, long long[::1] out)
