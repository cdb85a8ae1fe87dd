"""Back to text: made-up prompts whose tokens share what a trace's ids share, and ids of texts.

The founding document's meaning: `texts_to_hashes` cuts the tokens of each text into blocks, and equal prefixes get
equal ids; `hashes_to_texts` makes texts of ids, one fixed run of tokens for each. `write` does so for a whole trace.

    ids.py      texts -> ids, ids -> texts
    blocks.py   what each block of a trace is: its size, and which of its siblings it is
    words.py    words that a tokenizer keeps apart, whatever stands beside them
    prompts.py  a block's text, a row's text
    verify.py   the texts tokenised again, and compared with the ids
    bodies.py   a row as a plain prompt, an OpenAI body, a line of vLLM's, SGLang's or AIPerf's data sets
    write.py    all of it, for a file
"""

from .builder import Prompts
from .round_trip import hashes_to_texts, texts_to_hashes
from .writing import Written, write

__all__ = ["Prompts", "Written", "hashes_to_texts", "texts_to_hashes", "write"]
