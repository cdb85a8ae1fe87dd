cdef Py_ssize_t _slot(long long key, long long[::1] keys) noexcept nogil
cdef _core_blocks(const int[::1] blocks, const long long[::1] offsets, const unsigned char[::1] core,
                  long long[::1] counts)
cdef _move(const long long[::1] keys, const int[::1] firsts, long long[::1] new_keys, int[::1] new_firsts)
