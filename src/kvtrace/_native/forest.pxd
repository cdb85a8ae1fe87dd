


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


cdef _preorder(const int[::1] parent, int[::1] place, int[::1] below)
cdef _neighbours(const int[::1] parent, const long long[::1] tip, const long long[::1] depth,
                 const long long[::1] group, long long[::1] gap)
cdef _remove_latest(const long long[::1] place, long long[::1] before, long long[::1] after, long long[::1] gap,
                    long long[::1] blocks)


cdef _count_uses(const long long[::1] hash_ids, const long long[::1] offsets, int[::1] uses, long long[::1] hits,
           long long[:, ::1] bands)
cdef _repeated(const long long[::1] hash_ids, const long long[::1] offsets, const int[::1] uses, long long[::1] blocks)


cdef _longest_prefixes(const long long[::1] order, const long long[::1] bounds, const double[::1] start,
                       const double[::1] end, const long long[::1] ended, const long long[::1] hash_ids,
                       const long long[::1] offsets, long long[::1] holder, long long[::1] latest,
                       unsigned char[::1] completed)
