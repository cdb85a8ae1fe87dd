"""A live source without its library: one line that says what to install, before anything is made or bound."""

import sys

import pytest

from kvtrace.capture.live import LIBRARIES, Address, LiveOptions
from kvtrace.cli import run

HERE = Address("127.0.0.1", 0)
OPTIONS = {"otlp": ["--otlp", "0"], "proxy": ["--proxy", "0", "--upstream", "http://127.0.0.1:1"],
           "kv_events": ["--kv-events", "tcp://127.0.0.1:1"],
           "metrics": ["--metrics", "0", "--follow", "log.jsonl"]}  # fmt: skip
CASES = [(option, name) for option, names in LIBRARIES.items() for name in names]


@pytest.mark.parametrize("command", ["record", "watch"])
@pytest.mark.parametrize(("option", "name"), CASES)
def test_a_missing_library_is_one_line_and_status_2(command, option, name, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    output = ["-o", str(tmp_path / "recorded")] if command == "record" else []
    assert run([command, *output, *OPTIONS[option]]) == 2
    out, err = capsys.readouterr()
    flag = "--" + option.replace("_", "-")
    assert (
        not out and err == f"kvtrace: {flag} needs {name}, which is not installed. Run `pip install 'kvtrace[live]'`.\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_library_whose_parent_is_missing_is_missing(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(Exception, match=r"--otlp needs opentelemetry\.proto"):
        LiveOptions(otlp=HERE).require_libraries()


def test_a_followed_file_needs_none(tmp_path, monkeypatch):
    for _, name in CASES:
        monkeypatch.setitem(sys.modules, name, None)
    LiveOptions(follow=(tmp_path / "log.jsonl",)).require_libraries()
