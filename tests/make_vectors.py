"""Write tests/vectors/siphash.json from the reference (`make vectors`); a diff is a change of behaviour."""

import json
from pathlib import Path

from tests.reference.siphash import chain, siphash128

KEY = bytes(range(16))
LENGTHS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 512]  # empty, around a block's end, around two, Mooncake's block


def siphash_vectors():
    return {
        "key": KEY.hex(),
        "digests": [siphash128(KEY, bytes(range(n))).hex() for n in range(64)],
        "chains": [
            {
                "tokens": n,
                "digests": [d.hex() for d in chain(KEY, [list(range(n))], [bytes(16)], 16, True)[0]],
            }
            for n in LENGTHS
        ],
    }


if __name__ == "__main__":
    path = Path(__file__).parent / "vectors/siphash.json"
    path.write_text(json.dumps(siphash_vectors(), indent=1) + "\n")
