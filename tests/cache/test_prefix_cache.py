"""The live prefix cache: compared with the design of Lin's report on random workloads, and with cases drawn by hand."""

import array
import gc
import heapq
import itertools
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kvtrace
from kvtrace._base.errors import KvtraceError, UsageError
from kvtrace.cache.live import self_check as recount
from kvtrace.cache.live.prefix_cache import OutOfBlocks, PrefixCache, Sequence
from kvtrace.cache.live.self_check import FREE, NONE, CacheSnapshot, Held, KnownBlock
from kvtrace.cache.policies import POLICIES
from kvtrace.cache.simulation import simulate
from tests.conftest import drawn
from tests.reference import heap_of_heaps, lru
from tests.strategies import traces

TOKENS = st.lists(st.integers(0, 2), max_size=9)
TENANTS = st.sampled_from([None, "a"])


def make_all_collide(cache):
    """Give every new block the digest 0: answers must not hang on the hash."""
    cache.table.digest_mask = 0


class BesideTheReference(RuleBasedStateMachine):
    """Every verb, in any order, on a cache of ours and on the reference."""

    @initialize(slots=st.integers(1, 8), block_size=st.integers(1, 4), idle=st.integers(0, 9), collide=st.booleans(),
                hashing=st.sampled_from(["hierarchical", "direct"]))  # fmt: skip
    def start(self, slots, block_size, idle, collide, hashing):
        self.evicted, self.copied, self.live = [], [], []
        self.ours = PrefixCache(slots, block_size, idle=idle, hashing=hashing, on_evict=self.evicted.append,
                                on_copy=lambda *copy: self.copied.append(copy))  # fmt: skip
        if collide:
            make_all_collide(self.ours)
        self.reference = heap_of_heaps.Cache(slots, block_size, idle)

    def both(self, ours, reference):
        """Call both; either both have no room, or both give something."""
        try:
            wanted = reference()
        except heap_of_heaps.NoRoom:
            with pytest.raises(OutOfBlocks):
                ours()
            return None
        return ours(), wanted

    @rule(tokens=TOKENS, tenant=TENANTS)
    def allocate(self, tokens, tenant):
        pair = self.both(lambda: self.ours.allocate(tokens, tenant), lambda: self.reference.allocate(tenant, tokens))
        if pair:
            self.live.append(pair)

    @rule(tokens=TOKENS, tenant=TENANTS)
    def match(self, tokens, tenant):
        assert self.ours.match(tokens, tenant) == self.reference.match(tenant, tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 2))
    def append(self, data, token):
        ours, reference = data.draw(st.sampled_from(self.live))
        self.both(lambda: self.ours.append(ours, token), lambda: self.reference.append(reference, token))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=TOKENS)
    def append_many(self, data, tokens):
        ours, reference = data.draw(st.sampled_from(self.live))
        self.both(lambda: self.ours.append_many(ours, tokens), lambda: self.reference.append_many(reference, tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), share=st.sampled_from([0, 0.5, 1, 1, 1]))
    def free(self, data, share):
        ours, reference = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        written = int(share * ours.length)
        self.ours.free(ours, written)
        self.reference.free(reference, written)

    @invariant()
    def they_agree_and_nothing_is_broken(self):
        if not hasattr(self, "ours"):
            return
        assert (self.evicted, self.copied) == (self.reference.evicted, self.reference.copied)
        for ours, reference in self.live:
            assert (ours.blocks, ours.length) == (reference.blocks, len(reference.tokens))
            assert (ours.hit_blocks, ours.hit_tokens) == (reference.hit_blocks, reference.hit_tokens)
        stats = self.ours.stats()
        assert (stats["idle"], stats["free"]) == (self.reference.pool.size, len(self.reference.unused))
        assert (stats["evictions"], stats["copies"]) == (len(self.evicted), len(self.copied))
        self.ours.check()


