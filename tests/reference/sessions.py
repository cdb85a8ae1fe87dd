"""Session trees from drawn turns, in plain loops."""

WORD = (1 << 64) - 1


class Halves:
    """Random numbers below 2^32: the upper halves of SplitMix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, size):
        """A random number below `size`."""
        return (self.next() * size) >> 32

    def next(self):
        """The next number."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & WORD
        x = self.state
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
        return (x ^ (x >> 31)) >> 32


def errors(values, targets, weights, cell, item):
    """The weighted squared errors of all cells, in sum."""
    total = 0.0
    for number, target in enumerate(targets):
        for q, wanted in enumerate(target):
            found = sum(values[item[slot]][q] for slot in range(len(cell)) if cell[slot] == number)
            total += weights[number][q] * (found - wanted) ** 2
    return total


def deal(values, targets, weights, cell, item, classes, seed, swaps):
    """The items after swaps that lower the errors; classes: the slots of each class."""
    item, halves = list(item), Halves(seed)
    shares = [max(len(slots), len(cell) / 16) if len(slots) > 1 else 0.0 for slots in classes]
    if not sum(shares):
        return item
    bounds = [int(sum(shares[: number + 1]) / sum(shares) * 2**32) for number in range(len(shares))]
    last = max(number for number, share in enumerate(shares) if share)
    bounds[last:] = [1 << 32] * (len(shares) - last)
    for _ in range(swaps):
        draw = halves.next()
        slots = next(slots for slots, bound in zip(classes, bounds, strict=True) if draw < bound)
        a, b = slots[halves.below(len(slots))], slots[halves.below(len(slots))]
        swapped = list(item)
        swapped[a], swapped[b] = item[b], item[a]
        if errors(values, targets, weights, cell, swapped) < errors(values, targets, weights, cell, item):
            item = swapped
    return item


def contexts(chains, first, net, least):
    """The tokens of all requests of chains, each a list of items, and the chains with their items reordered."""
    tokens, reordered = [], []
    for chain, now in zip(chains, first, strict=True):
        chain = list(chain)
        tokens.append(now)
        for place in range(len(chain)):
            fits = [at for at in range(place, len(chain)) if now + net[chain[at]] >= least]
            if fits:
                chain[place], chain[fits[0]] = chain[fits[0]], chain[place]
            now = max(least, now + net[chain[place]])
            tokens.append(now)
        reordered.append(chain)
    return tokens, reordered


def arrivals(base, completion, delay, service, start, joins):
    """The time of each request."""
    times = []
    for row in range(len(base)):
        waits = [times[other] + service[other] for other in joins[row]]
        if base[row] >= 0:
            waits.append(times[base[row]] + (service[base[row]] if completion[row] else 0))
        times.append(max(waits) + delay[row] if waits else start[row])
    return times


def paths(lengths, source, keep, roots):
    """The ids of each request; roots: row -> shared numbers of its first blocks, where it has no source."""
    id_of, fresh, found = {}, 0, []
    for length, above, kept, root in zip(lengths, source, keep, roots, strict=True):
        if above >= 0:
            path = found[above][:kept]
        else:
            path = []
            for number in root[:kept]:
                if number not in id_of:
                    id_of[number] = fresh
                    fresh += 1
                path.append(id_of[number])
        more = length - len(path)
        found.append(path + list(range(fresh, fresh + more)))
        fresh += more
    return found
