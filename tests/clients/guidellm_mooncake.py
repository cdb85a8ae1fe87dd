"""GuideLLM: its mooncake data makes the prompts; run in GuideLLM's environment as FILE BLOCK_SIZE TOKENIZER."""

import json
import sys

import guidellm.data.deserializers  # registers the formats
import guidellm.schemas.data.deserializers  # noqa: F401
from guidellm.data.deserializers.deserializer import DatasetDeserializerFactory
from guidellm.schemas.data.entrypoints import DataArgs
from transformers import PreTrainedTokenizerFast

tokenizer = PreTrainedTokenizerFast(tokenizer_file=sys.argv[3])
source = {"kind": "json_file", "path": sys.argv[1]}
config = DataArgs.model_validate({"kind": "mooncake", "source": source, "hash_id_block_size": int(sys.argv[2])})
rows = list(DatasetDeserializerFactory.deserialize(config=config, processor_factory=lambda: tokenizer, random_seed=0))
turns = [json.loads(row["conversation_turns"])["turns"][0]["columns"] for row in rows]
print(json.dumps({
    "requests": len(turns),
    "input_tokens": sum(turn["prompt_tokens_count_column"][0] for turn in turns),
    "output_tokens": sum(turn["output_tokens_count_column"][0] for turn in turns),
    "last_ms": round(turns[-1]["relative_timestamp_column"][0] * 1000),
}))  # fmt: skip
