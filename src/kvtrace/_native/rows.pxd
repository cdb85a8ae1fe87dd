cimport cython


@cython.final
cdef class Scanner:
    cdef const unsigned char[::1] _data
    cdef const double[::1] _powers
    cdef double[::1] _timestamp
    cdef long long[::1] _input_length
    cdef long long[::1] _output_length
    cdef long long[::1] _hash_ids
    cdef long long[::1] _offsets
    cdef long long[::1] _output_ids
    cdef long long[::1] _output_offsets
    cdef long long[::1] _lines
    cdef long long[:, ::1] _notes  # values of other keys: row, key number, start, stop
    cdef long long[:, ::1] _keys  # key number -> start and stop of its name, last row with it
    cdef Py_ssize_t _room
    cdef Py_ssize_t _row
    cdef Py_ssize_t _ids
    cdef Py_ssize_t _outputs
    cdef Py_ssize_t _line
    cdef Py_ssize_t _note
    cdef Py_ssize_t _known  # number of different other keys
    cdef Py_ssize_t _guess  # number of the expected next key; most rows have the same order
    cdef Py_ssize_t _listed
    cdef int _has  # the fields of the current row, one bit each
    cdef int _needed  # the fields of a row to take, among those of `_decided`
    cdef int _decided
    cdef bint _any_outputs

    cdef _values(self, const long long[:, ::1] notes)
    cdef Py_ssize_t _blank_line(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _take_row(self, Py_ssize_t at) noexcept nogil
    cdef void _end_row(self) noexcept nogil
    cdef Py_ssize_t _take_fields(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _take_field(self, Py_ssize_t at) noexcept nogil
    cdef int _known_key(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _take_timestamp(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _take_length(self, Py_ssize_t at, int field) noexcept nogil
    cdef Py_ssize_t _take_hash_ids(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _take_output_ids(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _take_list(self, Py_ssize_t at, long long[::1] into, Py_ssize_t k) noexcept nogil
    cdef Py_ssize_t _take_other(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _key_number(self, Py_ssize_t start, Py_ssize_t stop) noexcept nogil
    cdef unsigned long long _word(self, Py_ssize_t at) noexcept nogil
    cdef bint _same(self, Py_ssize_t a, Py_ssize_t a_end, Py_ssize_t b, Py_ssize_t b_end) noexcept nogil
    cdef Py_ssize_t _spaces(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _colon(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _string_end(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _digits_end(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _whole_end(self, Py_ssize_t at) noexcept nogil
    cdef long long _whole(self, Py_ssize_t at, Py_ssize_t end) noexcept nogil
    cdef Py_ssize_t _long_id_end(self, Py_ssize_t at) noexcept nogil
    cdef unsigned long long _long_value(self, Py_ssize_t at, Py_ssize_t end) noexcept nogil
    cdef long long _long_id(self, Py_ssize_t at, Py_ssize_t end) noexcept nogil
    cdef Py_ssize_t _scalar_end(self, Py_ssize_t at) noexcept nogil
    cdef Py_ssize_t _number_end(self, Py_ssize_t at) noexcept nogil


cdef _find_lists(Scanner scanner, const unsigned char[::1] data, Py_ssize_t size, long long[:, ::1] spans,
                 long long[::1] offsets, long long[::1] ids)
cdef Py_ssize_t _blanks(const unsigned char[::1] data, Py_ssize_t at) noexcept nogil
cdef Py_ssize_t _take_list(Scanner scanner, const unsigned char[::1] data, Py_ssize_t at, long long[::1] ids,
                           Py_ssize_t* taken) noexcept nogil
cdef int _number_ids(const long long[::1] ids, int[::1] number_of, int[::1] numbers, long long[::1] values)
cdef long long _number_rows(const int[::1] numbers, const long long[::1] starts, const long long[::1] lengths,
                            const long long[::1] first_keys, const long long[::1] keys, long long[::1] number_of,
                            long long[::1] ids)
