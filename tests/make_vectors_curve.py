"""Write tests/vectors/curve.json from the references (`make vectors`); a diff is a change of behaviour."""

import json
from pathlib import Path

from tests.reference import lru, reuse

TRACES = {  # one prompt a string
    "a block is as far as what was used since": ["0 1", "2", "0 3", "0 1"],
    "a system prompt and two conversations": ["0 1 2", "0 3 4", "0 1 2 5", "0 3 4 6", "0 1 2 5 7"],
    "a shorter prompt refreshes the head of a path": ["0 1 2 3", "4 5", "0 1", "4 5", "0 1 2 3"],
    "nothing comes back": ["0 1", "2 3", "4"],
    "always the same": ["0 1 2", "0 1 2", "0 1 2"],
    "a loop one block too long for three": ["0", "1", "2", "3", "0", "1", "2", "3"],
}


def curve_vectors():
    """Segments of each trace, and hit blocks at each capacity from the longest prompt to one more than all."""
    return [vector(name, prompts) for name, prompts in TRACES.items()]


def vector(name, prompts):
    ids = [[int(word) for word in prompt.split()] for prompt in prompts]
    longest, distinct = max(map(len, ids)), len({block for prompt in ids for block in prompt})
    hits = {capacity: sum(lru.hits(ids, capacity)) for capacity in range(longest, distinct + 2)}
    return {"name": name, "prompts": prompts, "segments": reuse.segments(ids), "hit_blocks": hits}


if __name__ == "__main__":
    path = Path(__file__).parent / "vectors/curve.json"
    path.write_text(json.dumps(curve_vectors(), indent=1) + "\n")
