"""Anonymising beside the `tokenizers` library alone, which only encodes the same prompts, and beside its own stages."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from .apart import medians
from .raw_logs import agent, large
from .table import Claim

TOKENIZER = "deepseek-r1"


def claims(folder: str, megabytes: float, rounds: int) -> list[Claim]:
    """The speed of the pipeline and of the whole command."""
    log, small, cores = large(folder, megabytes), agent(folder), len(os.sched_getaffinity(0))
    taken = medians({
        "ours": (pipeline, log), "exact": (pipeline, log, "exact"),
        "resumable": (resumable, log), "stages": (sum_of_stages, log),
        "rival": (rival, log), "command": (command, small, folder), "rival, small": (rival, small),
    }, rounds)  # fmt: skip
    size = os.path.getsize(log) / 1e6
    return [
        Claim(f"anonymise {size:.0f} MB / tokenizers alone", taken["ours"], taken["rival"], "s", 1 / 8),
        Claim(f"anonymise {size:.0f} MB / own stages, {cores} cores", taken["ours"], taken["stages"] / cores, "s", 2),
        Claim(f"anonymise {size:.0f} MB as standard / as exact", taken["ours"], taken["exact"], "s", 1.15),
        Claim(f"anonymise {size:.0f} MB, resumable / not", taken["resumable"], taken["ours"], "s", 1.03),
        Claim("whole command, 10 MB / tokenizers alone", taken["command"], taken["rival, small"], "s", 1 / 3),
    ]


def resumable(log: str) -> float:
    """Seconds of the same with all that is done kept in a checkpoint."""
    from kvtrace.ingest.checkpoint import Checkpoint
    from kvtrace.ingest.keys import Key

    with Checkpoint(f"{log}.resume") as checkpoint:
        return pipeline(log, key=Key.random(), checkpoint=checkpoint)


def pipeline(log: str, profile: str = "standard", **options) -> float:
    """Seconds from a log to released rows on all cores, with a tokenizer that is loaded."""
    from kvtrace.ingest.pipeline import anonymize_rows
    from kvtrace.text import tokenizers

    tokenizer = tokenizers.load(TOKENIZER).wait()
    tokenizers.load = lambda name: tokenizer  # type: ignore[assignment]
    start = time.perf_counter()
    anonymize_rows(log, tokenizer=TOKENIZER, profile=profile, **options)
    return time.perf_counter() - start


def command(log: str, folder: str) -> float:
    """Seconds of the command line, from nothing to two files."""
    out = os.path.join(folder, "out.jsonl")
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "kvtrace", "anonymize", log, "-o", out, "-q"], check=True)
    return time.perf_counter() - start


def rival(log: str) -> float:
    """Seconds that encode_batch_fast takes on all cores for the rendered prompts; nothing else is counted."""
    import tokenizers

    from kvtrace.text import tokenizer_files

    prompts = rendered(log)
    library = tokenizers.Tokenizer.from_file(str(tokenizer_files.find(TOKENIZER).tokenizer))
    start = time.perf_counter()
    for first in range(0, len(prompts), 1000):  # a batch at a time, or the encodings would fill the memory
        library.encode_batch_fast(prompts[first : first + 1000], add_special_tokens=False)
    return time.perf_counter() - start


def rendered(log: str) -> list[str]:
    """The prompts of a log as text."""
    import orjson

    from kvtrace.text import templates

    template = templates.load(TOKENIZER)
    assert template is not None
    with open(log, "rb") as file, template.remembering():
        inputs = [orjson.loads(line)["input"] for line in file]
        return [text if type(text) is str else template.render(text) for text in inputs if text]


def sum_of_stages(log: str) -> float:
    """Seconds of all stages, one after the other on one core."""
    return sum(stages(log).values())


def stages(log: str) -> dict[str, float]:
    """Seconds of each stage over a log, on one core: what the pipeline does, taken apart."""
    os.environ["FASTOKENS_BPE_THREADS"] = "1"
    import numpy as np

    from kvtrace._base.errors import EmptyPrompt
    from kvtrace.ingest import logs
    from kvtrace.ingest.collector import Collector
    from kvtrace.ingest.encoding import Batch, Encoder, Recipe
    from kvtrace.ingest.keys import Key
    from kvtrace.ingest.logs import sources

    files = sources.find(log)
    reader = logs.open_reader("auto", sources.sample(files))
    recipe = Recipe(reader, TOKENIZER, None, True, None, Key.random(), 512, "kept", False, True)
    encoder, collector = Encoder(recipe), Collector.of(recipe)
    encoder.tokenizer.wait()
    watch = Watch()
    for piece in sources.pieces(files):
        batch = Batch()
        lines = [line for line in piece.read().split(b"\n") if line]
        watch.stop("read")
        records = []
        for line in lines:
            try:
                records.append(reader.read(line))
            except EmptyPrompt:
                batch.empty += 1
        times = [reader.time_ns(record) for record in records]
        watch.stop("parse")
        with encoder.template.remembering():
            for record, time_ns in zip(records, times, strict=True):
                encoder._rendered(record, time_ns, "")
        batch.time_ns = np.array(times, dtype=np.int64)
        watch.stop("render")
        prompts, outputs = encoder._tokenised(records, [], batch)
        watch.stop("tokenise")
        encoder._measure(records, prompts, outputs, batch)
        encoder._hash(records, prompts, outputs, batch)
        watch.stop("hash")
        collector.add(batch)
        watch.stop("number")
    collector.finish({}, keep_order=False)
    watch.stop("number")
    return watch.seconds


class Watch:
    """Seconds by name, each since the one before."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def stop(self, name: str) -> None:
        """What was done since the last call is called this."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
