"""vLLM: its BurstGPT dataset reads the table; run in vLLM's environment as FILE."""

import json
import sys

from vllm.benchmarks.datasets.datasets import BurstGPTDataset

rows = BurstGPTDataset(dataset_path=sys.argv[1]).data
print(json.dumps({
    "requests": len(rows),
    "input_tokens": int(rows["Request tokens"].sum()),
    "output_tokens": int(rows["Response tokens"].sum()),
    "last_ms": round(float(rows["Timestamp"].iloc[-1]) * 1000),
}))  # fmt: skip
