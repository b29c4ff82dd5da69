"""Runs `llama serve` as a child process on a free port. The child ends with this process, and its death is reported."""

import os
import re
import subprocess
import sys
import threading
import urllib.request

# Requests SIGKILL from Linux when the parent thread ends, then executes the command.
TIE = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process has exited")
os.execvp(sys.argv[2], sys.argv[2:])
"""

ADDRESS = re.compile(r" at (http://[0-9.:]+)/v1")


class EngineFailed(RuntimeError):
    """The server did not become ready; the message includes its output."""


class Engine:
    """A running `llama serve` process.

    A thread starts the process and waits for its end. Linux kills the process when that thread ends, so it never
    outlives this process. If the process ends first, `on_death` is called with its exit status.
    """

    def __init__(self, binary, model, options=(), on_death=lambda status: None, timeout_s=600):
        """Returns when the server is ready; raises EngineFailed after `timeout_s` seconds."""
        command = [binary, "serve", model, "--port", "0", "--no-webui", *options]
        self.address = self._process = None
        self._said, self._is_ending, self._known = [], False, threading.Event()
        self._on_death = on_death
        self._keeper = threading.Thread(target=self._keep, args=[command], daemon=True)
        self._keeper.start()
        is_known = self._known.wait(timeout_s)
        if not self.address:
            self.end(drain_s=0)
            why = "the process exited" if is_known else f"not ready within {timeout_s} s"
            raise EngineFailed(f"{' '.join(command)}: {why}: {''.join(self._said)}")

    def _keep(self, command):
        tied = [sys.executable, "-c", TIE, str(os.getpid()), *command]
        try:
            self._process = subprocess.Popen(tied, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        except OSError as error:
            self._said.append(str(error))
            self._known.set()
            return
        for line in self._process.stderr:
            found = ADDRESS.search(line)
            if found and not self.address:
                self.address = found[1]
                self._known.set()
            self._said = [*self._said[-20:], line]
            print("llama serve:", line, end="", file=sys.stderr, flush=True)
        status = self._process.wait()
        is_death = self.address and not self._is_ending
        self._known.set()
        if is_death:
            self._on_death(status)

    @property
    def pid(self):
        """Returns the process id."""
        return self._process.pid

    def check(self, timeout_s=10):
        """Raises if the health check fails, also if the model is stuck."""
        urllib.request.urlopen(f"{self.address}/health", timeout=timeout_s).close()

    def end(self, drain_s=30):
        """Shuts the server down; running requests get up to `drain_s` seconds."""
        self._is_ending = True
        if not self._process:
            return
        self._process.terminate()
        try:
            self._process.wait(drain_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
