ctypedef fused number:
    int
    long long

cdef _depths(const long long[::1] parent, long long[::1] depth)
cdef _runs(const long long[::1] parent, const long long[::1] visits, long long[::1] chain)
cdef long long _number(unsigned long long key, long long fresh, unsigned long long[::1] keys,
                       long long[::1] numbers) noexcept nogil
cdef _walk(const long long[::1] hash_ids, const long long[::1] offsets, const long long[::1] full,
           const long long[::1] output_ids, const long long[::1] output_offsets, number[::1] parent, long long distinct)
cdef bint _follow(const long long[::1] ids, long long start, long long stop, long long before, number[::1] parent,
                  long long[::1] reached) noexcept nogil
cdef long long _chain_on(const long long[::1] ids, long long start, long long stop, long long before,
                         unsigned long long distinct, long long fresh, unsigned long long[::1] keys,
                         long long[::1] numbers, long long[::1] chained) noexcept nogil
