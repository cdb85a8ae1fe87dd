"""The multipliers in plain loops: map each path's core blocks to those of a copy, and its own blocks to new ones."""

from math import floor


def scaled(blocks, by):
    """`blocks` * `by`, rounded half up; at least 1 unless `blocks` is 0."""
    return max(floor(blocks * by + 0.5), 1) if blocks else 0


def stretched(paths, tails, is_core, copies, *, block_size, prefix_len, prompt_len):
    """The new paths; copies: row -> its copy of the core."""
    numbers, fresh, new_paths = {}, 0, []
    for path, tail, copy in zip(paths, tails, copies, strict=True):
        core = [block for block in path if is_core[block]]
        own = len(path) - len(core)
        new = []
        for depth, block in enumerate(core, start=1):
            width = scaled(depth, prefix_len) - scaled(depth - 1, prefix_len)
            if own == 0 and depth == len(core) and tail < block_size:
                width = max(width, 1)  # a shared, partial tail keeps its tokens
            for place in range(width):
                if (block, copy, place) not in numbers:
                    numbers[block, copy, place] = fresh
                    fresh += 1
                new.append(numbers[block, copy, place])
        more = scaled(own, prompt_len)
        new_paths.append(new + list(range(fresh, fresh + more)))
        fresh += more
    return new_paths
