cdef _longest_prefixes(const long long[::1] order, const long long[::1] bounds, const double[::1] start,
                       const double[::1] end, const long long[::1] ended, const long long[::1] hash_ids,
                       const long long[::1] offsets, long long[::1] holder, long long[::1] found,
                       unsigned char[::1] completed)
