"""LMCache: its cache simulator with room for everything, and of other sizes in chunks.

Run in LMCache's environment as FILE BLOCK_SIZE TOKENIZER CHUNKS ...
"""

import json
import sys
from pathlib import Path

from lmcache.tools.cache_simulator.simulator import compute_kv_bytes_per_chunk, load_lookup_events, simulate

events = load_lookup_events([Path(sys.argv[1])])
size = compute_kv_bytes_per_chunk(events[0])
sizes = [int(chunks) for chunks in sys.argv[4:]]
found = simulate(events, 10**9 * size, size, fast=True)
print(json.dumps({
    "requests": len(events),
    "input_tokens": found["total_tokens"],
    "hit_tokens": found["total_hit_tokens"],
    "hit_tokens_of_sizes": [simulate(events, chunks * size, size, fast=True)["total_hit_tokens"] for chunks in sizes],
    "last_ms": round(events[-1]["timestamp"] * 1000),
}))  # fmt: skip
