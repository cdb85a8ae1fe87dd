"""The multipliers by hand: each path's core blocks replaced by what they own in a copy, its own blocks by new ones."""

from math import floor


def left(blocks, by):
    """Blocks that are left of so many: rounded, halves up, one at least where there was one."""
    return max(floor(blocks * by + 0.5), 1) if blocks else 0


def stretched(paths, tails, is_core, copies, *, block_size, prefix_len, prompt_len):
    """The new paths; copies: row -> the copy of the core that it takes."""
    numbers, fresh, found = {}, 0, []
    for path, tail, copy in zip(paths, tails, copies, strict=True):
        core = [block for block in path if is_core[block]]
        own = len(path) - len(core)
        new = []
        for depth, block in enumerate(core, start=1):
            width = left(depth, prefix_len) - left(depth - 1, prefix_len)
            if own == 0 and depth == len(core) and tail < block_size:
                width = max(width, 1)  # a shared, partial tail keeps its tokens
            for place in range(width):
                if (block, copy, place) not in numbers:
                    numbers[block, copy, place] = fresh
                    fresh += 1
                new.append(numbers[block, copy, place])
        more = left(own, prompt_len)
        found.append(new + list(range(fresh, fresh + more)))
        fresh += more
    return found
