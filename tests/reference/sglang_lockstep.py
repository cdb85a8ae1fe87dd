"""SGLang's ranks with data-parallel attention, step by step in plain Python: the schedulers of 0.5.23 in step.

`serve(case)` takes the cases of tests/clients/sglang_lockstep.py and returns what that returns, without the version.
"""

import math

from tests.reference.sglang_scheduler import Batch, Scheduler, request_of
from tests.reference.vllm_scheduler import step_seconds


def serve(case):
    """Steps of each rank, its idle batches, and of each request cached tokens, begin, first token, end, retractions."""
    count, rows, cost = case["ranks"], case["requests"], case["cost"]
    local = cost | {"expert_token_s": 0.0, "expert_step_s": 0.0}
    requests = [[-1, None, None, None, 0] for _ in rows]
    ranks = [Scheduler(case) for _ in range(count)]
    steps, idles = [[] for _ in ranks], [0] * count
    now, end, arrived, retried, looked = 0.0, 0.0, 0, False, [math.inf] * count
    in_flight = None  # when the last step ends, if the ranks have not waited for that
    for _ in range(case.get("max_plans", 1 << 62)):
        late = []  # without overlap, a rank with an idle batch looks for requests when that begins
        while arrived < len(rows) and rows[arrived]["arrival"] <= now:
            if rows[arrived]["arrival"] > looked[arrived % count]:
                late.append(arrived)
            else:
                ranks[arrived % count].add(request_of(case, arrived))
            arrived += 1
        batches, looked = [rank.plan() for rank in ranks], [math.inf] * count
        for row in late:
            ranks[row % count].add(request_of(case, row))
        if not any(batches) and in_flight is None:
            idle = all(rank.idle() for rank in ranks)
            if not idle and not retried:
                retried = True
                for rank in ranks:
                    rank.last = None
                continue
            if arrived == len(rows):
                assert idle, "stuck: a request does not fit"
                break
            for rank in ranks:
                rank.last = None
                if rank.idle():
                    rank.ratio = rank.first_ratio
            now, retried = max(now, rows[arrived]["arrival"]), False
            continue
        begin = max(end, now)
        if any(batches):
            parts = [batch.parts if batch else [] for batch in batches]
            tokens = sum(chunk for part in parts for _, _, chunk in part)
            touched = cost["expert_step_s"] * (1 - (1 - cost["expert_share"]) ** tokens)
            experts = max(cost["expert_token_s"] * tokens, touched) / count
            end, retried = begin + max(_seconds(local, part) for part in parts) + experts, False
        for place, (rank, batch) in enumerate(zip(ranks, batches, strict=True)):
            if batch is None:
                idles[place] += any(batches)
                if any(batches) and not rank.overlap:
                    looked[place] = begin
                continue
            gone, rank.dropped = sorted(one.row for one in rank.dropped), []
            steps[place].append([begin, batch.kind, [[one.row, *part] for one, *part in batch.parts], gone])
            for one, before, _ in batch.parts:
                if requests[one.row][1] is None:
                    requests[one.row][:2] = [before, begin]
            for row in gone:
                requests[row][4] += 1
            kept = Batch(batch.requests, batch.kind, decoding=batch.decoding)
            rank.in_flight.append((kept, batch.requests))
        known = in_flight if ranks[0].overlap else end
        now = max(now, known or 0.0)
        for rank, batch in zip(ranks, batches, strict=True):
            if rank.last is not None if rank.overlap else batch is not None:
                for request in rank.learn(*rank.in_flight.popleft()):
                    times = requests[request.row]
                    times[2] = now if times[2] is None else times[2]
                    times[3] = now if request.finished else None
            rank.last = batch
        in_flight = end if any(batches) and ranks[0].overlap else None
    for rank in ranks:  # where max_plans ended the case before the next step
        for request in rank.dropped:
            requests[request.row][4] += 1
    return {"steps": steps, "dummies": idles, "requests": requests}


def _seconds(cost, parts):
    """The time of a step of a rank."""
    return step_seconds(cost, [(len(request.prompt), before, chunk) for request, before, chunk in parts])
