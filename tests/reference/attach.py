"""Attachment, the slow way: finds each request's attachment by search, and grows forests block by block."""

from itertools import pairwise

FULL_KINDS = 15


def kind_of(distance, uses):
    """The kind of a full block: its distance from the end of the last path that used it, and its uses."""
    band = 0 if distance == 0 else 1 if distance == 1 else 2 if distance <= 3 else 3 if distance <= 10 else 4
    return 3 * band + min(uses, 3) - 1


def walk(prompts, unseen, parents=None):
    """(hits, age, kind, continues) of each prompt; `unseen`: 1 if a partial block is not among its ids."""
    attachments, clock, users, follow = [], [], {}, {}
    for prompt in prompts:
        for block, after in pairwise(prompt):
            follow.setdefault(block, set()).add(after)
    for row, prompt in enumerate(prompts):
        hits = 0
        while hits < len(prompt) and prompt[hits] in users:
            hits += 1
        now, age, kind, continues = (clock[-1] if clock else 0), 0, 0, 0
        if hits:
            block = prompt[hits - 1]
            last = users[block][-1]
            age, kind = now - clock[last], kind_of(len(prompts[last]) + unseen[last] - hits, len(users[block]))
            more = len(prompt) + unseen[row] > hits
            continues = int(more and len(follow.get(block, ())) <= 3)
        if parents is not None:
            continues = int(parents[row] >= 0)
        attachments.append((hits, age, kind, continues))
        clock.append(now + len(prompt) - hits + unseen[row])
        for block in prompt:
            users.setdefault(block, []).append(row)
    return attachments


class Block:
    """A block of the forest, with the state of its last use."""

    def __init__(self, number, parent, depth, tokens):
        self.number, self.parent, self.depth, self.tokens = number, parent, depth, tokens
        self.uses, self.kind, self.last_use, self.place = 0, None, None, None
        self.row = self.session = None


class Growth:
    """The forest that grows by attachment."""

    def __init__(self, horizon, block_size):
        self.horizon, self.block_size = horizon, block_size
        self.blocks, self.row, self.sessions, self.uses = [], 0, 0, 0

    def grow(self, hits, shallow, deep, length, age, kind, tail, continues):
        """One row: (path, tail, session, parent)."""
        if hits == length:
            shallow = deep = hits
        else:
            kind, deep = kind % FULL_KINDS, min(deep, length - 1)
        best = self.attachment(hits, shallow, deep, age, kind, (age + length) * 0.5)
        session, previous = self.sessions, -1
        if best and continues:
            session, previous = best.session, best.row
        self.sessions = max(self.sessions, session + 1)
        path = [] if best is None else self.path_to(best)
        while len(path) < length:
            last = len(path) == length - 1
            block = Block(
                len(self.blocks), path[-1] if path else None, len(path) + 1, tail if last else self.block_size
            )
            self.blocks.append(block)
            path.append(block)
        self.use(path, session)
        return [block.number for block in path], path[-1].tokens, session, previous

    def attachment(self, wanted, shallow, deep, age, kind, step):
        """The block with the least cost, or None."""
        for depth in range(wanted, 0, -1):
            kinds = range(FULL_KINDS) if kind < FULL_KINDS else range(FULL_KINDS, FULL_KINDS + 3)
            best = None
            for other in sorted(kinds, key=lambda other: (steps(kind, other), other)):
                penalty = steps(kind, other) * step
                if best and best[0] <= penalty:
                    break
                for place in sorted(range(shallow, deep + 1), key=lambda place: (abs(place - depth), -place)):
                    block = self.nearest(place, other, age)
                    if block is None:
                        continue
                    off = abs(len(self.blocks) - age - block.last_use)
                    if best is None or off + penalty < best[0]:
                        best = off + penalty, block
                    if off <= age * 0.03:
                        break
            if best:
                return best[1]
            kind, shallow, deep = kind % FULL_KINDS, depth - 1, depth - 1
        return None

    def nearest(self, depth, kind, age):
        """The remembered block of a depth and kind whose last use is nearest to the wanted time."""
        now = len(self.blocks)
        fitting = [
            block for block in self.blocks
            if (block.depth, block.kind) == (depth, kind) and block.last_use >= now - self.horizon
        ]  # fmt: skip
        fitting.sort(key=lambda block: (block.last_use, block.place))
        before = [block for block in fitting if block.last_use < now - age][-1:]
        after = [block for block in fitting if block.last_use >= now - age][:1]
        return min(before + after, key=lambda block: abs(now - age - block.last_use), default=None)

    def path_to(self, block):
        """The blocks from the root to this one."""
        return [*self.path_to(block.parent), block] if block else []

    def use(self, path, session):
        """Record the use of the path's blocks by the current row."""
        for block in path:
            block.uses += 1
            kind = kind_of(len(path) - block.depth, block.uses)
            if block.tokens < self.block_size:
                kind = FULL_KINDS + min(block.uses, 3) - 1
            if (block.last_use, block.kind) != (len(self.blocks), kind):
                block.place, self.uses = self.uses, self.uses + 1
            block.kind, block.last_use = kind, len(self.blocks)
            block.row, block.session = self.row, session
        self.row += 1


def steps(kind, other):
    """The distance between two kinds."""
    return abs(kind // 3 - other // 3) + abs(kind % 3 - other % 3)
