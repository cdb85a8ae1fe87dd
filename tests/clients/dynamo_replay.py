"""Dynamo: its offline replay with mocked engines; run in ai-dynamo-runtime's environment as FILE BLOCK_SIZE."""

import json
import sys

from dynamo._core import run_mocker_trace_replay

report = run_mocker_trace_replay([sys.argv[1]], trace_format="mooncake", trace_block_size=int(sys.argv[2]))
said = report.summary
print(json.dumps({
    "requests": said["completed_requests"],
    "input_tokens": said["total_input_tokens"],
    "output_tokens": said["total_output_tokens"],
    "reused": said["prefix_cache_reused_ratio"],
}))  # fmt: skip
