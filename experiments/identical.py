"""One prompt in all requests: why a cache of partial blocks hits it so rarely.

"What is your name?" fills no block of 16. Its only block is partial, and stands in the table under the hash of the
prompt until the first output token is appended; then its hash covers the output too, and no other request has it.
So the prompt hits only if one step admits several requests. A prompt
that fills its blocks hits all of those, always. `admitted_after` counts the requests that a step admitted after its
first: where no block is full, exactly these requests hit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvtrace.trace.hits import Hits

from .hit_rate import SCHEMA, SEEDS, over_seeds, report_progress, rngs, run, spread
from .prompts import WHAT_IS_YOUR_NAME, Lengths, check_lengths, repeated
from .reported import LEFT_OPEN, REPORTED
from .settings import Progress, Serving

BLOCK_SIZES = (1, 2, 4, 8, 16, 32)
BATCHES = (1, 4, 16, 64)


@dataclass(frozen=True)
class Case:
    """The counts at one block size and batch, a run for each seed."""

    block_size: int
    batch: int
    runs: tuple[Hits, ...]
    admitted_after: tuple[int, ...]  # requests that were not the first of their step

    def to_dict(self) -> dict[str, Any]:
        """`block_size`, `batch`, `admitted_after` of each run, each rate over the seeds, and `runs`."""
        mine = {"block_size": self.block_size, "batch": self.batch, "admitted_after": list(self.admitted_after)}
        return mine | over_seeds(self.runs)

    def rate(self, name: str):
        """One of the three rates over the seeds."""
        return spread(self.runs, name)


@dataclass(frozen=True)
class Identical:
    """Hit rates of one repeated prompt, over block sizes and batches."""

    prompt_length: int
    requests: int
    output_length: Lengths
    serving: Serving
    seed: int
    cases: tuple[Case, ...]

    def to_dict(self) -> dict[str, Any]:
        """Keys as experiments/README.md lists them."""
        return {
            "schema": SCHEMA, "experiment": "identical-prompt", "prompt_length": self.prompt_length,
            "requests": self.requests, "output_length": list(self.output_length), "serving": asdict(self.serving),
            "seed": self.seed, "cases": [case.to_dict() for case in self.cases],
            "reported": dict(REPORTED), "left_open": list(LEFT_OPEN),
        }  # fmt: skip


def identical_prompt(
    prompt_length: int = WHAT_IS_YOUR_NAME,
    *,
    requests: int = 1000,
    output_length: Lengths = (16, 128),
    block_sizes: Sequence[int] = BLOCK_SIZES,
    batches: Sequence[int] = BATCHES,
    serving: Serving | None = None,
    seeds: int = SEEDS,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Identical:
    """Hit rates of one prompt in all requests, for each block size and batch; those of `serving` are ignored.

    Below, 19 requests hit 3 full blocks of 2 tokens; no request hits the partial block of 16.

    >>> result = identical_prompt(requests=20, block_sizes=(2, 16), batches=(1,), seeds=1)
    >>> [case.runs[0].hit_blocks for case in result.cases]
    [57, 0]
    """
    serving = serving or Serving()
    check_lengths("output_length", output_length)
    wanted = [(block_size, batch) for block_size in block_sizes for batch in batches]
    longest, cases = prompt_length + output_length[1], []
    for done, (block_size, batch) in enumerate(wanted):
        report_progress(progress, done, len(wanted), f"blocks of {block_size}, batch {batch}")
        setting = replace(serving, block_size=block_size, batch=batch)
        served = [
            run(repeated(prompt_length, requests, output_length, rng), setting, longest, rng)
            for rng in rngs(seed, seeds)
        ]
        after = tuple(sum(max(0, admitted - 1) for admitted in one.admissions) for one in served)
        cases.append(Case(block_size, batch, tuple(one.hits(block_size) for one in served), after))
    report_progress(progress, len(wanted), len(wanted), "")
    return Identical(prompt_length, requests, output_length, serving, seed, tuple(cases))
