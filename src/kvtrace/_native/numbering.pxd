


ctypedef fused Id:
    int
    long long

cdef _is_numbered(const long long[::1] ids)
cdef _renumber_dense(const Id[::1] ids, Id[::1] number, Id[::1] out)
cdef _renumber_sparse(const long long[::1] ids, Py_ssize_t position, long long distinct, long long[::1] keys,
                      long long[::1] numbers, long long[::1] out)
cdef _place(const long long[::1] keys, const long long[::1] numbers, long long[::1] into_keys,
            long long[::1] into_numbers)
cdef _number(const unsigned long long[:, ::1] digests, Py_ssize_t count, int distinct,
             unsigned long long[:, ::1] store, int[::1] table, int[::1] out)
cdef _find(const unsigned long long[:, ::1] digests, const unsigned long long[:, ::1] store, const int[::1] table,
           int[::1] out)
cdef _index(const unsigned long long[:, ::1] store, Py_ssize_t distinct, int[::1] table)
cdef _count_on(const long long[::1] ids, long long first, long long distinct)


cdef _merge(list parts, const long long[::1] first, int[::1] number, const long long[::1] stream,
            const long long[::1] starts, const long long[::1] offsets, long long[::1] out)


cdef void _round(unsigned long long* v) noexcept nogil
cdef void _start(unsigned long long* v, unsigned long long k0, unsigned long long k1) noexcept nogil
cdef void _absorb(unsigned long long* v, unsigned long long word) noexcept nogil
cdef void _finish(unsigned long long* v, unsigned long long* low, unsigned long long* high) noexcept nogil


ctypedef fused number:
    int
    long long

cdef _take(const number[::1] values, const long long[::1] offsets, const long long[::1] rows, number[::1] out)
cdef _ranges(const long long[::1] first, const long long[::1] lengths, long long[::1] out)
cdef _hash_rows(const number[::1] values, const long long[::1] offsets, const unsigned char[::1] skip,
                unsigned long long[::1] hashes)
