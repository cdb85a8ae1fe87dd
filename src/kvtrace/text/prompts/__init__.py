"""Synthetic prompts whose tokens share prefixes exactly as a trace's ids do, and the ids of given texts.

As in Lin's report, `texts_to_hashes` splits the tokens of each text into blocks and gives equal prefixes equal ids, and
`hashes_to_texts` turns ids into texts, with fixed tokens for each id. `write_prompts` writes those of a whole trace.

    words.py       words whose tokens do not depend on their neighbours
    blocks.py      the blocks of a trace (size, parent, rank among siblings), the text of a block and of a row
    round_trip.py  texts -> ids, ids -> texts
    bodies.py      output formats: plain prompts, OpenAI bodies, lines for vLLM, SGLang and AIPerf
    writing.py     write, verify and count the prompts of a trace, or the agents of its sessions (dag_jsonl)
"""

from .blocks import PromptBuilder
from .round_trip import hashes_to_texts, texts_to_hashes
from .writing import WriteSummary, write_prompts

__all__ = ["PromptBuilder", "WriteSummary", "hashes_to_texts", "texts_to_hashes", "write_prompts"]
