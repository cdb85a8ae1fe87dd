"""--tokenizer auto: the tokenizer of the log's model where it is here, never a download, never a guess in silence."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.capture.recorder import Recorder
from kvtrace.ingest.tokenizer_choice import choose
from kvtrace.text import encodings, tokenizer_files
from kvtrace.text.tokenizer_files import family_of
from tests.ingest.flat import anonymize_rows

TINY = Path(__file__).parents[1] / "data/tokenizers/tiny"
OPTIONS = {"block_size": 4, "profile": "exact"}


@pytest.fixture
def here(monkeypatch):
    """Makes tokenizers local: encodings and Hugging Face ids."""

    def make(*names):
        monkeypatch.setattr(encodings, "is_here", names.__contains__)
        monkeypatch.setattr(tokenizer_files, "in_hub_cache", names.__contains__)

    make()
    return make


def write(path, models):
    row = {"output_length": 1}
    rows = [row | {"timestamp": i, "prompt": f"boats {i}", "model": name} for i, name in enumerate(models)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("gpt-4o", "OpenAI's o200k_base"),
        ("azure/gpt-4o-mini-2024-07-18", "OpenAI's o200k_base"),
        ("gpt-4.1-nano", "OpenAI's o200k_base"),
        ("gpt-5", "OpenAI's o200k_base"),
        ("o1", "OpenAI's o200k_base"),
        ("o3-mini", "OpenAI's o200k_base"),
        ("ft:gpt-4o-2024-08-06:acme::b7", "OpenAI's o200k_base"),
        ("gpt-4", "OpenAI's cl100k_base"),
        ("gpt-4-turbo-2024-04-09", "OpenAI's cl100k_base"),
        ("gpt-3.5-turbo", "OpenAI's cl100k_base"),
        ("openai/gpt-oss-20b", "gpt-oss"),
        ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek-R1"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "DeepSeek-R1 distilled"),
        ("/models/Qwen3-8B/", "Qwen3"),
        ("claude-sonnet-4", "Claude"),
        ("gpt-4oracle", None),
        ("our-model", None),
        ("", None),
    ],
)
def test_a_name_has_its_family(model, family):
    found = family_of(model)
    assert (found and found.name) == family


@pytest.mark.parametrize(
    ("models", "local", "tokenizer", "is_of_model"),
    [
        ([], [], "deepseek-r1", False),
        (["deepseek-ai/DeepSeek-R1"], [], "deepseek-r1", True),
        (["gpt-4o"], ["o200k_base"], "o200k_base", False),  # its template is an approximation
        (["gpt-4o", "gpt-4.1"], ["o200k_base", "cl100k_base"], "o200k_base", False),
        (["gpt-4"], ["o200k_base", "cl100k_base"], "cl100k_base", False),
        (["Qwen/Qwen3-8B"], ["Qwen/Qwen3-8B"], "cached:Qwen/Qwen3-8B", True),
        (["qwen3-14b"], ["Qwen/Qwen3-32B"], "cached:Qwen/Qwen3-32B", False),  # the same family, another model
        (["acme/harbour-7b"], ["acme/harbour-7b"], "cached:acme/harbour-7b", True),
    ],
)
def test_auto_takes_the_tokenizer_of_the_model_that_is_here(here, models, local, tokenizer, is_of_model):
    here(*local)
    choice = choose("auto", models)
    assert (choice.tokenizer, choice.is_of_model) == (tokenizer, is_of_model)


@pytest.mark.parametrize(
    ("tokenizer", "model", "is_of_model"),
    [
        ("deepseek-r1", "DeepSeek-R1", True),
        ("deepseek-r1", "gpt-4o", False),
        ("o200k_base", "gpt-4o", False),
        ("Qwen/Qwen3-8B", "qwen3-8b", True),
        ("/data/Qwen3-8B", "Qwen/Qwen3-8B", True),
        ("/data/Qwen3-8B/tokenizer.json", "Qwen/Qwen3-8B", True),
        ("/data/ours", "Qwen/Qwen3-8B", False),
    ],
)
def test_a_named_tokenizer_is_used_and_known_to_be_the_models_by_its_name(tokenizer, model, is_of_model):
    choice = choose(tokenizer, [model])
    assert (choice.tokenizer, choice.is_of_model, choice.note) == (tokenizer, is_of_model, None)


def test_a_model_without_a_tokenizer_here_warns_by_its_public_family_alone(here, tmp_path):
    notes = []
    anonymize_rows(write(tmp_path / "log.jsonl", ["claude-secret-7f3a"] * 3), on_note=notes.append, **OPTIONS)
    assert notes == [
        "no tokenizer of the log's model (Claude) is on this machine: prompts are counted with deepseek-r1's. Name its "
        "folder: --tokenizer FOLDER."
    ]
    notes.clear()
    anonymize_rows(write(tmp_path / "log.jsonl", ["acme-secret-7f3a"] * 3), on_note=notes.append, **OPTIONS)
    assert len(notes) == 1 and "secret" not in notes[0] and "not one that kvtrace knows" in notes[0]


def test_models_of_different_tokenizers_are_refused_by_family(here, tmp_path):
    log = write(tmp_path / "log.jsonl", ["deepseek-r1", "Qwen/Qwen3-8B", "acme-secret"])
    with pytest.raises(UsageError) as error:
        kvtrace.ingest.anonymize(log, **OPTIONS)
    assert str(error.value) == (
        "the log has requests to models with different tokenizers (DeepSeek-R1, Qwen3). Split it by model, or name one "
        "tokenizer for all: --tokenizer NAME."
    )
    assert len(kvtrace.ingest.anonymize(log, tokenizer="deepseek-r1", **OPTIONS)) == 3


def test_a_model_that_comes_after_the_first_rows_is_refused_too(here, tmp_path):
    log = write(tmp_path / "log.jsonl", ["deepseek-r1"] * 1500 + ["qwen3-8b"] * 2 + ["our-model"])
    with pytest.raises(UsageError, match=r"2 of 1,503 requests .* than the first rows \(DeepSeek-R1\)"):
        kvtrace.ingest.anonymize(log, **OPTIONS)
    assert len(kvtrace.ingest.anonymize(log, tokenizer="deepseek-r1", **OPTIONS)) == 1503


def test_token_ids_need_no_tokenizer_and_no_warning(here, tmp_path):
    rows = [{"timestamp": i, "prompt_token_ids": [1, 2, 3], "token_ids": [4], "model": "claude"} for i in range(3)]
    log, notes = tmp_path / "log.jsonl", []
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    anonymize_rows(log, on_note=notes.append, **OPTIONS)
    assert notes == []


def test_a_recorder_warns_of_another_model_and_goes_on(here, tmp_path):
    log, messages = write(tmp_path / "log.jsonl", ["Qwen/Qwen3-8B"] * 3), []
    with Recorder(tmp_path / "windows", on_message=messages.append, **OPTIONS) as recorder:
        assert all(recorder.put("follow", line) for line in log.read_bytes().splitlines())
    warnings = [message for message in messages if "counted with deepseek-r1's tokenizer" in message]
    assert len(warnings) == 1 and "(Qwen3)" in warnings[0]
    assert any("sealed; 3 requests" in message for message in messages)


def test_lint_says_which_tokenizer_it_took(here, tmp_path):
    log = write(tmp_path / "log.jsonl", ["Qwen/Qwen3-8B"] * 3)
    assert "(Qwen3)" in kvtrace.ingest.lint(log).settings["note"]
    assert kvtrace.ingest.lint(log, tokenizer="deepseek-r1").settings["note"] is None


def test_a_model_of_the_hub_cache_is_read_without_the_network(tmp_path):
    pytest.importorskip("huggingface_hub")
    repository = tmp_path / "hub/models--acme--harbour-7b"
    shutil.copytree(TINY, repository / "snapshots/abc")
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("abc")
    log = write(tmp_path / "log.jsonl", ["acme/harbour-7b"] * 3)
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "kvtrace", "anonymize", str(log), "-o", str(tmp_path / "t.jsonl")]
    done = subprocess.run([*command, "--block-size", "4"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "the tokenizer is that of the log's model;" in done.stderr
    expected = kvtrace.ingest.anonymize(log, tokenizer=str(TINY), block_size=4).meta["tokenizer"]["sha256"]
    assert json.loads((tmp_path / "t.jsonl.meta.json").read_text())["tokenizer"]["sha256"] == expected
