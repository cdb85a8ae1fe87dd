"""The depth of each block in its prompt, including blocks of outputs."""


def depths(jobs):
    """Block -> number of blocks before it."""
    depth = {}
    for row in range(len(jobs.full)):
        path = jobs.ids[jobs.start[row] :][: jobs.full[row]].tolist()
        path += range(jobs.fresh[row], jobs.fresh[row] + jobs.grown[row])
        depth.update((block, place) for place, block in enumerate(path))
    return depth
