"""How deep each block is in its prompt, the blocks of outputs included."""


def depths(jobs):
    """Block -> the blocks before it."""
    depth = {}
    for row in range(len(jobs.full)):
        path = jobs.ids[jobs.start[row] :][: jobs.full[row]].tolist()
        path += range(jobs.fresh[row], jobs.fresh[row] + jobs.grown[row])
        depth.update((block, place) for place, block in enumerate(path))
    return depth
