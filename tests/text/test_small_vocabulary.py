"""A small log is encoded with a part of the vocabulary: the whole vocabulary's ids, sidecar and errors."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.cli import run
from kvtrace.ingest.keys import run_key
from kvtrace.text import preload, small_vocabulary, tokenizer_libraries, tokenizers

TINY = Path(__file__).parents[1] / "data" / "tokenizers" / "tiny"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of this test, and each vocabulary worth a compiled form."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(small_vocabulary, "WORTH", 0)
    return tmp_path / "cache" / "kvtrace"


def small(name=TINY, **options):
    return tokenizers.load(str(name), log_bytes=1000, **options)


def whole(name=TINY):
    return tokenizers.load(str(name), backend="tokenizers")


def same_ids(one, other, texts):
    ours, theirs = one.encode_batch(texts), other.encode_batch(texts)
    assert [array.tolist() for array in ours] == [array.tolist() for array in theirs]
    assert [array.dtype for array in ours] == [array.dtype for array in theirs]


@pytest.fixture
def tried(cache):
    """The tiny tokenizer after a run that tried and compared it."""
    tokenizers.load(str(TINY)).wait()
    return cache


def test_the_first_run_tries_and_compares_and_the_next_needs_a_part(cache):
    assert small()._small is None
    loaded = small()
    assert loaded._small is not None and loaded._library._loaded is None
    described, usual = loaded.describe(), tokenizers.load(str(TINY)).describe()
    assert described["sha256"] == usual["sha256"]
    if usual["backend"].startswith("fastokens"):  # the sidecar names the library that encoded
        assert described["backend"].startswith("tokenizers ") and described["why"] == tokenizers.SMALL


def test_the_sample_has_the_ids_of_the_whole_vocabulary(tried):
    loaded, reference = small(), whole()
    texts = tokenizers.sample(reference._library.control_tokens())
    for start in range(0, len(texts), 8):  # new words in each batch
        same_ids(loaded, reference, texts[start : start + 8])
    assert loaded._small is not None
    same_ids(loaded, reference, texts)


def test_the_built_in_vocabulary_in_part_is_that_vocabulary(monkeypatch):
    monkeypatch.setattr(tokenizers, "recall", lambda *_: True)
    loaded, reference = small("deepseek-r1"), whole("deepseek-r1")
    texts = tokenizers.sample(reference._library.control_tokens()[:40])
    same_ids(loaded, reference, texts)
    assert loaded._small is not None
    assert len(loaded._small._texts) < 3000  # of 128,000
    assert loaded.start_tokens.tolist() == reference.start_tokens.tolist()
    assert loaded.end_tokens.tolist() == reference.end_tokens.tolist()


def test_both_libraries_agree_on_the_built_in_vocabulary():
    installed = [tokenizer_libraries.version_of(module) for module in ("fastokens", "tokenizers")]
    if ("deepseek-r1", *installed, platform.machine()) not in tokenizers.KNOWN_TO_AGREE:
        pytest.skip("the first run compares these versions")
    assert tokenizers.load("deepseek-r1", check=True).why == tokenizers.AGREES


pieces = st.one_of(
    st.text(),
    st.sampled_from(["<|user|>", "<|us", "<think>", "|>", " ", "\n", "\r\n", "  \n ", "don't", "the boats", "1234567",
                     "e\u0301", "\u200d", "🚢", "船", "\u00a0", "\x00", "x" * 300]),
)  # fmt: skip


@given(st.lists(st.lists(st.lists(pieces, max_size=12).map("".join), max_size=6), max_size=3))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_texts_in_any_batches_have_the_ids_of_the_whole_vocabulary(tried, batches):
    loaded = small()
    for batch in batches:
        same_ids(loaded, whole(), batch)
    assert loaded._small is not None


def test_more_text_needs_the_whole_vocabulary(tried, monkeypatch):
    monkeypatch.setattr(small_vocabulary, "MAX_TEXT", 20)
    loaded = small()
    for text, is_small in (("boats", True), ("sails", True), ("a keeper of boats", False), ("boats", False)):
        same_ids(loaded, whole(), [text])
        assert (loaded._small is not None) == is_small


def test_a_text_that_no_tokenizer_takes_is_the_usual_error(tried):
    with pytest.raises(tokenizers.TextError, match="surrogate") as error:
        small().encode_batch(["fine", "secret \ud800"])
    assert error.value.index == 1


@pytest.mark.parametrize("size", [0, 10, 3000])
def test_a_damaged_compiled_form_is_made_again(tried, size):
    small()
    (place,) = tried.glob("vocabulary-*")
    content = place.read_bytes()
    place.write_bytes(content[:size])
    same_ids(small(), whole(), ["The keeper counts boats."])
    assert place.read_bytes() == content


def test_a_changed_file_is_compiled_again(tried, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    text = (TINY / "tokenizer.json").read_text(encoding="utf-8")
    for content in (text, json.dumps(json.loads(text), indent=1)):
        (folder / "tokenizer.json").write_text(content, encoding="utf-8")
        tokenizers.load(str(folder)).wait()
        assert small(folder).sha256 == whole(folder).sha256


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file["model"].update(byte_fallback=True),
        lambda file: file["model"].update(unk_token="<|eos|>"),
        lambda file: file["model"].update(type="Unigram"),
        lambda file: file.update(pre_tokenizer={"type": "Whitespace"}),
        lambda file: file["added_tokens"][0].update(single_word=True),
        lambda file: file["added_tokens"][-1].update(id=9999),
        lambda file: file["model"]["vocab"].pop("Ġ"),
    ],
)
def test_another_kind_of_vocabulary_is_loaded_whole(cache, tmp_path, change):
    file = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    change(file)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    assert small_vocabulary.compile_file(path) is None


def test_a_cache_that_cannot_be_written_does_no_harm(tried, monkeypatch):
    monkeypatch.setattr(small_vocabulary, "write_cached", lambda *_: False)
    same_ids(small(), whole(), ["The keeper counts boats."])


def rows():
    turns = []
    for number in range(6):
        turns = [*turns, {"role": "user", "content": f"How many boats are there on day {number}?"}]
        yield {"timestamp": 1_700_000_000 + number, "messages": turns, "response": f"There are {number} boats."}
        turns = [*turns, {"role": "assistant", "content": f"There are {number} boats."}]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
    return path


@pytest.mark.parametrize("options", [[], ["--outputs", "--profile", "exact"]])
def test_a_small_log_becomes_the_same_files_but_for_the_library_that_encoded(log, tmp_path, monkeypatch, options):
    with run_key(str(tmp_path / "key"), lambda: False):
        pass
    made = {}
    for size in (1 << 20, 0):
        monkeypatch.setattr(preload, "SMALL_LOG", size)
        output = tmp_path / f"{size}.jsonl"
        key = ["--key-file", str(tmp_path / "key"), "--block-size", "4", "-q"]
        assert run(["anonymize", str(log), "-o", str(output), *key, *options]) == 0
        sidecar = json.loads(Path(f"{output}.meta.json").read_bytes())
        library = sidecar["tokenizer"].pop("backend"), sidecar["tokenizer"].pop("why")
        assert (library[1] == tokenizers.SMALL) == (size > 0)
        made[size] = output.read_bytes(), sidecar
    assert made[0] == made[1 << 20]


SLOW = (
    "fastokens", "rich", "multiprocessing", "concurrent.futures", "logging", "numpy.random", "email", "huggingface_hub",
)  # fmt: skip


def test_a_small_log_loads_no_library_that_it_does_not_need(log, tmp_path):
    """Each of these costs 5 to 700 ms of processor time, of 250."""
    code = (
        "import sys; from kvtrace.cli import run; "
        f"status = run(['anonymize', {str(log)!r}, '-o', {str(tmp_path / 'trace.jsonl')!r}, '-q']); "
        f"print(status, *(name for name in {SLOW!r} if name in sys.modules))"
    )
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, capture_output=True)  # leaves the verdict where the versions are other ones
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    assert done.stdout.split() == ["0"]
