cdef _walk(const long long[::1] hash_ids, const long long[::1] offsets, int[::1] uses, long long[::1] hits,
           long long[:, ::1] bands)
cdef _repeated(const long long[::1] hash_ids, const long long[::1] offsets, const int[::1] uses, long long[::1] blocks)
