"""The prefix cache of Lin's report in plain Python: a hash table, reference counts, and a pool that is a heap of heaps,
ordered by last access time and then by prefix length, longest first."""

from heapq import heapify, heappush


class NoRoom(Exception):
    """Fewer slots are free or idle than are needed."""


class Block:
    """The block in one slot: its own tokens, its prefix, and the number of live sequences that hold it."""

    def __init__(self, slot, prefix, own):
        self.slot, self.prefix, self.own, self.references = slot, prefix, own, 1

    @property
    def name(self):
        """The block's identity; the report uses hash(prefix, own)."""
        return self.prefix, self.own


class Pool:
    """The idle blocks: a heap of times, and for each time a heap of blocks, longest prefix first."""

    def __init__(self):
        self.times, self.groups, self.size = [], {}, 0

    def insert(self, block, time):
        if time not in self.groups:
            heappush(self.times, time)
            self.groups[time] = []
        heappush(self.groups[time], (-len(block.prefix), block.slot, block))
        block.time = time
        self.size += 1

    def first(self):
        """The next victim."""
        return self.groups[self.times[0]][0][2]

    def remove(self, block):
        group = self.groups[block.time]
        group.remove((-len(block.prefix), block.slot, block))
        heapify(group)
        if not group:
            del self.groups[block.time]
            self.times.remove(block.time)
            heapify(self.times)
        self.size -= 1


class Sequence:
    def __init__(self, tenant, tokens):
        self.tenant, self.tokens, self.held, self.hit_blocks, self.hit_tokens = tenant, list(tokens), [], 0, 0

    @property
    def blocks(self):
        return [block.slot for block in self.held]


class Cache:
    """The verbs of kvtrace.cache.PrefixCache; `evicted` and `copied` record these events in order."""

    def __init__(self, slots, block_size, idle):
        self.block_size, self.most_idle, self.time = block_size, min(idle, slots), 0
        self.table, self.pool = {}, Pool()
        self.unused = list(reversed(range(slots)))
        self.evicted, self.copied = [], []

    def names(self, tenant, tokens):
        """(prefix, own tokens) of each block; the prefix begins with the tenant, so that tenants share nothing."""
        return [
            ((tenant, *tokens[:start]), tuple(tokens[start : start + self.block_size]))
            for start in range(0, len(tokens), self.block_size)
        ]

    def leading(self, names):
        """The leading blocks that are in the table."""
        found = []
        for name in names:
            if name not in self.table:
                break
            found.append(self.table[name])
        return found

    def match(self, tenant, tokens):
        return sum(len(block.own) for block in self.leading(self.names(tenant, tokens)))

    def allocate(self, tenant, tokens):
        names = self.names(tenant, tokens)
        found = [self.table[name] for name in names if name in self.table]
        self.require_room(len(names) - len(found), [block for block in found if block.references == 0])
        sequence, hits = Sequence(tenant, tokens), self.leading(names)
        sequence.hit_blocks, sequence.hit_tokens = len(hits), sum(len(block.own) for block in hits)
        for block in found:
            if block.references == 0:
                self.pool.remove(block)
            block.references += 1
        sequence.held = [self.table[name] if name in self.table else self.new(name) for name in names]
        return sequence

    def append(self, sequence, token):
        sequence.tokens.append(token)
        name, block = self.names(sequence.tenant, sequence.tokens)[-1], sequence.held[-1] if sequence.held else None
        try:
            if len(name[1]) == 1:  # the last block is full, or there is none
                self.require_room(1)
                sequence.held.append(self.new(name))
            elif block.references > 1:  # other sequences hold the partial block: extend a copy
                self.require_room(1)
                block.references -= 1
                sequence.held[-1] = self.new(name)
                self.copied.append((block.slot, sequence.held[-1].slot, len(block.own)))
            else:  # update the block in the table
                if self.table.get(block.name) is block:
                    del self.table[block.name]
                block.own = name[1]
                self.table.setdefault(name, block)
        except NoRoom:
            sequence.tokens.pop()
            raise

    def append_many(self, sequence, tokens):
        before, after = len(sequence.tokens), len(sequence.tokens) + len(tokens)
        copies = tokens and before % self.block_size and sequence.held[-1].references > 1
        self.require_room(-(-after // self.block_size) - len(sequence.held) + bool(copies))
        for token in tokens:
            self.append(sequence, token)

    def free(self, sequence, written):
        self.time += 1
        end = len(sequence.tokens)
        for block in reversed(sequence.held):
            block.references -= 1
            if block.references == 0:
                self.unreferenced(block, end <= written)
            end -= len(block.own)

    def unreferenced(self, block, is_written):
        if is_written:
            self.table.setdefault(block.name, block)  # lookups find a copy once the other copy is evicted
        if is_written and self.table[block.name] is block:
            self.pool.insert(block, self.time)
            while self.pool.size > self.most_idle:
                self.evict()
        else:
            if self.table.get(block.name) is block:
                del self.table[block.name]
            self.unused.append(block.slot)

    def require_room(self, needed, pinned_soon=()):
        if needed > len(self.unused) + self.pool.size - len(pinned_soon):
            raise NoRoom

    def new(self, name):
        if not self.unused:
            self.evict()
        block = Block(self.unused.pop(), *name)
        self.table.setdefault(name, block)
        return block

    def evict(self):
        block = self.pool.first()
        self.pool.remove(block)
        del self.table[block.name]
        self.unused.append(block.slot)
        self.evicted.append(block.slot)
