"""A tokenizer that loads ahead of its time: the same one, taken once, and silent where there is none."""

import pytest

from kvtrace.text import preload, tokenizer_files

fastokens = pytest.importorskip("fastokens")


def test_a_preloaded_tokenizer_is_taken_once(no_loaded_tokenizers):
    path = str(tokenizer_files.find("deepseek-r1").tokenizer)
    preload.begin("deepseek-r1")
    assert isinstance(preload.take(path), fastokens.Tokenizer)
    assert preload.take(path) is None


def test_an_invalid_tokenizer_file_is_not_preloaded(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    preload.begin(str(path))
    assert preload.take(str(path)) is None


@pytest.mark.parametrize("name", ["no-such-tokenizer", "org/model", ""])
def test_names_that_would_have_to_be_fetched_are_left_alone(name):
    before = dict(preload._loading_of_path)  # a run that failed early may have left one
    preload.begin(name)
    assert preload._loading_of_path == before
