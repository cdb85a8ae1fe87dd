cimport cython


cdef _find(const unsigned char[::1] data, const unsigned char[::1] in_words, unsigned char[:, ::1] known,
           long long[:, ::1] spans, long long[::1] ends)
cdef unsigned long long _eight_bytes(const unsigned char* data) noexcept nogil
cdef bint _is_known(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t length,
                    unsigned char[:, ::1] known) noexcept nogil