TestBesideTheReference = BesideTheReference.TestCase
TestBesideTheReference.settings = settings(max_examples=drawn(200), stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=8), st.integers(1, 4))
def test_append_many_is_that_many_appends(requests, block_size):
    many, single = (PrefixCache(150, block_size, idle=12) for _ in range(2))
    pairs = []
    for prompt, output in requests:
        pairs.append((many.allocate(prompt), single.allocate(prompt)))
        many.append_many(pairs[-1][0], output)
        for token in output:
            single.append(pairs[-1][1], token)
        assert pairs[-1][0].blocks == pairs[-1][1].blocks
    for one, other in pairs:
        many.free(one)
        single.free(other)
    assert many.stats() == single.stats()


@given(st.lists(st.tuples(TOKENS, TENANTS), max_size=12), st.integers(1, 3))
def test_a_real_store_of_kv_never_gives_another_prefix(requests, block_size):
    #  the "KV" of a token is its whole prefix: what is read must be the reader's own
    store, stored = {}, []
    now = {}

    def write(slot, first, count):
        for position in range(first, first + count):
            store[slot, position] = (now["tenant"], *now["tokens"][: position + 1])

    def read(slot, position):
        stored.append((slot, position))

    cache = PrefixCache(9, block_size, idle=4, on_read=read, on_write=write)
    make_all_collide(cache)
    for tokens, tenant in requests:
        now.update(tokens=tokens, tenant=tenant)
        stored.clear()
        sequence = cache.allocate(tokens, tenant)
        assert stored == [(sequence.blocks[i], i * block_size) for i in range(sequence.hit_blocks)]
        for position in range(len(tokens)):
            assert store[sequence.blocks[position // block_size], position] == (tenant, *tokens[: position + 1])
        cache.free(sequence)


def fits(policy):
    """Whether a live cache takes a policy; if not, it says why."""
    try:
        PrefixCache(4, policy=policy)
    except UsageError as error:
        assert "live cache" in str(error)
        return False
    return True


LIVE = [spec for spec in (row.example or name for name, row in POLICIES.items()) if fits(spec)]


@pytest.mark.parametrize("policy", LIVE)
@given(trace=traces().filter(lambda trace: len(trace.hash_ids)), data=st.data())
def test_one_request_at_a_time_hits_as_the_simulation_says(policy, trace, data):
    #  block ids are the tokens of blocks of one
    prompts = [trace.prompt(row).tolist() for row in range(len(trace))]
    capacity = data.draw(st.integers(max(map(len, prompts)), trace.distinct + 1))
    hits = hits_one_at_a_time(prompts, capacity, policy, trace.timestamp)
    assert hits == simulate(trace, capacity, policy).hit_blocks.tolist()
    if policy == "lru":
        assert hits == lru.hits(prompts, capacity)


def hits_one_at_a_time(prompts, capacity, policy="lru", arrivals=None):
    now, hits = 0.0, []
    cache = PrefixCache(capacity, 1, policy=policy, clock=lambda: now)
    for row, prompt in enumerate(prompts):
        now = 0.0 if arrivals is None else arrivals[row]
        sequence = cache.allocate(prompt)
        hits.append(sequence.hit_blocks)
        cache.free(sequence)
    cache.check()
    return hits


@pytest.mark.parametrize(("capacity", "hits"), [(1_000, 12_847), (10_000, 61_046), (300_000, 105_710)])
def test_the_conversation_trace_hits_as_measured_elsewhere(shared, capacity, hits):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    assert sum(hits_one_at_a_time([trace.prompt(row) for row in range(len(trace))], capacity)) == hits


@pytest.mark.parametrize(("idle", "hits"), [(1_000, 14_807), (10_000, 64_314)])
def test_a_pool_of_k_with_requests_that_overlap_hits_as_measured_elsewhere(shared, idle, hits):
    #  a request ends 30 ms after its arrival for each token of its output
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    cache, live, found = PrefixCache(300_000, 1, idle=idle), [], 0
    for row, (arrival, output) in enumerate(zip(trace.timestamp, trace.output_length, strict=True)):
        while live and live[0][0] <= arrival:
            cache.free(heapq.heappop(live)[2])
        sequence = cache.allocate(trace.prompt(row))
        found += sequence.hit_blocks
        heapq.heappush(live, (arrival + 30 * output, row, sequence))
    assert found == hits
    cache.check()


def test_among_equals_the_longest_prefix_goes_first():
    #  one request leaves blocks in slots 0 1 2, idle since one moment; two more want a slot each
    gone = []
    cache = PrefixCache(3, 1, on_evict=gone.append)
    cache.free(cache.allocate([1, 2, 3]))
    cache.allocate([4, 5])
    assert gone == [2, 1]
    assert cache.match([1, 2, 3]) == 1


def test_a_pool_of_k_keeps_the_k_last_used():
    #  2 idle at most: of 1 2 3 the tail goes at once; then 4 comes, and 2 goes
    gone = []
    cache = PrefixCache(8, 1, idle=2, on_evict=gone.append)
    cache.free(cache.allocate([1, 2, 3]))
    assert gone == [2]
    cache.free(cache.allocate([4]))
    assert gone == [2, 1]
    assert [cache.match(tokens) for tokens in ([1, 2], [4])] == [1, 1]


def test_a_block_that_is_wanted_again_leaves_the_pool():
    cache = PrefixCache(4, 1)
    cache.free(cache.allocate([1, 2]))
    held = cache.allocate([1])
    cache.allocate([3, 4, 5])  # takes the two free slots, and that of block 2; never block 1's
    assert held.blocks == [0]
    assert cache.match([1, 2]) == 1
    assert cache.stats()["pinned"] == 4


def test_a_partial_block_is_found_when_it_is_equal_and_moves_on_as_it_grows():
    cache = PrefixCache(4, 4)
    sequence = cache.allocate([1, 2, 3, 4, 5])
    assert [cache.match([1, 2, 3, 4, *rest]) for rest in ([], [5], [5, 6])] == [4, 5, 4]
    cache.append(sequence, 6)
    assert [cache.match([1, 2, 3, 4, *rest]) for rest in ([], [5], [5, 6])] == [4, 4, 6]
    cache.append_many(sequence, [7, 8, 9])
    assert [cache.match([1, 2, 3, 4, *rest]) for rest in ([5, 6], [5, 6, 7, 8], [5, 6, 7, 8, 9])] == [4, 8, 9]


def test_a_shared_partial_block_is_copied_before_it_grows():
    copies, writes = [], []
    cache = PrefixCache(4, 4, on_copy=lambda *copy: copies.append(copy), on_write=lambda *write: writes.append(write))
    one, two = cache.allocate([1, 2]), cache.allocate([1, 2])
    assert (one.blocks, two.blocks, writes) == ([0], [0], [(0, 0, 2)])
    cache.append(two, 3)
    assert (one.blocks, two.blocks, copies) == ([0], [1], [(0, 1, 2)])
    cache.append(one, 4)  # alone by now: in place
    assert (one.blocks, copies) == ([0], [(0, 1, 2)])
    assert writes == [(0, 0, 2), (1, 2, 1), (0, 2, 1)]


def test_without_on_copy_the_copied_tokens_are_written():
    writes = []
    cache = PrefixCache(4, 4, on_write=lambda *write: writes.append(write))
    cache.allocate([1, 2])
    cache.append(cache.allocate([1, 2]), 3)
    assert writes == [(0, 0, 2), (1, 0, 3)]


def test_a_copy_of_a_block_is_found_once_the_other_one_is_gone():
    #  two write the same tokens: slot 0 is found, slot 1 is the other's own; then 0 moves on, and 1 is freed
    cache = PrefixCache(4, 4)
    one, two = cache.allocate([1]), cache.allocate([])
    cache.append(two, 1)
    assert (one.blocks, two.blocks) == ([0], [1])
    cache.append(one, 2)
    assert cache.match([1]) == 0
    cache.free(two)
    assert cache.match([1]) == 1
    cache.free(one)
    assert cache.stats()["idle"] == 2


def test_a_copy_that_nobody_could_find_is_freed_at_once():
    cache = PrefixCache(4, 4)
    one, two = cache.allocate([1]), cache.allocate([])
    cache.append(two, 1)
    cache.free(two)
    assert (cache.stats()["idle"], cache.stats()["free"]) == (0, 3)
    cache.free(one)


class FirstInFirstOut:
    """Insertion order: parents go before their children."""

    def __init__(self, context):
        self.order, self.evictable = [], set()

    def insert(self, block):
        self.order.append(block)

    def use(self, block):
        self.evictable.discard(block)

    def release(self, block):
        self.evictable.add(block)

    def victim(self):
        return next(block for block in self.order if block in self.evictable)

    def remove(self, block):
        self.order.remove(block)
        self.evictable.discard(block)


def test_what_is_resident_below_a_gap_is_no_hit_and_gets_no_second_slot():
    #  first in, first out: 1 goes, and 2 3 stay, out of reach; when 1 comes back, so do they
    events = []
    cache = PrefixCache(4, 1, policy=FirstInFirstOut, on_evict=lambda slot: events.append(("gone", slot)),
                        on_write=lambda slot, first, count: events.append(("write", slot)))  # fmt: skip
    cache.free(cache.allocate([1, 2, 3]))
    cache.free(cache.allocate([8, 9]))
    assert cache.stats()["remembered"] == 1
    assert cache.match([1, 2, 3]) == 0
    events.clear()
    again = cache.allocate([1, 2, 3])
    #  slots: 8 in 3, 9 in 0 (1's); now 8 goes for 1
    assert events == [("gone", 3), ("write", 3), ("write", 1), ("write", 2)]
    assert (again.hit_blocks, again.blocks) == (0, [3, 1, 2])
    assert cache.stats()["remembered"] == 1  # 8 now, for 9's sake
    cache.check()


def test_what_expires_goes_before_a_request_is_looked_at():
    class OneSecond(FirstInFirstOut):
        def __init__(self, context):
            super().__init__(context)
            self.context, self.since = context, {}

        def release(self, block):
            super().release(block)
            self.since[block] = self.context.now

        def expired(self):
            return next((block for block in self.order if self.context.now - self.since.get(block, now) > 1_000), None)

        def remove(self, block):
            super().remove(block)
            del self.since[block]

    now, gone = 0, []
    cache = PrefixCache(4, 1, policy=OneSecond, clock=lambda: now, on_evict=lambda slot: gone.append(cache.match([1])))
    cache.free(cache.allocate([1, 2]))
    now = 1_000
    assert cache.match([1, 2]) == 2
    now = 1_001
    assert (cache.allocate([1, 2]).hit_blocks, gone) == (0, [0, 0])
    assert cache.stats()["evictions"] == 2
    cache.check()


def test_what_nobody_holds_is_forgotten():
    cache = PrefixCache(3, 1, policy=FirstInFirstOut)
    cache.free(cache.allocate([1, 2, 3]))
    counts = []
    for token in (7, 8, 9):
        cache.free(cache.allocate([token]))
        counts.append(cache.stats()["remembered"])
    assert counts == [1, 2, 0]  # 1, then 1 2, and with 3 its whole path


def test_tenants_share_nothing_and_a_new_salt_shares_nothing_with_the_old():
    cache = PrefixCache(8, 2)
    cache.free(cache.allocate([1, 2], tenant="a"))
    assert [cache.match([1, 2], tenant=tenant) for tenant in ("a", "b", None)] == [2, 0, 0]
    cache.salt = b"other weights"
    assert cache.match([1, 2], tenant="a") == 0
    cache.salt = b""
    assert cache.match([1, 2], tenant="a") == 2


def test_blocks_are_told_apart_even_if_all_hashes_are_equal():
    cache = PrefixCache(40, 2)
    make_all_collide(cache)
    prompts = list(itertools.product([0, 1], repeat=4))
    for prompt in prompts:
        cache.free(cache.allocate(prompt))
    assert all(cache.match(prompt) == 4 for prompt in prompts)
    assert cache.stats()["resident"] == 4 + 16
    cache.check()


def a_small_cache():
    """Slots: 0 and 1 pinned, 2 idle, 3 free; blocks: 0 the root, 1 = (1), 2 = (2) after it, 3 = (7)."""
    cache = PrefixCache(4, 1, idle=1)
    held = cache.allocate([1, 2])
    cache.free(cache.allocate([7]))
    return cache, held


def test_the_books_of_a_small_cache():
    cache, held = a_small_cache()
    assert cache.snapshot() == CacheSnapshot(
        block_size=1, most_idle=1, sequences=[Held(True, 2, held.blocks, root=0)], pins=[1, 1, 0, FREE],
        block=[1, 2, 3, NONE], unused=[3], idle_count=1,
        table={
            0: KnownBlock(parent=NONE, slot=NONE, holders=3, found_as=NONE),  # held by 1, 3 and the sequence
            1: KnownBlock(parent=0, slot=0, holders=2, found_as=1),
            2: KnownBlock(parent=1, slot=1, holders=1, found_as=2),
            3: KnownBlock(parent=0, slot=2, holders=1, found_as=3),
        },
        roots=[0], tenants=[0], numbers=4, spare_count=0, found_count=3,
    )  # fmt: skip


def wrong(path, value):
    """Write a wrong value into snapshot: `table.1.slot` is snapshot.table[1].slot."""

    def write(snapshot):
        *way, last = path.split(".")
        for name in way:
            snapshot = snapshot[int(name)] if isinstance(snapshot, (list, dict)) else getattr(snapshot, name)
        if isinstance(snapshot, (list, dict)):
            snapshot[int(last)] = value
        else:
            setattr(snapshot, last, value)

    return write


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("sequences.0.live", False, "a live sequence has too few blocks or too many"),
        ("sequences.0.length", 3, "a live sequence has too few blocks or too many"),
        ("sequences.0.root", 3, "a block counts 3 holders and has 2"),
        ("pins.0", 2, "slot 0 has 2 pins, and 1 live sequences hold it"),
        ("pins.2", -1, "the list of free slots"),
        ("unused.0", 2, "the list of free slots"),
        ("block.3", 1, "a free slot has a block"),
        ("idle_count", 2, "1 blocks are idle, 2 are counted, 1 may be"),
        ("most_idle", 0, "1 blocks are idle, 1 are counted, 0 may be"),
        ("table.3.slot", -1, "an idle block is not found in its slot"),
        ("table.1.slot", 1, "a block is not in the slot where it is to be found"),
        ("table.1.holders", 5, "a block counts 5 holders and has 2"),
        ("table.2.found_as", NONE, "a block is not found by its tokens"),
        ("found_count", 4, "the count of blocks that are found is wrong"),
        ("spare_count", 1, "the numbers of blocks do not add up"),
        ("roots.0", 1, "the numbers of blocks do not add up"),
    ],
)  # fmt: skip
def test_the_self_check_notices_each_wrong_number(path, value, said):
    cache, held = a_small_cache()
    assert held.blocks == [0, 1]
    snapshot = cache.snapshot()
    recount.check(snapshot)
    wrong(path, value)(snapshot)
    with pytest.raises(KvtraceError, match=f"internal error in the prefix cache: {said}"):
        recount.check(snapshot)


