"""Anonymising beside `tokenizers` alone, which only encodes the same prompts, and beside its own stages; its memory."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator

from .inputs import agent, large, token_ids
from .measuring import Line, apart, wall

TOKENIZER = "deepseek-r1"
REQUESTS, TOKENS, SMALL = 10_000, 4000, 4  # prompts, their tokens, and tokens a block
PIECES = 16e6  # bytes of text in work


def lines(folder: str, share: float) -> Iterator[Line]:
    """The speed of the pipeline and of the whole command, and the growth of the peak."""
    megabytes, cores = 110 * share, len(os.sched_getaffinity(0))
    log, small = large(folder, megabytes), agent(folder, share)
    name, ours = f"anonymise {megabytes:.0f} MB", (pipeline, log)
    yield Line(f"{name} / tokenizers alone", "s", ours, (rival, log), 1 / 8)
    yield Line(f"{name} as standard / as exact", "s", ours, (pipeline, log, "exact"), 1.15)
    yield Line(f"{name}, resumable / not", "s", (resumable, log), ours, 1.1)
    out = os.path.join(folder, "out.jsonl")
    yield Line(
        f"anonymise {10 * share:.1f} MB, whole command / tokenizers alone", "s",
        (wall, "anonymize", small, "-o", out, "-q"), (rival, small), 1,
    )  # fmt: skip
    few = round(REQUESTS * share)
    logs = [token_ids(folder, count, TOKENS) for count in (few, 3 * few)]
    allowed = 12 * 2 * few * TOKENS / SMALL + PIECES
    yield Line("anonymise: growth of the peak / 12 bytes a reference", "MB", (growth, *logs), allowed, 1.2)
    once = large(folder, megabytes / 10)
    yield Line("anonymise: peak without ids, ten times the text / once", "MB", (text_peak, log), (text_peak, once), 1.2)
    taken = apart(stages, log)
    yield Line(f"{name} / own stages, {cores} cores", "s", ours, sum(taken.values()) / cores, 2)
    for stage, seconds in taken.items():
        yield Line(f"{name} on one core, {stage}", "s", seconds)


def growth(few: str, many: str) -> float:
    """Bytes that the peak grows by."""
    less, more = (apart(peak, log, None, SMALL)[0] for log in (few, many))
    return more - less


def text_peak(log: str) -> float:
    """The peak without what the trace itself keeps."""
    found, held = peak(log, TOKENIZER, 512)
    return found - held


def peak(log: str, tokenizer: str | None, block_size: int) -> tuple[float, float]:
    """The largest resident memory of any process (bytes), and what the trace itself has to keep."""
    import kvtrace

    trace = kvtrace.ingest.anonymize(log, tokenizer=tokenizer, block_size=block_size)
    used = [resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return max(used), 100 * len(trace) + 12 * len(trace.hash_ids) + 40 * trace.distinct


def resumable(log: str) -> float:
    """Seconds of the same with all that is done kept in a checkpoint."""
    from kvtrace.ingest.checkpoint import Checkpoint
    from kvtrace.ingest.keys import Key

    with Checkpoint(f"{log}.resume") as checkpoint:
        return pipeline(log, key=Key.random(), checkpoint=checkpoint)


def pipeline(log: str, profile: str = "standard", **options) -> float:
    """Seconds from a log to released rows on all cores, with a tokenizer that is loaded."""
    from kvtrace.ingest.encoding_options import EncodingOptions
    from kvtrace.ingest.pipeline import anonymize_rows
    from kvtrace.privacy.release_options import ReleaseOptions
    from kvtrace.text import tokenizers

    tokenizer = tokenizers.load(TOKENIZER).wait()
    tokenizers.load = lambda name, **_: tokenizer  # type: ignore[assignment]
    start = time.perf_counter()
    release = ReleaseOptions(profile=profile)  # type: ignore[arg-type]
    anonymize_rows(log, EncodingOptions(tokenizer=TOKENIZER), release, **options)
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


def stages(log: str) -> dict[str, float]:
    """Seconds of each stage over a log, on one core: what the pipeline does, taken apart."""
    os.environ["FASTOKENS_BPE_THREADS"] = "1"
    import numpy as np

    from kvtrace._base.errors import EmptyPrompt
    from kvtrace.ingest import logs
    from kvtrace.ingest.collector import Collector
    from kvtrace.ingest.encoding import Batch, Encoder
    from kvtrace.ingest.encoding_options import EncodingOptions
    from kvtrace.ingest.keys import Key
    from kvtrace.ingest.logs import sources
    from kvtrace.ingest.preparation import recipe_of
    from kvtrace.privacy.profiles import PROFILES

    files = sources.find(log)
    reader = logs.open_reader("auto", sources.sample(files))
    recipe = recipe_of(reader, EncodingOptions(tokenizer=TOKENIZER), PROFILES["exact"], Key.random())
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
