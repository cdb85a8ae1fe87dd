ctypedef fused Id:
    int
    long long

cdef _is_numbered(const long long[::1] ids)
cdef _renumber_dense(const Id[::1] ids, Id[::1] number, Id[::1] out)
cdef _renumber_sparse(const long long[::1] ids, Py_ssize_t done, long long distinct, long long[::1] keys,
                      long long[::1] numbers, long long[::1] out)
cdef _place(const long long[::1] keys, const long long[::1] numbers, long long[::1] into_keys,
            long long[::1] into_numbers)
cdef _number(const unsigned long long[:, ::1] digests, Py_ssize_t done, int distinct,
             unsigned long long[:, ::1] store, int[::1] table, int[::1] out)
cdef _find(const unsigned long long[:, ::1] digests, const unsigned long long[:, ::1] store, const int[::1] table,
           int[::1] out)
cdef _index(const unsigned long long[:, ::1] store, Py_ssize_t distinct, int[::1] table)
cdef _count_on(const long long[::1] ids, long long first, long long distinct)
