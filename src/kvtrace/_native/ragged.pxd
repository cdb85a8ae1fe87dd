ctypedef fused number:
    int
    long long

cdef _take(const number[::1] values, const long long[::1] offsets, const long long[::1] rows, number[::1] out)
cdef _ranges(const long long[::1] first, const long long[::1] lengths, long long[::1] out)
cdef _hash_rows(const number[::1] values, const long long[::1] offsets, const unsigned char[::1] skip,
                unsigned long long[::1] hashes)
