#!/usr/bin/env python3
"""Measures servers under the load of many users at once, one server after the other, round by round.

    python3 tests/tools/load.py --server ours='target/release/llama serve' --server peer=llama-server \
        --model MODEL.gguf --users 1,4,8,16,32 --rounds 3 [--json FILE]

Each server gets the same options under llama-server's names (-m, -t, -c, -np, --port) but for those that its command has, each run of it is a new
process, and the order of servers alternates from round to round. The users are those of load_users.py, run by the package locust of PyPI: each asks as soon as it has its answer.
A prompt is one of a few shared beginnings, such as instructions, and an end of its own; prompts are tokens of a seeded text, the same for all
servers. A part at the beginning is not counted. Prints medians over rounds: tokens that came in a second, time to first token and time between
tokens, with medians of ratios within a round to the last server. The time of a processor that each server takes while nobody asks is told as well.
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
    parser.add_argument("--server", action="append", required=True, metavar="NAME=COMMAND", help="a server; the last one is what others are compared with")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--users", default="1,4,8,16,32", help="users at once, several cases separated by commas (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case with each server (%(default)s)")
    parser.add_argument("--warm", type=float, default=5, help="seconds that are not counted (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="seconds that are (%(default)s)")
    parser.add_argument("--idle", type=float, default=0, help="seconds for which a server is watched that nobody asks (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads of a server (%(default)s)")
    parser.add_argument("--slots", type=int, default=32, help="answers at once (%(default)s)")
    parser.add_argument("--context", type=int, default=1024, help="tokens of context for each of them (%(default)s)")
    parser.add_argument("--beginnings", type=int, default=4, help="beginnings that prompts share (%(default)s)")
    parser.add_argument("--shared", type=int, default=384, help="tokens of such a beginning (%(default)s)")
    parser.add_argument("--own", type=int, default=64, help="tokens of a prompt after it (%(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="how often those are said, for answers that go on so (%(default)s)")
    parser.add_argument("--predict", type=int, default=64, help="tokens of an answer (%(default)s)")
    parser.add_argument("--prefix", default="", help="command that a round is started with, such as one that keeps the machine quiet")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures of every run")
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
    """Prompts in the order in which they are asked, more than are needed."""
    rng = random.Random(n_users)

    def tokens(n):
        text = "".join(f" {rng.choice(WORDS)}" for _ in range(n))
        return post(f"{url}/tokenize", {"content": text})["tokens"][:n]

    shared = [tokens(args.shared) for _ in range(args.beginnings)]
    # Few requests for tokens: ends of prompts are pieces of one text.
    own = tokens(20_000)
    pieces = lambda: own[(at := rng.randrange(len(own) - args.own)) : at + args.own]
    return [rng.choice(shared) + pieces() * args.repeat for _ in range(4000)]


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(command, args, n_users, folder):
    """One run of a server: what load_users.py tells, and what an idle second costs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options = {"-m": args.model, "-t": args.threads, "-c": args.context * args.slots, "-np": args.slots, "--port": port}
    command = shlex.split(command)
    command += [str(part) for option in options.items() if option[0] not in command for part in option]
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            until_ready(url, server)
            asked = folder / "prompts.json"
            asked.write_text(json.dumps({"prompts": prompts(url, args, n_users), "n_predict": args.predict}))
            users = pathlib.Path(__file__).with_name("load_users.py")
            seconds = [str(args.warm), str(args.seconds)]
            load = [packages.python("load", PACKAGES), users, url, str(n_users), *seconds, asked]
            told = subprocess.run(load, stdout=subprocess.PIPE, cwd=folder, check=True)
            result = json.loads(told.stdout)
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
    """Lines for a case: medians of each server, and of its ratios to the last."""
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
    """One run of each server, told as JSON: what a prefix is put before."""
    found = {}
    for server in args.server:
        name, command = server.split("=", 1)
        with tempfile.TemporaryDirectory(prefix="llama-load-") as folder:
            found[name] = figures(run(command, args, int(args.users), pathlib.Path(folder)))
    print(json.dumps(found))


def prefixed(args, servers, n_users):
    """A round in a process of its own, which the prefix starts."""
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