def test_the_self_check_notices_a_block_that_its_tokens_do_not_find():
    #  from now on all digests are 0, and those of the blocks that are known are not
    cache, _ = a_small_cache()
    make_all_collide(cache)
    with pytest.raises(KvtraceError, match="internal error in the prefix cache: a block is not found by its tokens"):
        cache.check()


def test_only_what_was_written_is_kept():
    cache = PrefixCache(8, 2)
    cache.free(cache.allocate([1, 2, 3, 4, 5]), written=3)
    assert (cache.match([1, 2, 3, 4, 5]), cache.stats()["free"]) == (2, 7)


def test_an_exception_in_a_callback_comes_through_and_leaves_no_unwritten_block():
    def fail(*_):
        raise ZeroDivisionError

    cache = PrefixCache(8, 2, on_write=fail)
    with pytest.raises(ZeroDivisionError):
        cache.allocate([1, 2, 3])
    assert (cache.match([1, 2]), cache.stats()["free"]) == (0, 8)
    cache.check()


def test_a_callback_cannot_change_the_cache():
    cache = PrefixCache(8, 2, on_write=lambda *_: cache.allocate([1]))
    with pytest.raises(UsageError, match="a callback must not change the prefix cache"):
        cache.allocate([1, 2, 3])
    cache.check()


