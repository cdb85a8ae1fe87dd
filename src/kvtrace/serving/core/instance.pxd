cimport cython
from kvtrace.cache.core.engine cimport Engine
from kvtrace.cache.structures.queues cimport Heaps


@cython.final
cdef class Requests:
    cdef double[::1] arrival  # seconds; in a closed loop those of requests that have arrived
    cdef const long long[::1] tokens  # of the prompt
    cdef const long long[::1] output
    cdef const long long[::1] need  # the largest number of blocks that a request holds
    cdef const long long[::1] priority  # lower is earlier
    cdef int[::1] instance  # that served it, -1 = none
    cdef long long[::1] computed  # tokens of prompt and output
    cdef long long[::1] goal  # tokens to compute before its next output token
    cdef long long[::1] sampled_before  # the step that gave the one before it
    cdef long long[::1] sampled  # the step of its instance that gave its last output token, -1 = none
    cdef int[::1] following  # a link to another request, in lists of a scheduler
    cdef long long[::1] cached  # prompt tokens that hit at its first admission
    cdef double[::1] ready  # when its transfer from a lower tier ends
    cdef double[::1] started
    cdef double[::1] first
    cdef double[::1] ended
    cdef int[::1] preempted  # times
    cdef long long[::1] recomputed  # tokens


cdef struct StepCost:  # seconds
    double token_s  # per computed token
    double pair_s  # per pair of tokens that attend to each other
    double step_s  # to read the weights
    double read_s  # per cached token that is read
    double overhead_s  # fixed, per step
    double request_s  # per request of the step
    double attention_pair_s  # as pair_s, not overlapped with reading
    double attention_read_s  # as read_s, not overlapped with computing
    double exchange_s  # per token, between GPUs
    double bulk_exchange_s  # per token, by the way for large steps, if that takes less; 0 = there is none
    double bulk_exchange_step_s  # fixed, of that way
    double bulk_exchange_tokens  # steps of more tokens take it even if it takes longer; 0 = none do
    double expert_token_s  # per token, to compute its routed experts
    double expert_step_s  # to read all routed experts
    double expert_share  # of the routed experts that a token uses
    double window_read_s  # per cached token that a request's window holds, as attention_read_s
    double window_pair_s  # per pair within windows, as attention_pair_s
    double window_tokens  # of a window: a request reads at most as many, and a token makes twice as many pairs
    double launch_s  # the least of a step that computes prompts without a CUDA graph
    double graph_tokens  # the most tokens of a step with prompts that has a CUDA graph
    # Dynamo's cost in place of these, if is_polynomial: two polynomials, of prompt tokens and of context tokens
    bint is_polynomial
    double prefill_square_s
    double prefill_token_s
    double prefill_step_s
    double decode_square_s
    double decode_token_s
    double decode_step_s
    double cache_tokens  # a larger context costs as much as this one

cdef struct StepWork:
    double requests
    double tokens  # to compute
    double pairs  # of tokens that attend to each other
    double read  # cached tokens
    long long prefills  # requests of which prompt tokens are computed
    long long prompt_before  # prompt tokens of these requests before the step
    long long prompt_after  # and after it
    double context  # tokens of the requests that get an output token, except those that get their first

cdef void begin_work(StepWork* work) noexcept nogil
cdef void add_part(StepWork* work, long long computed, long long chunk, long long prompt, long long goal) noexcept nogil
cdef double expert_seconds(StepCost* cost, double tokens) noexcept nogil
cdef double exchange_seconds(StepCost* cost, double tokens) noexcept nogil
cdef double window_seconds(StepCost* cost, StepWork* work) noexcept nogil
cdef double step_seconds(StepCost* cost, StepWork* work) noexcept nogil
cdef double decode_seconds(StepCost* cost, double batch, double context, long long steps) noexcept nogil
cdef double _window_reads(StepCost* cost, double batch, double context, long long steps) noexcept nogil
cdef double _polynomial_step(StepCost* cost, StepWork* work) noexcept nogil
cdef double _polynomial_decode(StepCost* cost, double batch, double context, long long steps) noexcept nogil


