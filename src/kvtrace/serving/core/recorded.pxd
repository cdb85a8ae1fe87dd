from kvtrace.serving.core.instance cimport Instance


cdef class RecordedInstance(Instance):
    cdef const double[::1] service  # seconds
    cdef list under_way
    cdef Py_ssize_t admissions
    cdef int _note_state(self) except -1
