"""Simulates concurrent users of a server. load.py runs this script with the package locust, in its virtual environment.

    python load_users.py URL N_USERS WARM_S MEASURED_S PROMPTS.json

Each user sends a request, reads the streamed response, and sends the next request immediately. Prints the measurements as JSON.
"""

import json
import sys
import time

from locust import FastHttpUser, constant, task
from locust.env import Environment

import gevent

SETTINGS = {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


class Record:
    """Collects tokens and latencies per second of the run."""

    def __init__(self, begin, end):
        self.begin, self.end = begin, end
        self.first, self.between, self.whole, self.failed = [], [], [], []
        self.n_tokens = self.n_prompt = self.n_cached = 0

    def covers(self, at):
        return self.begin <= at < self.end

    def answer(self, asked, times, usage):
        """Adds a response, given the arrival times of its chunks."""
        inside = [at for at in times if self.covers(at)]
        self.n_tokens += usage["completion_tokens"] * len(inside) / len(times)
        self.between += [b - a for a, b in zip(times, times[1:]) if self.covers(b)]
        if self.covers(times[0]):
            self.first.append(times[0] - asked)
            self.n_prompt += usage["prompt_tokens"]
            self.n_cached += usage["prompt_tokens_details"]["cached_tokens"]
        if self.covers(times[-1]):
            self.whole.append(times[-1] - asked)


class Asker(FastHttpUser):
    wait_time = constant(0)
    network_timeout = connection_timeout = 300
    record, prompts, n_predict = None, None, 0

    @task
    def ask(self):
        asked, times, usage = time.monotonic(), [], None
        body = {"model": "any", "prompt": self.prompts.pop(), "max_tokens": self.n_predict, **SETTINGS}
        # Open a connection per request, because servers close idle connections at different times.
        sent = {"json": body, "headers": {"Connection": "close"}}
        with self.client.post("/v1/completions", **sent, stream=True, catch_response=True) as response:
            if response.status_code != 200:
                self.record.failed.append(response.text or str(response.error))
                return
            while line := response.stream.readline(b"\n"):
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                usage = chunk.get("usage") or usage
                if any(choice["text"] for choice in chunk["choices"]):
                    times.append(time.monotonic())
            response.success()
        if not times or usage is None or usage["completion_tokens"] != self.n_predict:
            self.record.failed.append(f"an answer of {len(times)} pieces, usage {usage}")
            return
        self.record.answer(asked, times, usage)


def main():
    url, n_users, warm, measured, prompts = sys.argv[1:]
    begin = time.monotonic() + float(warm)
    with open(prompts, encoding="utf-8") as file:
        asked = json.load(file)
    Asker.prompts, Asker.n_predict = asked["prompts"][::-1], asked["n_predict"]
    Asker.record = record = Record(begin, begin + float(measured))
    environment = Environment(user_classes=[Asker], host=url)
    runner = environment.create_local_runner()
    runner.start(int(n_users), spawn_rate=int(n_users))
    gevent.sleep(record.end - time.monotonic())
    # Responses still streaming at the end count up to that time; they are read to completion.
    runner.stop_timeout = environment.stop_timeout = 120
    environment.runner.stop()
    values = {name: getattr(record, name) for name in ("first", "between", "whole", "failed", "n_tokens", "n_prompt", "n_cached")}
    print(json.dumps({**values, "seconds": record.end - record.begin}))


main()
