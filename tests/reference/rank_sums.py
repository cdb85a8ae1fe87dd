"""Sums of hits over bins of ranks, one block at a time, as dictionaries: bin -> [blocks, tokens, shares]."""

from collections import defaultdict


def tokens_of(block, block_size, tokens):
    """The prompt tokens in one block."""
    return min((block + 1) * block_size, tokens) - min(block * block_size, tokens)


def bin_of(edges, rank):
    """The first bin whose edge is not below the rank, or the last one."""
    return next((i for i, edge in enumerate(edges) if edge >= rank), len(edges) - 1)


def add_runs(edges, runs, blocks, tokens, block_size):
    """Hits of runs (row, blocks, rank, depth)."""
    sums = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row, count, rank, depth in runs:
        for i in range(count):
            bin_sums = sums[bin_of(edges, rank + i)]
            bin_sums[0] += 1
            bin_sums[1] += tokens_of(depth + i, block_size, tokens[row])
            bin_sums[2] += 1 / blocks[row]
    return sums


def add_sample(edges, runs, skipped, offsets, depth, anchors, blocks, tokens, block_size, step):
    """Hits of runs of sampled blocks; each stands for a whole number of ranks here."""
    sums = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row, count, rank, index in runs:
        for i in range(count):
            if index + i < skipped[row]:
                continue
            block, held, sampled = depth[offsets[row] + index + i], anchors[0][row], anchors[1][row]
            first = held + (rank + i - sampled - 1) * step  # ranks above this one
            for estimated in range(first + 1, first + step + 1):
                bin_sums = sums[bin_of(edges, estimated)]
                bin_sums[0] += 1
                bin_sums[1] += tokens_of(block, block_size, tokens[row])
                bin_sums[2] += 1 / blocks[row]
    return sums
