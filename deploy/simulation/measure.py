#!/usr/bin/env python3
"""Measures the speed of one replica for the simulation, with users who send distinct prompts one after the other.

    llama serve MODEL -c 32768 --n-parallel 16 &
    python3 deploy/simulation/measure.py http://127.0.0.1:8080 [--users 1,2,4,8,16] [--seconds 30] [--words 400]

Prints a row for each number of users: tokens per second, time to first token, and time between tokens, measured by the
client. Medians exclude interruptions of the machine. The last line has fitted speeds: prompt tokens per second, fixed
time per step, and additional time per sequence.
"""

import argparse
import http.client
import json
import random
import statistics
import threading
import time
import urllib.parse

WORDS = "river stone lamp garden winter paper engine music silver bridge forest letter market signal copper window".split()


def body(rng, n_words, n_max):
    """Returns a request with a random prompt."""
    text = " ".join(rng.choice(WORDS) for _ in range(n_words))
    options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "temperature": 0}
    return json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": n_max, **options})


def ask(host, text):
    """Sends a request; returns prompt tokens, seconds to the first token, and seconds between later tokens."""
    connection = http.client.HTTPConnection(host)
    begun = time.monotonic()
    connection.request("POST", "/v1/chat/completions", text, {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read(500)
    times, n_prompt = [], 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        n_prompt = (event.get("usage") or {}).get("prompt_tokens", n_prompt)
        if any(choice["delta"].get("content") for choice in event["choices"]):
            times.append(time.monotonic())
    connection.close()
    return n_prompt, times[0] - begun, [after - before for before, after in zip(times, times[1:])]


def measure(host, n_users, args):
    """Runs `n_users` users concurrently; returns all results and the elapsed time."""
    end, answers = time.monotonic() + args.seconds, []

    def use(number):
        rng = random.Random(f"{args.seed} {n_users} {number}")
        while time.monotonic() < end:
            answers.append(ask(host, body(rng, args.words, args.tokens)))

    begun = time.monotonic()
    users = [threading.Thread(target=use, args=[i]) for i in range(n_users)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    return answers, time.monotonic() - begun


def fitted(steps):
    """Fits step time to the number of sequences; returns intercept and slope in seconds."""
    n = len(steps)
    mean_x, mean_y = sum(x for x, _ in steps) / n, sum(y for _, y in steps) / n
    spread = sum((x - mean_x) ** 2 for x, _ in steps)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in steps) / spread if spread else 0.0
    return mean_y - slope * mean_x, slope


def main():
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--users", default="1,2,4,8,16")
    for name, default in [("seconds", 30), ("words", 400), ("tokens", 128), ("seed", 0)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    host, steps, speed = urllib.parse.urlsplit(args.url).netloc, [], 0.0
    print("| users | tokens/s | first token, median | p95 | between tokens, median | p95 |\n|---|---|---|---|---|---|")
    for n_users in map(int, args.users.split(",")):
        answers, seconds = measure(host, n_users, args)
        firsts = sorted(first for _, first, _ in answers)
        gaps = sorted(gap for _, _, gaps in answers for gap in gaps)
        p95 = lambda values: values[int(0.95 * len(values))]
        n_tokens = len(gaps) + len(firsts)
        if n_users == 1:
            speed = statistics.median(n_prompt / first for n_prompt, first, _ in answers)
        steps.append((n_users, statistics.median(gaps)))
        print(
            f"| {n_users} | {n_tokens / seconds:.0f} | {statistics.median(firsts):.2f} s | {p95(firsts):.2f} s "
            f"| {1000 * statistics.median(gaps):.1f} ms | {1000 * p95(gaps):.1f} ms |",
            flush=True,
        )
    alone, each = fitted(steps)
    print(f"--prompt-per-s {speed:.0f} --step-s {alone:.4f} --step-more-s {each:.5f}")


if __name__ == "__main__":
    main()