def test_an_exception_in_a_policy_comes_through_and_the_cache_says_that_it_broke():
    class Stumbles(FirstInFirstOut):
        def victim(self):
            raise ZeroDivisionError

    cache = PrefixCache(1, 1, policy=Stumbles)
    cache.free(cache.allocate([1]))
    with pytest.raises(ZeroDivisionError):
        cache.allocate([2])
    with pytest.raises(KvtraceError, match="an earlier exception in its policy"):
        cache.allocate([1])
    with pytest.raises(KvtraceError, match="an earlier exception in its policy"):
        cache.check()


@pytest.mark.parametrize(
    ("named", "said"),
    [(1, "slot 1, which is pinned"), (2, "slot 2, which has no block"), (9, "slot 9, which does not exist"),
     (None, "no slot")],
)  # fmt: skip
def test_a_victim_that_is_not_idle_is_refused(named, said):
    class Names(FirstInFirstOut):
        def victim(self):
            return named

    cache = PrefixCache(4, 1, idle=0, policy=Names)
    one = cache.allocate([1])
    cache.allocate([2])
    with pytest.raises(UsageError, match=f"the policy's victim is {said}"):
        cache.free(one)


def test_no_room_changes_nothing():
    cache = PrefixCache(3, 2)
    held, partial = cache.allocate([1, 2]), cache.allocate([5])
    cache.free(cache.allocate([1, 2, 3]))
    before = cache.stats()
    with pytest.raises(OutOfBlocks, match=r"^2 blocks are needed, 0 are free and 1 idle of 3\. Free a sequence first"):
        cache.allocate([7, 8, 9])
    with pytest.raises(OutOfBlocks, match="2 blocks are needed"):
        cache.append_many(held, [1, 2, 3])
    assert cache.stats() == before
    assert cache.match([1, 2, 3]) == 3
    assert (held.length, partial.length) == (2, 1)


