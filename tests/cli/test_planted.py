"""What another user has planted at the names of a command's files: nothing is written through it, for every command."""

import os
import shutil
import stat
from pathlib import Path

import pytest

import kvtrace
from kvtrace._base import own_files
from kvtrace._base.errors import UsageError
from kvtrace.cli import commands, datagen, run
from kvtrace.cli.output import OUTPUTS
from tests.docs import ROOT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="no links")
OTHER = 12345  # another user

# How a name is treated: a result follows a link of the user's own alone; a file aside replaces any link; files beside
# a result replace pipes as well; private files and folders are refused.
RESULT, ASIDE, BESIDE, OWN, FOLDER = "result", "aside", "beside", "own", "folder"
TRACE = {"out.jsonl": RESULT, "out.jsonl.meta.json": BESIDE, ".out.jsonl.lock": OWN}
CARD = {**TRACE, "out.jsonl.card.md": BESIDE}
SVG = {"f.svg": RESULT}
UNFITTED = "recording --model llama-3.1-8b --gpu h100"

# command -> its lines, each with the names of all files that it makes or reuses
LINES = {
    "start": [("start day.jsonl -o out -q", {"out": FOLDER})],
    "anonymize": [
        (
            "anonymize log.jsonl -o out.jsonl --key-file key --block-size 16 --on-error skip --rejects bad.jsonl -q",
            {**CARD, "key": OWN, "out.jsonl.resume": OWN, "bad.jsonl": ASIDE},
        ),
        (
            "anonymize log.jsonl -o out.dataset --block-size 16 --runner local --workers 1 --work-dir work -q",
            {"out.dataset": FOLDER, ".out.dataset.lock": OWN, "work": FOLDER},
        ),
    ],
    "convert": [
        ("convert day.jsonl -o out.jsonl -q", TRACE),
        ("convert day.jsonl -o out.dataset -q", {"out.dataset": FOLDER, ".out.dataset.lock": OWN}),
    ],
    "record": [
        (
            "record -o rec --follow log.jsonl --from-start --for 10ms --block-size 16 --key-file key -q",
            {"rec/.recording": FOLDER, "rec/.recording/lock": OWN, "rec/.recording/counts": OWN, "key": OWN},
        )
    ],
    "release": [("release day.jsonl -o out.jsonl --profile exact -q", CARD)],
    "join": [("join day.jsonl day.jsonl -o out.jsonl -q", {".out.jsonl.lock": OWN})],
    "audit": [("audit day.jsonl --profile exact --card card.md -q", {"card.md": ASIDE})],
    "analyze": [("analyze day.jsonl --svg f.svg", SVG)],
    "curve": [("curve day.jsonl --svg f.svg", SVG)],
    "compare": [("compare day.jsonl day.jsonl --svg f.svg", SVG)],
    "report": [
        (
            "report day.jsonl -o page.html --png plots --policy lru -q",
            {"page.html": RESULT, "plots/hit-curve.png": BESIDE},
        )
    ],
    "simulate": [("simulate day.jsonl --capacity 3 --per-request p.csv -q", {"p.csv": RESULT})],
    "explain": [("explain day.jsonl --capacity 3 --per-request p.csv -q", {"p.csv": RESULT})],
    "sweep": [("sweep day.jsonl -o t.csv --capacity 3 -q", {"t.csv": RESULT, "t.csv.cells.jsonl": OWN})],
    "tune": [
        ("tune day.jsonl --capacity 3 --policy reuse-density --save-table t.json -q", {"t.json": RESULT}),
    ],
    "plan": [("plan day.jsonl --model llama-3.1-8b --svg f.svg -q", SVG)],
    "calibrate": [(f"calibrate {UNFITTED} -o costs.json -q", {"costs.json": RESULT})],
    "validate": [(f"validate {UNFITTED} --per-request p.csv -q", {"p.csv": RESULT})],
    "synthesize": [
        (
            "synthesize day.jsonl -o out.jsonl --save-model m.json --block-size 16 -q",
            {**TRACE, "m.json": RESULT},
        )
    ],
    "texts": [("texts day.jsonl -o out.jsonl --tokenizer deepseek-r1 -q", {"out.jsonl": RESULT})],
    "datagen synthesize": [
        (
            "datagen synthesize --input-file day.jsonl --output-file out.jsonl --num-requests 3 --block-size 16",
            {"out.jsonl": RESULT, "out.jsonl.meta.json": BESIDE},
        )
    ],
}
FILES = ["link", "link of another user", "hard link", "pipe", "file of another user", "open file"]
FOLDERS = ["link", "link of another user", "open folder", "folder of another user"]
SLOW = ("report", "calibrate", "validate", "texts", "analyze", "compare", "plan")  # they write as the others do
CASES = [
    pytest.param(line, name, role, kind, id=f"{line.split()[0]} {name} {kind}")
    for lines in LINES.values()
    for line, names in lines
    for name, role in names.items()
    for kind in (FOLDERS if role == FOLDER else FILES[1:3] if line.startswith(SLOW) else FILES)
    if not (role == RESULT and kind == "link")  # the user's own: it is followed
]


