cimport cython
from kvtrace.serving.core.instance cimport Requests, SessionLanes
from kvtrace.serving.core.interleaved cimport InterleavedServing
from kvtrace.serving.core.serving cimport Router
from kvtrace.serving.core.sglang_prefill cimport SglangPrefill
from kvtrace.serving.core.vllm cimport HoldingInstance


cdef enum:
    ARRIVES = 0  # the kinds of events: the next request of a closed loop arrives,
    COMPUTED = 1  # a prompt is computed, as PREFILLS,
    ENDED = 2  # a request has ended, as DECODES,
    CHUNK = 3  # a chunk of a prompt is computed,
    RESERVED = 4  # a decode worker has room for the KV cache of a request,
    MOVED = 5  # the KV cache has come, and its place at the prefill worker is free


@cython.final
cdef class Links:
    cdef const long long[::1] worker  # instance -> its worker; those of prefill and of decode count from 0 each
    cdef double[::1] out, into  # worker -> when its link is free
    cdef readonly double[::1] sent, received  # worker -> bytes
    cdef double byte_s, latency

    cdef double begin(self, Py_ssize_t sender, Py_ssize_t receiver, double size, double at) noexcept


cdef class ApartServing(InterleavedServing):
    cdef Router decode_router
    cdef Requests prefills, decodes
    cdef readonly long long[::1] local  # request -> 1: its decode worker computes the prompt
    cdef Links links
    cdef int prefillers  # the first instances
    cdef long long decode_capacity, most_local
    cdef bint early, chunks
    cdef const double[::1] size  # request -> bytes of its KV cache
    cdef double token_bytes  # of a prompt token that need not be sent
    cdef readonly long long[::1] sender, receiver  # request -> its instances
    cdef double[::1] left  # request -> bytes that are still to be sent
    cdef readonly double[::1] computed, begun, arrived  # request -> seconds
    cdef SessionLanes lanes  # None in the open loop
    cdef Py_ssize_t to_prefill, to_decode  # requests that were routed
    cdef readonly bint over
    cdef list noted  # the rows of events, in the order in which these became known

    cdef int _note(self, double seconds, int kind, Py_ssize_t row) except -1
    cdef int _plan_arrival(self) except -1
    cdef int _send_to_prefill(self, Py_ssize_t row, double at) except -1
    cdef int _choose_decode(self, Py_ssize_t row, double at) except -1
    cdef int _send_to_decode(self, Py_ssize_t row, double at) except -1
    cdef int _move(self, Py_ssize_t row, double size, double at, bint is_last) except -1
    cdef int _count(self, Router router, int first, double now) except -1


cdef class VllmWorker(HoldingInstance):
    cdef const long long[::1] local  # request -> its prompt is computed here
    cdef list come  # rows whose KV cache has been read, which no step has reported
    cdef list reported  # those that the flying step reports
    cdef long long ready  # requests in `holding` whose report was read
    cdef double idle_since  # when a step without tokens was run

    cdef int _read(self, list rows) except -1


cdef class SglangApart(SglangPrefill):
    cdef bint keeps  # a decode worker has a radix cache
    cdef long long reserve  # tokens that a decode worker keeps free for the next outputs of each request
    cdef list incoming  # rows without room for their KV cache
    cdef long long coming  # requests whose KV cache is on the way
    cdef list come  # rows whose KV cache has come
    cdef list joining  # rows that wait for a seat in the batch
    cdef list offloaded  # retracted rows, whose KV cache is in host memory

    cdef bint _has_news(self) except -1
    cdef int _receive(self) except -1
    cdef int _resume(self) except -1
    cdef int _reserve_incoming(self) except -1
    cdef int _join(self) except -1
    cdef double _budget(self, long long retractable) noexcept
    cdef int _end(self, Py_ssize_t row) except -1
