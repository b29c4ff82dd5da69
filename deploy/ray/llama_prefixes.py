"""Which replica has computed which beginnings of prompts, and which of them a request goes to. Knows nothing of Ray.

Prompts are compared by their first whole blocks of characters, each told by a hash of itself and all before it: two
prompts whose hashes agree up to some block begin with the same text.
"""

import collections
import dataclasses
import hashlib
import json

# Characters of a block: about a page of 64 tokens of English.
BLOCK = 256
# Blocks of a prompt that are looked at: what two prompts share lies at their beginning.
MAX_BLOCKS = 256


def blocks_of(text):
    """The hashes of the whole blocks at the beginning of a text."""
    hashes, before = [], b""
    for start in range(0, min(len(text), MAX_BLOCKS * BLOCK) - BLOCK + 1, BLOCK):
        block = text[start : start + BLOCK].encode("utf-8", "surrogatepass")
        before = hashlib.blake2b(before + block, digest_size=8).digest()
        hashes.append(before)
    return hashes


def prompt_of(body):
    """The text of an OpenAI or Anthropic request in the order in which templates have it; "" if it has none.

    The next turn of a conversation begins with the text of the one before.
    """
    if not isinstance(body, dict):
        return ""
    said = body.get("messages", body.get("prompt", body.get("input")))
    if said is None:
        return ""
    said = said if isinstance(said, list) else [said]
    before = [body.get("model"), body.get("tools"), body.get("system"), body.get("instructions")]
    return "\n".join(json.dumps(part, sort_keys=True) for part in [*before, *said])


@dataclasses.dataclass
class Weights:
    """What is weighed against what, in requests that would be ahead of one."""

    # Blocks whose computing keeps one waiting as long as a request that is ahead: the best in the simulation, where half
    # of it and twice as much are hardly worse (docs/scale.md).
    blocks_per_request: float = 2.0


class PrefixTable:
    """Remembers who has seen which blocks, the last `n_max` of them."""

    # Replicas that are remembered for a block: those that saw it last.
    HOLDERS = 8

    def __init__(self, n_max=200_000, weights=Weights()):
        self._holders = collections.OrderedDict()
        self._n_max = n_max
        self._weights = weights

    def remember(self, blocks, replica):
        """The replica computes a prompt that begins so."""
        for block in blocks:
            holders = self._holders.pop(block, {})
            holders.pop(replica, None)
            holders[replica] = True
            if len(holders) > self.HOLDERS:
                del holders[next(iter(holders))]
            self._holders[block] = holders
        while len(self._holders) > self._n_max:
            self._holders.popitem(last=False)

    def known(self, blocks):
        """By replica, how many blocks at the beginning it has seen."""
        known = {}
        for i, block in enumerate(blocks):
            holders = self._holders.get(block, {})
            going_on = [replica for replica in holders if known.get(replica, 0) == i]
            if not going_on:
                break
            known.update(dict.fromkeys(going_on, i + 1))
        return known

    def ranked(self, blocks, loads):
        """The replicas, best first. `loads` has how many requests each of them works on.

        A replica costs what it would have to compute anew and whom one would wait for. Among equally good ones the
        prompt's beginning decides, so that routers that know nothing of each other agree.
        """
        known = self.known(blocks)
        missing = lambda replica: len(blocks) - known.get(replica, 0)
        costs = {replica: load + missing(replica) / self._weights.blocks_per_request for replica, load in loads.items()}
        order = sorted(costs, key=costs.get)
        begin = blocks[0] if blocks else b""
        best = [replica for replica in order if costs[replica] == costs[order[0]]]
        return sorted(best, key=lambda replica: _draw(begin, replica)) + order[len(best) :]


def _draw(block, replica):
    return hashlib.blake2b(block + str(replica).encode(), digest_size=8).digest()
