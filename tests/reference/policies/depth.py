"""How deep each block is in its prompt, the blocks of outputs included."""


def depths(demand):
    """Block -> the blocks before it."""
    depth = {}
    for row in range(len(demand.full)):
        path = demand.ids[demand.start[row] :][: demand.full[row]].tolist()
        path += range(demand.fresh[row], demand.fresh[row] + demand.grown[row])
        depth.update((block, place) for place, block in enumerate(path))
    return depth
