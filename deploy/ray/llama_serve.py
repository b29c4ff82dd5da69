"""Ray Serve application that runs `llama serve` on several machines.

    serve run --working-dir deploy/ray llama_serve:build model=/models/NAME.gguf max_replicas=8

A *gateway* accepts HTTP requests and hashes their prompt prefixes. A *replica* owns one `llama serve` process and
forwards requests to it. If a replica dies, its requests are retried unless output was already sent; otherwise the
stream ends with an error event.
"""

import asyncio
import json
import os

import aiohttp
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, StreamingResponse

from llama_engine import Engine
from llama_prefixes import Weights, prompt_of
from llama_router import PrefixRouter

# Forwarded routes. The other routes concern the state of a single server.
ROUTES = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/models",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/health",
    "/ready",
}
# Body limit of `llama serve`.
MAX_BODY = 16 << 20
# Attempts per request before output has been sent.
ATTEMPTS = 4
# Hop-by-hop headers, and headers that Ray Serve sets.
HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length"}
MADE_ANEW = {"date", "x-request-id"}


class Settings(BaseModel):
    """Arguments of `serve run`, given as NAME=VALUE or in a configuration file."""

    model_config = ConfigDict(extra="forbid")

    # Path that exists on every machine, or a model name.
    model: str
    binary: str = "llama"
    # Further options of `llama serve`, as a list or a space-separated string.
    options: str | list[str] = []
    # Parallel requests per replica. Further requests queue in the gateway, which triggers scaling.
    n_parallel: int = 4
    # Maximum queued requests per gateway; further ones get status 429.
    max_waiting: int = 256
    min_replicas: int = 1
    max_replicas: int = 1
    # Seconds of high or low load before replicas are added or removed.
    upscale_delay_s: float = 5
    downscale_delay_s: float = 300
    # Seconds for running requests when a replica is removed.
    drain_s: float = 600
    # Resources per replica, in Ray's units.
    cpus: float = 1
    gpus: float = 0
    gateways: int = 1
    gateway_resources: dict[str, float] = {}
    # Router settings; see `llama_prefixes.Weights`.
    blocks_per_request: float = Weights().blocks_per_request
    requests_at_home: float = Weights().requests_at_home

    def engine_options(self):
        """Returns the `llama serve` options of a replica."""
        more = self.options.split() if isinstance(self.options, str) else self.options
        return ["--n-parallel", str(self.n_parallel), "--shutdown-timeout", str(int(self.drain_s)), *more]


class EngineLost(RuntimeError):
    """The `llama serve` process of a replica ended during a request."""


class Replica:
    """Owns a `llama serve` process; both end together."""

    def __init__(self, settings):
        # Ray Serve replaces the replica when this process exits.
        self._engine = Engine(settings.binary, settings.model, settings.engine_options(), lambda _: os._exit(1))
        self._drain_s = settings.drain_s
        self._session = None
        self._name = serve.get_replica_context().replica_id.unique_id

    async def answer(self, request, prompt):
        """Yields status, headers and the start of the body, then the rest; streams are split at event boundaries.

        `prompt` is used only by the router.
        """
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = aiohttp.ClientSession(self._engine.address, timeout=timeout, auto_decompress=False)
        method, path, headers, body = request
        try:
            async with self._session.request(method, path, headers=headers, data=body) as response:
                headers = [(name, value) for name, value in response.headers.items() if name.lower() not in MADE_ANEW]
                headers = [*_passed_on(headers), ("x-llama-replica", self._name)]
                if response.content_type != "text/event-stream":
                    yield response.status, headers, await response.read()
                    return
                yield response.status, headers, b""
                async for event in _whole_events(response.content):
                    yield event
        except aiohttp.ClientError as error:
            raise EngineLost(f"{type(error).__name__}: {error}") from None

    async def check_health(self):
        """Raises if the engine is unhealthy; Ray Serve then replaces the replica."""
        await asyncio.to_thread(self._engine.check)

    def __del__(self):
        self._engine.end(self._drain_s)


async def _whole_events(content):
    """Splits a stream at event boundaries, so that clients never receive a partial event."""
    rest = b""
    async for chunk in content.iter_any():
        whole, end, rest = (rest + chunk).rpartition(b"\n\n")
        if end:
            yield whole + end
    if rest:
        yield rest


def _passed_on(headers):
    return [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP]


