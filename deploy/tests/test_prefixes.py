"""Routing by shared prefix: what `llama_prefixes` promises."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ray"))
from llama_prefixes import BLOCK, MAX_BLOCKS, PrefixTable, Prompt, Weights, blocks_of, prompt_of  # noqa: E402


class Blocks(unittest.TestCase):
    def test_hashes_agree_as_far_as_texts_do(self):
        begin = "a" * (3 * BLOCK)
        one, other = blocks_of(begin + "b" * BLOCK), blocks_of(begin + "c" * BLOCK + "d")
        self.assertEqual((len(one), len(other)), (4, 4))
        self.assertEqual(one[:3], other[:3])
        self.assertNotEqual(one[3], other[3])
        # A block is told by all before it.
        self.assertNotEqual(blocks_of("b" * BLOCK + "a" * BLOCK)[1], blocks_of("c" * BLOCK + "a" * BLOCK)[1])

    def test_only_whole_blocks_count_and_not_too_many(self):
        self.assertEqual(blocks_of("a" * (BLOCK - 1)), [])
        self.assertEqual(len(blocks_of("a" * BLOCK)), 1)
        self.assertEqual(len(blocks_of("a" * (BLOCK * (MAX_BLOCKS + 9)))), MAX_BLOCKS)
        # Half of a pair of surrogates, as JSON can have it.
        self.assertEqual(len(blocks_of("\ud800" * BLOCK)), 1)

    def test_the_next_turn_begins_as_the_one_before(self):
        said = [{"role": "system", "content": "x" * 600}, {"role": "user", "content": "y" * 600}]
        more = [*said, {"role": "assistant", "content": "z"}, {"role": "user", "content": "more"}]
        turn, after = (prompt_of({"model": "m", "messages": each, "seed": len(each)}) for each in (said, more))
        self.assertGreater(len(turn.blocks), 3)
        self.assertEqual(after.blocks[: len(turn.blocks)], turn.blocks)
        self.assertEqual((turn.home, turn.is_begun, after.is_begun), (after.home, False, True))
        other = prompt_of({"model": "m", "tools": [{"type": "function"}], "messages": said})
        self.assertNotEqual((other.blocks[0], other.home), (turn.blocks[0], turn.home))
        self.assertNotEqual(prompt_of({"model": "m", "messages": said[1:]}).home, turn.home)

    def test_whatever_a_body_is_it_has_a_prompt(self):
        for body in [None, 3, [], {}, {"messages": None}, {"messages": 7}, {"prompt": ["a", 1]}, {"input": {"a": []}}]:
            self.assertEqual((prompt_of(body).blocks, prompt_of(body).home), ([], None))


class Table(unittest.TestCase):
    def setUp(self):
        self.table = PrefixTable(weights=Weights(blocks_per_request=4))
        self.blocks = blocks_of("".join(chr(97 + i) * BLOCK for i in range(8)))

    def test_it_is_known_who_saw_how_much(self):
        self.table.remember(self.blocks[:3], "a")
        self.table.remember(self.blocks, "b")
        self.assertEqual(self.table.known(self.blocks), {"a": 3, "b": 8})
        self.assertEqual(self.table.known(self.blocks[1:]), {"a": 2, "b": 7})
        self.assertEqual(self.table.known([]), {})

    def test_who_knows_it_is_asked_until_too_many_wait_there(self):
        self.table.remember(self.blocks, "b")
        best = lambda loads: self.table.ranked(Prompt(self.blocks), loads)[0]
        self.assertEqual(best({"a": 0, "b": 1}), "b")
        # Eight blocks are worth two requests.
        self.assertEqual(best({"a": 0, "b": 3}), "a")
        self.assertEqual(sorted(self.table.ranked(Prompt(self.blocks), {"a": 0, "b": 3, "c": 9})), ["a", "b", "c"])

    def test_those_who_have_gone_are_no_candidates(self):
        self.table.remember(self.blocks, "gone")
        self.assertEqual(self.table.ranked(Prompt(self.blocks), {"a": 0}), ["a"])
        self.assertEqual(self.table.ranked(Prompt(self.blocks), {}), [])

    def test_tables_that_know_nothing_agree_on_homes_and_spread(self):
        loads = {name: 0 for name in "abcdefgh"}
        prompts = [Prompt(blocks_of(str(i) * BLOCK), str(i).encode()) for i in range(200)]
        first = [self.table.ranked(prompt, loads)[0] for prompt in prompts]
        again = [PrefixTable().ranked(prompt, dict(reversed(loads.items())))[0] for prompt in prompts]
        self.assertEqual(first, again)
        self.assertEqual(set(first), set(loads))

    def test_a_later_turn_goes_home_until_too_many_wait_there(self):
        begin, later = (Prompt(self.blocks, b"talk", is_begun) for is_begun in (False, True))
        home = self.table.ranked(begin, dict.fromkeys("abcd", 0))[0]
        best = lambda prompt, n: self.table.ranked(prompt, {**dict.fromkeys("abcd", 0), home: n})[0]
        # At first nobody knows it; afterwards home has eight blocks, which are worth two requests.
        self.assertEqual([best(begin, n) == home for n in (0, 0.5, 2)], [True, True, False])
        self.assertEqual([best(later, n) == home for n in (0, 1.5, 3)], [True, True, False])

    def test_it_forgets_the_oldest(self):
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
