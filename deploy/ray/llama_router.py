"""Prefix-aware request router for Ray Serve."""

from ray.serve.request_router import RequestRouter

from llama_prefixes import PrefixTable, Prompt, Weights


class PrefixRouter(RequestRouter):
    """Routes a request to the replica with the lowest cost, by cached prefix and load.

    The gateway passes the prompt information as the argument `prompt`. Each router records only its own decisions.
    """

    def initialize_state(self, **weights):
        """Initializes the router with the fields of `Weights`."""
        self._table = PrefixTable(weights=Weights(**weights))

    async def choose_replicas(self, candidate_replicas, pending_request=None):
        """Returns ranks of one replica each. Serve tries them in order until a replica accepts."""
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        lengths = self.replica_queue_len_cache
        loads = {name: lengths.get(replica.replica_id) or 0 for name, replica in by_id.items()}
        order = self._table.ranked(_prompt(pending_request), loads)
        return [[by_id[name]] for name in order]

    def on_request_routed(self, pending_request, replica_id, result):
        """Records that the replica will cache this prompt."""
        self._table.remember(_prompt(pending_request).blocks, replica_id.unique_id)


def _prompt(pending_request):
    return pending_request.kwargs.get("prompt", Prompt()) if pending_request else Prompt()
