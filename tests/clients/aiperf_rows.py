"""AIPerf: its models of Mooncake's and Qwen-Bailian's rows; run in AIPerf's environment as FILE."""

import json
import sys
from pathlib import Path

from aiperf.dataset.loader.models import BailianTrace, MooncakeTrace

lines = Path(sys.argv[1]).read_text().splitlines()
model = BailianTrace if "chat_id" in lines[0] else MooncakeTrace
rows = [model.model_validate_json(line) for line in lines]
print(json.dumps({
    "requests": len(rows),
    "input_tokens": sum(row.input_length for row in rows),
    "output_tokens": sum(row.output_length for row in rows),
}))  # fmt: skip
