"""Synthetic prompts whose tokens share prefixes exactly as a trace's ids do, and the ids of given texts.

As in Lin's report, `texts_to_hashes` splits the tokens of each text into blocks and gives equal prefixes equal ids, and
`hashes_to_texts` turns ids into texts, with fixed tokens for each id. `write_prompts` writes those of a whole trace.

    blocks.py      the blocks of a trace: size, parent, rank among siblings
    words.py       words whose tokens do not depend on their neighbours
    builder.py     the text of a block and of a row
    verifier.py    tokenise the texts again and compare them with the ids
    round_trip.py  texts -> ids, ids -> texts
    bodies.py      output formats: plain prompts, OpenAI bodies, lines for vLLM, SGLang and AIPerf
    dag.py         the agents of sessions, their turns and what they spawn, for AIPerf's dag_jsonl
    writing.py     write, verify and count the prompts of a trace
"""

from .builder import PromptBuilder
from .round_trip import hashes_to_texts, texts_to_hashes
from .writing import WriteSummary, write_prompts

__all__ = ["PromptBuilder", "WriteSummary", "hashes_to_texts", "texts_to_hashes", "write_prompts"]
