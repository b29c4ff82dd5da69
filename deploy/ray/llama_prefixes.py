"""Prefix-aware routing, independent of Ray: tracks which replica has cached which prompt prefixes.

A prompt is divided into blocks of characters. The hash of a block covers all preceding text, so equal hashes mean an
equal prefix.
"""

import collections
import dataclasses
import hashlib
import json

# Characters per block: about 64 tokens of English text, the page size of the engine's cache.
BLOCK = 256
# Maximum number of blocks per prompt.
MAX_BLOCKS = 256


def blocks_of(text):
    """Returns the hashes of the complete blocks of a text, up to MAX_BLOCKS."""
    hashes, before = [], b""
    for start in range(0, min(len(text), MAX_BLOCKS * BLOCK) - BLOCK + 1, BLOCK):
        block = text[start : start + BLOCK].encode("utf-8", "surrogatepass")
        before = _hash(before + block)
        hashes.append(before)
    return hashes


@dataclasses.dataclass(frozen=True)
class Prompt:
    """Routing information of a request."""

    # Block hashes of the prompt.
    blocks: list = dataclasses.field(default_factory=list)
    # Hash of the conversation up to the first user message; equal in all turns.
    home: bytes | None = None
    # True if this is not the first turn.
    is_begun: bool = False


def prompt_of(body):
    """Returns the routing information of an OpenAI or Anthropic request.

    The parts are ordered as in chat templates, so that each turn extends the blocks of the previous one.
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
    """Weights of the routing cost, in units of queued requests."""

    # Uncached blocks that cost as much as one queued request. 2 is best in the simulation; 1 and 4 are nearly as good.
    blocks_per_request: float = 2.0
    # Extra cost, in requests, up to which a new conversation starts at its home replica.
    requests_at_home: float = 1.0


class PrefixTable:
    """Maps the most recent `n_max` blocks to the replicas that have computed them."""

    # Maximum number of replicas per block, most recent first.
    HOLDERS = 8

    def __init__(self, n_max=200_000, weights=Weights()):
        self._holders = collections.OrderedDict()
        self._n_max = n_max
        self._weights = weights

    def remember(self, blocks, replica):
        """Records that a replica computes these blocks."""
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
        """Returns the number of leading blocks cached by each replica."""
        known = {}
        for i, block in enumerate(blocks):
            holders = self._holders.get(block, {})
            going_on = [replica for replica in holders if known.get(replica, 0) == i]
            if not going_on:
                break
            known.update(dict.fromkeys(going_on, i + 1))
        return known

    def ranked(self, prompt, loads):
        """Returns the replicas, best first. `loads` maps each replica to its number of requests.

        The cost of a replica is its load plus the uncached blocks. Each conversation has a home replica, derived from
        a hash, on which independent routers agree. A new conversation starts at home unless that is much more
        expensive; later turns assume that the home has cached all earlier turns.
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