class Gateway:
    """Accepts HTTP requests, forwards each to a replica and returns the response."""

    def __init__(self, replicas):
        self._replicas = replicas.options(stream=True)

    async def __call__(self, request):
        """Handles a request."""
        try:
            refused = _refusal(request)
            if refused:
                return refused
            body = await _body(request)
            if body is None:
                return _error(413, f"the request body exceeds the limit of {MAX_BODY} bytes")
            asked = _asked(request, body)
            if isinstance(asked, JSONResponse):
                return asked
            return await self._answered(request.url.path, *asked)
        except ClientDisconnect:
            return _error(499, "the client disconnected")

    async def _answered(self, path, request, prompt):
        for attempt in range(ATTEMPTS):
            answer = self._replicas.answer.remote(request, prompt=prompt)
            try:
                status, headers, begin = await anext(answer)
                is_stream = not begin and any(value == "text/event-stream" for _, value in headers)
                begin = await anext(answer) if is_stream else begin
            except BackPressureError:
                return _error(429, "the queue is full; retry later", retry_after=1)
            except DeploymentUnavailableError as error:
                return _error(503, f"cannot start a replica: {error.message}", retry_after=10)
            except RayError as error:
                if not _is_loss(error):
                    raise
                await asyncio.sleep(0.2 * 2**attempt)
                continue
            except StopAsyncIteration:
                continue
            pieces = _pieces(path, begin, answer, is_stream)
            response = StreamingResponse(pieces, status)
            response.raw_headers = [(name.lower().encode(), value.encode()) for name, value in headers]
            return response
        return _error(503, f"replicas failed in {ATTEMPTS} attempts", retry_after=1)


async def _pieces(path, begin, answer, is_stream):
    """Yields the response body. If a stream breaks, yields an error event; other responses are already complete."""
    yield begin
    if not is_stream:
        return
    try:
        async for piece in answer:
            yield piece
    except RayError as error:
        if not _is_loss(error):
            raise
        yield _error_event(path, "the replica failed; the output is valid but incomplete")
    finally:
        answer.cancel()


def _is_loss(error):
    """Returns True if the replica, its machine or its engine was lost, as opposed to an invalid request."""
    if isinstance(error, TaskCancelledError):
        return False
    return isinstance(error, EngineLost) or not isinstance(error, RayTaskError)


def _refusal(request):
    path = request.url.path
    if path in ROUTES:
        return None
    if path.startswith("/v1/models/"):
        return None
    if path == "/metrics":
        return _error(404, "each replica has its own metrics; Ray reports queues and replicas")
    return _error(404, f"not found: {request.method} {path[:128]} is not available with several replicas")


async def _body(request):
    """Returns the request body; None if it is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    return bytes(body)


def _asked(request, body):
    """Returns the request for the replica and the prompt for the router, or an error response."""
    try:
        fields = json.loads(body) if body else None
    except (ValueError, RecursionError):
        # The replica reports the error.
        fields = None
    if isinstance(fields, dict) and fields.get("previous_response_id"):
        return _error(501, "previous_response_id is not supported with several replicas; send the whole conversation")
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    asked = (request.method, target, _passed_on(request.headers.items()), body)
    return asked, prompt_of(fields)


def _error_object(status, message):
    kind = {429: "rate_limit_error", 404: "not_found_error", 503: "unavailable_error", 501: "not_supported_error"}
    kind = kind.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _error(status, message, retry_after=None):
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return JSONResponse(_error_object(status, message), status, headers)


def _error_event(path, message):
    """Returns the final error event of a stream in the format of its API."""
    if path.startswith("/v1/messages"):
        error = {"type": "error", "error": {"type": "api_error", "message": message}}
        return f"event: error\ndata: {json.dumps(error)}\n\n".encode()
    if path.startswith("/v1/responses"):
        error = {"type": "error", "code": "server_error", "message": message, "param": None}
        return f"event: error\ndata: {json.dumps(error)}\n\n".encode()
    return f"data: {json.dumps(_error_object(500, message))}\n\ndata: [DONE]\n\n".encode()


def build(settings: Settings) -> serve.Application:
    """Returns the application that `serve run` starts."""
    replicas = serve.deployment(
        Replica,
        name="replica",
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        # More than n_parallel, so that a slot is never idle between requests.
        max_ongoing_requests=settings.n_parallel + max(1, settings.n_parallel // 2),
        max_queued_requests=settings.max_waiting,
        autoscaling_config={
            "min_replicas": settings.min_replicas,
            "max_replicas": settings.max_replicas,
            "target_ongoing_requests": settings.n_parallel,
            "upscale_delay_s": settings.upscale_delay_s,
            "downscale_delay_s": settings.downscale_delay_s,
            "look_back_period_s": max(settings.upscale_delay_s, 2),
            "metrics_interval_s": 1,
        },
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter,
            request_router_kwargs={name: getattr(settings, name) for name in ("blocks_per_request", "requests_at_home")},
        ),
        graceful_shutdown_wait_loop_s=1,
        graceful_shutdown_timeout_s=settings.drain_s,
        health_check_period_s=5,
        health_check_timeout_s=30,
    ).bind(settings)
    return serve.deployment(
        Gateway,
        name="gateway",
        num_replicas=settings.gateways,
        ray_actor_options={"num_cpus": 0, "resources": settings.gateway_resources},
        # Waiting requests are cheap in the gateway.
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=settings.drain_s,
    ).bind(replicas)
