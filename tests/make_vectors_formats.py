"""Write tests/vectors/formats.json (`python -m tests.make_vectors_formats`): each format's smallest file, and broken
files with the message each deserves. A diff is a change of behaviour."""

import base64
import hashlib
import io
import json
import struct
import tempfile
from pathlib import Path

import kvtrace
from kvtrace._base.errors import KvtraceError
from kvtrace.formats import parquet
from kvtrace.formats.sidecar import describe

VECTORS = Path(__file__).parent / "vectors/formats.json"
PROMPTS = [([0, 1, 2], 10, 3), ([0, 1, 3], 9, 0), ([4], 2, 1)]  # ids, tokens and output tokens at block size 4
SOUND = '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0, 1, 2]}\n'
CHAT = '{"chat_id": 5, "parent_chat_id": -1, ' + SOUND[1:]

BROKEN = {  # what is wrong -> text of the file
    "empty": "",
    "blank lines only": "\n \n\r\n",
    "not JSON": "timestamp,input_length\n0,9\n",
    "a JSON array of rows": f"[{SOUND.strip()}]\n",
    "cut short": SOUND * 2 + SOUND[:40],
    "a missing field": SOUND + '{"timestamp": 0, "input_length": 9, "output_length": 1}\n',
    "a time that is text": SOUND.replace(": 0,", ': "0",'),
    "a time past all doubles": SOUND.replace(": 0,", ": 1e999,"),
    "a length with a fraction": SOUND.replace(": 9,", ": 9.5,"),
    "a length that is null": SOUND.replace(": 9,", ": null,"),
    "a negative length": SOUND + "\n" + SOUND.replace(": 9,", ": -9,"),
    "a negative output length": SOUND + SOUND.replace('th": 1', 'th": -1'),
    "ids that are no list": SOUND.replace("[0, 1, 2]", '"0 1 2"'),
    "an id that is text": SOUND.replace("[0,", '["0",'),
    "an id of more than 64 bits": SOUND.replace("[0,", "[18446744073709551616,"),
    "no block size fits one row": SOUND.replace(": 9,", ": 2,"),
    "no block size fits all rows": SOUND * 3 + SOUND.replace(": 9,", ": 900,"),
    "several block sizes fit": SOUND.replace("[0, 1, 2]", "[0]"),
    "blocks of a prompt without tokens": SOUND.replace(": 9,", ": 0,"),
    "output blocks that do not fit": SOUND.replace("}", ', "output_hash_ids": [3, 4, 5]}') * 2,
    "a request without a name": CHAT + SOUND,
    "a parent that is text": CHAT + CHAT.replace("-1", '"5"'),
}


def smallest_rows():
    """Rows as each JSON format has them, and nothing else."""
    mooncake = [
        {"timestamp": 250 * row, "input_length": tokens, "output_length": output, "hash_ids": ids}
        for row, (ids, tokens, output) in enumerate(PROMPTS)
    ]
    bailian = [
        {"chat_id": row, "parent_chat_id": [-1, 0, -1][row], "timestamp": row / 4, "input_length": tokens,
         "output_length": output, "type": "text", "turn": [1, 2, 1][row], "hash_ids": ids}
        for row, (ids, tokens, output) in enumerate(PROMPTS)
    ]  # fmt: skip
    return {"mooncake": mooncake, "bailian": bailian, "agentic-mooncake": agentic_rows()}


def agentic_rows():
    """A header and three requests of two sessions; the second waits 150 ms after the end of the first."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(struct.pack("<3d", 0, 250, 500))
    digest.update(struct.pack("<3q3q4q", 10, 9, 2, 3, 0, 1, 0, 3, 6, 7))
    digest.update(struct.pack("<7q", 0, 1, 2, 0, 1, 3, 4))
    header = {
        "schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4, "hash_id_scope": "local",
        "source": {"format": "kvtrace", "digest": digest.hexdigest()},
        "kvtrace": {"tail": "kept", "recorded_times": True},
    }  # fmt: skip
    waits = {"request_id": "0", "trigger": "completion", "delay_ms": 150, "relation": "sequence"}
    rows = [
        {"request_id": str(row), "play_id": f"session-{row // 2}", "source_play_ordinal": row // 2,
         "session_id": f"session-{row // 2}/agent-0", "model": "unknown", "input_length": tokens,
         "output_length": output, "hash_ids": ids, "not_before_ms": 250 * row,
         "dependencies": [waits] if row == 1 else []}
        for row, (ids, tokens, output) in enumerate(PROMPTS)
    ]  # fmt: skip
    rows[0]["recorded_api_time_ms"] = 100.0
    return [header, *rows]


def smallest_files():
    texts = {name: "".join(json.dumps(row) + "\n" for row in rows) for name, rows in smallest_rows().items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_text(texts["mooncake"])
        trace, stream = kvtrace.read(path, block_size=4), io.BytesIO()
    parquet.write(stream, trace, description=describe(trace, block_size=4, tail="kept", format="parquet"))
    return texts | {"parquet": base64.b64encode(stream.getvalue()).decode()}


def message(text, folder):
    """What reading a broken file says, with the file's name in place of its path."""
    path = Path(folder) / "trace.jsonl"
    path.write_text(text)
    try:
        kvtrace.read(path)
    except KvtraceError as error:
        return {"status": error.status, "message": str(error).replace(str(path), path.name)}
    raise AssertionError("this file is fine")


def vectors():
    with tempfile.TemporaryDirectory() as folder:
        broken = [{"name": name, "text": text, **message(text, folder)} for name, text in BROKEN.items()]
    return {"smallest": smallest_files(), "broken": broken}


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n")