def test_each_command_that_writes_has_a_line():
    """A new command with an option that names an output fails here until it has its row."""
    every = {name: commands.get_command(None, name) for name in commands.list_commands(None)}
    every |= {f"datagen {name}": command for name, command in datagen.commands.commands.items()}
    outputs = {*OUTPUTS, "save_table"}
    assert {name for name, command in every.items() if outputs & {part.name for part in command.params}} == set(LINES)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the inputs of all lines."""
    folder = tmp_path_factory.mktemp("made")
    kvtrace.write(kvtrace.toy("0 1", "0 2", "0 1 3", "4", block_size=16, gap_ms=60_000), folder / "day.jsonl")
    rows = "".join(f'{{"timestamp": {n}, "input": [1, 2, {n % 2}], "output": 1}}\n' for n in range(9))
    (folder / "log.jsonl").write_text(rows)
    shutil.copytree(ROOT / "examples/recording", folder / "recording")
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """A copy of the inputs, and beside it what no run may change."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/victim").write_text("mine")
    (tmp_path / "outside/victim").chmod(0o600)
    shutil.copytree(made, tmp_path / "here")
    (tmp_path / "here").chmod(0o775)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("kvtrace._base.file_locks.LOCK_TIMEOUT_S", 0.05)
    return tmp_path


def plant(path, kind, outside, is_folder):
    """Plant something at a path; what another user plants is theirs."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if kind.startswith("link"):
        path.symlink_to(outside if is_folder else outside / "victim")
    elif kind == "hard link":
        os.link(outside / "victim", path)
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    elif is_folder:
        path.mkdir()
        path.chmod(0o777 if kind == "open folder" else 0o700)
    else:
        path.touch()
        path.chmod(0o666)
    if "another" in kind or kind == "pipe":
        os.chown(path, OTHER, -1, follow_symlinks=False)


def content(folder):
    """All that no run may change."""
    return [(path.name, path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns) for path in folder.iterdir()]


def called(line):
    words = line.split()
    return run(words[1:], datagen.commands, "datagen") if words[0] == "datagen" else run(words)


def is_refused(name, role, kind):
    """Whether the command must refuse it; what it does not refuse, it replaces."""
    if role == ASIDE:
        return kind == "pipe"
    if role == RESULT or name == "out.dataset":
        return kind in ("link of another user", "pipe")
    return role in (OWN, FOLDER)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root plants for another user")
@pytest.mark.parametrize(("line", "name", "role", "kind"), CASES)
def test_nothing_is_written_through_what_is_planted(place, capsys, line, name, role, kind):
    if name == "out.dataset" and kind == "link":
        pytest.skip("the user's own: it is followed")
    plant(Path(name), kind, place / "outside", role == FOLDER)
    before = content(place / "outside")
    status, shown = called(line), capsys.readouterr()
    assert content(place / "outside") == before
    if is_refused(name, role, kind):
        assert status == 2 and shown.err.count("\n") == 1, shown.err
        return
    assert status == 0, shown.err
    if role != FOLDER:
        about = os.lstat(name)
        assert stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_nlink == 1


def test_the_owner_is_looked_at_without_root_too(tmp_path, monkeypatch):
    """As another user's: the status of a file says that it is one's own only where it is."""
    (tmp_path / "state").mkdir(0o700)
    (tmp_path / "state/counts").touch(0o600)
    os.close(own_files.open_own(tmp_path / "state/counts", private=True))
    monkeypatch.setattr(own_files, "current_user", lambda: OTHER)
    with pytest.raises(UsageError, match="state: this folder belongs to another user"):
        own_files.open_own(tmp_path / "state/counts", private=True)
    with pytest.raises(UsageError, match="counts: this file belongs to another user"):
        own_files.open_own(tmp_path / "state/counts")


def test_a_private_file_that_others_could_only_read_is_closed_to_them(tmp_path):
    """In a private folder nobody else could have read it: older versions left such files."""
    (tmp_path / "state").mkdir(0o755)
    (tmp_path / "state/counts").touch()
    (tmp_path / "state/counts").chmod(0o644)
    os.close(own_files.open_own(tmp_path / "state/counts", private=True))
    assert [os.stat(tmp_path / name).st_mode & 0o777 for name in ("state", "state/counts")] == [0o700, 0o600]
