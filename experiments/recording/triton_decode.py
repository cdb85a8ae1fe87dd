"""Attention of one token of each of many requests over pages, as a Triton kernel (flash decoding).

A program takes one request, one head of keys with the heads of queries that share it, and one split of the context; it
reads the pages where they are. A second kernel joins the splits.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from experiments.pytorch import torch

TILE = 64  # tokens that a program reads at once
MIN_SPLIT = 256  # tokens
PROGRAMS = 1024  # that keep a GPU busy
GROUP = 16  # the fewest rows of a product of matrices


@triton.jit
def _attend(
    queries, keys, values, tables, ends, parts, sums, scale, split_tokens, table_width,
    heads: tl.constexpr, kv_heads: tl.constexpr, dim: tl.constexpr, size: tl.constexpr, group: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    request, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shared: tl.constexpr = heads // kv_heads
    row = tl.arange(0, group)
    column = tl.arange(0, dim)
    head = kv_head * shared + row
    real = row < shared
    query = tl.load(queries + (request * heads + head[:, None]) * dim + column[None], mask=real[:, None], other=0.0)
    end = tl.load(ends + request)
    first = split * split_tokens
    stop = tl.minimum(first + split_tokens, end)
    greatest = tl.full([group], float("-inf"), tl.float32)
    total = tl.zeros([group], tl.float32)
    mixed = tl.zeros([group, dim], tl.float32)
    for begin in range(first, stop, tile):
        token = begin + tl.arange(0, tile)
        seen = token < stop
        block = tl.load(tables + request * table_width + token // size, mask=seen, other=0).to(tl.int64)
        place = ((block * size + token % size) * kv_heads + kv_head) * dim
        key = tl.load(keys + place[:, None] + column[None], mask=seen[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(key)).to(tl.float32) * scale
        scores = tl.where(seen[None], scores, float("-inf"))
        new = tl.maximum(greatest, tl.max(scores, 1))
        weight = tl.exp(scores - new[:, None])
        kept = tl.exp(greatest - new)
        value = tl.load(values + place[:, None] + column[None], mask=seen[:, None], other=0.0)
        mixed = mixed * kept[:, None] + tl.dot(weight.to(value.dtype), value).to(tl.float32)
        total = total * kept + tl.sum(weight, 1)
        greatest = new
    place = (request * heads + head) * tl.num_programs(2) + split
    tl.store(parts + place[:, None] * dim + column[None], mixed / tl.where(total > 0, total, 1.0)[:, None],
             mask=real[:, None])  # fmt: skip
    tl.store(sums + place, tl.where(total > 0, greatest + tl.log(total), float("-inf")), mask=real)


@triton.jit
def _join(parts, sums, mixed, splits, dim: tl.constexpr, most: tl.constexpr):
    row = tl.program_id(0)
    split = tl.arange(0, most)
    column = tl.arange(0, dim)
    weight = tl.load(sums + row * splits + split, mask=split < splits, other=float("-inf"))
    weight = tl.exp(weight - tl.max(weight, 0))
    part = tl.load(
        parts + (row * splits + split[:, None]) * dim + column[None], mask=(split < splits)[:, None], other=0.0
    )
    joined = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(mixed + row * dim + column, joined.to(mixed.dtype.element_ty))


def decode(queries: Any, keys: Any, values: Any, tables: Any, ends: Any, longest: int) -> Any:
    """The attention of each request's token over its context.

    Args:
        queries: [requests, heads, dim].
        keys: Pages, [blocks, block size, heads of keys, dim], contiguous.
        values: Likewise.
        tables: [requests, places], int32: the blocks of each request.
        ends: [requests], int32: tokens of each context.
        longest: The longest context.

    Returns:
        [requests, heads, dim], of the type of the queries.
    """
    module, queries = torch(), queries.contiguous()
    requests, heads, dim = queries.shape
    size, kv_heads = keys.shape[1:3]
    splits = max(min(PROGRAMS // (requests * kv_heads), -(-longest // MIN_SPLIT)), 1)
    split_tokens = triton.cdiv(triton.cdiv(longest, splits), TILE) * TILE
    parts = module.empty(requests, heads, splits, dim, dtype=module.float32, device=queries.device)
    sums = module.empty(requests, heads, splits, dtype=module.float32, device=queries.device)
    group = max(triton.next_power_of_2(heads // kv_heads), GROUP)
    _attend[(requests, kv_heads, splits)](
        queries, keys, values, tables, ends, parts, sums, dim**-0.5, split_tokens, tables.shape[1],
        heads=heads, kv_heads=kv_heads, dim=dim, size=size, group=group, tile=TILE,
    )  # fmt: skip
    mixed = module.empty_like(queries)
    _join[(requests * heads,)](parts, sums, mixed, splits, dim=dim, most=triton.next_power_of_2(splits))
    return mixed
