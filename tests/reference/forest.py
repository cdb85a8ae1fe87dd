"""Walks over prompts and outputs as lists of lists."""


def walk(prompts, full, outputs=None):
    """(row, id, id before) of every block; an output follows the prompt's last full block."""
    for row, prompt in enumerate(prompts):
        before = -1
        for block in prompt:
            yield row, block, before
            before = block
        before = prompt[full[row] - 1] if full[row] else -1
        for block in outputs[row] if outputs is not None else []:
            yield row, block, before
            before = block


def verify(prompts, full, outputs=None):
    """(distinct ids, row of the first gap, row of the first fork), -1 for none; a gap ends the walk."""
    parent, fork = {}, -1
    for row, block, before in walk(prompts, full, outputs):
        if block < 0 or block > len(parent):
            return len(parent), row, fork
        if block == len(parent):
            parent[block] = before
        elif parent[block] != before and fork < 0:
            fork = row
    return len(parent), -1, fork


def parents(prompts, full, outputs=None):
    parent = {}
    for _, block, before in walk(prompts, full, outputs):
        parent.setdefault(block, before)
    return [parent[block] for block in sorted(parent)]


def depths(parent):
    depth = []
    for before in parent:
        depth.append(1 if before < 0 else depth[before] + 1)
    return depth


def runs(parent, visits):
    chain, chains = [], 0
    for block, before in enumerate(parent):
        if before >= 0 and visits[before] == visits[block]:
            chain.append(chain[before])
        else:
            chain.append(chains)
            chains += 1
    return chain


def chain(prompts, full, outputs=None):
    """A new id for each distinct (previous new id, id) pair."""
    number, chained, chained_outputs = {}, [], []
    for row, prompt in enumerate(prompts):
        path, before = [], -1
        for block in prompt:
            before = number.setdefault((before, block), len(number))
            path.append(before)
        chained.append(path)
        before = path[full[row] - 1] if full[row] else -1
        tail = []
        for block in outputs[row] if outputs is not None else []:
            before = number.setdefault((before, block), len(number))
            tail.append(before)
        chained_outputs.append(tail)
    return chained, chained_outputs if outputs is not None else None
