"""Paths in a forest, with lists: the preorder by recursion, and each path beside all earlier ones of its group."""


def preorder(parent):
    """The place of each block in a walk that takes a block before its children."""
    children, place = {}, {}
    for block, above in enumerate(parent):
        children.setdefault(above, []).append(block)

    def walk(block):
        place[block] = len(place)
        for child in children.get(block, []):
            walk(child)

    for root in children.get(-1, []):
        walk(root)
    return [place[block] for block in range(len(parent))]


def shared_with_earlier(paths, group):
    """The blocks that each path shares, from its first one on, with an earlier path of its group; -1 has none."""
    found = []
    for number, path in enumerate(paths):
        earlier = [
            other for other, its in zip(paths[:number], group, strict=False) if its == group[number] and its >= 0
        ]
        found.append(max((common(path, other) for other in earlier), default=0))
    return found


def common(a, b):
    """The length of the longest common beginning."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
