#!/usr/bin/env python3
"""Simulates conversations on many replicas: prefix cache hits and latency by routing policy.

    python3 deploy/simulation/simulate.py [--replicas N] [--users N] [--seconds S] [--gateways N] [--seed N]

A replica behaves like `llama serve`: prompts are prefilled one after the other in chunks, between which all running
sequences decode a token. Computed blocks stay cached until the least recently used ones are evicted. Speeds are
measured (deploy/README.md) and configurable. The routing code is in deploy/ray. Needs only the standard library;
results are reproducible for a given seed.
"""

import argparse
import collections
import dataclasses
import heapq
import math
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ray"))
from llama_prefixes import PrefixTable, Prompt, Weights  # noqa: E402

# Tokens per block, the page size of the engine's cache.
BLOCK = 64
# Seconds of prefill per step (`--prefill-budget-ms`).
PROMPT_STEP = 0.1
# Default weight of the router.
WEIGHT = Weights().blocks_per_request


@dataclasses.dataclass(frozen=True)
class Speeds:
    """Measured speed of a replica."""

    # Prompt tokens per second.
    prompt_per_s: float = 710.0
    # Seconds per decode step: fixed, and per sequence.
    step_s: float = 0.020
    step_more_s: float = 0.0047
    # Parallel requests, and context size in tokens.
    n_parallel: int = 8
    n_ctx: int = 32768


@dataclasses.dataclass(frozen=True)
class Habits:
    """User behavior: successive conversations of a few turns. Lengths are in tokens; all except the first two are means."""

    n_systems: int = 50
    system: int = 512
    question: int = 96
    answer: int = 160
    turns: float = 5.0
    # Seconds from a completion to the next question.
    think_s: float = 20.0


@dataclasses.dataclass(eq=False)
class Request:
    """A question with its conversation."""

    user: "User"
    arrived: float
    prompt: Prompt
    n_answer: int
    replica: int = -1
    n_known: int = 0
    first_token: float = 0.0


