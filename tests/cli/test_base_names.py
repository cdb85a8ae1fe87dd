"""No result shows a folder of the user's machine: tables, JSON, CSV, pages and sidecars have base names only."""

import json
import os
import shutil
from pathlib import Path

import pytest

import kvtrace
from kvtrace.cli import run

HERE = Path(__file__).resolve().parents[1]
SECRET = "acme-merger"


@pytest.fixture
def secret(tmp_path, monkeypatch):
    """A folder with a name that nobody may learn, with traces, a model, a log and a tokenizer."""
    folder = tmp_path / SECRET
    (folder / "b").mkdir(parents=True)
    for name in ("day.jsonl", "b/day.jsonl"):
        rows = [f"0 {number} {number + 1}" for number in range(1, 40, 2)]
        kvtrace.write(kvtrace.toy(*rows, block_size=16), folder / name)
    shutil.copy(next((HERE / "data/models").glob("*.json")), folder / "config.json")
    row = {"timestamp": 0, "input": [{"role": "user", "content": "boats"}], "output": 2}
    (folder / "log.jsonl").write_text((json.dumps(row) + "\n") * 3)
    monkeypatch.chdir(tmp_path)
    return folder


def shown(capsys, *arguments):
    capsys.readouterr()
    assert run([str(argument) for argument in arguments]) in (0, 4)
    return capsys.readouterr().out


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_two_files_of_one_name_are_numbered(secret, capsys, form):
    said = shown(capsys, "compare", secret / "day.jsonl", secret / "b/day.jsonl", *form)
    assert ("day.jsonl (2)" in said) == (form != ["--csv"]) and SECRET not in said


def test_a_page_has_no_folder(secret, capsys):
    pytest.importorskip("plotly")
    names = [secret / "day.jsonl", secret / "b/day.jsonl"]
    shown(capsys, "report", *names, "-o", "page.html", "-q")
    page = Path("page.html").read_text()
    assert "day.jsonl (2)" in page and SECRET not in page and str(secret) not in page


@pytest.mark.parametrize("name", ["table.csv", "table.json", "table.jsonl", "table.parquet"])
def test_a_sweep_s_table_has_no_folder(secret, capsys, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    files = [secret / "day.jsonl", secret / "b/day.jsonl"]
    said = shown(capsys, "sweep", *files, "--capacity", "10", "-o", name, "-q")
    assert "day.jsonl (2)" in said and SECRET not in said and SECRET.encode() not in Path(name).read_bytes()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_plan_has_no_folder(secret, capsys, form):
    options = ["--model-config", secret / "config.json", "--gpu", "h100", "--gpus", "8", "--ttft", "60s", "-q", *form]
    said = shown(capsys, "plan", secret / "day.jsonl", *options)
    assert ("config.json" in said) == bool(form) and SECRET not in said


@pytest.mark.parametrize("command", ["analyze", "curve", "audit", "simulate"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_table_has_no_folder(secret, capsys, command, form):
    options = ["--capacity", "10"] if command in ("simulate", "curve") else []
    assert SECRET not in shown(capsys, command, secret / "day.jsonl", *options, *form)


def test_a_sidecar_names_no_file_and_no_prompt_of_the_user(secret, capsys):
    """A tokenizer, a template and a generation prompt of the user's own are digests."""
    shutil.copytree(HERE / "data/tokenizers/tiny", secret / f"{SECRET}-tokenizer")
    template = secret / f"{SECRET}.jinja"
    template.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    options = ["--tokenizer", secret / f"{SECRET}-tokenizer", "--block-size", "4", "--chat-template", template]
    digests = []
    for prompt in (SECRET, "zanzibar"):
        shown(capsys, "anonymize", secret / "log.jsonl", "-o", "out.jsonl", *options, "--generation-prompt", prompt)
        sidecar = json.loads(Path("out.jsonl.meta.json").read_text())
        assert sidecar["tokenizer"].keys() == {"sha256", "backend", "why"}
        assert sidecar["chat_template"].keys() == {"sha256", "wants"}
        digests.append(sidecar["chat_template"]["sha256"])
        for name in os.listdir():
            if name.startswith("out"):
                assert SECRET not in Path(name).read_text() and prompt not in Path(name).read_text()
    assert digests[0] != digests[1] and all(len(digest) == 64 for digest in digests)


def test_public_names_stay_in_the_sidecar(tmp_path):
    from kvtrace.text import templates, tokenizers

    assert tokenizers.load("deepseek-r1").describe()["name"] == "deepseek-r1"
    assert templates.load("deepseek-r1").describe()["name"] == "tokenizer_config.json"
