"""A run that was stopped goes on: the same bytes in every file, wherever it stopped, and nothing else left of it."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import kvtrace
from kvtrace._base.checkpoint import CONTINUES
from kvtrace._base.errors import InputError, KvtraceError, RowError, StoppedError, UsageError
from kvtrace._base.output_files import outputs_together
from kvtrace.cli import run
from kvtrace.ingest.checkpoint import FRAME_HEADER, Checkpoint, packed, settings_of, unpacked
from kvtrace.ingest.encoding import Batch, Reject, RowPosition
from kvtrace.ingest.encoding_tasks import TaskCheckpoint
from kvtrace.ingest.keys import Key, load_key
from kvtrace.ingest.usage import UsageCheck
from tests.conftest import drawn
from tests.ingest import kill_points
from tests.ingest.flat import anonymize_rows

pytestmark = pytest.mark.skipif(os.name != "posix", reason="no locks on files")
HERE = Path(__file__).resolve().parents[1]
TINY = HERE / "data/tokenizers/tiny"
POINTS = int(os.environ.get("KVTRACE_KILL_POINTS", drawn(20)))
TASKS = ["--runner", "local", "--partitions", "5"]
CANARY = "keeper-canary-7f3a"


# -- logs of our own -------------------------------------------------------------------------------------------------


def token_rows(count, seed=3):
    """Requests of five users in seven sessions, whose prompts share their beginnings."""
    draw = random.Random(seed)
    for i in range(count):
        ids = [7] * draw.choice([4, 8, 12]) + [draw.randrange(500) for _ in range(draw.randrange(1, 12))]
        yield {"timestamp": i * 500, "prompt_token_ids": ids, "output_length": draw.randrange(9),
               "session_id": f"s{i % 7}", "user": f"u{i % 5}"}  # fmt: skip


def text_rows(count, seed=4):
    """Prompts as text, some empty; every ninth row is bad."""
    draw = random.Random(seed)
    for i in range(count):
        words = " ".join(draw.choice(["keeper", "boats", "counts", "harbour"]) for _ in range(draw.randrange(0, 20)))
        yield {"timestamp": i, "input": 7 if i % 9 == 4 else words, "output": draw.randrange(5), "session": f"s{i % 4}"}


def write_log(path, rows):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


# -- any moment ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Several formats, profiles and kinds of input, each run once undisturbed."""
    folder = tmp_path_factory.mktemp("cases")
    key = folder / "key"
    tokens = write_log(folder / "tokens.jsonl", token_rows(60))
    texts = write_log(folder / "texts.jsonl.gz", text_rows(80))
    small = ["--tokenizer", str(TINY), "--block-size", "4"]
    skip = ["--on-error", "skip", "--rejects", "FOLDER/bad.jsonl"]
    found = [
        kill_points.Case("mooncake", tokens, key, "out.jsonl", small),
        kill_points.Case("strict parquet", tokens, key, "out.parquet", [*small, "--profile", "strict"]),
        kill_points.Case(
            "sampled", tokens, key, "out.jsonl.zst", [*small, "--profile", "exact", "--sample-sessions", "0.6"]
        ),
        kill_points.Case(
            "rejects", texts, key, "out.jsonl.gz", [*small, *skip, "--profile", "exact", "--outputs"], ("bad.jsonl",)
        ),
        kill_points.Case("tasks", tokens, key, "out.jsonl", [*small, *TASKS]),
        kill_points.Case(
            "tasks in log order",
            texts,
            key,
            "out.jsonl",
            [*small, *TASKS, *skip[:2], "--profile", "exact", "--keep-order"],
        ),
    ]
    for case in found:
        case.learn(folder / case.name / "whole")
    return found


def test_a_run_killed_at_any_point_resumes_to_the_same_bytes(cases, tmp_path):
    seed = int(os.environ.get("KVTRACE_KILL_SEED", 0))
    for point in range(POINTS):
        draw = random.Random(seed * 100_003 + point)
        case = cases[point % len(cases)]
        print(kill_points.try_one(case, tmp_path / str(point) / "run", draw))