def test_an_idle_block_that_is_wanted_is_no_room_for_another():
    cache = PrefixCache(2, 1)
    cache.free(cache.allocate([1]))
    cache.allocate([9])
    with pytest.raises(OutOfBlocks, match="1 block is needed, 0 are free and 0 idle of 2"):
        cache.allocate([1, 2])
    assert cache.allocate([1]).hit_blocks == 1


def test_a_sequence_is_freed_once_and_then_over():
    cache = PrefixCache(4, 2)
    sequence = cache.allocate([1])
    cache.free(sequence)
    assert not sequence.live
    for call in (
        lambda: cache.append(sequence, 1),
        lambda: cache.append_many(sequence, [1]),
        lambda: cache.free(sequence),
    ):
        with pytest.raises(UsageError, match="the sequence is already freed"):
            call()


def test_a_sequence_of_another_cache_is_refused():
    cache, other = PrefixCache(4, 2), PrefixCache(4, 2)
    for foreign in (other.allocate([1]), Sequence()):
        with pytest.raises(UsageError, match="does not belong to this cache"):
            cache.free(foreign)
    for other_type in ("sequence", None):
        with pytest.raises(TypeError, match="Argument 'sequence' has incorrect type"):
            cache.free(other_type)


@pytest.mark.parametrize("kind", [list, tuple, lambda t: array.array("i", t), lambda t: array.array("Q", t), np.array,
                                  lambda t: np.array(t, np.int32), lambda t: np.array(t, np.uint16),
                                  lambda t: np.repeat(t, 2)[::2], lambda t: np.array(t, ">i4"),
                                  lambda t: [np.int64(i) for i in t]])  # fmt: skip
