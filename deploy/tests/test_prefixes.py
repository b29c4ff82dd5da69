"""Tests of prefix-aware routing (`llama_prefixes`)."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ray"))
from llama_prefixes import BLOCK, MAX_BLOCKS, PrefixTable, Prompt, Weights, blocks_of, prompt_of  # noqa: E402


class Blocks(unittest.TestCase):
    def test_hashes_match_up_to_common_prefix(self):
        begin = "a" * (3 * BLOCK)
        one, other = blocks_of(begin + "b" * BLOCK), blocks_of(begin + "c" * BLOCK + "d")
        self.assertEqual((len(one), len(other)), (4, 4))
        self.assertEqual(one[:3], other[:3])
        self.assertNotEqual(one[3], other[3])
        # A block hash covers all preceding text.
        self.assertNotEqual(blocks_of("b" * BLOCK + "a" * BLOCK)[1], blocks_of("c" * BLOCK + "a" * BLOCK)[1])

    def test_only_complete_blocks_up_to_limit_are_hashed(self):
        self.assertEqual(blocks_of("a" * (BLOCK - 1)), [])
        self.assertEqual(len(blocks_of("a" * BLOCK)), 1)
        self.assertEqual(len(blocks_of("a" * (BLOCK * (MAX_BLOCKS + 9)))), MAX_BLOCKS)
        # A lone surrogate, which JSON allows.
        self.assertEqual(len(blocks_of("\ud800" * BLOCK)), 1)

    def test_next_turn_extends_previous_blocks(self):
        said = [{"role": "system", "content": "x" * 600}, {"role": "user", "content": "y" * 600}]
        more = [*said, {"role": "assistant", "content": "z"}, {"role": "user", "content": "more"}]
        turn, after = (prompt_of({"model": "m", "messages": each, "seed": len(each)}) for each in (said, more))
        self.assertGreater(len(turn.blocks), 3)
        self.assertEqual(after.blocks[: len(turn.blocks)], turn.blocks)
        self.assertEqual((turn.home, turn.is_begun, after.is_begun), (after.home, False, True))
        other = prompt_of({"model": "m", "tools": [{"type": "function"}], "messages": said})
        self.assertNotEqual((other.blocks[0], other.home), (turn.blocks[0], turn.home))
        self.assertNotEqual(prompt_of({"model": "m", "messages": said[1:]}).home, turn.home)

    def test_any_body_yields_prompt(self):
        for body in [None, 3, [], {}, {"messages": None}, {"messages": 7}, {"prompt": ["a", 1]}, {"input": {"a": []}}]:
            self.assertEqual((prompt_of(body).blocks, prompt_of(body).home), ([], None))


class Table(unittest.TestCase):
    def setUp(self):
        self.table = PrefixTable(weights=Weights(blocks_per_request=4))
        self.blocks = blocks_of("".join(chr(97 + i) * BLOCK for i in range(8)))

    def test_known_counts_leading_blocks_per_replica(self):
        self.table.remember(self.blocks[:3], "a")
        self.table.remember(self.blocks, "b")
        self.assertEqual(self.table.known(self.blocks), {"a": 3, "b": 8})
        self.assertEqual(self.table.known(self.blocks[1:]), {"a": 2, "b": 7})
        self.assertEqual(self.table.known([]), {})

    def test_cached_replica_wins_until_overloaded(self):
        self.table.remember(self.blocks, "b")
        best = lambda loads: self.table.ranked(Prompt(self.blocks), loads)[0]
        self.assertEqual(best({"a": 0, "b": 1}), "b")
        # Eight blocks cost as much as two requests.
        self.assertEqual(best({"a": 0, "b": 3}), "a")
        self.assertEqual(sorted(self.table.ranked(Prompt(self.blocks), {"a": 0, "b": 3, "c": 9})), ["a", "b", "c"])

    def test_removed_replicas_are_not_ranked(self):
        self.table.remember(self.blocks, "gone")
        self.assertEqual(self.table.ranked(Prompt(self.blocks), {"a": 0}), ["a"])
        self.assertEqual(self.table.ranked(Prompt(self.blocks), {}), [])

    def test_empty_tables_agree_on_spread_homes(self):
        loads = {name: 0 for name in "abcdefgh"}
        prompts = [Prompt(blocks_of(str(i) * BLOCK), str(i).encode()) for i in range(200)]
        first = [self.table.ranked(prompt, loads)[0] for prompt in prompts]
        again = [PrefixTable().ranked(prompt, dict(reversed(loads.items())))[0] for prompt in prompts]
        self.assertEqual(first, again)
        self.assertEqual(set(first), set(loads))

    def test_later_turn_prefers_home_until_overloaded(self):
        begin, later = (Prompt(self.blocks, b"talk", is_begun) for is_begun in (False, True))
        home = self.table.ranked(begin, dict.fromkeys("abcd", 0))[0]
        best = lambda prompt, n: self.table.ranked(prompt, {**dict.fromkeys("abcd", 0), home: n})[0]
        # At first no replica has cached it; later its home has eight blocks, which cost as much as two requests.
        self.assertEqual([best(begin, n) == home for n in (0, 0.5, 2)], [True, True, False])
        self.assertEqual([best(later, n) == home for n in (0, 1.5, 3)], [True, True, False])

    def test_oldest_blocks_are_evicted(self):
        table = PrefixTable(n_max=10)
        old, new = (blocks_of(letter * (BLOCK * 8)) for letter in "ab")
        table.remember(old, "a")
        table.remember(new, "b")
        self.assertEqual(table.known(new), {"b": 8})
        self.assertEqual(table.known(old), {})
        for i in range(20):
            table.remember(new, i)
        self.assertEqual(list(table.known(new)), list(range(12, 20)))


if __name__ == "__main__":
    unittest.main()
