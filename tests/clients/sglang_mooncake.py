"""SGLang: its mooncake dataset makes the prompts; run in SGLang's environment as FILE BLOCK_SIZE TOKENIZER."""

import asyncio
import json
import sys

from sglang.benchmark.datasets.mooncake import MooncakeDataset, get_mooncake_request_over_time
from transformers import PreTrainedTokenizerFast

rows = MooncakeDataset(dataset_path=sys.argv[1], mooncake_workload="conversation", num_requests=sys.maxsize).load()
tokenizer = PreTrainedTokenizerFast(tokenizer_file=sys.argv[3])


async def prompts():
    return [row async for row in get_mooncake_request_over_time(rows, tokenizer, 0.0, 1)]


made = asyncio.run(prompts())
print(json.dumps({
    "requests": len(made),
    "output_tokens": sum(row.output_len for row in made),
    "last_ms": rows[-1]["timestamp"],
}))  # fmt: skip
