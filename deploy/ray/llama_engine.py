"""A `llama serve` that belongs to this process: started on a free port, ended with it, and missed when it dies."""

import os
import re
import subprocess
import sys
import threading
import urllib.request

# Asks Linux to kill this process when the thread that started it ends, and becomes the command.
TIE = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("whoever wanted this has gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""

ADDRESS = re.compile(r" at (http://[0-9.:]+)/v1")


class EngineFailed(RuntimeError):
    """The program did not become ready, and what it said."""


class Engine:
    """A running `llama serve`.

    It is started by a thread that waits for its end. The system kills the program when that thread ends, hence with
    this process however that goes; and when the program ends first, `on_death` is called at once with its status.
    """

    def __init__(self, binary, model, options=(), on_death=lambda status: None, timeout_s=600):
        """Returns when requests are taken; raises EngineFailed if that does not happen within `timeout_s`."""
        command = [binary, "serve", model, "--port", "0", "--no-webui", *options]
        self.address = self._process = None
        self._said, self._is_ending, self._known = [], False, threading.Event()
        self._on_death = on_death
        self._keeper = threading.Thread(target=self._keep, args=[command], daemon=True)
        self._keeper.start()
        is_known = self._known.wait(timeout_s)
        if not self.address:
            self.end(drain_s=0)
            why = "it ended" if is_known else f"it was not ready within {timeout_s} s"
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
        """The id of its process."""
        return self._process.pid

    def check(self, timeout_s=10):
        """Raises unless it says that the model is computed; a stuck one is told by that."""
        urllib.request.urlopen(f"{self.address}/health", timeout=timeout_s).close()

    def end(self, drain_s=30):
        """Lets requests under way finish for so many seconds, then ends it."""
        self._is_ending = True
        if not self._process:
            return
        self._process.terminate()
        try:
            self._process.wait(drain_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