def test_tokens_come_in_any_array_of_whole_numbers(kind):
    cache = PrefixCache(4, 2)
    cache.allocate([1, 2, 300])
    tokens = kind([1, 2, 300])
    assert cache.match(tokens) == 3
    cache.append_many(cache.allocate([]), tokens)
    cache.check()


@pytest.mark.parametrize("dtype", [list, np.int64])
def test_tokens_have_32_bits(dtype):
    cache = PrefixCache(4, 2)
    as_kind = list if dtype is list else lambda tokens: np.array(tokens, dtype)
    cache.allocate(as_kind([0, 2**32 - 1]))
    assert cache.match([0, 2**32 - 1]) == 2
    for bad in (-1, 2**32):
        with pytest.raises(UsageError, match=r"^token 1 is not a whole number from 0 to 4,294,967,295\.$"):
            cache.allocate(as_kind([5, bad]))


@pytest.mark.parametrize("bad", [-1, 2**32, 2**80, 1.0, "a", None])
def test_a_bad_token_is_refused_and_not_shown(bad):
    cache = PrefixCache(4, 2)
    sequence = cache.allocate([1])
    with pytest.raises(UsageError, match=r"^a token must be a whole number from 0 to 4,294,967,295\.$"):
        cache.append(sequence, bad)
    with pytest.raises(UsageError, match=r"^token 1 is not a whole number from 0 to 4,294,967,295\.$"):
        cache.match([0, bad])
    with pytest.raises(UsageError, match=r"^token 1 is not"):
        cache.match(np.array([0, -1], np.int32))
    assert sequence.length == 1


