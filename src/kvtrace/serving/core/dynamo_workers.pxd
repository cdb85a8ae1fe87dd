from kvtrace.serving.core.instance cimport Requests
from kvtrace.serving.core.interleaved cimport InterleavedServing
from kvtrace.serving.core.serving cimport Router
from kvtrace.serving.core.vllm cimport VllmEngineCore, VllmInstance


cdef enum:
    PASS_END = 0  # events: an instance's step has ended,
    TRANSFERRED = 1  # a request's KV cache is on its decode worker,
    FINISHED = 2  # a request has left,
    ARRIVES = 3  # the next one of a closed loop arrives,
    ACTIONS = 4  # there is something to do,
    LATE = 5  # or there is, when the steps of the moment before have begun
    RESERVE = 0  # actions: a request is routed to a decode worker,
    TRANSFER = 1  # its transfer begins,
    ACTIVATE = 2  # its blocks can be found there,
    RELEASE = 3  # the prefill worker gives up its blocks,
    CANCEL = 4  # or the decode worker will not get it,
    SUBMIT = 5  # or a request of a closed loop is routed to a prefill worker

cdef double polynomial(double square, double linear, double constant, double value) noexcept nogil
cdef double rounded(double milliseconds) noexcept nogil
cdef list silent_first(list rows, const unsigned char[::1] silent)


cdef class DynamoPrefill(VllmEngineCore):
    cdef public DynamoServing serving
    cdef public int place  # among the instances
    cdef bint stalled, instant  # nothing could be planned; the step takes no time
    cdef list held  # rows whose prefill ended with the last step
    cdef list refused  # rows that left the queue with it, as they are too large
    cdef public const unsigned char[::1] silent  # row -> it has no output

    cdef bint _too_large(self, Py_ssize_t row) noexcept
    cdef int _refuse(self, double at) except -1
    cdef int give_up(self, Py_ssize_t row, double at) except -1


cdef class DynamoDecode(VllmInstance):
    cdef public DynamoServing serving
    cdef public int place
    cdef bint stalled, instant  # nothing could be planned; the last step took no time
    cdef list pending  # rows whose prefill has ended, and that have no blocks here
    cdef Py_ssize_t head
    cdef list ready  # rows that wait with their blocks, by `order`
    cdef long long[::1] order  # row -> its place in the order of arrival here
    cdef long long arrived
    cdef long long changes, tried_changes  # times that blocks or seats became free; and at the last attempt
    cdef Py_ssize_t tried
    cdef public const unsigned char[::1] silent  # row -> it has no output: it ends with a step that it does not lengthen

    cdef bint is_due(self) noexcept
    cdef int accept(self, Py_ssize_t row, double at) except -1
    cdef int reserve(self, double at) except -1
    cdef int activate(self, Py_ssize_t row, double at) except -1
    cdef int _wake(self, double at) noexcept
    cdef int _end_pass(self) except -1
    cdef double _milliseconds(self, double context) noexcept nogil


cdef class DynamoServing(InterleavedServing):
    cdef Router decode_router
    cdef Requests decoded  # the requests, on the decode workers
    cdef int prefills, decodes
    cdef Py_ssize_t routed
    cdef double bytes_per_token, bandwidth, latency
    cdef bint missing_only
    cdef list actions, deferred  # (action, row); of each instance
    cdef double late_at
    cdef double[::1] expected  # instance -> the end of a step that is an event
    cdef double[::1] reserved, transferring, transferred, activated, released  # row -> ms
    cdef unsigned char[::1] rejected  # row -> whether a worker cannot hold its prompt
    cdef int[::1] sent  # row -> blocks that the decode worker did not hold
    cdef list finishes  # the rows of events, in the order in which these became known

    cdef int expect_end(self, int place) except -1
    cdef int ended(self, int place, double at) except -1
    cdef int ended_at_once(self, int place, double at) except -1
    cdef int reserved_for(self, Py_ssize_t row, int fresh, double at) except -1
    cdef int finished(self, Py_ssize_t row, double at) except -1
    cdef int _execute(self, int action, Py_ssize_t row, double at) except -1
    cdef int _route(self, Py_ssize_t row, double at) except -1
    cdef int _transfer(self, Py_ssize_t row, double at) except -1
    cdef bint _defer(self, int place, int action, Py_ssize_t row, double at) except -1
