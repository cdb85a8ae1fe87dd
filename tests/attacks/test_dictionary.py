"""An attacker who knows every prompt, and every public way to hash it, finds none of it in what a run leaves."""

import gzip
import json
import random
from base64 import b64encode
from pathlib import Path

import pytest

from kvtrace.cli import run
from kvtrace.ingest import logs
from kvtrace.ingest.keys import Key, load_key
from tests.attacks import dictionary, examples
from tests.attacks.known import TINY, Known, know
from tests.attacks.search import Needles, found_in

pytestmark = pytest.mark.xdist_group("dictionary")  # all digests of all guesses are made once
BLOCK_SIZE = 16
WORDS = ["harbour", "lamp", "river", "seven", "copper", "window", "morning", "letter", "quiet", "garden", "engine"]


def chats(rows=30):
    """A log of conversations that share a long system prompt, each turn with a text of its own."""
    draw = random.Random("chats")
    system = " ".join(draw.choices(WORDS, k=60))
    found, turns = [], {}
    for row in range(rows):
        chat = f"chat-{draw.randrange(rows // 5)}"
        said = turns.setdefault(chat, [{"role": "system", "content": system}])
        said.append({"role": "user", "content": " ".join(draw.choices(WORDS, k=draw.randint(5, 40)))})
        answer = " ".join(draw.choices(WORDS, k=draw.randint(3, 30)))
        user = f"{chat}@mail.example" if row % 2 else "ada@mail.example"
        found.append({"timestamp": 700 * row, "input": list(said), "output": answer, "session": chat, "user": user})
        said.append({"role": "assistant", "content": answer})
    return found


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "chats.jsonl"
    path.write_text("\n".join([json.dumps(row) for row in chats()] + ['{"timestamp": 1}', '{"input": "harbour']) + "\n")
    return path


@pytest.fixture(scope="module")
def known(log):
    return know(log, BLOCK_SIZE)


@pytest.fixture(scope="module")
def needles(known):
    return Needles(known.digests())


@pytest.fixture
def out(tmp_path, monkeypatch):
    """Where everything goes that a run writes, temporary files too."""
    folder = tmp_path / "out"
    (folder / "tmp").mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def anonymized(source, out, key_file, *options, name="trace"):
    return run([
        "anonymize", str(source), "-o", str(out / name), "--tokenizer", str(TINY), "--allow-truncated",
        "--key-file", str(key_file), "--on-error", "skip", "--rejects", str(out / "rejects"), *options,
    ])  # fmt: skip


