"""What several tests of logs share."""

import json

import pytest


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Writes a log, in pieces of few rows."""
    monkeypatch.setattr("kvtrace.ingest.logs.sources.PIECE_BYTES", 400)

    def write(wanted):
        path = tmp_path / "log.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in wanted))
        return path

    return write