@pytest.mark.parametrize("tokens", ["text", b"text", 7, None, {1}, np.zeros((2, 2), int), np.zeros(2), {1: 2}.keys()])
def test_tokens_of_another_type_are_refused(tokens):
    with pytest.raises(UsageError, match="tokens must be a list or an array of whole numbers, not"):
        PrefixCache(4).match(tokens)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"blocks": 0}, "blocks must be from 1 to"), ({"blocks": 1.5}, "blocks must be a whole number, not float"),
        ({"block_size": 0}, "block_size must be from 1"), ({"idle": -1}, "idle must be from 0"),
        ({"hashing": "flat"}, "hashing must be hierarchical or direct, not 'flat'"),
        ({"policy": "best"}, "'best' is not a policy"),
        ({"policy": "unlimited"}, "an upper bound"), ({"policy": dict}, "class with the verbs insert, use"),
        ({"salt": "text"}, "salt must be bytes, not str"), ({"on_read": 1}, "on_read must be callable, not int"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(arguments, said):
    with pytest.raises(UsageError, match=said):
        PrefixCache(**{"blocks": 4, **arguments})
    with pytest.raises(UsageError, match="a tenant must be hashable, such as a name or a number, not list"):
        PrefixCache(4).match([1], tenant=[])
    with pytest.raises(UsageError, match="written must be from 0 to 1, not 2"):
        cache = PrefixCache(4)
        cache.free(cache.allocate([1]), written=2)


def test_a_cache_and_what_it_calls_are_collected_together():
    class Engine:
        def __init__(self):
            self.cache = PrefixCache(4, on_evict=self.hear)
            self.sequence = self.cache.allocate([1])

        def hear(self, slot):
            raise AssertionError

    gone = weakref.ref(Engine())
    gc.collect()
    assert gone() is None
