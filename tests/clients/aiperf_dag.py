"""AIPerf: its loader of `dag_jsonl`; run in AIPerf's environment as FILE. Prints its conversations."""

import json
import sys

from aiperf.dataset.loader.dag_jsonl import DagJsonlLoader

loader = DagJsonlLoader(sys.argv[1])
conversations = loader.load()
print(json.dumps({
    "roots": sorted(loader.root_session_ids()),
    "conversations": [
        {
            "name": one.session_id,
            "delays": [turn.delay for turn in one.turns],
            "max_tokens": [turn.max_tokens for turn in one.turns],
            "texts": [turn.raw_messages[0]["content"] for turn in one.turns],
            "branches": {branch.branch_id: branch.child_conversation_ids for branch in one.branches},
            "spawns": [turn.branch_ids for turn in one.turns],
            "joins": [[gate.branch_id for gate in turn.prerequisites] for turn in one.turns],
        }
        for one in conversations
    ],
}))  # fmt: skip
