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
    double expert_token_s  # per token, to compute its routed experts
    double expert_step_s  # to read all routed experts
    double expert_share  # of the routed experts that a token uses
    double window_read_s  # per cached token that a request's window holds, as attention_read_s
    double window_pair_s  # per pair within windows, as attention_pair_s
    double window_tokens  # of a window: a request reads at most as many, and a token makes twice as many pairs
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
cdef void add_part(StepWork* work, long long done, long long chunk, long long prompt, long long goal) noexcept nogil
cdef double expert_seconds(StepCost* cost, double tokens) noexcept nogil
cdef double window_seconds(StepCost* cost, StepWork* work) noexcept nogil
cdef double step_seconds(StepCost* cost, StepWork* work) noexcept nogil
cdef double decode_seconds(StepCost* cost, double batch, double context, long long steps) noexcept nogil
cdef double _window_reads(StepCost* cost, double batch, double context, long long steps) noexcept nogil
cdef double _polynomial_step(StepCost* cost, StepWork* work) noexcept nogil
cdef double _polynomial_decode(StepCost* cost, double batch, double context, long long steps) noexcept nogil
