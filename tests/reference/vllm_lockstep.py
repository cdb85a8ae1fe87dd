"""vLLM's data-parallel ranks of a model with experts, step by step in plain Python: DPEngineCoreProc of 0.33.0.

`serve(case)` takes the cases of tests/clients/vllm_lockstep.py and returns what that returns, without the version.
"""

from dataclasses import dataclass, field

from tests.reference import vllm_grouped_scheduler
from tests.reference.vllm_scheduler import Live, Scheduler, seconds_of

SYNC_EVERY = 16  # steps


@dataclass
class Rank:
    """The host of a rank: what it knows, and the batches whose output it does not know."""

    scheduler: Scheduler
    rows: list  # its requests that have not arrived
    poll: float = 0.0  # when it looks for requests, and plans a step
    flying: list = field(default_factory=list)  # (parts, when they end), the oldest first
    parts: list = field(default_factory=list)  # of the step that is planned
    reached: float = 0.0  # when it begins to wait for the other hosts

    @property
    def arrival(self):
        return self.rows[0][1]["arrival"] if self.rows else float("inf")

    @property
    def has_requests(self):
        return bool(self.scheduler.running or self.scheduler.waiting)


def serve(case):
    """Steps of each rank, its dummy steps, and of each request cached tokens, begin, first token, end, preemptions."""
    count, size, depth = case["ranks"], case["block_size"], 2 if case["settings"].get("async") else 1
    requests = [[-1, None, None, None, 0] for _ in case["requests"]]
    numbered = list(enumerate(case["requests"]))
    kind = vllm_grouped_scheduler.Scheduler if "groups" in case else Scheduler
    ranks = [Rank(kind(case), numbered[place::count]) for place in range(count)]
    steps, dummies, cost = [[] for _ in ranks], [0] * count, case["cost"]
    before = end = 0.0  # of the last two steps
    experts = {name: cost.get(name, 0.0) for name in ("expert_token_s", "expert_step_s", "expert_share")}
    local = cost | {"expert_token_s": 0.0, "expert_step_s": 0.0}
    dummy = Live(-1, 0, 1, [], 0, 0.0)

    def arrive(rank):
        while rank.arrival <= rank.poll:
            number, row = rank.rows.pop(0)
            full, blocks = row["tokens"] // size, (row["tokens"] + row["output"]) // size
            hashes = [*row["ids"][:full], *((number, block) for block in range(full, blocks))]
            live = Live(number, row["tokens"], row["output"], hashes, row.get("priority", 0), row["arrival"])
            rank.scheduler.add(live)

    def plan(place, rank, begin):
        rank.parts, preempted = rank.scheduler.plan() if rank.has_requests else ([], [])
        if rank.parts or preempted:
            parts = [[live.row, before, chunk] for live, before, chunk in rank.parts]
            steps[place].append([begin, parts, sorted(preempted)])
        for row in preempted:
            requests[row][4] += 1
        for live, computed, _ in rank.parts:
            if requests[live.row][1] is None:
                requests[live.row][:2] = [computed, begin]

    def learn(rank):
        parts, at = rank.flying.pop(0)
        for live, last in rank.scheduler.learn(parts):
            if requests[live.row][2] is None:
                requests[live.row][2] = at
            if last:
                requests[live.row][3] = at
        return at

    while any(rank.rows or rank.has_requests for rank in ranks):
        wake = min(max(rank.poll, rank.arrival) for rank in ranks)
        for rank in ranks:
            rank.poll = wake
        for number in range(1, 1 << 40):  # the steps until all stop
            for place, rank in enumerate(ranks):
                arrive(rank)
                plan(place, rank, max(end, rank.poll))
                rank.reached = rank.poll
                if not rank.parts and rank.flying:  # its requests have their last tokens in the step before
                    rank.reached = learn(rank)
                if not rank.parts:
                    dummies[place] += 1
            met = max(rank.reached for rank in ranks)
            begin = max(end, met)
            shares = [seconds_of(local, rank.parts or [(dummy, 0, 1)]) for rank in ranks]
            tokens = sum(sum(chunk for _, _, chunk in rank.parts) if rank.parts else 1 for rank in ranks)
            touched = experts["expert_step_s"] * (1 - (1 - experts["expert_share"]) ** tokens)
            seconds = max(shares) + max(experts["expert_token_s"] * tokens, touched) / count
            for rank in ranks:
                if not rank.parts:
                    rank.poll = max(met, before if depth == 2 else begin)
                else:
                    rank.flying.append((rank.parts, begin + seconds))
                    rank.poll = met if len(rank.flying) < depth else max(met, learn(rank))
            before, end = end, begin + seconds
            if number == 1 or number % SYNC_EVERY == 0:
                latest = max(rank.poll for rank in ranks)
                for rank in ranks:
                    rank.poll = latest
                if not any(rank.has_requests for rank in ranks):
                    break
    return {"steps": steps, "dummies": dummies, "requests": requests}
