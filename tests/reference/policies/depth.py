"""The depth of each block in its prompt, including blocks of outputs."""


def depths(demand):
    """Block -> number of blocks before it."""
    depth = {}
    for row in range(len(demand.full)):
        path = demand.ids[demand.start[row] :][: demand.full[row]].tolist()
        path += range(demand.fresh[row], demand.fresh[row] + demand.grown[row])
        depth.update((block, place) for place, block in enumerate(path))
    return depth
