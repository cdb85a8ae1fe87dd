"""`kvtrace record`: record live requests as traces, without storing text."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import click

from .._base.errors import StoppedError, pasted
from .._base.units import duration
from ..ingest.encoding_options import EncodingOptions
from ..privacy.release_options import ReleaseOptions
from .help import Command
from .options import QUIET_ERRORS, record_options, taken, taken_release
from .output import Outcome, console, print_line, rejected
from .source_options import READING, SOURCES, live_options, queue_bytes, stop_event

UNKNOWN_PARENTS = (
    "stores continue blocks that were not received: they came before the start, or were lost. These rows begin without "
    "their parents, so that hit rates are too low. Start the recorder before the engine, or name its replay socket: "
    "--kv-events EVENTS,REPLAY."
)
PROXY = {  # what became of requests, in words -> its counts
    "recorded": ("recorded",), "failed upstream": ("failed", "errors"), "not a generation": ("other",),
    "dropped": ("dropped",), "refused": ("refused",), "left by the client": ("left",),
}  # fmt: skip


@click.command("record", cls=Command, page="capture/record.md", groups={"--block-size": "Blocks", "--metrics": "Output"}, examples=(
    "kvtrace record -o recordings --otlp",
    "kvtrace record -o recordings --proxy 8001 --upstream http://127.0.0.1:8000",
    "kvtrace record -o recordings --follow log.jsonl --from-start --for 2s",
))
@click.option("-o", "--output", required=True, metavar="FOLDER", help="Folder for the sealed windows; made if it is missing.")
@SOURCES
@click.option("--window", default="1h", metavar="TIME", help="Length of a window: each becomes a trace of its own.")
@click.option("--for", "for_ms", metavar="TIME", help="Stop after this time.  [default: at Ctrl-C or SIGTERM]")
@click.option("--link-windows", is_flag=True, help="Use one key for all windows, and write beside each which blocks it shares with others; kvtrace join makes one trace of them.")
@click.option("--suffix", default=".jsonl", metavar="SUFFIX", help="End of the traces' names: .jsonl, .jsonl.gz, .jsonl.zst or .parquet.")
@READING
@record_options(EncodingOptions, only=("outputs",))
@record_options(ReleaseOptions)
@click.option("--key-file", metavar="FILE", help="Key file (mode 0600), created if it does not exist: a recorder that starts again goes on with the open window.  [default: a random key for each window, never stored]")
@QUIET_ERRORS
def record_command(output, window, for_ms, link_windows, suffix, key_file, quiet, **options):
    """Record live requests as traces, without storing text.

    Each request becomes keyed digests, lengths and times, off the request path. At the end of each window its blocks are numbered from 0, the window is released by its profile,
    audited, and written with its sidecar and data card. Stop the service with Ctrl-C: the last window is then sealed.
    """
    from ..capture.live import Live
    from ..capture.recorder import Recorder
    from ..ingest.keys import run_key

    live, queue = live_options(options), queue_bytes(options)
    encoding, release = taken(EncodingOptions, options), taken_release(options)
    screen, lock = console(), threading.Lock()

    def say(sentence: str) -> None:
        with lock:
            screen.print(sentence, highlight=False, markup=False)

    with stop_event() as stopped, ExitStack() as stack:  # a signal during the start ends it in order
        with run_key(key_file) as key:
            recorder = stack.enter_context(Recorder(
                output, encoding, release, window_s=window / 1000, key=key, link_windows=link_windows, suffix=suffix,
                queue_bytes=queue, on_message=say,
            ))  # fmt: skip
        with Live(live, recorder, ledger=recorder.ledger, metrics=_metrics(recorder) if live.metrics else None, on_message=say, supervisor=recorder.supervisor) as running:
            if not quiet:
                for name, address in running.addresses.items():
                    print_line(screen, f"{name:<12}http://{address}")
                print_line(screen, f"recording   {output}, windows of {duration(window / 1000)}")
            stopped.wait(None if for_ms is None else for_ms / 1000)
        if not quiet:
            say("stopping: what waits is digested, and the window is sealed.")
    counts = recorder.counts()
    if not quiet:
        for line in _summary(counts, live):
            print_line(screen, line)
        if counts.sealed and (windows := sorted(Path(output).glob(f"window-*{suffix}"))):
            print_line(screen, f"next        kvtrace start {pasted(windows[-1])}")
    if (missing := recorder.shortfall()) is not None:
        raise StoppedError(missing)
    return Outcome(counts)


def _metrics(recorder):
    """The application of --metrics: the counts of the recorder."""
    from dataclasses import asdict

    from ..capture.metrics import Reading, metrics_app, registry_of

    return metrics_app(registry_of(lambda: Reading(counts=asdict(recorder.counts()))), recorder.problem)


def _summary(counts, live):
    """What was recorded, line by line."""
    came = f"of {counts.accepted:,} accepted"
    if live.kv_events:
        came = f"from {counts.accepted:,} {'requests and ' if live.otlp or live.proxy or live.follow else ''}batches of KV events"
    yield f"requests    {counts.digested:,} {came}, {counts.tokens:,} prompt tokens"
    if counts.unknown_parents:
        yield f"kv events   {counts.unknown_parents:,} {UNKNOWN_PARENTS}"
    if requests := counts.proxy.get("requests"):
        became = {words: sum(counts.proxy.get(name, 0) for name in names) for words, names in PROXY.items()}
        stated = ", ".join(f"{count:,} {words}" for words, count in became.items() if count or words == "recorded")
        yield f"proxy       {requests:,} request{'' if requests == 1 else 's'}: {stated}"
    if counts.refused:
        yield f"refused     {counts.refused:,}, which their clients send again"
    missing = {name: getattr(counts, name) for name in ("dropped", "lost", "rejected", "malformed", "left_out")}
    if any(missing.values()):
        yield "missing     " + ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in missing.items() if count)
    yield from rejected(counts.reasons)
