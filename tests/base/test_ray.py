"""Ray runs the same tasks to the same bytes, and a worker or a node that is killed in mid-run changes none of them."""

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvtrace._base.errors import UsageError
from kvtrace.ingest.encoding import Recipe
from kvtrace.ingest.encoding_options import EncodingOptions
from kvtrace.ingest.encoding_tasks import Partition, PartitionEncoder, RemoteEncoder
from kvtrace.ingest.keys import Key, load_key
from kvtrace.privacy.numbering.store import Store

pytestmark = [
    pytest.mark.xdist_group("ray"),  # one cluster at a time
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray"),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc"),
]
SOURCE = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = os.environ | {"RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled", "RAY_health_check_period_ms": "500",
                            "RAY_health_check_timeout_ms": "500", "RAY_health_check_failure_threshold": "3",
                            "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}  # fmt: skip


def write_log(path, count, seed=3):
    """Conversations as token ids, of several users."""
    draw = random.Random(seed)
    with open(path, "w") as file:
        for i in range(count):
            ids = [7] * draw.choice([8, 16, 24]) + [draw.randrange(300) for _ in range(draw.randrange(1, 90))]
            row = {"timestamp": draw.randrange(count) * 50, "prompt_token_ids": ids, "output_length": draw.randrange(9),
                   "session_id": f"s{draw.randrange(count // 4)}", "user": f"u{i % 9}"}  # fmt: skip
            file.write(json.dumps(row) + "\n")


def command(folder, output, *options):
    code = "import kvtrace.ingest.logs.sources as s; s.PIECE_BYTES = 20_000; from kvtrace.cli import main; main()"
    common = ["--block-size", "4", "--key-file", "key", "-q"]
    return [sys.executable, "-c", code, "anonymize", "log.jsonl", "-o", output, *common, *options]


def files(folder, name):
    return {path.name.removeprefix(name): path.read_bytes() for path in folder.glob(f"{name}*")}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A log, a key, and what an undisturbed run in one place makes of them."""
    folder = tmp_path_factory.mktemp("ray")
    write_log(folder / "log.jsonl", 6000)
    load_key(folder / "key")
    subprocess.run(command(folder, "one.jsonl"), cwd=folder, env=ENVIRONMENT, check=True, timeout=120)
    assert sorted(files(folder, "one.jsonl")) == ["", ".card.md", ".meta.json"]
    return folder


def test_a_ray_cluster_of_one_machine_writes_the_same_files(place):
    run = subprocess.run(
        command(place, "ray.jsonl", "--runner", "ray", "--partitions", "5"), cwd=place, env=ENVIRONMENT, timeout=200,
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert files(place, "ray.jsonl") == files(place, "one.jsonl")
    assert not [path for path in place.iterdir() if path.name.startswith(".")]


def test_nothing_of_the_key_is_in_what_ray_is_sent():
    import pickle

    secret = bytes(range(100, 116))
    recipe = Recipe(None, EncodingOptions(), Key(secret), 4, "kept")
    sent = pickle.dumps(
        RemoteEncoder.of(PartitionEncoder(type("Encoder", (), {"recipe": recipe})(), Store("work")), "key")
    )
    assert secret not in sent and secret in pickle.dumps(recipe)


def test_a_host_without_the_key_or_with_another_one_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = Recipe(None, EncodingOptions(), load_key("key"), 4, "kept")
    there = RemoteEncoder.of(PartitionEncoder(type("Encoder", (), {"recipe": recipe})(), Store("work")), "key")
    os.rename("key", "elsewhere")
    with pytest.raises(UsageError, match="the key file does not exist on this host"):
        there(Partition(0, ()))
    assert not os.path.exists("key")
    load_key("key")
    with pytest.raises(UsageError, match="has another key"):
        there(Partition(0, ()))


# -- nodes and workers that die --------------------------------------------------------------------------------------


def below(root):
    """A process and all that it started."""
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        try:
            left += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except OSError:
            continue
    return found


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def free_port():
    """A port that nobody has; asked for in a child, since tests have no sockets."""
    code = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


@pytest.fixture
def cluster(tmp_path):
    """Two Ray nodes on this machine, of one CPU each: their processes, and the address."""
    ray = Path(sys.executable).parent / "ray"
    address, temporary = f"127.0.0.1:{free_port()}", f"/tmp/kvtrace-ray-{os.getpid()}"
    common = ["--num-cpus=1", "--disable-usage-stats", "--block", "--object-store-memory=100000000"]
    head = [
        ray,
        "start",
        "--head",
        f"--port={address.split(':')[1]}",
        "--include-dashboard=false",
        f"--temp-dir={temporary}",
    ]
    nodes = []
    try:
        for start in (head, [ray, "start", f"--address={address}"]):
            with open(tmp_path / f"node{len(nodes)}", "w") as said:
                nodes.append(subprocess.Popen([*start, *common], env=ENVIRONMENT, stdout=said, stderr=said))
            deadline = time.monotonic() + 60
            while "raylet" not in " ".join(map(name_of, below(nodes[-1].pid))):
                assert nodes[-1].poll() is None and time.monotonic() < deadline, (
                    tmp_path / f"node{len(nodes) - 1}"
                ).read_text()
                time.sleep(0.2)
            time.sleep(2)
        yield nodes, address
    finally:
        for node in reversed(nodes):
            for pid in below(node.pid):
                kill(pid)
            node.wait()
        shutil.rmtree(temporary, ignore_errors=True)


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("what", ["node", "worker"])
def test_what_is_killed_in_mid_run_changes_no_byte(place, cluster, what):
    nodes, address = cluster
    work = place / f"work-{what}"
    options = ["--runner", "ray", "--ray-address", address, "--partitions", "40", "--work-dir", str(work)]
    run = subprocess.Popen(
        command(place, f"{what}.jsonl", *options), cwd=place, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 120
        while len(list((work / "encoded").glob("[0-9]*"))) < 5:
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        node = below(nodes[1].pid)
        killed = node if what == "node" else [pid for pid in node if "ray::" in name_of(pid)]
        assert killed
        for pid in killed:
            kill(pid)
        assert run.poll() is None  # it was in mid-run
        error = run.communicate(timeout=200)[1]
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == 0, error
    assert files(place, f"{what}.jsonl") == files(place, "one.jsonl") and not work.exists()
