"""The table of the room for KV: what the memory of a GPU holds, and the tokens that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._base.tables import TextTable

if TYPE_CHECKING:
    from ..serving.deployment import Deployment
    from ..serving.hardware.room import KvRoom

GIB = 1 << 30
LOGGED, UNKNOWN = "as this version of the engine logs them", "they depend on the longest context: add --max-model-len"
PARTS = {  # field of KvRoom -> its name
    "gpu_bytes": "memory of a GPU", "usable_bytes": "the engine takes", "weight_bytes": "weights",
    "activation_bytes": "activations", "graph_bytes": "CUDA graphs", "library_bytes": "libraries",
    "available_bytes": "KV cache",
}  # fmt: skip


def room_table(room: KvRoom, deployment: Deployment) -> TextTable:
    """One row for each part of a GPU's memory with where it comes from, then what the KV cache holds."""
    table = TextTable(f"Room for KV of each instance: {deployment}", has_header=False)
    table.add_column()
    table.add_column(right=True, rank=0)
    table.add_column(dim=True, rank=1)
    for name, words in PARTS.items():
        size = getattr(room, name)
        table.add_row(words, "unknown" if size is None else f"{size / GIB:,.2f} GiB", room.sources.get(name, ""))
    for words, count, unit in (
        ("a block", room.block_size, f"tokens, {_bytes(room.block_bytes)} on each GPU"),
        ("a token", None if room.token_bytes is None else round(room.token_bytes), "bytes on each GPU"),
        ("blocks", room.blocks, ""),
        ("tokens", room.tokens, "that fit in all layers"),
        ("logged tokens", room.logged_tokens, LOGGED if room.logged_tokens is not None else UNKNOWN),
    ):
        table.add_row(words, "unknown" if count is None else f"{count:,}", unit)
    if room.concurrency is not None:
        table.add_row("requests", f"{room.concurrency:,.2f}", "of the longest context at once")
    return table


def _bytes(size: int | None) -> str:
    return "unknown bytes" if size is None else f"{size:,} bytes"