class User:
    """A user with successive conversations."""

    def __init__(self, number, habits, rng):
        self._number, self._habits, self._rng = number, habits, rng
        self._n_conversations, self._n_left, self._blocks = 0, 0, []

    def ask(self, now):
        """Returns the next question."""
        habits, rng = self._habits, self._rng
        is_begun = self._n_left > 0
        if not is_begun:
            self._n_conversations += 1
            self._n_left = 1 + int(rng.expovariate(1) * (habits.turns - 1) + 0.5)
            # System prompts follow a Pareto distribution.
            system = min(int(rng.paretovariate(1.0)), habits.n_systems)
            self._blocks = [f"system {system} {i}".encode() for i in range(habits.system // BLOCK)]
        self._n_left -= 1
        self._say(habits.question)
        home = f"{self._number} {self._n_conversations}".encode()
        return Request(self, now, Prompt(list(self._blocks), home, is_begun), self._length(habits.answer))

    def hear(self, request):
        """Adds the completion to the conversation; returns the thinking time."""
        self._say(request.n_answer)
        return self._rng.expovariate(1 / self._habits.think_s)

    def _length(self, mean):
        return max(8, int(self._rng.expovariate(1 / mean)))

    def _say(self, mean):
        n = max(1, round(self._length(mean) / BLOCK))
        begin = len(self._blocks)
        self._blocks += [f"{self._number} {self._n_conversations} {begin + i}".encode() for i in range(n)]


class Replica:
    """Processes requests. Speeds are constant between events."""

    def __init__(self, speeds):
        self._speeds = speeds
        self._known = collections.OrderedDict()
        self._waiting, self._prompts, self._texts = collections.deque(), collections.deque(), {}
        self._at = 0.0
        self.busy_s = 0.0

    @property
    def load(self):
        """Returns the number of requests."""
        return len(self._waiting) + len(self._prompts) + len(self._texts)

    def add(self, request, now):
        """Adds a request; returns the requests finished by now."""
        done = self.advance(now)
        self._waiting.append(request)
        self._begin()
        return done

    def advance(self, now):
        """Advances to a time; returns the finished requests with their times."""
        done = []
        while True:
            until = min(self.next_event(), now)
            self._compute(until - self._at)
            self._at = until
            done += self._collect()
            if until >= now:
                return done

    def next_event(self):
        """Returns the time of the next completion without new requests."""
        prompt_rate, text_rate = self._rates()
        left = [self._prompts[0][1] / prompt_rate] if self._prompts else []
        left += [min(self._texts.values()) / text_rate] if self._texts else []
        return self._at + min(left) if left else math.inf

    def _rates(self):
        speeds, n = self._speeds, len(self._texts)
        step = speeds.step_s + n * speeds.step_more_s
        if not self._prompts:
            return 0.0, 1 / step
        if not n:
            return speeds.prompt_per_s, 0.0
        both = PROMPT_STEP + step
        return speeds.prompt_per_s * PROMPT_STEP / both, 1 / both

    def _compute(self, seconds):
        if seconds <= 0 or not (self._prompts or self._texts):
            return
        self.busy_s += seconds
        prompt_rate, text_rate = self._rates()
        if self._prompts:
            self._prompts[0][1] -= prompt_rate * seconds
        for request in self._texts:
            self._texts[request] -= text_rate * seconds

    def _collect(self):
        tiny = 1e-6
        if self._prompts and self._prompts[0][1] <= tiny:
            request = self._prompts.popleft()[0]
            request.first_token = self._at
            self._texts[request] = request.n_answer
        done = [(self._at, request) for request, left in self._texts.items() if left <= tiny]
        for _, request in done:
            del self._texts[request]
            self._keep(request.prompt.blocks)
        self._begin()
        return done

    def _begin(self):
        while self._waiting and len(self._prompts) + len(self._texts) < self._speeds.n_parallel:
            request = self._waiting.popleft()
            while request.n_known < len(request.prompt.blocks) and request.prompt.blocks[request.n_known] in self._known:
                request.n_known += 1
            self._keep(request.prompt.blocks)
            # At least the last token is recomputed.
            n_left = max(1, (len(request.prompt.blocks) - request.n_known) * BLOCK)
            self._prompts.append([request, n_left])

    def _keep(self, blocks):
        for block in reversed(blocks):
            self._known.pop(block, None)
            self._known[block] = True
        while len(self._known) > self._speeds.n_ctx // BLOCK:
            self._known.popitem(last=False)


def random_one(rng, **_):
    """Random replica."""
    return lambda request, replicas: rng.randrange(len(replicas))


def fewest(rng, **_):
    """Less loaded of two random replicas, Ray Serve's default policy."""

    def choose(request, replicas):
        drawn = [rng.randrange(len(replicas)) for _ in range(2)]
        return min(drawn, key=lambda i: replicas[i].load)

    return choose


def prefix(rng, n_gateways, weight):
    """Policy of deploy/ray: cached prefix, load, and home replica. Each gateway records only its own decisions."""
    tables = [PrefixTable(weights=Weights(blocks_per_request=weight)) for _ in range(n_gateways)]

    def choose(request, replicas):
        table = rng.choice(tables)
        loads = {i: replica.load for i, replica in enumerate(replicas)}
        chosen = table.ranked(request.prompt, loads)[0]
        table.remember(request.prompt.blocks, chosen)
        return chosen

    return choose


ROUTES = {"random": random_one, "fewest": fewest, "prefix": prefix}


@dataclasses.dataclass(frozen=True)
class Result:
    """Results; times are in seconds."""

    n_requests: int
    n_answered: int
    known: float
    first_token_mean: float
    first_token_p95: float
    tokens_per_s: float
    busy: float


def simulate(route, n_replicas, n_users, seconds, seed=0, n_gateways=1, weight=WEIGHT, speeds=Speeds(), habits=Habits()):
    """Runs a simulation. Users arrive within the first `think_s` seconds; the second half of the time is evaluated."""
    rng = random.Random(seed)
    choose = ROUTES[route](rng, n_gateways=n_gateways, weight=weight)
    replicas = [Replica(speeds) for _ in range(n_replicas)]
    users = [User(i, habits, random.Random(f"{seed} {i}")) for i in range(n_users)]
    # Events: time, unique number, and the user who asks or the replica to advance.
    events = [(rng.uniform(0, habits.think_s), i, user) for i, user in enumerate(users)]
    heapq.heapify(events)
    asked, answered, n_events = [], [], n_users

    def note(done):
        nonlocal n_events
        for at, request in done:
            answered.append((at, request))
            n_events += 1
            heapq.heappush(events, (at + request.user.hear(request), n_events, request.user))

    # Next event of each replica; outdated events in the heap are skipped.
    due = [math.inf] * n_replicas
    while events and events[0][0] < seconds:
        now, _, what = heapq.heappop(events)
        if isinstance(what, User):
            request = what.ask(now)
            index = request.replica = choose(request, replicas)
            asked.append(request)
            note(replicas[index].add(request, now))
        else:
            index = what
            if now != due[index]:
                continue
            note(replicas[index].advance(now))
        due[index] = max(replicas[index].next_event(), now)
        if due[index] < math.inf:
            n_events += 1
            heapq.heappush(events, (due[index], n_events, index))
    return summed_up(asked, answered, replicas, seconds)


def summed_up(asked, answered, replicas, seconds):
    """Summarizes the second half of the time."""
    late = [request for at, request in answered if request.arrived >= seconds / 2]
    waits = sorted(request.first_token - request.arrived for request in late) or [math.nan]
    n_blocks = sum(len(request.prompt.blocks) for request in late) or 1
    n_tokens = sum(request.n_answer for at, request in answered if at >= seconds / 2)
    return Result(
        n_requests=len(asked),
        n_answered=len(answered),
        known=sum(request.n_known for request in late) / n_blocks,
        first_token_mean=sum(waits) / len(waits),
        first_token_p95=waits[int(0.95 * len(waits))],
        tokens_per_s=n_tokens / (seconds / 2),
        busy=sum(replica.busy_s for replica in replicas) / (seconds * len(replicas)),
    )


def main():
    """Prints a table with a row per routing policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in [("replicas", 8), ("users", 160), ("seconds", 600), ("gateways", 1), ("seed", 0)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--weight", type=float, default=WEIGHT, help="blocks_per_request of the router")
    for field in dataclasses.fields(Speeds):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    args = parser.parse_args()
    speeds = Speeds(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Speeds)})
    print("| routing | prompts known | first token, mean | p95 | tokens/s | busy |\n|---|---|---|---|---|---|")
    for route in ROUTES:
        r = simulate(
            route, args.replicas, args.users, args.seconds, args.seed, args.gateways, args.weight, speeds
        )
        print(
            f"| {route} | {r.known:.0%} | {r.first_token_mean:.2f} s | {r.first_token_p95:.2f} s "
            f"| {r.tokens_per_s:,.0f} | {r.busy:.0%} |"
        )


if __name__ == "__main__":
    main()
