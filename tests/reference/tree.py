"""The tree method with dictionaries: the core tree, and paths by walking it."""


def core(prompts):
    """(visits of each prefix shared by at least two prompts, {prefix: own blocks of each prompt that leaves there})."""
    visits, left = {}, {}
    for prompt in prompts:
        for depth in range(1, len(prompt) + 1):
            prefix = tuple(prompt[:depth])
            visits[prefix] = visits.get(prefix, 0) + 1
    shared = {prefix: count for prefix, count in visits.items() if count >= 2}
    for prompt in prompts:
        depth = sum(tuple(prompt[:d]) in shared for d in range(1, len(prompt) + 1))
        left.setdefault(tuple(prompt[:depth]), []).append(len(prompt) - depth)
    return shared, left


def contracted(shared):
    """{last prefix of a node: (last prefix of the node before it, blocks)}: runs of equal visits are one node."""

    def top(prefix):
        while len(prefix) > 1 and shared[prefix[:-1]] == shared[prefix]:
            prefix = prefix[:-1]
        return prefix

    ends = [p for p in shared if not any(q[:-1] == p and shared[q] == shared[p] for q in shared)]
    return {end: (top(end)[:-1], len(end) - len(top(end)) + 1) for end in ends}


def paths(node, own, parent, length):
    """Each request's path: the blocks of the nodes from the root to `node`, then new ones; numbered at first use."""
    numbers, fresh, all_paths = {}, 0, []
    for leaving, more in zip(node, own, strict=True):
        way = []
        while leaving >= 0:
            way.insert(0, leaving)
            leaving = parent[leaving]
        path = []
        for step in way:
            for place in range(length[step]):
                if (step, place) not in numbers:
                    numbers[step, place] = fresh
                    fresh += 1
                path.append(numbers[step, place])
        path += range(fresh, fresh + more)
        fresh += more
        all_paths.append(path)
    return all_paths
