"""A closed loop, event by event: given when each request ends, when does each arrive, and on which lane?

The engine is a table of ends, so this twin has no scheduler and no cache. A request is (play, row). Of ends at one
time, `rank` has the order. Lanes are dictionaries, and times are plain seconds that the caps subtract from.
"""

from dataclasses import dataclass, field

NEVER = float("inf")


@dataclass
class Lane:
    play: int | None = None
    timers: dict = field(default_factory=dict)  # request -> when it arrives
    waits: dict = field(default_factory=dict)  # request -> [dependencies left, the latest time so far]
    out: set = field(default_factory=set)  # arrived, and not ended
    left: set = field(default_factory=set)  # requests of the play that have not ended
    last_end: float = 0.0
    issued: int = 0


class Loop:
    """`trees`: for each play its requests {row: offset}; `dependencies`: row -> [(row, trigger, delay)]."""

    def __init__(self, trees, dependencies, ends, rank, lanes, primers=(), warm_up=0, duration=NEVER, idle_cap=NEVER,
                 tree_cap=NEVER, lap=NEVER):  # fmt: skip
        self.trees, self.dependencies, self.ends, self.rank = trees, dependencies, ends, rank
        self.warm_up, self.duration, self.idle_cap, self.tree_cap = warm_up, duration, idle_cap, tree_cap
        self.lap = lap  # plays in a lap: those of a later lap come later if they arrive at the same time
        self.lanes = [Lane() for _ in range(lanes)]
        self.cursor, self.arrivals, self.begins, self.plays_end, self.on = 0, [], {}, {}, {}
        self.window, self.window_from, self.last_end = None, None, 0.0
        self.primers = set(primers)  # (play, row): the play is also the lane
        for primer in self.primers:
            self.lanes[primer[0]].timers[primer] = 0.0
        if not self.primers:
            self.begin(0.0)

    def run(self):
        while True:
            out = [request for lane in self.lanes for request in lane.out]
            timers = [
                (at, play // self.lap, row, play) for lane in self.lanes for (play, row), at in lane.timers.items()
            ]
            end = min(((self.ends[one], self.rank[one], one) for one in out), default=None)
            arrival = min(timers, default=None)
            if arrival and self.window is not None and arrival[0] >= self.window + self.duration:
                arrival = None
            if end and (arrival is None or end[0] <= arrival[0]):
                self.end(end[2], end[0])
            elif arrival:
                self.arrive((arrival[3], arrival[2]), arrival[0])
            else:
                return self

    def lane_of(self, request):
        return self.lanes[request[0] if request in self.primers else self.on[request[0]]]

    def begin(self, at):
        if not self.warm_up:
            self.open(at)
        for lane in self.lanes:
            lane.last_end = at
            self.take(lane, at)
        for lane in self.lanes:
            self.cap_tree(lane)
        self.cap_all()

    def open(self, at):
        self.window, self.window_from = at, len(self.arrivals)

    def take(self, lane, at):
        over = self.window is not None and at >= self.window + self.duration
        if self.cursor == len(self.trees) or over:
            lane.play = None
            if lane.issued < self.warm_up:
                lane.issued = self.warm_up
                self.check_warm(at)
            return
        play, tree = self.cursor, self.trees[self.cursor]
        self.cursor += 1
        lane.play, lane.left, self.on[play], self.begins[play] = play, set(tree), self.lanes.index(lane), at
        for row, offset in tree.items():
            here = [one for one in self.dependencies[row] if one[0] in tree]
            if here:
                lane.waits[play, row] = [len(here), 0.0]
            else:
                lane.timers[play, row] = at + offset

    def arrive(self, request, at):
        lane = self.lane_of(request)
        del lane.timers[request]
        lane.out.add(request)
        self.arrivals.append((request, at))
        if request not in self.primers:
            lane.issued += 1
            self.release(lane, request, "dispatch", at)
            if lane.issued == self.warm_up:
                self.check_warm(at)

    def check_warm(self, at):
        if self.window is None and all(lane.issued >= self.warm_up for lane in self.lanes):
            self.open(at)

    def end(self, request, at):
        lane = self.lane_of(request)
        lane.out.remove(request)
        lane.last_end = self.last_end = at
        if request in self.primers:
            if len(self.arrivals) == len(self.primers) and not any(one.out for one in self.lanes):
                self.begin(at)
            return
        self.release(lane, request, "completion", at)
        lane.left.remove(request[1])
        if not lane.left:
            self.plays_end[request[0]] = at
            self.take(lane, at)
        self.cap_tree(lane)
        self.cap_all()

    def release(self, lane, request, trigger, at):
        play, done = request
        for row in self.trees[play]:
            for name, kind, delay in self.dependencies[row]:
                if (name, kind) == (done, trigger):
                    state = lane.waits[play, row]
                    state[0], state[1] = state[0] - 1, max(state[1], at + delay)
                    if not state[0]:
                        lane.timers[play, row] = state[1]
                        del lane.waits[play, row]

    def cap_tree(self, lane):
        if not lane.out and lane.timers:
            self.forward(lane, min(lane.timers.values()) - lane.last_end - self.tree_cap)

    def cap_all(self):
        first = min((min(lane.timers.values()) for lane in self.lanes if lane.timers), default=None)
        if first is not None and not any(lane.out for lane in self.lanes):
            for lane in self.lanes:
                self.forward(lane, first - self.last_end - self.idle_cap)

    def forward(self, lane, seconds):
        """All that a lane waits for comes so much earlier."""
        if seconds > 0:
            lane.timers = {request: at - seconds for request, at in lane.timers.items()}
            for state in lane.waits.values():
                state[1] -= seconds
