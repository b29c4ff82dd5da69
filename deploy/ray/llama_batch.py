"""Ray Data job that runs batches in OpenAI's format on several machines.

    python llama_batch.py in.jsonl out.jsonl --model /models/NAME.gguf --replicas 8

Each replica owns a `llama serve` process and receives a few lines at a time. Results are written as they arrive, with
line numbers in the format of `llama batch`, so either program can resume the other's output. Lines of a lost engine
or machine are retried elsewhere.
"""

import argparse
import json
import os
import pathlib
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import ray

from llama_engine import Engine

# Prefix of result ids; the line number follows.
ID = "batch_req_"


class Answerer:
    """Owns a `llama serve` process and runs requests."""

    def __init__(self, binary, model, options, n_parallel):
        # If this process exits, Ray retries its lines on another one.
        options = ["--n-parallel", str(n_parallel), *options]
        self._engine = Engine(binary, model, options, lambda _: os._exit(1))
        self._pool = ThreadPoolExecutor(2 * n_parallel)

    def __call__(self, lines):
        """Maps the columns `number` and `line` to a column `answer`."""
        answers = self._pool.map(self._answered, lines["number"], lines["line"])
        return {"answer": [json.dumps(answer) for answer in answers]}

    def _answered(self, number, line):
        identity, asked = f"{ID}{number}", None
        try:
            asked = read(line)
            response = self._ask(asked["url"], asked["body"])
        except ValueError as error:
            error = {"code": "invalid_line", "message": f"line {number}: {error}"}
            return {"id": identity, "custom_id": None, "response": None, "error": error}
        return {"id": identity, "custom_id": asked["custom_id"], "response": response, "error": None}

    def _ask(self, url, body):
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self._engine.address + url, json.dumps(body).encode(), headers)
        try:
            response = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            # The engine failed, not the request: let Ray retry or stop.
            if error.code == 503:
                raise RuntimeError(f"the model has stopped: {error.read(1000)}") from None
            response = error
        with response:
            request_id, text = response.headers["x-request-id"], response.read()
            return {"status_code": response.status, "request_id": request_id, "body": json.loads(text)}


def read(line):
    """Parses a line; raises ValueError if it is invalid."""
    try:
        asked = json.loads(line)
    except RecursionError:
        raise ValueError("the line is nested too deeply") from None
    if not isinstance(asked, dict) or not isinstance(asked.get("custom_id"), str):
        raise ValueError("the line has no custom_id")
    if asked.get("method", "POST") != "POST":
        raise ValueError("unsupported method: expected POST")
    url, body = asked.get("url"), asked.get("body")
    if not isinstance(url, str) or not url.startswith("/v1/") or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("unsupported url: expected a path such as /v1/chat/completions")
    if not isinstance(body, dict) or body.get("stream"):
        raise ValueError("expected a body without `stream`")
    return {"custom_id": asked["custom_id"], "url": url, "body": body}


def finished(path):
    """Returns the custom ids of finished lines by line number. Truncates a partial last line."""
    found, end = {}, 0
    with open(path, "a+b") as file:
        file.seek(0)
        for line in file:
            if not line.endswith(b"\n"):
                break
            end += len(line)
            try:
                answer = json.loads(line)
                found[int(answer["id"].removeprefix(ID))] = answer["custom_id"]
            except (ValueError, KeyError, TypeError, AttributeError):
                raise SystemExit(f"cannot resume the batch: {path} contains a line that is not a batch result") from None
        file.truncate(end)
    return found


def waiting(path, done):
    """Yields the unfinished lines with their numbers."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if number in done:
                _check_same(number, line, done[number])
            elif line.strip():
                yield {"number": number, "line": line}


def _check_same(number, line, expected):
    try:
        found = read(line)["custom_id"]
    except ValueError:
        return
    if found != expected:
        raise SystemExit(f"cannot resume the batch: line {number} has custom_id {found!r}, but the output has {expected!r}")


def run(args):
    """Runs the unfinished lines; returns their number."""
    lines = list(waiting(args.input, finished(args.output)))
    if not lines:
        print(f"{args.output}: already complete")
        return 0
    # Small tasks, so that little work is lost with a machine and results arrive early.
    n_at_once = 4 * args.n_parallel
    n_tasks = -(-len(lines) // n_at_once)
    n_replicas = min(args.replicas, n_tasks)
    answers = ray.data.from_items(lines, override_num_blocks=n_tasks).map_batches(
        Answerer,
        fn_constructor_args=(args.binary, args.model, args.option, args.n_parallel),
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=n_replicas, max_tasks_in_flight_per_actor=1),
        num_cpus=args.cpus,
        num_gpus=args.gpus,
    )
    n_done = 0
    with open(args.output, "ab", buffering=0) as file:
        for row in answers.iter_rows():
            file.write(row["answer"].encode() + b"\n")
            n_done += 1
        os.fsync(file.fileno())
    print(f"{args.output}: {n_done} requests finished")
    return n_done


def main():
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--model", required=True, help="path that exists on every machine, or a model name")
    parser.add_argument("--binary", default="llama")
    parser.add_argument("--option", action="append", default=[], help="option of llama serve (repeatable), such as --option=-t --option=8")
    parser.add_argument("--n-parallel", type=int, default=4, help="parallel requests per replica")
    parser.add_argument("--replicas", type=int, default=1, help="maximum number of replicas")
    parser.add_argument("--cpus", type=float, default=1, help="CPUs per replica")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs per replica")
    parser.add_argument("--address", help="address of the Ray cluster (default: this machine)")
    args = parser.parse_args()
    here = str(pathlib.Path(__file__).resolve().parent)
    ray.init(address=args.address, runtime_env={"working_dir": here})
    run(args)


if __name__ == "__main__":
    main()
