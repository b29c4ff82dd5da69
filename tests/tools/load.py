#!/usr/bin/env python3
"""Measures servers under load from concurrent users, one server after another, in rounds.

    python3 tests/tools/load.py --server ours='target/release/llama serve' --server peer=llama-server \
        --model MODEL.gguf --users 1,4,8,16,32 --rounds 3 [--json FILE]

Every server gets the options -m, -t, -c, -np and --port of llama-server, except those that its command already sets.
Each run starts a new process, and the order of the servers alternates between rounds. Users are simulated by
load_users.py with the package locust of PyPI; each user sends the next request as soon as the previous response is
complete. A prompt is one of a few shared prefixes plus its own suffix, made of seeded random text that is identical
for all servers. A warm-up period is not counted. Prints medians over rounds: tokens per second, time to first token,
and time between tokens. Also prints medians of the ratios to the last server within a round. With --idle, also prints
the CPU time of an idle server.
"""

import argparse
import json
import os
import pathlib
import random
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import packages

PACKAGES = ["locust==2.47.0"]
WORDS = """time year people way day man thing woman life child world school state family student group country problem hand part place case week
company system program question work government number night point home water room mother area money story fact month lot right study book eye job
word business issue side kind head house service friend father power hour game line end member law car city community name president team minute idea
body information back parent face others level office door health person art war history party result change morning reason research girl guy
moment air teacher force education""".split()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=COMMAND", help="server to measure; the last one is the baseline (repeatable)")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--users", default="1,4,8,16,32", help="numbers of concurrent users, separated by commas (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per number of users (%(default)s)")
    parser.add_argument("--warm", type=float, default=5, help="warm-up in seconds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="measured time in seconds (%(default)s)")
    parser.add_argument("--idle", type=float, default=0, help="seconds to measure an idle server (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads per server (%(default)s)")
    parser.add_argument("--slots", type=int, default=32, help="slots per server (%(default)s)")
    parser.add_argument("--context", type=int, default=1024, help="context size per slot, in tokens (%(default)s)")
    parser.add_argument("--beginnings", type=int, default=4, help="number of shared prompt prefixes (%(default)s)")
    parser.add_argument("--shared", type=int, default=384, help="tokens of a shared prefix (%(default)s)")
    parser.add_argument("--own", type=int, default=64, help="tokens of a prompt after the prefix (%(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="repetitions of these tokens, for predictable completions (%(default)s)")
    parser.add_argument("--predict", type=int, default=64, help="generated tokens per request (%(default)s)")
    parser.add_argument("--prefix", default="", help="command that wraps each round, for example to pause other jobs")
    parser.add_argument("--json", type=pathlib.Path, help="output file for the results of every run")
    return parser.parse_args()


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def until_ready(url, process):
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=10):
                return
        except (urllib.error.URLError, ConnectionError):
            if process.poll() is not None:
                sys.exit(f"the server has ended with status {process.returncode}")
            time.sleep(0.1)


def prompts(url, args, n_users):
    """Returns prompts in sending order, more than any run needs."""
    rng = random.Random(n_users)

    def tokens(n):
        text = "".join(f" {rng.choice(WORDS)}" for _ in range(n))
        return post(f"{url}/tokenize", {"content": text})["tokens"][:n]

    shared = [tokens(args.shared) for _ in range(args.beginnings)]
    # Tokenize once: the suffixes are slices of one long text.
    own = tokens(20_000)
    pieces = lambda: own[(at := rng.randrange(len(own) - args.own)) : at + args.own]
    return [rng.choice(shared) + pieces() * args.repeat for _ in range(4000)]


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(command, args, n_users, directory):
    """Runs a server once; returns the measurements of load_users.py and the idle CPU time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options = {"-m": args.model, "-t": args.threads, "-c": args.context * args.slots, "-np": args.slots, "--port": port}
    command = shlex.split(command)
    command += [str(part) for option in options.items() if option[0] not in command for part in option]
    with open(directory / "log", "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
        try:
            until_ready(url, server)
            prompts_file = directory / "prompts.json"
            prompts_file.write_text(json.dumps({"prompts": prompts(url, args, n_users), "n_predict": args.predict}))
            users = pathlib.Path(__file__).with_name("load_users.py")
            seconds = [str(args.warm), str(args.seconds)]
            load = [packages.python("load", PACKAGES), users, url, str(n_users), *seconds, prompts_file]
            ended = subprocess.run(load, stdout=subprocess.PIPE, cwd=directory, check=True)
            result = json.loads(ended.stdout)
            for text in sorted(set(result["failed"])):
                print(f"{result['failed'].count(text)} requests failed: {text}", file=sys.stderr, flush=True)
            if args.idle:
                time.sleep(1)
                before = cpu_seconds(server.pid)
                time.sleep(args.idle)
                result["idle"] = (cpu_seconds(server.pid) - before) / args.idle
            return result
        finally:
            server.terminate()
            server.wait()


def percentile(values, share):
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else float("nan")


def figures(result):
    ms = lambda values, share: percentile(values, share) * 1000
    return {
        "tok/s": result["n_tokens"] / result["seconds"],
        "first p50": ms(result["first"], 0.5),
        "first p95": ms(result["first"], 0.95),
        "between p50": ms(result["between"], 0.5),
        "between p95": ms(result["between"], 0.95),
        "answers": len(result["whole"]),
        "known": result["n_cached"] / max(result["n_prompt"], 1),
        "failed": len(result["failed"]),
        **({"idle": result["idle"]} if "idle" in result else {}),
    }


def table(n_users, rounds):
    """Prints the medians of each server, and of its ratios to the last server."""
    names = list(rounds[0])
    for name in names:
        cells = {what: statistics.median(of[name][what] for of in rounds) for what in rounds[0][name]}
        text = ", ".join(f"{what} {value:.3g}" for what, value in cells.items())
        print(f"{n_users} users, {name}: {text}", flush=True)
    for name in names[:-1]:
        ratio = lambda what: statistics.median(of[name][what] / of[names[-1]][what] for of in rounds)
        text = ", ".join(f"{what} {ratio(what):.2f}" for what in ("tok/s", "first p50", "first p95", "between p50", "between p95"))
        print(f"{n_users} users, {name} / {names[-1]}: {text}", flush=True)


def one_round(args):
    """Runs each server once and prints JSON. --prefix wraps this process."""
    found = {}
    for server in args.server:
        name, command = server.split("=", 1)
        with tempfile.TemporaryDirectory(prefix="llama-load-") as directory:
            found[name] = figures(run(command, args, int(args.users), pathlib.Path(directory)))
    print(json.dumps(found))


def prefixed(args, servers, n_users):
    """Runs a round in its own process, wrapped by --prefix."""
    names = ["model", "warm", "seconds", "idle", "threads", "slots", "context", "beginnings", "shared", "own", "repeat", "predict"]
    options = [part for name in names for part in (f"--{name}", str(getattr(args, name)))]
    options += [part for server in servers for part in ("--server", server)]
    command = [*shlex.split(args.prefix), sys.executable, __file__, *options, "--users", str(n_users), "--rounds", "0"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main():
    args = arguments()
    args.model = str(pathlib.Path(args.model).resolve())
    if args.rounds == 0:
        return one_round(args)
    packages.python("load", PACKAGES)
    names, kept = [server.split("=", 1)[0] for server in args.server], []
    for n_users in [int(n) for n in args.users.split(",")]:
        rounds = []
        for round_ in range(args.rounds):
            found = prefixed(args, args.server if round_ % 2 == 0 else args.server[::-1], n_users)
            rounds.append({name: found[name] for name in names})
            kept += [{"users": n_users, "round": round_, "server": name, **of} for name, of in found.items()]
            print(json.dumps(found), file=sys.stderr, flush=True)
        table(n_users, rounds)
    if args.json:
        args.json.write_text(json.dumps(kept, indent=1))


main()
