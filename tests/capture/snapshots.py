"""Snapshots of a gauge with known figures, as `to_dict` gives them."""

from kvtrace.capture.gauge import CapacityHits, DeliveredTokens, LiveHits, Precision, Snapshot, StoreCounts, Traffic

KV_BYTES = 131_072.0
TRAFFIC = {"requests": 400.0, "requests_with_blocks": 390.0, "blocks": 8000.0, "prompt_tokens": 128_000.0}
COUNTS = {  # of a service, as the fields of RecorderCounts
    "accepted": 412, "dropped": 8, "uncopied": 3, "refused": 21, "digested": 400, "rejected": 5, "left_out": 7,
    "malformed": 2, "tokens": 128_000,
    "lost": 3, "waiting": 4, "waiting_bytes": 9000, "waiting_limit_bytes": 1 << 28, "sealed": 11, "failed": 1,
    "proxy": {"requests": 90, "recorded": 60, "dropped": 4, "refused": 9, "failed": 11, "left": 13,
              "errors": 8, "other": 2},
    "restarts": 6, "last_sealed_s": 1.7e9, "reasons": {"a field path of a log: is not text": 5},
    "failing": {"feeder": 0, "sealer": 1}, "failures": {"feeder": 0, "sealer": 2},
}  # fmt: skip


def rates(block, token, request):
    return {"block_hit_rate": block, "token_hit_rate": token, "request_hit_rate": request}


def hits(rate):
    """Hits at a token hit rate; the two other rates differ from it, so that a mix-up shows."""
    values = rates(None, None, None) if rate is None else rates(rate - 0.01, rate, rate + 0.02)
    return {"hit_blocks": 8000 * (rate or 0), "hit_tokens": 128_000 * (rate or 0), "request_hits": 9.0, **values}


def traffic(*, known=True, delivered=True, curve_of="capacity", more=0.0, decays=False):
    """Requests of a span; `more` is added to every rate, so that spans differ."""
    at = ((0.5, 0.2), (1.0, 0.3), (2.0, 0.4), (4.0, 0.45))
    curve = [
        CapacityHits(**hits(rate + more), factor=factor, capacity_blocks=int(1000 * factor)) for factor, rate in at
    ]
    cached = DeliveredTokens(requests=200.0, prompt_tokens=64_000.0, cached_tokens=16_000.0, possible_tokens=40_000.0)
    causes = {"hit": 16_000.0, "evicted": 24_000.0, "first_use": 24_000.0} if delivered else {}
    return Traffic(
        **(TRAFFIC if known else dict.fromkeys(TRAFFIC, 0.0)),
        possible=LiveHits(**hits(0.5 + more if known else None)),
        curve=tuple(curve if known else ()),
        curve_of=curve_of,
        delivered=cached if delivered else None,
        blocks_for_90_percent=3000 if known else None,
        causes=causes,
        causes_of="delivered" if delivered else None,
        working_set_blocks=None if decays else 5000,
    )


def snapshot(*, model=True, stores=True, capacity=True, started_s=0.0, **options):
    """A snapshot as `kvtrace watch --json` prints it."""
    options |= {"curve_of": "capacity" if capacity else "working_set"}
    return Snapshot(
        now_s=7200.0, started_s=started_s, window_s=3600.0, half_life_s=600.0, block_size=16,
        capacity_blocks=1000 if capacity else None, kv_bytes_per_token=KV_BYTES if model else None,
        since_start=traffic(**options), window=traffic(**options, more=0.05),
        decayed=traffic(**options, more=0.1, decays=True),
        stores=StoreCounts(first_stored=70, stored_again=20, removed=60) if stores else None,
        precision=Precision(0.01, 100, 50, exact_up_to_blocks=90, reach_blocks=None), memory_bytes=1 << 25,
    ).to_dict()  # fmt: skip
