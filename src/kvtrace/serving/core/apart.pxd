cimport cython
from kvtrace.serving.core.instance cimport Requests
from kvtrace.serving.core.interleaved cimport InterleavedServing
from kvtrace.serving.core.serving cimport Router
from kvtrace.serving.core.sglang_prefill cimport SglangPrefill
from kvtrace.serving.core.vllm cimport HoldingInstance


cdef enum:
    COMPUTED = 1  # the kinds of events: a prompt is computed, as PREFILLS,
    ENDED = 2  # a request has ended, as DECODES,
    CHUNK = 3  # a part of a prompt can be sent: with COMPUTED in the order in which both became known,
    RESERVED = 4  # a decode worker has room for the KV cache of a request,
    MOVED = 5  # the KV cache has come,
    LAYER = 6  # some layers of what a step computes are computed,
    ARRIVES = 7  # the next request of a closed loop arrives, after all else of that moment


@cython.final
cdef class Links:
    cdef const long long[::1] worker  # instance -> its worker; those of prefill and of decode count from 0 each
    cdef double[::1] out, into  # worker -> when its link is free
    cdef readonly double[::1] sent, received  # worker -> bytes
    cdef double byte_s, latency

    cdef double begin(self, Py_ssize_t sender, Py_ssize_t receiver, double size, double at) noexcept


@cython.final
cdef class Decider:
    cdef readonly bint used, peeks, by_queue, by_length, by_load  # `peeks`: the routers are asked, and forget it
    cdef long long most_local, most_queued, threshold
    cdef double ratio, busy_tokens, busy_blocks

    cdef bint keeps(
        self, long long tokens, long long fresh, long long queued, long long prefill_tokens, long long blocks
    ) noexcept


cdef class ApartServing(InterleavedServing):
    cdef Router decode_router
    cdef Decider decider
    cdef list queued  # rows that were sent to a prefill worker, some of which it has begun
    cdef long long[::1] brought, blocks_of  # row -> prompt tokens that did not hit at its prefill worker; prompt blocks
    cdef long long[::1] uncomputed, prompt_blocks  # instance -> the sums of those, of requests that are not done there
    cdef Requests prefills, decodes
    cdef readonly long long[::1] local  # request -> 1: its decode worker computes the prompt
    cdef Links links
    cdef int prefillers  # the first instances
    cdef long long decode_capacity
    cdef bint early, push, chunks
    cdef readonly int layers  # the parts in which a step's KV cache is sent, 0 = when the step has ended
    cdef list parts  # (row, prompt tokens whose KV cache is computed), of events
    cdef unsigned char[::1] reserved  # request -> whether its decode worker has room
    cdef double[::1] ready  # request -> prompt tokens whose KV cache is computed
    cdef const double[::1] size  # request -> bytes of its KV cache
    cdef double token_bytes  # of a prompt token that need not be sent
    cdef readonly long long[::1] sender, receiver  # request -> its instances
    cdef double[::1] left  # request -> bytes that are still to be sent
    cdef readonly double[::1] computed, begun, arrived  # request -> seconds
    cdef Py_ssize_t to_prefill, to_decode  # requests that were routed
    cdef list noted  # the rows of events, in the order in which these became known

    cdef int _note(self, double seconds, int kind, Py_ssize_t row) except -1
    cdef int _send_to_prefill(self, Py_ssize_t row, double at) except -1
    cdef bint _keeps(self, Py_ssize_t row, double at) except -1
    cdef Py_ssize_t _queued(self, double at) except -1
    cdef int _peek(self, Router router, Py_ssize_t row, Py_ssize_t turn) except -1
    cdef int _choose_decode(self, Py_ssize_t row, double at) except -1
    cdef int _send_to_decode(self, Py_ssize_t row, double at) except -1
    cdef int _take_part(self, Py_ssize_t part, double at) except -1
    cdef int _move_computed(self, Py_ssize_t row, double tokens, double at) except -1
    cdef int _move(self, Py_ssize_t row, double size, double at, bint is_last) except -1


cdef class VllmWorker(HoldingInstance):
    cdef const long long[::1] local  # request -> its prompt is computed here
    cdef bint sends_parts  # a prefill worker tells of each step's parts when the step begins
    cdef list come  # rows whose KV cache has been read, which no step has reported
    cdef list reported  # those that the flying step reports
    cdef long long ready  # requests in `holding` whose report was read
    cdef long long unfit  # those of them that were looked at and have not run yet
    cdef double idle_since  # when a step without tokens was run

    cdef int _read(self, list rows) except -1


cdef class SglangApart(SglangPrefill):
    cdef bint keeps  # a decode worker has a radix cache
    cdef bint sends_parts  # a prefill worker tells of each step's parts when the step begins
    cdef long long reserve  # tokens that a decode worker keeps free for the next outputs of each request
    cdef list incoming  # rows for whose KV cache the decode worker has no room yet
    cdef list moving  # rows whose KV cache is on the way
    cdef long long[::1] progress  # request -> ADMITTED, ARRIVED
    cdef long long admitted, arrived  # requests of `incoming` and of `moving` that can leave
    cdef long long buffers  # metadata buffers that are free
    cdef long long[::1] sent  # prompt tokens that need not be sent any more
    cdef bint still  # the last turn took no time
    cdef int idle_turns
    cdef list joining  # rows that wait for a seat in the batch
    cdef list offloaded  # retracted rows, whose KV cache is in host memory

    cdef bint _has_news(self) except -1
    cdef int _begin_prefills(self) except -1
    cdef Py_ssize_t _take_out(self, list rows, int progress) except? -2
    cdef int _leave(self) except -1
    cdef int _send_part(self, Py_ssize_t row, long long tokens, double at) except -1
    cdef int _receive(self) except -1
    cdef int _resume(self) except -1
    cdef int _reserve_incoming(self) except -1
    cdef int _join(self) except -1
    cdef double _budget(self, long long retractable) noexcept
    cdef int _end(self, Py_ssize_t row) except -1
