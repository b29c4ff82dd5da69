"""Tests of the simulation: reproducible, complete, and correct in cases with known results."""

import pathlib
import random
import sys
import unittest

for folder in ["ray", "simulation"]:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / folder))
from llama_prefixes import Prompt  # noqa: E402
from simulate import BLOCK, PROMPT_STEP, ROUTES, Habits, Replica, Request, Speeds, User, simulate  # noqa: E402


def request(name, n_blocks, n_answer):
    user = User(0, Habits(), random.Random(0))
    return Request(user, 0.0, Prompt([f"{name} {i}".encode() for i in range(n_blocks)]), n_answer)


class OneReplica(unittest.TestCase):
    speeds = Speeds(prompt_per_s=1000, step_s=0.01, step_more_s=0.002, n_parallel=2, n_ctx=64 * BLOCK)

    def test_single_request_time_is_prefill_plus_decode(self):
        replica, one = Replica(self.speeds), request("a", 10, 50)
        replica.add(one, 0.0)
        [(at, done)] = replica.advance(100.0)
        self.assertIs(done, one)
        self.assertAlmostEqual(one.first_token, 10 * BLOCK / 1000)
        self.assertAlmostEqual(at, one.first_token + 50 * 0.012)
        self.assertAlmostEqual(replica.busy_s, at)
        self.assertEqual(replica.load, 0)

    def test_prefill_and_decode_share_time(self):
        replica, one, other = Replica(self.speeds), request("a", 1, 1000), request("b", 10, 10)
        replica.add(one, 0.0)
        replica.add(other, 1.0)
        replica.advance(100.0)
        share = PROMPT_STEP / (PROMPT_STEP + 0.012)
        self.assertAlmostEqual(other.first_token, 1.0 + 10 * BLOCK / (1000 * share))

    def test_third_request_queues_and_cached_blocks_are_skipped(self):
        replica = Replica(self.speeds)
        for name in "aab":
            replica.add(request(name, 20, 100), 0.0)
        done = [each for _, each in replica.advance(100.0)]
        self.assertEqual(len(done), 3)
        self.assertEqual(sorted(each.n_known for each in done), [0, 0, 20])
        self.assertGreater(max(each.first_token for each in done), min(each.first_token for each in done) + 1.0)

    def test_least_recently_used_is_evicted_first(self):
        replica = Replica(self.speeds)
        known = []
        for name in ["a", "b", "c", "a", "c"]:
            one = request(name, 30, 10)
            replica.add(one, 1000.0 * (len(known) + 1))
            replica.advance(1000.0 * (len(known) + 1) + 999)
            known.append(one.n_known)
        # 64 blocks hold two prompts; the prefix of the oldest is evicted last.
        self.assertEqual(known[:3], [0, 0, 0])
        self.assertLess(known[3], 30)
        self.assertEqual(known[4], 30)


class ManyReplicas(unittest.TestCase):
    def run_one(self, route, **more):
        return simulate(route, n_replicas=4, n_users=60, seconds=200, **{"seed": 3, **more})

    def test_equal_seeds_give_equal_results(self):
        for route in ROUTES:
            self.assertEqual(self.run_one(route), self.run_one(route))
        self.assertNotEqual(self.run_one("prefix"), self.run_one("prefix", seed=4))

    def test_no_request_is_lost(self):
        for route in ROUTES:
            result = simulate(route, n_replicas=4, n_users=20, seconds=400, seed=1)
            # Each user has at most one request in flight.
            self.assertLessEqual(result.n_requests - result.n_answered, 20)
            self.assertGreater(result.n_answered, 100)

    def test_prefix_routing_has_more_hits_and_lower_latency(self):
        drawn, routed = self.run_one("fewest"), self.run_one("prefix")
        self.assertGreater(routed.known, drawn.known + 0.1)
        self.assertLess(routed.first_token_mean, drawn.first_token_mean)
        # Independent gateways agree on home replicas.
        self.assertGreater(self.run_one("prefix", n_gateways=8).known, drawn.known + 0.1)


if __name__ == "__main__":
    unittest.main()
