"""Write raw_log.jsonl: an invented log of a travel assistant, in the block-hash form that `kvtrace anonymize` reads.

Thirty conversations of one to five turns share one system prompt; some users ask the same first question. Every line is
one request: {"timestamp", "input": messages, "output", "session", "user"}.
"""

import json
import random
from datetime import datetime, timedelta
from pathlib import Path

SYSTEM = (
    "You are the assistant of Meridian Rail, a railway that runs between forty stations. Answer in the traveller's "
    "language, in at most five sentences. Give times in the 24-hour clock and prices in euros. Never promise a refund: "
    "say which office decides, and how long it takes. A ticket may be changed until one hour before departure. Dogs "
    "travel at half price, bicycles need a reservation, folded bicycles do not. The night train has seats, couchettes "
    "and sleepers; breakfast is part of the sleeper fare. When a question is not about travel, say so kindly."
)
OPENINGS = [
    "Is there a train from Harbour Town to Lakeside before eight in the morning?",
    "Can I take my bicycle on the 17:40 to Northgate?",
    "I missed my connection in Millbridge because the first train was late. What can I do?",
    "What does a sleeper from Harbour Town to Alpenrose cost for two people?",
    "How do I change the name on a ticket?",
    "My dog weighs four kilograms. Does she need a ticket of her own?",
]
FOLLOW_UPS = [
    "And on a Sunday?",
    "Would a later train be cheaper?",
    "How long does that take, and which office do I write to?",
    "Could you give me the same for three people, one of them a child of six?",
    "Thank you. Is there a step-free way to the platform?",
    "Please repeat that in one sentence.",
]
PHRASES = [
    "The 06:52 from platform 3 arrives at 09:14.",
    "A reservation costs 7 euros and can be made until the evening before.",
    "The office in Millbridge decides on that within ten working days.",
    "Two berths in a sleeper cost 188 euros, breakfast included.",
    "On Sundays the first train leaves at 08:22.",
    "Yes, lifts go to platforms 1 to 6; platform 7 has a ramp.",
    "The flexible fare lets you take any train of that day.",
    "I cannot promise a refund, but a claim with the delay certificate is usually answered quickly.",
]


def conversation(random, start, number):
    """The requests of one conversation: each holds all turns before it."""
    messages = [{"role": "system", "content": SYSTEM}]
    user, when = f"traveller-{random.randrange(18):02}", start
    for turn in range(random.choice([1, 1, 2, 3, 3, 4, 5])):
        question = random.choice(OPENINGS if turn == 0 else FOLLOW_UPS)
        answer = " ".join(random.sample(PHRASES, random.randint(1, 4)))
        messages = [*messages, {"role": "user", "content": question}]
        yield when, {"input": messages, "output": answer, "session": f"ride-{number:03}", "user": user}
        messages = [*messages, {"role": "assistant", "content": answer}]
        when += timedelta(seconds=random.uniform(15, 90))


def main():
    rng = random.Random(2026)
    start = datetime(2026, 3, 2, 7, 30)
    requests = [
        request
        for number in range(30)
        for request in conversation(rng, start + timedelta(seconds=rng.uniform(0, 1800)), number)
    ]
    requests.sort(key=lambda request: request[0])
    rows = [{"timestamp": when.isoformat(timespec="milliseconds") + "Z", **row} for when, row in requests]
    path = Path(__file__).parent / "raw_log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
