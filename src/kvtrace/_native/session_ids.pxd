from kvtrace._native.rows cimport Scanner


cdef _find_lists(Scanner scanner, const unsigned char[::1] data, Py_ssize_t size, long long[:, ::1] spans,
                 long long[::1] offsets, long long[::1] ids)
cdef Py_ssize_t _blanks(const unsigned char[::1] data, Py_ssize_t at) noexcept nogil
cdef Py_ssize_t _take_list(Scanner scanner, const unsigned char[::1] data, Py_ssize_t at, long long[::1] ids,
                           Py_ssize_t* taken) noexcept nogil
cdef int _number_ids(const long long[::1] ids, int[::1] number_of, int[::1] numbers, long long[::1] values)
cdef long long _number_rows(const int[::1] numbers, const long long[::1] starts, const long long[::1] lengths,
                            const long long[::1] first_keys, const long long[::1] keys, long long[::1] number_of,
                            long long[::1] ids)
