"""LMCache: its cache simulator with room for everything; run in LMCache's environment as FILE BLOCK_SIZE."""

import json
import sys
from pathlib import Path

from lmcache.tools.cache_simulator.simulator import compute_kv_bytes_per_chunk, load_lookup_events, simulate

events = load_lookup_events([Path(sys.argv[1])])
size = compute_kv_bytes_per_chunk(events[0])
found = simulate(events, 10**9 * size, size, fast=True)
print(json.dumps({
    "requests": len(events),
    "input_tokens": found["total_tokens"],
    "hit_tokens": found["total_hit_tokens"],
    "last_ms": round(events[-1]["timestamp"] * 1000),
}))  # fmt: skip
