cdef _merge(list parts, const long long[::1] first, int[::1] number, const long long[::1] stream,
            const long long[::1] starts, const long long[::1] offsets, long long[::1] out)
