"""Routing by shared prefix, as a request router of Ray Serve."""

from ray.serve.request_router import RequestRouter

from llama_prefixes import PrefixTable, Prompt, Weights


class PrefixRouter(RequestRouter):
    """Sends a request to the replica that is done with it soonest, by what it has computed before and who waits there.

    What there is to know of a request's prompt comes as its argument `prompt`. Each router knows what it has routed itself.
    """

    def initialize_state(self, **weights):
        """Takes the fields of `Weights`."""
        self._table = PrefixTable(weights=Weights(**weights))

    async def choose_replicas(self, candidate_replicas, pending_request=None):
        """Ranks of one replica each: Serve asks them in this order until one takes the request."""
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        lengths = self.replica_queue_len_cache
        loads = {name: lengths.get(replica.replica_id) or 0 for name, replica in by_id.items()}
        order = self._table.ranked(_prompt(pending_request), loads)
        return [[by_id[name]] for name in order]

    def on_request_routed(self, pending_request, replica_id, result):
        """What is routed is known there from now on."""
        self._table.remember(_prompt(pending_request).blocks, replica_id.unique_id)


def _prompt(pending_request):
    return pending_request.kwargs.get("prompt", Prompt()) if pending_request else Prompt()
