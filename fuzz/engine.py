"""One run of a coverage-guided fuzzer over a function of bytes: arguments, corpus, dictionary, and how long."""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import atheris

CRASHES = Path("build/fuzz/crashes")


def fuzz(one: Callable[[bytes], None], seeds: Iterable[bytes], *, words: Iterable[bytes] = ()) -> int:
    """Run the function on bytes until the time or the cases are over, or it raises; CRASHES keeps what made it raise.

    With a seed and a number of cases, every run tries the same inputs (where PYTHONHASHSEED is the same, too).
    """
    parser = argparse.ArgumentParser(prog=f"python -m fuzz.{Path(sys.argv[0]).stem}", description=__doc__)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--cases", type=int, help="inputs, those to begin with too, in place of a time")
    parser.add_argument("--longest", type=int, default=12_288, help="bytes of one input")
    parser.add_argument("--seed", type=int, default=0, help="0 is another one each time")
    parser.add_argument("corpus", nargs="?", help="folder that keeps what was found  [default: none is kept]")
    parser.add_argument("--again", metavar="FILE", help="run this input only")
    chosen = parser.parse_args()
    if chosen.again:
        one(Path(chosen.again).read_bytes())
        return 0
    CRASHES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(chosen.corpus or f"{scratch}/corpus")
        corpus.mkdir(parents=True, exist_ok=True)
        for seed in seeds:
            (corpus / hashlib.sha256(seed).hexdigest()[:20]).write_bytes(seed)
        dictionary = Path(scratch) / "words"
        escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in words)
        dictionary.write_text("".join(f'"{word}"\n' for word in escaped))
        options = [f"-runs={chosen.cases}" if chosen.cases else f"-max_total_time={chosen.seconds}"]
        options += [f"-max_len={chosen.longest}", f"-dict={dictionary}"]
        options += ["-timeout=60", "-rss_limit_mb=4096", "-print_final_stats=1", "-verbosity=0"]
        options += [f"-artifact_prefix={CRASHES}/"]  # where what made it raise is kept
        options += [f"-seed={chosen.seed}"] if chosen.seed else []
        atheris.Setup([sys.argv[0], *options, str(corpus)], one)
        atheris.Fuzz()
    return 0
