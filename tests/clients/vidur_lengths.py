"""Vidur: its trace reader; run in Vidur's environment as FILE."""

import json
import sys

from vidur.config import TraceRequestLengthGeneratorConfig
from vidur.request_generator.trace_request_length_generator import TraceRequestLengthGenerator

config = TraceRequestLengthGeneratorConfig(trace_file=sys.argv[1], max_tokens=10**9)
config.prefill_scale_factor = config.decode_scale_factor = 1
rows = TraceRequestLengthGenerator(config).trace_df
print(json.dumps({
    "requests": len(rows),
    "input_tokens": int(rows["num_prefill_tokens"].sum()),
    "output_tokens": int(rows["num_decode_tokens"].sum()),
    "last_ms": round(float(rows["arrived_at"].max()) * 1000),
}))  # fmt: skip
