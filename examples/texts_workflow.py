"""The founding document's workflow: texts -> hash_ids -> a synthetic trace -> texts again.

Run it from the project's folder: `python examples/texts_workflow.py`.
"""

import numpy as np

from kvtrace import Trace
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.synthesis.sampling import sample
from kvtrace.text.prompts import hashes_to_texts, texts_to_hashes
from kvtrace.text.tokenizers import load
from kvtrace.trace import Columns

BLOCK_SIZE = 4
QUESTIONS = [
    "Where do I change for Lisbon?",
    "May I bring a dog?",
    "When does the last train leave?",
    "Is there a sleeper?",
]
RULES = "You answer travellers of a railway in one sentence, and you never promise a refund."


def main(rows: int = 40) -> list[str]:
    """Made-up prompts of a synthetic trace that is `rows` long."""
    tokenizer = load("deepseek-r1")
    texts = [f"{RULES} {QUESTIONS[number % len(QUESTIONS)]} {'Please. ' * (number % 3)}" for number in range(24)]
    hash_ids = texts_to_hashes(tokenizer, texts, BLOCK_SIZE)
    trace = as_trace(hash_ids, [len(tokenizer.encode(text)) for text in texts])

    grown = sample(fit(trace), rows, seed=1)
    ids = [grown.prompt(row).tolist() for row in range(len(grown))]
    made_up = hashes_to_texts(tokenizer, ids, grown.input_length, BLOCK_SIZE)
    assert texts_to_hashes(tokenizer, made_up, BLOCK_SIZE) == ids
    return made_up


def as_trace(hash_ids: list[list[int]], input_length: list[int]) -> Trace:
    """Requests a second apart, with outputs of 1 to 16 tokens."""
    rng = np.random.default_rng(0)
    offsets = np.cumsum([0] + [len(row) for row in hash_ids])
    rows = len(hash_ids)
    flat = np.concatenate([np.array(row) for row in hash_ids])
    columns = Columns(1000.0 * np.arange(rows), input_length, rng.integers(1, 17, size=rows), flat, offsets)
    return Trace.from_columns(columns, block_size=BLOCK_SIZE)


if __name__ == "__main__":
    for text in main()[:5]:
        print(text)
