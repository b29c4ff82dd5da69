#!/usr/bin/env python3
"""Runs deploy/ray on a local cluster of several nodes, and kills parts of the cluster under load.

    python3 tests/tools/ray_cluster.py target/release/llama MODEL.gguf

Ray and the client come from PyPI, in a virtual environment in the cache. Prints one line per check and exits with a
nonzero status at the first failure. The model must follow instructions.
"""

import collections
import concurrent.futures
import faulthandler
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import packages

PACKAGES = ["ray[serve,data]==2.60.0", "openai==3.54.0", "psutil==7.*"]
DIRECTORY = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "ray"
PORT = 18123
# A name that no other program has on its command line.
ALIAS = f"ray-cluster-{os.getpid()}"
# Two threads leave CPU time for other replicas; `high` makes results independent of batching.
OPTIONS = ["-t", "1", "--precision", "high", "--alias", ALIAS]
# Timeouts in seconds for one event and for a whole check, generous for slow machines.
PATIENCE = 120
CHECK = 300


def until(what, condition):
    """Waits for a condition and returns the elapsed seconds."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() < start + PATIENCE, f"{what} timed out after {PATIENCE} s"
        time.sleep(0.1)
    return time.monotonic() - start


def bounded(what, run, *given):
    """Runs a part of the test. After a timeout, prints the stacks of all threads and ends the test with its processes."""

    def give_up():
        print(f"{what}: timed out after {CHECK} s", flush=True)
        faulthandler.dump_traceback(all_threads=True)
        end_children()
        os._exit(1)

    watch = threading.Timer(CHECK, give_up)
    watch.daemon = True
    watch.start()
    start = time.monotonic()
    try:
        return run(*given)
    finally:
        watch.cancel()
        print(f"  ({what}: {time.monotonic() - start:.0f} s)", flush=True)


def end_children():
    """Kills the started processes, and engines whose parent process has ended."""
    import psutil

    for process in psutil.Process().children(recursive=True) + engines():
        try:
            process.kill()
        except psutil.Error:
            pass


class Machines:
    """A local cluster: a head node for the gateway, and worker nodes with capacity for one replica each."""

    def __init__(self):
        import ray
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "resources": {"head": 1}, "include_dashboard": False, "object_store_memory": 100 << 20}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = self._cluster.address
        self._nodes = []
        self.add()
        self.add()
        ray.init(address=self.address, runtime_env={"working_dir": str(DIRECTORY)}, log_to_driver=False)

    def add(self):
        """Adds a worker node."""
        self._nodes.append(self._cluster.add_node(num_cpus=1, object_store_memory=100 << 20))

    def kill_node_of(self, process):
        """Kills the node of a process without a graceful shutdown."""
        above = {parent.pid for parent in process.parents()}
        raylet = lambda node: node.all_processes["raylet"][0].process.pid
        [node] = [node for node in self._nodes if raylet(node) in above]
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        """Shuts the cluster down."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def engines():
    """Returns the running `llama serve` processes of this test."""
    import psutil

    def is_ours(process):
        try:
            return ALIAS in process.cmdline() and process.name() == "llama"
        except psutil.Error:
            return False

    return [process for process in psutil.process_iter() if is_ours(process)]


def start(binary, model, **more):
    """Deploys the application, or updates its settings."""
    from ray import serve

    import llama_serve

    settings = llama_serve.Settings(
        model=model, binary=binary, options=OPTIONS, n_parallel=2, upscale_delay_s=1, drain_s=900, max_waiting=16,
        gateway_resources={"head": 0.1}, **more,
    )
    serve.run(llama_serve.build(settings), name="llama")


def n_running():
    """Returns the number of running replicas."""
    from ray import serve

    deployments = serve.status().applications["llama"].deployments
    return deployments["replica"].replica_states.get("RUNNING", 0)


Answer = collections.namedtuple("Answer", "text finish error replica cached", defaults=["", None, None, None, 0])


