"""Write tests/vectors/clients.json (`python -m tests.make_vectors_clients`): each client's smallest file.

Plain Python; a diff is a change of behaviour. The trace: three requests in blocks of 4 tokens, two of them of one
session, one without output.
"""

import base64
import hashlib
import json
import struct
from pathlib import Path

VECTORS = Path(__file__).parent / "vectors/clients.json"
BLOCK_SIZE = 4
ROWS = [  # time in ms, prompt tokens, output tokens, ids, session
    (0, 10, 3, [0, 1, 2], 0),
    (250, 9, 0, [0, 1, 3], 0),
    (61_500, 2, 1, [4], -1),
]


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def portable(unit=1):
    """Rows as Mooncake's, an output of 0 tokens raised to 1."""
    return json_lines(
        {"timestamp": time / unit if unit != 1 else time, "input_length": isl, "output_length": max(osl, 1),
         "hash_ids": ids}
        for time, isl, osl, ids, _ in ROWS
    )  # fmt: skip


def llm_d():
    return json_lines(
        {"chat_id": row, "parent_chat_id": [-1, 0, -1][row], "timestamp": time / 1000, "input_length": isl,
         "output_length": max(osl, 1), "type": "text", "turn": [1, 2, 1][row], "hash_ids": ids}
        for row, (time, isl, osl, ids, _) in enumerate(ROWS)
    )  # fmt: skip


def dynamo_agentic():
    """A header and rows; the request without a session is a tree by itself."""
    time, isl, osl, ids, _ = zip(*ROWS, strict=True)
    digest = hashlib.blake2b(struct.pack("<3d", *time), digest_size=16)
    digest.update(struct.pack("<3q3q4q7q", *isl, *osl, 0, 3, 6, 7, *(block for row in ids for block in row)))
    own = {"tail": "kept", "recorded_times": False, "links": ["session"],
           "without": ["agent", "parent", "dependencies", "service_ms"]}  # fmt: skip
    header = {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": BLOCK_SIZE, "hash_id_scope": "local",
              "source": {"format": "kvtrace", "digest": digest.hexdigest()}, "kvtrace": own}  # fmt: skip
    rows = [
        {"request_id": str(row), "play_id": f"session-{row // 2}", "source_play_ordinal": row // 2,
         "session_id": f"session-{row // 2}/agent-0", "model": "unknown", "input_length": isl, "output_length": osl,
         "hash_ids": ids, "not_before_ms": time} | ({"session": session} if session >= 0 else {})
        for row, (time, isl, osl, ids, session) in enumerate(ROWS)
    ]  # fmt: skip
    return json_lines([header, *rows])


def vidur():
    return "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,3\n0.25,9,1\n61.5,2,1\n"


def azure():
    return (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2000-01-01 00:00:00.0000000,10,3\n"
        "2000-01-01 00:00:00.2500000,9,1\n"
        "2000-01-01 00:01:01.5000000,2,1\n"
    )


def burstgpt():
    return (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "0,0,0,GPT-4,10,3,13,Conversation log\n"
        "0.25,0,0,GPT-4,9,1,10,Conversation log\n"
        "61.5,,0,GPT-4,2,1,3,Conversation log\n"
    )


def lmcache():
    """Lookups of complete chunks, without spaces."""
    rows = [
        {"timestamp": time / 1000, "request_id": str(row), "model_name": "trace", "chunk_size": BLOCK_SIZE,
         "seq_len": isl, "dtypes": ["int8"], "shapes": [[BLOCK_SIZE]],
         "chunk_hashes": [f"0x{block:016x}" for block in ids[: isl // BLOCK_SIZE]]}
        for row, (time, isl, _, ids, _) in enumerate(ROWS)
    ]  # fmt: skip
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def accesses():
    """(whole seconds, id) of each block reference."""
    return [(time // 1000, block) for time, _, _, ids, _ in ROWS for block in ids]


def libcachesim_csv():
    return "time,obj_id,obj_size\n" + "".join(f"{time},{block},1\n" for time, block in accesses())


def libcachesim():
    """24 bytes an access: time, id, size, and the place of the next access to the same id, or -1."""
    places, packed = accesses(), b""
    for place, (time, block) in enumerate(places):
        following = next((p for p in range(place + 1, len(places)) if places[p][1] == block), -1)
        packed += struct.pack("<IQIq", time, block, 1, following)
    return base64.b64encode(packed).decode()


def vectors():
    """The file of each client, by client and the name it was written under."""
    return {
        "aiperf t.jsonl": portable(),
        "vllm t.jsonl": portable(),
        "sglang t.jsonl": portable(),
        "dynamo t.jsonl": portable(),
        "dynamo-agentic t.jsonl": dynamo_agentic(),
        "guidellm t.jsonl": portable(unit=1000),
        "llm-d t.jsonl": llm_d(),
        "vidur t.csv": vidur(),
        "azure t.csv": azure(),
        "burstgpt t.csv": burstgpt(),
        "lmcache t.jsonl": lmcache(),
        "libcachesim t.csv": libcachesim_csv(),
        "libcachesim t.oracleGeneral": libcachesim(),
    }


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n")