# -- in this process: runs that stop after so many pieces ------------------------------------------------------------


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr("kvtrace.ingest.logs.sources.PIECE_BYTES", kill_points.PIECE_BYTES)
    monkeypatch.setattr(sys.modules["kvtrace.ingest.pipeline"], "SMALL", 0)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to stand in, with a log, a key and what an undisturbed run makes of them."""
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.jsonl", token_rows(40))
    load_key("key")
    return tmp_path


OPTIONS = {"block_size": 4, "tokenizer": str(TINY), "workers": 1}
COMMAND = f"anonymize log.jsonl -o out.jsonl -q --tokenizer {TINY} --block-size 4 --workers 1 --key-file key".split()
CHECKPOINT = "out.jsonl.resume"


def made(log="log.jsonl", checkpoint=None, **options):
    """The columns of a run, as bytes, and its counts."""
    rows = anonymize_rows(log, key=load_key("key"), checkpoint=checkpoint, **(OPTIONS | options))
    columns = (getattr(rows.columns, name) for name in ("timestamp", "input_length", "hash_ids", "session", "parent"))
    return [None if column is None else column.tobytes() for column in columns], rows.counts, rows.meta


class Enough(BaseException):
    """Stands for a signal."""


def stop_after(pieces, log="log.jsonl", checkpoint=CHECKPOINT, resume=False, **options):
    """Run until so many pieces are done; their batches but the last are in the checkpoint."""
    seen = []

    def count(progress):
        seen.append(progress)
        if len(seen) > pieces:
            raise Enough

    with pytest.raises(Enough) as stop, Checkpoint(checkpoint, resume=resume) as kept:
        made(log, kept, on_progress=count, **options)
    return stop.value


def resumed(log="log.jsonl", checkpoint=CHECKPOINT, **options):
    with Checkpoint(checkpoint, resume=True) as kept:
        found = made(log, kept, **options)
    assert not Path(checkpoint).exists()
    return found


@pytest.mark.parametrize("pieces", [1, 3, 6])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_resumed_run_writes_the_bytes_of_an_undisturbed_run(place, pieces, workers):
    stop_after(pieces, workers=workers)
    stop_after(pieces + 2, resume=True)
    assert resumed(workers=3 - workers) == made()


def test_finished_batches_are_not_encoded_again(place, monkeypatch):
    from kvtrace.ingest.encoding import Encoder

    stop_after(5)
    encoded, call = [], Encoder.__call__
    monkeypatch.setattr(Encoder, "__call__", lambda self, piece: encoded.append(piece.index) or call(self, piece))
    resumed()
    assert encoded[0] == 5 and encoded == sorted(encoded)


def test_resume_without_a_checkpoint_does_the_whole_run(place):
    assert resumed() == made()


def test_a_checkpoint_damaged_anywhere_gives_the_same_result(place):
    stop_after(7)
    whole, right, draw = Path(CHECKPOINT).read_bytes(), made(), random.Random(1)
    header = whole.index(b"\n") + 1
    for cut in [0, 1, 17, 18, header - 1, header, header + 5, header + 12, *draw.sample(range(len(whole)), 20)]:
        Path(CHECKPOINT).write_bytes(whole[:cut])
        assert resumed() == right
        Path(CHECKPOINT).touch(0o600)
    for at in draw.sample(range(header, len(whole)), 20):
        Path(CHECKPOINT).write_bytes(whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :])
        assert resumed() == right
        Path(CHECKPOINT).touch(0o600)
    Path(CHECKPOINT).write_bytes(whole + bytes(4096))  # as a file system may leave it after a power cut
    assert resumed() == right


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_field_of_a_batch_survives(data):
    rows = data.draw(st.integers(0, 5))

    def column(dtype, *shape):
        return data.draw(arrays.arrays(dtype, (rows, *shape)))

    kinds = {
        "int": lambda: data.draw(st.integers(0, 2**62)),
        "np.ndarray": lambda: data.draw(st.sampled_from([column(np.int64), column(np.uint64, 2)])),
        "np.ndarray | None": lambda: data.draw(st.sampled_from([None, column(np.bool_), column(np.uint64, 2)])),
        "dict[str, int]": lambda: data.draw(st.dictionaries(st.sampled_from(["tools", "media"]), st.integers(0, 9))),
        "UsageCheck | None": lambda: data.draw(st.sampled_from([None, UsageCheck.of([{"ours": 3, "logged": 4}])])),
        "list[str | None]": lambda: data.draw(st.lists(st.none() | st.sampled_from(["text", "image"]), max_size=4)),
        "list[Reject]": lambda: [
            Reject(RowPosition(2, 31, 4), RowError("is bad.", field="a.b", hint=data.draw(st.none() | st.text()))),
        ],
    }
    batch = Batch(**{field.name: kinds[field.type]() for field in fields(Batch)})
    found = unpacked(packed(batch))
    for field in fields(Batch):
        was, now = getattr(batch, field.name), getattr(found, field.name)
        if isinstance(was, np.ndarray):
            assert now.dtype == was.dtype and now.shape == was.shape and now.tobytes() == was.tobytes()
            assert now.flags.writeable and now.flags.aligned
        elif field.name == "rejects":
            assert [(r.position, r.error.reason, r.error.field, r.error.hint) for r in now] == [
                (r.position, r.error.reason, r.error.field, r.error.hint) for r in was
            ]
        else:
            assert now == was and type(now) is type(was)


# -- what the checkpoint holds
# --------------------------------------------------------------------------------------------


def disguises(secret: bytes):
    import base64
    import hashlib

    yield from (secret, secret[::-1], secret.hex().encode(), base64.b64encode(secret)[:-4])
    for name in ("md5", "sha1", "sha256", "sha512", "blake2b", "blake2s"):
        digest = hashlib.new(name, secret).digest()
        yield from (digest[:8], digest[-8:], digest.hex().encode()[:16])


def test_the_checkpoint_holds_no_text_token_name_or_key(place):
    rows = [
        {"timestamp": i, "input": f"{CANARY} {i}", "output": 3, "session": f"{CANARY}-s", "user": f"{CANARY}-u",
         "model": f"{CANARY}-m", "type": CANARY}
        for i in range(30)
    ]  # fmt: skip
    tokens = [[907_654_321 + j for j in range(9)] for _ in range(30)]
    write_log(place / "texts.jsonl", rows)
    ids = [{"timestamp": i, "prompt_token_ids": row, "output_length": 1} for i, row in enumerate(tokens)]
    write_log(place / "ids.jsonl", ids)
    secrets = [name.encode() for name in (CANARY, f"{CANARY}-s", f"{CANARY}-u", f"{CANARY}-m", f"{CANARY} 3")]
    secrets += [bytes.fromhex(Path("key").read_text()), Path("key").read_bytes().strip()]
    secrets += [np.array(tokens[0][:n], dtype).tobytes() for n in (1, 4) for dtype in ("<u4", "<i8", ">u4")]
    for log in ("texts.jsonl", "ids.jsonl"):
        stop_after(4, log, log + ".resume", outputs=True, profile="exact")
        held = Path(log + ".resume").read_bytes()
        for secret in secrets:
            assert not [part for part in disguises(secret) if part in held]
        assert b"texts" not in held and str(TINY).encode() not in held and str(place).encode() not in held


def test_no_digest_in_the_checkpoint_is_the_same_under_another_key(place):
    def digests():
        stop_after(5)
        batches = [unpacked(frame[FRAME_HEADER.size :]) for frame in frames_of(CHECKPOINT)[1:]]
        found = np.concatenate([np.concatenate([b.digests, b.session, b.user]) for b in batches])
        Path(CHECKPOINT).unlink(missing_ok=True)
        return set(found[:, 0].tolist()) | set(found[:, 1].tolist())

    first = digests()
    assert first == digests() and len(first) > 50
    Path("key").unlink()
    assert not first & digests()


def test_only_the_owner_can_read_the_checkpoint(place):
    before = os.umask(0)
    try:
        stop_after(2)
    finally:
        os.umask(before)
    assert Path(CHECKPOINT).stat().st_mode & 0o777 == 0o600
    Path(CHECKPOINT).chmod(0o640)
    assert told(run([*COMMAND, "--resume"]), 2)


def test_an_error_before_the_first_batch_leaves_no_checkpoint(place):
    write_log(place / "bad.jsonl", [{"timestamp": 0, "prompt_token_ids": CANARY}])
    for log in ("bad.jsonl", "gone.jsonl"):
        with pytest.raises(KvtraceError), Checkpoint(CHECKPOINT) as checkpoint:
            made(log, checkpoint)
        assert not Path(CHECKPOINT).exists()
    with pytest.raises(UsageError, match="requires a key"), Checkpoint(CHECKPOINT) as checkpoint:
        anonymize_rows("log.jsonl", checkpoint=checkpoint, **OPTIONS)
    assert not Path(CHECKPOINT).exists()


# -- what fits and what does not -------------------------------------------------------------------------------------


def told(status, expected, capsys=None, *words):
    """True where a command ended with a status and one line that says these words."""
    assert status == expected
    if capsys is not None:
        (line,) = capsys.readouterr().err.splitlines()
        assert all(word in line for word in words), line
    return True


def test_a_planted_batch_is_not_taken(place):
    """Frames of another log under the same key, our own in another order, and changed ones are not of this run."""
    write_log(place / "other.jsonl", token_rows(40, seed=9))
    stop_after(6, "other.jsonl", "other.resume")
    stop_after(6)
    frames = {name: frames_of(name) for name in (CHECKPOINT, "other.resume")}
    right, (header, *ours) = made(), frames[CHECKPOINT]
    for planted in (frames["other.resume"][1:], ours[::-1], [ours[0], *ours], [with_crc(ours[0]), *ours[1:]]):
        Path(CHECKPOINT).write_bytes(header + b"".join(planted))
        assert resumed() == right
        Path(CHECKPOINT).touch(0o600)


def frames_of(name):
    """The header and the frames of a checkpoint."""
    data = Path(name).read_bytes()
    places = [data.index(b"\n") + 1]
    while places[-1] < len(data):
        places.append(places[-1] + FRAME_HEADER.size + FRAME_HEADER.unpack_from(data, places[-1])[0])
    return [data[start:stop] for start, stop in zip([0, *places], places, strict=False)]


def with_crc(frame):
    """A changed batch whose maker has no key."""
    import hashlib

    data = bytearray(frame[FRAME_HEADER.size :])
    data[-1] ^= 1
    return FRAME_HEADER.pack(len(data), hashlib.blake2b(data, digest_size=16).digest()) + bytes(data)


@pytest.mark.parametrize(
    "values", [{"inputs": 5}, {"settings": [1]}, {"inputs": [["x"]]}, {"digest": 7}, {"partitions": "many"}]
)
@pytest.mark.parametrize("tasks", [[], TASKS])
def test_a_header_that_was_changed_is_one_sentence(place, capsys, values, tasks):
    stop_after(3)
    header, frames = Path(CHECKPOINT).read_bytes().split(b"\n", 1)
    Path(CHECKPOINT).write_bytes(json.dumps(json.loads(header) | values).encode() + b"\n" + frames)
    assert told(run([*COMMAND, *tasks, "--resume"]), 2, capsys, "the checkpoint is damaged. Delete it to start over.")


def test_the_checkpoint_of_an_unfinished_run_is_not_overwritten(place, capsys):
    stop_after(3)
    before = Path(CHECKPOINT).read_bytes()
    assert told(run(COMMAND), 2, capsys, "unfinished", "--resume", "delete it")
    assert Path(CHECKPOINT).read_bytes() == before


def test_another_key_is_refused(place, capsys):
    stop_after(3)
    assert told(run([*COMMAND, "--resume", "--key-file", "other"]), 2, capsys, "another key")
    assert resumed() == made()


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--block-size 8", ["--block-size"]),
        ("--outputs", ["--outputs"]),
        ("--tail dropped", ["--tail"]),
        ("--map user=session_id --time-unit s", ["--map", "--time-unit"]),
        ("--isolate-tenants --allow-truncated", ["--allow-truncated", "--isolate-tenants"]),
        ("--keep-domains", ["--keep-domains"]),
        ("--no-chat-template", ["--chat-template", "--no-chat-template"]),
    ],
)
def test_options_that_differ_are_named(place, capsys, option, named):
    stop_after(3)
    message = f"another {', '.join(named)}. Use the same options."
    assert told(run([*COMMAND, "--resume", *option.split()]), 2, capsys, message)
    assert resumed() == made()


@pytest.mark.parametrize("options", [{"profile": "strict"}, {"k": 2, "sample_sessions": 0.8}, {"keep_order": True}])
def test_options_of_later_steps_may_differ(place, options):
    if "keep_order" in options:
        options |= {"profile": "exact", "keep_domains": False}  # domains are in the batches
    stop_after(3)
    assert resumed(**options) == made(**options)


def test_inputs_that_changed_are_refused(place, capsys):
    stop_after(3)
    with open("log.jsonl", "a") as log:
        log.write("\n")
    assert told(run([*COMMAND, "--resume"]), 3, capsys, "log.jsonl: has changed", "Delete out.jsonl.resume")
    write_log(place / "second.jsonl", token_rows(3))
    assert told(run([*COMMAND, "second.jsonl", "--resume"]), 3, capsys, "other inputs")
    assert Path(CHECKPOINT).exists()


def test_an_input_that_is_back_where_it_was_is_taken(place, capsys):
    stop_after(3)
    Path("log.jsonl").rename("elsewhere")
    assert told(run([*COMMAND, "--resume"]), 3, capsys, "no such file")
    Path("elsewhere").rename("log.jsonl")
    assert resumed() == made()


def test_a_run_in_tasks_resumes_to_the_same_bytes(place, monkeypatch):
    assert run(COMMAND) == 0
    expected, encoded = kill_points.files(place), []
    for name in expected.keys() - {"log.jsonl", "key"}:
        os.unlink(name)

    def stop(self, partition):
        encoded.append(partition)
        append(self, partition)
        if len(encoded) == 2:
            raise KeyboardInterrupt

    append = TaskCheckpoint.append_partition
    monkeypatch.setattr(TaskCheckpoint, "append_partition", stop)
    command = [*COMMAND, *TASKS]
    assert run(command) == 5 and {CHECKPOINT, f"{CHECKPOINT}.work"} <= {*os.listdir()}
    assert os.stat(f"{CHECKPOINT}.work").st_mode & 0o077 == 0
    for options, words in (([], "--resume, or delete"), (["--resume", "--block-size", "8"], "another --block-size")):
        assert run([*command, *options]) == 2, words
    assert run([*COMMAND, "--resume"]) == 2  # without --runner
    assert run([*command, "--resume", "--workers", "1", "--partitions", "9"]) == 0
    assert len(encoded) == 5 and {*os.listdir()} == expected.keys()
    assert kill_points.files(place) == expected


def test_a_work_folder_that_others_can_write_to_is_not_resumed(place, monkeypatch, capsys):
    append = TaskCheckpoint.append_partition

    def stop(self, partition):
        append(self, partition)
        raise KeyboardInterrupt

    monkeypatch.setattr(TaskCheckpoint, "append_partition", stop)
    assert run([*COMMAND, *TASKS]) == 5 and CONTINUES in capsys.readouterr().err
    os.chmod(f"{CHECKPOINT}.work", 0o777)
    assert told(run([*COMMAND, *TASKS, "--resume"]), 2, capsys, "other users can write to this folder")


def test_runs_that_cannot_be_resumed_have_no_checkpoint(place, capsys):
    for arguments, words in (
        (["anonymize", "log.jsonl", "-o", "out.jsonl", "--resume"], "requires --key-file"),
        (["anonymize", "-", "-o", "out.jsonl", "--key-file", "key", "--resume"], "stdin"),
        (["anonymize", "log.jsonl", "-o", "-", "--key-file", "key", "--resume"], "stdout"),
        (["anonymize", "log.jsonl", "-o", "/dev/null", "--key-file", "key", "--resume"], "device"),
    ):
        assert told(run(arguments), 2, capsys, words)
    assert sorted(os.listdir()) == ["key", "log.jsonl"]


def test_the_checkpoint_cannot_be_an_input_or_an_output(place, capsys):
    write_log(place / CHECKPOINT, token_rows(3))
    assert told(run([*COMMAND, CHECKPOINT]), 2, capsys, "is the same file as LOG")
    assert told(run([*COMMAND, "--resume"]), 2, capsys)  # a log by that name, open to others
    Path(CHECKPOINT).chmod(0o600)
    assert told(run([*COMMAND, "--resume"]), 2, capsys, "not a checkpoint")
    assert len(Path(CHECKPOINT).read_bytes().splitlines()) == 3


def test_two_runs_do_not_write_one_output(place, capsys, monkeypatch):
    monkeypatch.setattr("kvtrace._base.file_locks.LOCK_TIMEOUT_S", 0.1)
    with Checkpoint(CHECKPOINT):
        assert told(run(COMMAND), 2, capsys, "another run")
        assert told(run([*COMMAND, "--resume"]), 2, capsys, "another run")


def test_a_checkpoint_of_another_version_is_refused(place, capsys, monkeypatch):
    stop_after(3)
    monkeypatch.setattr("kvtrace.ingest.checkpoint.__version__", "99")
    assert told(run([*COMMAND, "--resume"]), 2, capsys, "another version")


@pytest.mark.parametrize("tasks", [[], TASKS])
def test_a_checkpoint_of_another_rendering_is_refused(place, capsys, monkeypatch, tasks):
    append = TaskCheckpoint.append_partition

    def stop(self, partition):
        append(self, partition)
        raise KeyboardInterrupt

    if tasks:
        monkeypatch.setattr(TaskCheckpoint, "append_partition", stop)
        assert run([*COMMAND, *tasks]) == 5 and capsys.readouterr()
    else:
        stop_after(3)

    def of_version_2(encoder):
        return settings_of(encoder) | {"--rendering-version": 2}

    monkeypatch.setattr("kvtrace.ingest.checkpoint.settings_of", of_version_2)
    words = "another version of kvtrace rendered its prompts. Use that version. Or delete"
    assert told(run([*COMMAND, *tasks, "--resume"]), 2, capsys, words)


# -- faults ----------------------------------------------------------------------------------------------------------


def test_a_bad_row_can_be_skipped_by_the_resumption(place, capsys):
    rows = list(token_rows(40))
    rows[30] = {"timestamp": 1, "prompt_token_ids": CANARY}
    write_log(place / "log.jsonl", rows)
    with pytest.raises(RowError) as error, Checkpoint(CHECKPOINT) as checkpoint:
        made(checkpoint=checkpoint)
    assert error.value.line == 31 and error.value.__notes__ == [CONTINUES]
    rejects = []
    found = resumed(max_errors=-1, on_reject=rejects.append)
    assert found == made(max_errors=-1) and [reject.line for reject in rejects] == [31]


def test_a_full_disk_leaves_the_batches_before_it(place, monkeypatch):
    import errno

    write, room = os.pwrite, [9000]

    def pwrite(handle, data, at):
        if at + len(data) > room[0]:
            write(handle, data[: max(0, room[0] - at)], at)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with (
        pytest.raises(StoppedError, match="out.jsonl.resume: cannot be written") as error,
        Checkpoint(CHECKPOINT) as checkpoint,
    ):
        made(checkpoint=checkpoint)
    assert error.value.status == 5 and error.value.__notes__ == [CONTINUES]
    frames = frames_of(CHECKPOINT)
    assert len(frames) > 3 and Path(CHECKPOINT).stat().st_size == sum(map(len, frames))
    room[0] = 1 << 40
    assert resumed() == made()


def test_a_limit_on_the_size_of_files_leaves_the_batches_before_it(place, capsys):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, limits[1]))
    try:
        status = run(COMMAND)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    message = "out.jsonl.resume: cannot be written"
    assert told(status, 5, capsys, message, "Finished work is saved: continue with --resume.")
    assert sorted(os.listdir()) == ["key", "log.jsonl", CHECKPOINT] and Path(CHECKPOINT).stat().st_size <= 9000
    assert run([*COMMAND, "--resume"]) == 0
    assert written("out.jsonl") == written_anew("again.jsonl")


def written(name):
    """The bytes of a trace, its sidecar and its card, by what follows the name; their names are in none of them."""
    return {path.name.removeprefix(name): path.read_bytes() for path in Path().glob(f"{name}*")}


def written_anew(name, *options):
    assert run([name if word == "out.jsonl" else word for word in COMMAND] + [*options]) == 0
    return written(name)


@pytest.mark.parametrize("number", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_an_output_without_room_is_status_5_and_other_faults_are_not(place, number, monkeypatch):
    import errno

    def refuse(code):
        def write(_):
            raise OSError(code, os.strerror(code))

        return write

    for code, status in ((getattr(errno, number), 5), (errno.EIO, 1)):
        with pytest.raises(KvtraceError) as error, outputs_together("made") as (output,):
            full = type("Full", (), {"write": staticmethod(refuse(code)), "close": lambda self: None})()
            monkeypatch.setattr(output._sink, "_packed", full)
            output.stream.write(b"x" * (1 << 21))
        assert error.value.status == status and not [name for name in os.listdir() if "made" in name]


def test_an_incomplete_log_stops_the_run_and_keeps_the_checkpoint(place, capsys):
    whole = gzip.compress("".join(json.dumps(row) + "\n" for row in token_rows(3000)).encode())
    Path("log.jsonl").unlink()
    Path("log.gz").write_bytes(whole[: len(whole) // 2])
    command = [word.replace("log.jsonl", "log.gz") for word in COMMAND]
    assert told(run(command), 3, capsys, "is truncated", "Finished work is saved: continue with --resume.")
    assert sorted(os.listdir()) == ["key", "log.gz", CHECKPOINT]
    Path("log.gz").write_bytes(whole)
    assert told(run([*command, "--resume"]), 3, capsys, "log.gz: has changed")


def test_a_log_that_becomes_shorter_stops_the_run_and_keeps_the_checkpoint(place):
    size = Path("log.jsonl").stat().st_size

    def cut(progress):
        if progress.requests > 10:
            os.truncate("log.jsonl", size // 2)

    with pytest.raises(InputError, match="became shorter") as error, Checkpoint(CHECKPOINT) as checkpoint:
        made(checkpoint=checkpoint, on_progress=cut)
    assert error.value.__notes__ == [CONTINUES] and Path(CHECKPOINT).exists()


# -- laws of every run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["exact", "standard", "strict"])
def test_any_number_of_workers_gives_the_same_and_every_row_is_counted(place, profile):
    write_log(place / "texts.jsonl.gz", text_rows(120))
    for log in ("log.jsonl", "texts.jsonl.gz"):
        results = [made(log, workers=workers, profile=profile, max_errors=-1) for workers in (1, 2, 8)]
        assert results[0] == results[1] == results[2]
        counts = results[0][1]
        assert counts.rows == counts.requests + counts.filtered + counts.rejected == (40 if log == "log.jsonl" else 120)


@pytest.mark.parametrize("profile", ["exact", "standard", "strict"])
def test_any_number_of_workers_writes_the_same_files(place, profile):
    found = [written_anew(f"{n}.jsonl", "--profile", profile, "--workers", str(n)) for n in (1, 2, 8)]
    assert sorted(found[0]) == ["", ".card.md", ".meta.json"] and found[0] == found[1] == found[2]


# -- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_run(place):
    """Starts a run with workers whose pieces take their time; gives it once it has kept something."""
    processes = []
    code = (
        "import sys, time, importlib\n"
        "import kvtrace.ingest.encoding as encode\n"
        "import kvtrace.ingest.logs.sources as sources\n"
        "importlib.import_module('kvtrace.ingest.pipeline').SMALL = 0\n"
        f"sources.PIECE_BYTES = {kill_points.PIECE_BYTES}\n"
        "call = encode.Encoder.__call__\n"
        "def slow(self, piece):\n    time.sleep(0.1)\n    return call(self, piece)\n"
        "encode.Encoder.__call__ = slow\n"
        "from kvtrace.cli import main\nmain()"
    )

    def start(*options):
        paths = os.pathsep.join([str(Path(kvtrace.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-c", code, *COMMAND, "--workers", "2", *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths})
        processes.append(process)
        deadline = time.monotonic() + 30
        while not Path(CHECKPOINT).exists() or Path(CHECKPOINT).stat().st_size < 4000:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_that_can_be_resumed_with_status_5(place, slow_run, number):
    process = slow_run()
    process.send_signal(number)
    error = process.communicate(timeout=30)[1].removeprefix("\n")
    name = "the keyboard" if number == signal.SIGINT else number.name
    assert error == f"kvtrace: stopped by {name}; finished work is saved: continue with --resume.\n"
    assert process.returncode == 5 and sorted(os.listdir()) == ["key", "log.jsonl", CHECKPOINT]
    assert resumed() == made()


def children(pid):
    return [int(name) for name in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc")


@needs_proc
def test_a_worker_that_the_system_kills_ends_the_run_with_status_5(place, slow_run):
    process = slow_run()
    os.kill(children(process.pid)[0], signal.SIGKILL)
    error = process.communicate(timeout=30)[1]
    assert process.returncode == 5 and "a worker process was killed" in error
    assert error.endswith("continue with --resume.\n")
    assert resumed() == made()


@needs_proc
def test_a_run_that_is_killed_leaves_no_process_and_no_lock(place, slow_run):
    process = slow_run()
    workers = children(process.pid)
    assert workers
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert resumed() == made()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# -- the key file ----------------------------------------------------------------------------------------------------


def test_an_empty_key_file_gives_a_hint(place):
    Path("empty").touch(0o600)
    with pytest.raises(UsageError, match="the key file is empty.*Delete it"):
        load_key("empty")
    assert Key(bytes.fromhex(Path("key").read_text())).subkey("x") == load_key("key").subkey("x")