def left(folder):
    """name -> bytes of every file in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def everything(out, capfd):
    said = capfd.readouterr()
    return left(out) | {"stdout": said.out.encode(), "stderr": said.err.encode()}


# -- nothing is found ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["exact", "standard", "strict"])
@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.jsonl.zst", "t.parquet", "t.bailian"])
def test_no_public_hash_of_a_known_prompt_is_in_what_a_run_writes(
    name, profile, log, known, needles, out, tmp_path, capfd
):
    options = ["--profile", profile, "--block-size", str(BLOCK_SIZE)]
    options += ["--format", "bailian"] if name.endswith("bailian") else []
    options += ["--outputs"] if profile == "exact" else []
    key_file = tmp_path / "key"
    assert anonymized(log, out, key_file, *options, name=name) == 0
    files = everything(out, capfd)
    assert {name, f"{name}.meta.json", "rejects"} <= set(files)
    assert found_in(files, needles) == []
    # the keyed digests and the key are not published either
    key = load_key(key_file)
    own = dict.fromkeys(known.keyed(key), "keyed digest") | {key._secret: "the key", key.subkey("blocks"): "a subkey"}
    assert found_in(files, Needles(own)) == []


@pytest.mark.parametrize("path", examples.files(), ids=lambda path: path.name)
def test_nor_of_a_prompt_in_any_other_log(path, out, tmp_path, capfd):
    reader = logs.open_reader("auto", examples.lines(path), field_map=examples.MAPS.get(path.name), untimed=True)
    options = [part for pair in examples.MAPS.get(path.name, {}).items() for part in ("--map", "=".join(pair))]
    options += [] if reader.block_size else ["--block-size", "4"]
    known = know(path, 4)
    status = anonymized(path, out, tmp_path / "key", "--arrivals", "rate=1/s", "--profile", "exact", *options)
    files = everything(out, capfd)
    assert status == 0, files["stderr"].decode()
    assert known.words or known.prompts
    assert found_in(files, Needles(known.digests())) == []


class Stopped:
    """What stands on disk while a run is under way: a look at each batch, and a stop at the third."""

    def __init__(self, out, monkeypatch):
        self.files: dict[str, bytes] = {}
        self._out, self._looks = out, 0
        monkeypatch.setattr("kvtrace.ingest.logs.sources.PIECE_BYTES", 4096)
        monkeypatch.setattr("kvtrace.report.progress.Bar.update", self.look)

    def look(self, *_):
        self.files |= {f"{name} at batch {self._looks}": data for name, data in left(self._out).items()}
        self._looks += 1
        if self._looks == 3:
            raise KeyboardInterrupt

    @property
    def resumable(self):
        """Bytes of what a run could go on from."""
        return sum(len(data) for name, data in self.files.items() if ".resume" in name)


def test_nor_in_what_an_interrupted_run_leaves_to_go_on_from(log, needles, out, tmp_path, capfd, monkeypatch):
    stopped = Stopped(out, monkeypatch)
    assert anonymized(log, out, tmp_path / "key", "--block-size", str(BLOCK_SIZE)) != 0
    files = stopped.files | everything(out, capfd)
    assert stopped.resumable > 0
    assert found_in(files, needles) == []


# -- what leaks is found ---------------------------------------------------------------------------------------------


def test_an_interrupted_run_under_a_guessed_key_is_caught(log, needles, out, tmp_path, capfd, monkeypatch):
    stopped = Stopped(out, monkeypatch)
    monkeypatch.setattr("kvtrace.ingest.keys.load_key", lambda path: Key(bytes(16)))
    assert anonymized(log, out, tmp_path / "key", "--block-size", str(BLOCK_SIZE)) != 0
    assert any("key guessed" in line for line in found_in(stopped.files, needles))


PROMPT = list(range(1000, 1100))
TEXT = {name: scheme(PROMPT, BLOCK_SIZE) for name, scheme in dictionary.SCHEMES.items()}


def row(ids):
    return json.dumps({"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": ids}).encode()


@pytest.mark.parametrize("scheme", dictionary.SCHEMES)
def test_ids_that_are_digests_are_caught_whatever_made_them(scheme):
    known = Needles(dictionary.digests([PROMPT], [BLOCK_SIZE]))
    digests = dictionary.SCHEMES[scheme](PROMPT, BLOCK_SIZE)
    leaked = {"trace": row([int.from_bytes(digest[:8], "big") for digest in digests])}
    assert len(digests) == 7
    assert found_in(leaked, known)
    assert found_in({"trace": row(list(range(7)))}, known) == []


def parquet(numbers):
    import io

    import pyarrow
    import pyarrow.parquet

    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"hash_ids": [numbers]}), stream, compression="zstd")
    return stream.getvalue()


def numbers(digests, order="big", signed=False, width=8):
    return [int.from_bytes(digest[:width], order, signed=signed) for digest in digests]


WRITTEN = {
    "raw": b"".join,
    "raw, other order": lambda digests: b"x".join(digest[::-1] for digest in digests),
    "raw, 8 bytes": lambda digests: b"".join(digest[:8] for digest in digests),
    "raw, last 8 bytes": lambda digests: b"".join(digest[-8:] for digest in digests),
    "raw, 4 bytes": lambda digests: b"".join(digest[:4] for digest in digests),
    "unsigned": lambda digests: row(numbers(digests)),
    "signed": lambda digests: row(numbers(digests, signed=True)),
    "little": lambda digests: row(numbers(digests, order="little")),
    "whole": lambda digests: row(numbers(digests, width=32)),
    "32 bits": lambda digests: row(numbers(digests, width=4)),
    "32 bits, signed": lambda digests: row(numbers(digests, width=4, signed=True)),
    "as doubles": lambda digests: row([float(number) for number in numbers(digests)]),
    "through doubles": lambda digests: row([int(float(number)) for number in numbers(digests)]),
    "hexadecimal": lambda digests: row([digest.hex() for digest in digests]),
    "upper hexadecimal": lambda digests: row([digest.hex().upper()[:16] for digest in digests]),
    "hexadecimal after 0x": lambda digests: row([hex(number) for number in numbers(digests)]),
    "base64": lambda digests: row([b64encode(digest).decode() for digest in digests]),
    "gzip": lambda digests: gzip.compress(b"".join(digests)),
    "Parquet": lambda digests: parquet(numbers(digests, signed=True)),
}


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("scheme", ["SGLang", "Dynamo sequence", "ours, guessed key 0"])
def test_digests_are_found_however_they_are_written(written, scheme):
    known = Needles(dictionary.digests([PROMPT], [BLOCK_SIZE]))
    leaked = WRITTEN[written](dictionary.SCHEMES[scheme](PROMPT, BLOCK_SIZE))
    assert any(scheme.partition(",")[0] in line for line in found_in({"file": b"\n" + leaked}, known))


def test_a_sidecar_that_tells_a_user_by_its_digest_is_caught(known, needles):
    import hashlib

    side = {"users": [hashlib.md5(b"ada@mail.example").hexdigest()]}
    assert found_in({"sidecar": json.dumps(side).encode()}, needles) == ["sidecar: md5 of a text"]


def test_the_schemes_give_the_digests_that_engines_give():
    # each worked out here from the definition that its engine's documentation gives
    import hashlib
    import pickle

    assert dictionary.fnv1a_64(b"a") == 0xAF63DC4C8601EC8C  # the published vector
    assert dictionary.cbor([0, [1, 500], None]).hex() == "8300820119" + "01f4f6"
    first = hashlib.sha256(pickle.dumps((bytes(32), (1, 2), None), protocol=pickle.HIGHEST_PROTOCOL)).digest()
    assert dictionary.SCHEMES["vLLM sha256 of pickle, root zeros"]([1, 2, 3], 2)[0] == first
    block = (1).to_bytes(4, "little") + (2).to_bytes(4, "little")
    assert dictionary.sglang([1, 2, 1, 2], 2)[1] == hashlib.sha256(hashlib.sha256(block).digest() + block).digest()
    assert dictionary.founding_gist([1, 2, 3], 2)[0] == (hash(hash((1, 2)) + 0) % 2**64).to_bytes(8, "big")


def test_what_an_attacker_knows_of_a_log_is_what_a_run_makes_of_it(log, known):
    assert isinstance(known, Known) and len(known.prompts) == 3 * 30
    assert "ada@mail.example" in known.words and Path(log).name not in known.words