class Client:
    """A client based on OpenAI's package, without retries."""

    def __init__(self):
        import openai

        self._errors = openai.APIError
        self._client = openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        self._create = self._client.chat.completions.with_raw_response.create

    def ask(self, messages, n_max, stream=False, started=None):
        """Returns the received part of an answer. `started` is set when the first chunk of a stream arrives."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        options = {"extra_body": {"ignore_eos": True}, "max_tokens": n_max, "temperature": 0, "stream": stream}
        text, replica = "", None
        try:
            raw = self._create(model=ALIAS, messages=messages, **options)
            replica, answer = raw.headers["x-llama-replica"], raw.parse()
            if not stream:
                choice, cached = answer.choices[0], answer.usage.prompt_tokens_details.cached_tokens
                return Answer(choice.message.content, choice.finish_reason, None, replica, cached)
            finish = None
            for chunk in answer:
                for choice in chunk.choices:
                    text, finish = text + (choice.delta.content or ""), choice.finish_reason or finish
                if started and text:
                    started.set()
            return Answer(text, finish, None, replica)
        except self._errors as error:
            return Answer(text, None, error, replica)


def check_passing_on(client):
    whole, parts = client.ask("Name a color.", 24), client.ask("Name a color.", 24, stream=True)
    assert whole.text and whole.text == parts.text and whole.finish == parts.finish == "length", (whole, parts)
    print("streamed and unstreamed completions are equal:", repr(whole.text))

    def status(path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", body, {"content-type": "application/json"})
        try:
            return urllib.request.urlopen(request, timeout=PATIENCE).status
        except urllib.error.HTTPError as error:
            assert "message" in json.loads(error.read())["error"]
            return error.code

    codes = [status("/v1/chat/completions", b"{"), status("/v1/chat/completions", b'{"messages": [], "odd": 1}')]
    codes += [status("/slots/0?action=erase", b""), status("/metrics", None)]
    codes += [status("/v1/responses", b'{"input": "a", "previous_response_id": "b"}')]
    codes += [status("/v1/completions", b" " * (17 << 20)), status("/v1/models", None)]
    assert codes == [400, 400, 404, 404, 501, 413, 200], codes
    print("rejected requests:", codes)


def check_growth(client):
    questions = [f"Count from {n} upwards." for n in range(16)]
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        under_way = [pool.submit(client.ask, question, 60) for question in questions]
        took = until("a second replica", lambda: n_running() == 2)
        answers = [each.result() for each in under_way]
    assert all(answer.error is None for answer in answers), answers
    print(f"queued requests scale up to a second replica after {took:.1f} s")


def check_drain(client):
    begun = [threading.Event(), threading.Event()]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ask = lambda i: pool.submit(client.ask, f"Tell a long story of {i + 2} dragons.", 1500, True, begun[i])
        under_way = [ask(0), ask(1)]
        until("two streams", lambda: all(event.is_set() for event in begun))
        assert n_running() == 2, "the second replica was removed while it streamed"
        took = until("fewer replicas", lambda: n_running() == 1)
        assert not any(each.done() for each in under_way), "a stream ended before its replica was removed"
        answers = [each.result() for each in under_way]
    assert [answer.finish for answer in answers] == ["length"] * 2, [answer.error for answer in answers]
    assert len({answer.replica for answer in answers}) == 2, "both streams ran on one replica"
    until("the exit of the other engine", lambda: len(engines()) == 1)
    print(f"an idle replica is removed after {took:.1f} s and finishes its streams first")


def check_prefixes(client):
    # New conversations are routed by hash, so a single replica rarely gets all of them.
    subjects = [f"{what} of {whose}" for what in ["songs", "ships", "maps", "coins"] for whose in ["Rome", "Java", "Peru", "Mali"]]
    talks = [[{"role": "system", "content": f"You know all about {subject}. " * 30}] for subject in subjects]
    homes, cached = [set() for _ in talks], []
    # Send the requests one after the other: a small replica caches only the last few.
    for talk, home in zip(talks, homes):
        for turn in range(2):
            talk.append({"role": "user", "content": f"What is the most important thing about them? ({turn})"})
            answer = client.ask(talk, 8)
            assert answer.error is None, answer
            talk.append({"role": "assistant", "content": answer.text})
            home.add(answer.replica)
            cached += [answer.cached] if turn else []
    assert all(len(home) == 1 for home in homes), homes
    assert len(set.union(*homes)) == 2, "one replica got all conversations"
    assert min(cached) > 100, cached
    print("conversations stay on the replica with their prefix; fewest cached tokens:", min(cached))


def check_hang_up():
    body = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/chat/completions", json.dumps(body).encode())
    response = urllib.request.urlopen(request, timeout=PATIENCE)
    response.readline()

    def n_busy():
        ports = [c.laddr.port for engine in engines() for c in engine.net_connections() if c.status == "LISTEN"]
        slots = [json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/slots", timeout=PATIENCE)) for port in ports]
        return sum(slot["is_processing"] for each in slots for slot in each)

    assert n_busy() == 1
    response.close()
    took = until("idle slots", lambda: n_busy() == 0)
    print(f"a disconnected request is cancelled after {took:.1f} s")


def check_limit(client):
    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(lambda i: client.ask(f"Say {i}.", 8), range(60)))
    refused = [answer.error for answer in answers if answer.error]
    assert refused and len(refused) < 60, len(refused)
    assert all(error.status_code == 429 and error.response.headers["retry-after"] for error in refused), refused
    print(len(refused), "of 60 concurrent requests got status 429, all others completed")


def check_death(what, client, kill, mend=lambda: None):
    """Kills a process under load. Unstreamed requests must all succeed; streams may end with an error."""
    jobs = [(f"Write about the number {i % 8}.", 60, i % 2 == 1) for i in range(48)]
    right = {job[0]: client.ask(*job[:2]).text for job in jobs[:8]}
    n_done, is_killed = iter(range(len(jobs))), []

    def work(job):
        answer = client.ask(*job)
        if next(n_done) == 8:
            kill(engines()[0])
            is_killed.append(time.monotonic())
        return answer

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, jobs))
    broken = [(job, answer) for job, answer in zip(jobs, answers) if answer.error]
    assert is_killed and len(broken) <= 4, broken
    for (question, _, is_stream), answer in broken:
        assert is_stream and right[question].startswith(answer.text), (question, answer)
        assert "died" in str(answer.error), answer
    for (question, *_), answer in zip(jobs, answers):
        assert answer.error or answer.text == right[question], (question, answer.text, right[question])
    mend()
    until("a new replica", lambda: n_running() == 2 and len(engines()) == 2)
    took = time.monotonic() - is_killed[0]
    assert not client.ask("And now?", 4).error
    print(f"{what} killed: {len(broken)} of {len(jobs)} end with a stream error; recovered after {took:.1f} s")


def check_batch(binary, model, address):
    """Runs a batch, killing first an engine and then the job, and resumes it."""
    directory = tempfile.TemporaryDirectory()
    source, target = (str(pathlib.Path(directory.name) / name) for name in ["in.jsonl", "out.jsonl"])
    body = lambda i: {"prompt": f"{i}, {i + 1}, {i + 2},", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    line = lambda i: {"custom_id": f"c{i}", "method": "POST", "url": "/v1/completions", "body": body(i)}
    lines = [json.dumps(line(i)) for i in range(80)]
    lines[7], lines[9] = "{", json.dumps({**line(9), "body": {"prompt": "a", "max_tokens": -1}})
    pathlib.Path(source).write_text("".join(f"{line}\n" for line in lines))
    command = [sys.executable, DIRECTORY / "llama_batch.py", source, target, "--model", model, "--binary", binary]
    command += [f"--option={option}" for option in OPTIONS]
    command += ["--n-parallel", "2", "--replicas", "2", "--address", address]
    n_lines = lambda: pathlib.Path(target).read_text().count("\n") if os.path.exists(target) else 0
    with open(f"{directory.name}/log", "w") as log:
        first = subprocess.Popen(command, stdout=log, stderr=log)
        until("a few lines", lambda: n_lines() >= 8 or first.poll() is not None)
        engines()[0].kill()
        until("more lines", lambda: n_lines() >= 32 or first.poll() is not None)
        n_first, is_going_on = n_lines(), first.poll() is None
        first.kill()
        first.wait(PATIENCE)
        assert is_going_on and n_first < 80, pathlib.Path(f"{directory.name}/log").read_text()[-4000:]
        until("the exit of its engines", lambda: not engines())
        subprocess.run(command, check=True, stdout=log, stderr=log, timeout=CHECK)
    answers = [json.loads(line) for line in pathlib.Path(target).read_text().splitlines()]
    by_id = {answer["id"]: answer for answer in answers}
    assert len(answers) == len(by_id) == 80, (len(answers), len(by_id))
    status = lambda i: (by_id[f"batch_req_{i + 1}"]["response"] or {}).get("status_code")
    assert [status(i) for i in range(80)] == [{7: None, 9: 400}.get(i, 200) for i in range(80)]
    assert all(by_id[f"batch_req_{i + 1}"]["custom_id"] == f"c{i}" for i in range(80) if i != 7)
    said = subprocess.run([binary, "batch", source, target, "-m", model], check=True, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert "all requests have been processed" in said.stderr, said.stderr
    print(f"a batch resumes after its engine and, at {n_first} of 80 lines, its job were killed; no line is run twice")


def check_serving(machines, binary, model):
    """Checks the serving application."""
    from ray import serve

    http = {"host": "127.0.0.1", "port": PORT}
    bounded("proxy", lambda: serve.start(proxy_location="HeadOnly", http_options=http))
    client = Client()
    # Long enough for queued requests to finish, but not for running streams.
    bounded("start", lambda: start(binary, model, min_replicas=1, max_replicas=2, downscale_delay_s=10))
    bounded("forwarding", check_passing_on, client)
    bounded("scale-up", check_growth, client)
    bounded("drain", check_drain, client)
    bounded("end", serve.delete, "llama")
    bounded("start", lambda: start(binary, model, min_replicas=2, max_replicas=2))
    bounded("prefixes", check_prefixes, client)
    bounded("disconnect", check_hang_up)
    bounded("limit", check_limit, client)
    bounded("death", check_death, "an engine", client, lambda engine: engine.kill())
    bounded("death", check_death, "a replica", client, lambda engine: engine.parent().kill())
    bounded("death", check_death, "a node", client, machines.kill_node_of, machines.add)
    bounded("end", serve.shutdown)
    until("the exit of all replicas", lambda: not engines())


def main(binary, model):
    binary, model = (str(pathlib.Path(path).resolve()) for path in (binary, model))
    sys.path.insert(0, str(DIRECTORY))
    machines = bounded("cluster", Machines)
    try:
        check_serving(machines, binary, model)
        bounded("batch", check_batch, binary, model, machines.address)
    finally:
        bounded("cleanup", machines.close)
        for engine in engines():
            engine.kill()


if __name__ == "__main__":
    if os.environ.get("LLAMA_RAY_CLUSTER") != "1":
        # Disable telemetry, and wait for slow nodes.
        os.environ.update(LLAMA_RAY_CLUSTER="1", RAY_USAGE_STATS_ENABLED="0", RAY_raylet_start_wait_time_s="300")
        python = packages.python("ray", PACKAGES)
        os.execv(python, [python, "-u", *sys.argv])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main(*sys.argv[1:])
