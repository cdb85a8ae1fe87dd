cimport cython


cdef enum:  # the kinds of column in texts.py, for loops without the interpreter lock
    _WHOLE = 0
    _SECONDS = 1
    _TEXT = 2
    _MICROSECONDS = 4

cdef Py_ssize_t _put(unsigned char[::1] out, Py_ssize_t at, const unsigned char[::1] text, Py_ssize_t i,
                     Py_ssize_t end) noexcept nogil
cdef Py_ssize_t _put_ids(unsigned char[::1] out, Py_ssize_t at, const long long[::1] ids, Py_ssize_t i,
                         Py_ssize_t end, long long first_id) noexcept nogil
cdef unsigned long long _text(unsigned long long value) noexcept nogil
cdef int _digits(unsigned long long value) noexcept nogil
cdef Py_ssize_t _put_whole(unsigned char[::1] out, Py_ssize_t at, long long value) noexcept nogil
cdef Py_ssize_t _put_digits(unsigned char[::1] out, Py_ssize_t at, unsigned long long value) noexcept nogil
cdef Py_ssize_t _put_seconds(unsigned char[::1] out, Py_ssize_t at, long long ms) noexcept nogil
cdef Py_ssize_t _put_milliseconds(unsigned char[::1] out, Py_ssize_t at, long long us) noexcept nogil


@cython.locals(i=Py_ssize_t, message=dict, places=list, roles=list, texts=list, others=list, text=unicode)
cpdef chat_texts(list messages)
@cython.locals(i=Py_ssize_t, size=Py_ssize_t, place=Py_ssize_t, lengths=list, widths=list, text=unicode)
cpdef joined_texts(list texts)


cdef _find(const unsigned char[::1] data, const unsigned char[::1] in_words, unsigned char[:, ::1] seen,
           long long[:, ::1] spans, long long[::1] ends)
cdef unsigned long long _eight_bytes(const unsigned char* data) noexcept nogil
cdef bint _is_known(const unsigned char[::1] data, Py_ssize_t start, Py_ssize_t length,
                    unsigned char[:, ::1] seen) noexcept nogil
