"""A run killed at its n-th event, in the middle of a write too, or at any moment; and what must be true after that.

    python -m tests.ingest.kill_points N REPORT ARGUMENT...    the child: kvtrace with those arguments, SIGKILL at N

Events are what a run does to files and the steps in between. The child wraps the functions that do them, in itself
only: the product knows nothing of this. Its pieces and buffers are small, so that a small log has many events.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIECE_BYTES, BUFFER, SYNC = 500, 300, 4

# -- in the child ----------------------------------------------------------------------------------------------------


@dataclass
class Events:
    """Counts what this process does, and ends it at one of them as a power cut of its own would."""

    last: int  # 0 = never
    report: str  # file for the number of events, when the run comes to its end
    count: int = 0
    process: int = field(default_factory=os.getpid)

    def happen(self) -> bool:
        """Count an event; True where it is the last."""
        if os.getpid() != self.process:
            return False  # a worker
        self.count += 1
        return self.count == self.last

    def before_and_after(self, owner, name):
        """Calls of a function, with an event on either side."""
        call = getattr(owner, name)

        def wrapped(*arguments, **options):
            if self.happen():
                die()
            found = call(*arguments, **options)
            if self.happen():
                die()
            return found

        setattr(owner, name, wrapped)

    def in_halves(self, owner, name, place):
        """Calls that write bytes, with events before, after half of them, and after all; `place`: which argument."""
        call = getattr(owner, name)

        def wrapped(*arguments):
            if self.happen():
                die()
            if self.happen():
                half = list(arguments)
                half[place] = bytes(half[place])[: len(half[place]) // 2]
                call(*half)
                if hasattr(arguments[0], "_packed"):
                    arguments[0]._packed.flush()  # so that the half is in the file
                die()
            return call(*arguments)

        setattr(owner, name, wrapped)

    def ended(self):
        """Say how many there were."""
        Path(self.report).write_text(str(self.count))


def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # until the signal is there


def child(last, report, arguments):
    """Run kvtrace with these arguments until event `last`."""
    import fcntl

    from kvtrace import cli
    from kvtrace._base import checkpoint as checkpoints
    from kvtrace._base import output_files
    from kvtrace.ingest import checkpoint as checkpoint
    from kvtrace.ingest import encoding_tasks
    from kvtrace.ingest.logs import sources
    from kvtrace.privacy import publishing as publish
    from kvtrace.privacy.numbering.store import Store

    anonymize = import_module("kvtrace.ingest.pipeline")  # the package's attribute of that name is the function
    sources.PIECE_BYTES, output_files.BUFFER, checkpoints.SYNC_ENTRIES = PIECE_BYTES, BUFFER, SYNC
    anonymize.SMALL = 0  # workers for a small log too
    events = Events(int(last), report)
    events.in_halves(os, "pwrite", 1)
    events.in_halves(output_files._Sink, "write", 1)
    for owner, name in (
        (os, "fsync"), (os, "replace"), (os, "unlink"), (os, "ftruncate"), (fcntl, "flock"),
        (output_files.Output, "finish"),
        (anonymize.Collector, "add"), (anonymize.Collector, "finish"), (anonymize, "released_draft"),
        (publish, "audited"), (publish, "card"), (checkpoint.Checkpoint, "begin"),
        (encoding_tasks.TaskCheckpoint, "append_partition"),
        (Store, "write"), (Store, "remove"),
    ):  # fmt: skip
        events.before_and_after(owner, name)
    status = cli.run(arguments)
    events.ended()
    return status


# -- in the parent ---------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """One way to call kvtrace anonymize: a log, options, the files that it writes, and their right bytes."""

    name: str
    log: Path
    key: Path
    output: str  # in a folder of its own
    options: list[str]
    more: tuple[str, ...] = ()  # files beside output, sidecar and card
    events: int = 0
    seconds: float = 0.0
    expected: dict[str, bytes] = field(default_factory=dict)

    @property
    def written(self):
        """The names of the files that a whole run leaves."""
        return {self.output, f"{self.output}.meta.json", f"{self.output}.card.md", *self.more}

    def run(self, folder: Path, *options, last=0, after=None):
        """The exit status of a run in a folder; killed at its event `last`, or after so many seconds."""
        events = str(folder.parent / "events")
        command = [sys.executable, "-m", "tests.ingest.kill_points", str(last), events, "anonymize",
                   str(self.log), "-o", str(folder / self.output), "-q", "--key-file", str(self.key),
                   *(option.replace("FOLDER", str(folder)) for option in self.options), *options]  # fmt: skip
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        )
        if after is not None:
            time.sleep(after)
            process.kill()
        self.said = process.communicate(timeout=120)[1].decode()
        return process.returncode

    def learn(self, folder: Path):
        """Run undisturbed: the right bytes, and how many events there are."""
        folder.mkdir(parents=True)
        begun = time.monotonic()
        assert self.run(folder) == 0, self.said
        self.seconds = time.monotonic() - begun
        self.expected = files(folder)
        assert set(self.expected) == self.written
        self.events = int((folder.parent / "events").read_text())


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def try_one(case: Case, folder: Path, draw: random.Random) -> str:
    """Kill a run, perhaps its resumption too, resume, and compare; returns where it was killed."""
    folder.mkdir(parents=True)
    workers = ("--workers", str(draw.choice([1, 2, 8])))
    told = []
    for attempt in range(draw.choice([1, 1, 2])):
        options = (*workers, *(["--resume"] if attempt else []))
        if draw.random() < 0.15:
            moment = draw.uniform(0, case.seconds)
            status, place = case.run(folder, *options, after=moment), f"after {moment:.2f} s"
        else:
            last = draw.randint(1, case.events)
            status, place = case.run(folder, *options, last=last), f"at event {last} of {case.events}"
        told.append(f"{case.name}, {' '.join(options)}, killed {place}")
        assert status in (0, -signal.SIGKILL), (told, status, case.said)
        for name, content in files(folder).items():  # a file has its name when it is whole and right, and not before
            assert name not in case.written or content == case.expected[name], (told, name)
        if status == 0:
            break
    status = case.run(folder, "--resume", "--workers", str(draw.choice([1, 2, 8])))
    assert status == 0, (told, case.said)
    found = files(folder)
    assert set(os.listdir(folder)) == case.written, (told, sorted(found))
    assert found == case.expected, told
    return "; ".join(told)


if __name__ == "__main__":
    sys.exit(child(sys.argv[1], sys.argv[2], sys.argv[3:]))
