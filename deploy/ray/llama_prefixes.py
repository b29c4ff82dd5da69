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
        before = _hash(before + block)
        hashes.append(before)
    return hashes


@dataclasses.dataclass(frozen=True)
class Prompt:
    """What is looked at of a request."""

    # Hashes of the blocks that it begins with.
    blocks: list = dataclasses.field(default_factory=list)
    # A hash of what a conversation began with, up to its first question: the same in all its turns.
    home: bytes | None = None
    # There were turns before.
    is_begun: bool = False


def prompt_of(body):
    """The prompt of an OpenAI or Anthropic request, in the order in which templates have it.

    The next turn of a conversation begins with the blocks of the one before.
    """
    if not isinstance(body, dict):
        return Prompt()
    said = body.get("messages", body.get("prompt", body.get("input")))
    if said is None:
        return Prompt()
    said = said if isinstance(said, list) else [said]
    before = [body.get("model"), body.get("tools"), body.get("system"), body.get("instructions")]
    parts = [json.dumps(part, sort_keys=True) for part in [*before, *said]]
    roles = [part.get("role") if isinstance(part, dict) else None for part in said]
    home = None
    if "user" in roles:
        home = _hash("\n".join(parts[: len(before) + roles.index("user") + 1]).encode())
    return Prompt(blocks_of("\n".join(parts)), home, "assistant" in roles)


@dataclasses.dataclass
class Weights:
    """What is weighed against what, in requests that would be ahead of one."""

    # Blocks whose computing keeps one waiting as long as a request that is ahead: the best in the simulation, where half
    # of it and twice as much are hardly worse (docs/scale.md).
    blocks_per_request: float = 2.0
    # Requests that may be ahead at a new conversation's home before it begins elsewhere.
    requests_at_home: float = 1.0


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

    def ranked(self, prompt, loads):
        """The replicas, best first. `loads` has how many requests each of them works on.

        A replica costs what it would have to compute anew and whom one would wait for. Each conversation has a home
        among the replicas, which follows from its beginning: routers that know nothing of each other agree on it. It
        begins there unless that costs more by so much, and a later turn takes it that all before is known there.
        """
        known, weights = self.known(prompt.blocks), self._weights
        missing = lambda replica: (len(prompt.blocks) - known.get(replica, 0)) / weights.blocks_per_request
        costs = {replica: load + missing(replica) for replica, load in loads.items()}
        if prompt.home and loads:
            home = max(loads, key=lambda replica: _hash(prompt.home + str(replica).encode()))
            left = 0.0 if prompt.is_begun else max(0.0, missing(home) - weights.requests_at_home)
            costs[home] = min(costs[home], loads[home] + left)
        return sorted(costs, key=costs.get)


def _hash(text):
    return hashlib.blake2b(text, digest_size=8).digest()
