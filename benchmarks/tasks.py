"""Anonymising in tasks: memory, CPU time and spilled bytes from 1e6 to 1e8 block references, here and on Ray.

python -m benchmarks.tasks                   1e6, 1e7 and 1e8 references (a quarter of an hour, 6 GB of temporary files)
python -m benchmarks.tasks 1e6 1e7           other sizes
python -m benchmarks.tasks --runner local    one runner only

Memory is the sum of the proportional set sizes of all processes (the kernel's PSS: shared pages count once), sampled
ten times a second, Ray's above its idle cluster. CPU time is that of all processes, less what a log of 1,000
references takes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

SESSIONS = 20_000  # that are written together
TURNS = (8, 20, 36, 60)  # tokens of a conversation's prompts: 124 references a session, half of them new
TINY = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=float, default=[1e6, 1e7, 1e8])
    parser.add_argument("--runner", choices=["local", "ray"], action="append")
    options = parser.parse_args()
    print(
        f"{'runner':7}{'references':>13}{'wall':>9}{'CPU':>9}{'us/block':>10}{'peak MB':>9}{'spilled MB':>12}"
        f"{'B/block':>9}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for runner in options.runner or ["local", "ray"]:
            base = 0.0
            for size in [TINY, *map(int, options.sizes)]:
                log = Path(folder) / "log.jsonl"
                references = write_log(log, size)
                with Cluster(runner) as cluster:
                    taken = measured(log, Path(folder) / "out.dataset", runner, cluster)
                if size == TINY:
                    base = taken["cpu"]
                    continue
                cpu = taken["cpu"] - base
                print(
                    f"{runner:7}{references:13,}{taken['wall']:8.1f}s{cpu:8.1f}s{cpu / references * 1e6:10.3f}"
                    f"{taken['peak'] / 1e6:9,.0f}{taken['spilled'] / 1e6:12,.0f}{taken['spilled'] / references:9.1f}",
                    flush=True,
                )  # fmt: skip


def write_log(path: Path, references: int) -> int:
    """A log of conversations as token ids, whose prompts hold about so many tokens; returns how many."""
    rng, done, session = np.random.default_rng(7), 0, 0
    with open(path, "w", encoding="ascii") as file:
        while done < references:
            count = max(1, min(SESSIONS, (references - done) // sum(TURNS)))
            opening, rest = rng.integers(0, 50, count), rng.integers(50, 1000, (count, TURNS[-1] - 4))
            lines = []
            for turn, length in enumerate(TURNS):
                starts = (session + np.arange(count)) * 100 + turn * 30_000 + rng.integers(0, 5000, count)
                for i in range(count):
                    first = int(opening[i])
                    ids = [first, first, first, first, *rest[i, : length - 4].tolist()]
                    row = {"timestamp": int(starts[i]), "prompt_token_ids": ids, "output_length": 9,
                           "session_id": session + i}  # fmt: skip
                    lines.append((starts[i], json.dumps(row)))
            lines.sort()
            file.writelines(f"{line}\n" for _, line in lines)
            done += count * sum(TURNS)
            session += count
    return done


class Cluster:
    """A Ray cluster of this machine for the time of a block, and what it takes while idle; nothing for `local`."""

    def __init__(self, runner: str):
        self._is_ray, self.idle_bytes = runner == "ray", 0

    def __enter__(self) -> Cluster:
        if self._is_ray:
            os.environ["RAY_AUTH_MODE"] = "disabled"  # nobody but this machine reaches it
            command = [_script("ray"), "start", "--head", "--node-ip-address=127.0.0.1", "--port=6399",
                       "--include-dashboard=false", "--disable-usage-stats"]  # fmt: skip
            subprocess.run(command, check=True, capture_output=True)
            time.sleep(5)
            self.idle_bytes = sum(memory(pid) for pid in self.pids())
        return self

    def pids(self) -> set[int]:
        """The processes of the cluster."""
        return {pid for pid, line in command_lines() if "ray" in line} if self._is_ray else set()

    def __exit__(self, *_):
        if self._is_ray:
            subprocess.run([_script("ray"), "stop", "--force"], check=True, capture_output=True)


def measured(log: Path, output: Path, runner: str, cluster: Cluster) -> dict[str, float]:
    """Seconds, CPU seconds, peak bytes of memory and bytes of files handed on of one run."""
    key = log.with_suffix(".key")
    code = "import sys; from kvtrace.cli import main; main()"
    work = log.parent / "work"
    command = [
        sys.executable, "-c", code, "anonymize", str(log), "-o", str(output), "--format", "dataset", "-q",
        "--block-size", "1", "--profile", "exact", "--runner", runner, "--key-file", str(key), "--work-dir", str(work),
        *(["--ray-address", "127.0.0.1:6399"] if runner == "ray" else []),
    ]  # fmt: skip
    before = {pid: cpu(pid) for pid in cluster.pids()}
    start = time.perf_counter()
    process = subprocess.Popen(command)
    watch = Watch(process.pid, cluster, work)
    watch.start()
    process.wait()
    wall = time.perf_counter() - start
    watch.stop()
    if process.returncode:
        raise SystemExit(process.returncode)
    spent = sum(watch.cpu.values()) - sum(before.values())
    return {"wall": wall, "cpu": spent, "peak": watch.peak - cluster.idle_bytes, "spilled": watch.spilled}


class Watch(threading.Thread):
    """Looks at a process, all below it and a cluster, ten times a second."""

    def __init__(self, pid: int, cluster: Cluster, work: Path):
        super().__init__(daemon=True)
        self.peak, self.spilled, self.cpu = 0, 0, {}  # type: ignore[var-annotated]
        self._pid, self._cluster, self._work, self._done = pid, cluster, work, threading.Event()

    def run(self):
        """Look until told to stop."""
        while not self._done.wait(0.1):
            pids = below(self._pid) | self._cluster.pids()
            self.peak = max(self.peak, sum(memory(pid) for pid in pids))
            for pid in pids:
                self.cpu[pid] = max(self.cpu.get(pid, 0.0), cpu(pid))
            self.spilled = max(self.spilled, folder_bytes(self._work))

    def stop(self):
        """Look no more."""
        self._done.set()
        self.join()


def below(root: int) -> set[int]:
    """A process and all that it started."""
    found, left = set(), [root]
    while left:
        pid = left.pop()
        found.add(pid)
        try:
            left += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            continue
    return found


def memory(pid: int) -> int:
    """The proportional set size of a process in bytes, 0 if it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def cpu(pid: int) -> float:
    """CPU seconds that a process has taken."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def command_lines():
    """(pid, command line) of all processes."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            yield int(path.name), (path / "cmdline").read_text()
        except OSError:
            continue


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


if __name__ == "__main__":
    main()