@cython.final
cdef class SessionLanes:
    cdef Requests requests
    # plays and their rows
    cdef const long long[::1] first  # play -> the place of its first row in `rows`
    cdef const int[::1] rows
    cdef const int[::1] play  # row -> its play, -1 = not played
    cdef const double[::1] offset  # row -> seconds after its lane takes the tree, without dependencies
    # row -> those that wait for it
    cdef const long long[::1] start
    cdef const int[::1] waiting
    cdef const signed char[::1] trigger
    cdef const double[::1] delay  # seconds
    cdef const double[::1] lead  # row -> the least seconds from its end to an arrival that it can cause
    # the state of each row
    cdef int[::1] missing  # dependencies that it still waits for
    cdef double[::1] ready  # the latest of the others plus their delays, on the clock of its lane
    cdef double[::1] caused  # the latest of the others: it cannot arrive before
    cdef const double[::1] front  # row -> seconds that the API server takes for it, before the next one
    cdef double front_delay  # seconds of the way to the engine, for each request
    cdef double front_free  # when the API server has no request left
    cdef double[::1] sent  # row -> when its client sent it
    cdef double[::1] planned  # when a request arrives by what has ended so far, without the caps of all lanes
    cdef int[::1] arrived  # rows in the order in which they were sent
    cdef int[::1] completed  # rows in the order in which their ends were taken
    cdef bint several  # instances: ends are known out of order
    cdef list unsettled  # a heap of ends: (seconds, number, row)
    cdef long long seen
    cdef Py_ssize_t ended
    cdef int[::1] primes  # row -> the lane that it prepares, -1 = it is no primer
    cdef Heaps timers  # lane -> rows that arrive at a known time, on the clock of the lane: seconds + both shifts
    cdef Heaps order  # lanes by their first timer, in seconds + `shift`
    # lanes
    cdef int lanes, cold  # `cold`: lanes before the end of their warm-up
    cdef long long warm_up
    cdef double duration, idle_cap, tree_cap
    cdef long long[::1] left  # lane -> requests of its tree that have not ended
    cdef long long[::1] issued  # lane -> requests that have arrived
    cdef long long[::1] lane_outstanding
    cdef double[::1] lane_shift  # lane -> seconds by which an idle tree was moved forward
    cdef double[::1] lane_end  # lane -> the last end of a request
    cdef int[::1] play_lane
    cdef double[::1] begins, ends  # of each play
    cdef Py_ssize_t count, taken, cursor, window_from  # rows that were sent; of these, rows at the engine
    cdef long long outstanding, primers_left
    cdef double shift, tree_shift, last_end, window_start, deadline
    cdef bint exhausted  # a lane found no tree before the deadline

    cdef double next_arrival(self) noexcept
    cdef Py_ssize_t take(self) except -1
    cdef int complete(self, Py_ssize_t row, double at) except -1
    cdef double next_event(self) except? -1
    cdef bint settle(self, double until) except -1
    cdef int _send(self) except -1
    cdef int _complete(self, Py_ssize_t row, double at) except -1
    cdef int _begin(self, double at) except -1
    cdef int _take_play(self, int lane, double at) except -1
    cdef int _warmed(self, double at) except -1
    cdef int _open_window(self, double at) noexcept
    cdef int _release(self, int row, int lane, int trigger, double at) except -1
    cdef int _set_timer(self, int row, int lane, double clock) except -1
    cdef int _place(self, int lane) except -1
    cdef double _next_timer(self) noexcept
    cdef double _next_sending(self) noexcept
    cdef double _entry(self, Py_ssize_t row, double at) noexcept
    cdef int _cap_tree(self, int lane) except -1
    cdef int _cap_all(self) noexcept


cdef enum:
    WHOLE = 0  # the roles of an instance: it computes prompts and outputs,
    PREFILLS = 1  # prompts alone, whose KV cache it sends,
    DECODES = 2  # or outputs alone, with the KV cache that it receives


cdef class Instance:
    cdef readonly Engine engine
    cdef Requests requests
    cdef StepCost cost
    cdef readonly double now
    cdef readonly double busy
    cdef readonly long long steps  # that were taken
    cdef readonly long long load  # prompt tokens of requests that have not ended
    cdef readonly long long prefill  # prompt tokens still to compute
    cdef readonly long long blocks  # that requests hold, or can come to hold
    cdef readonly list timeline
    cdef readonly list reports  # to the engine's balancer, None = it has none
    cdef bint watched
    cdef double least_step_s  # no step is shorter
    cdef double until  # no step of `run` begins then or later
    cdef public SessionLanes loop  # None in the open loop
    cdef int role
    cdef object group_of_workers  # that a worker of one kind tells of its requests, None = it has the whole of them
    # the same counts, and the active requests, without the effects of a step that has not ended
    cdef long long load_before, prefill_before, blocks_before, active_before

    cdef long long active(self) except -1
    cdef int take(self, Py_ssize_t row) except -1
    cdef int run(self, double until) except -1
    cdef double next_turn(self) except? -1
    cdef int wake(self, double at) except -1
    cdef int moved(self, Py_ssize_t row, double at) except -1
    cdef long long computed_tokens(self, Py_ssize_t row) noexcept
    cdef int _ended(self, Py_ssize_t row, double at) except -1
    cdef int _note(self, double seconds, long long running, long long waiting, long long blocks) except -1
    cdef int _report(self, double at, long long running, long long waiting, double size) except -1
    cdef long long steps_left(self, Py_ssize_t row) noexcept
    cdef int send(self, Py_ssize_t row) except -1
    cdef int _begin_turn(self) except -1
    cdef int _pass(self, double seconds) noexcept


cdef class RecordedInstance(Instance):
    cdef const double[::1] service  # seconds
    cdef list under_way
    cdef Py_ssize_t admissions
    cdef int _note_state(self) except -1


cdef struct BatchLimits:
    long long step_tokens
    long long requests  # maximum running requests
    long long blocks  # capacity of an instance
    long long block_size  # tokens


cdef class ReservingInstance(Instance):
    cdef BatchLimits limits
    cdef bint prefetches
    cdef list queue
    cdef Py_ssize_t head, admissions
    cdef list prefilling
    cdef list decoding
    cdef long long batch, context
    cdef int _note_state(self) except -1
    cdef _admit(self)
    cdef _fetch_or_recompute(self, Py_ssize_t row)
    cdef double _compute_seconds(self, double start, double end) noexcept
    cdef _mixed(self, double until)
    cdef _decode(self, double until)
    cdef _token(self, long long steps)
    cdef _first(self, Py_ssize_t row)
    cdef _end(self, Py_ssize_t row)
    cdef double _seconds(self, long long steps) noexcept
