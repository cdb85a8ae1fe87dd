"""The figures of Lin's report and the parameters that it does not state: for comparison with ours, never as targets."""

from __future__ import annotations

REPORTED = {
    "identical_prompt_hit_rate": 0.0814,  # "What is your name?"
    "items_per_second_without_prefixing": 416.92,  # the average over p
    "items_per_second_identical_prompt": 459.22,
}
LEFT_OPEN = (
    "the block size",
    "K, the size of the pool of idle blocks",
    "how many frequent sequences there are, and their lengths",
    "how long outputs become, and how they are sampled",
    "how many requests are live at once, and how they are admitted",
    "whether a hit is counted in tokens, blocks or requests",
    "the model, the machine and the number of repeats behind items per second",
)
