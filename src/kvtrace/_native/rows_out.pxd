cdef int _WHOLE
cdef int _SECONDS
cdef int _TEXT

cdef Py_ssize_t _put(unsigned char[::1] out, Py_ssize_t at, const unsigned char[::1] text, Py_ssize_t i,
                     Py_ssize_t end) noexcept nogil
cdef Py_ssize_t _put_ids(unsigned char[::1] out, Py_ssize_t at, const long long[::1] ids, Py_ssize_t i,
                         Py_ssize_t end, long long first_id) noexcept nogil
cdef Py_ssize_t _put_whole(unsigned char[::1] out, Py_ssize_t at, long long value) noexcept nogil
cdef Py_ssize_t _put_digits(unsigned char[::1] out, Py_ssize_t at, unsigned long long value) noexcept nogil
cdef Py_ssize_t _put_seconds(unsigned char[::1] out, Py_ssize_t at, long long ms) noexcept nogil
