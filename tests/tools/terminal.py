#!/usr/bin/env python3
"""Records a terminal session, and draws a recording as an animated SVG.

    terminal.py record OUT.cast LLAMA MODEL   run the commands of SESSION with this binary and model
    terminal.py render IN.cast > OUT.svg      draw a recording

A recording is a file in the format asciicast v2: a JSON header, then one `[seconds, "o", text]` per line. The SVG needs no
script: each run of characters fades in at its recorded time, and renderers without animation show the last screen.
"""

import fcntl
import html
import json
import os
import pty
import re
import shlex
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

COLUMNS, ROWS = 106, 40
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILES = {
    "city.json": """{"type": "object", "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
 "required": ["city", "country"], "additionalProperties": false}
""",
}
# Commands as they are typed. `llama` and MODEL are replaced by the arguments of `record`.
SESSION = [
    f"""llama run {MODEL} "Give me three tips for a good night's sleep." --temp 0""",
    "cat city.json",
    f'llama run {MODEL} "Where is the Eiffel Tower?" -jf city.json --temp 0',
]

# Seconds per typed character, after a command is typed, after its output, and between events that are recorded
# separately.
KEY, ENTER, PAUSE, STEP = 0.04, 0.4, 1.2, 0.05


def record(path, llama, model):
    path, llama, model = (os.path.abspath(name) for name in (path, llama, model))
    events, now = [], 0.0

    def emit(text):
        if events and now - events[-1][0] < STEP:
            events[-1][2] += text
        else:
            events.append([round(now, 3), "o", text])

    os.chdir(tempfile.mkdtemp(prefix="terminal-"))
    for name, text in FILES.items():
        Path(name).write_text(text)
    for command in SESSION:
        emit("\x1b[1;32m$\x1b[0m ")
        for character in command:
            now += KEY
            emit(character)
        now += ENTER
        emit("\r\n")
        start, begin = now, time.monotonic()
        for text in run(command, llama, model):
            now = start + time.monotonic() - begin
            emit(text)
        now = start + time.monotonic() - begin + PAUSE
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "llama"}
    lines = [json.dumps(header), *(json.dumps(event) for event in events)]
    Path(path).write_text("\n".join(lines) + "\n")


def run(command, llama, model):
    """Runs a command on a pseudo-terminal and yields its output as it arrives."""
    words = [{"llama": llama, MODEL: model}.get(word, word) for word in shlex.split(command)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(words[0], words)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    rest = b""
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        if not data:
            break
        # A character of several bytes may be split between two reads.
        rest += data
        text = rest.decode("utf-8", "ignore")
        if text.encode() == rest:
            rest = b""
            yield text
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        sys.exit(f"{command}: exit status {status}")


# One Dark, a common terminal color scheme, in the order of the ANSI color codes.
COLORS = ["#3f4451", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#abb2bf"]
BACKGROUND, FOREGROUND = "#282c34", "#d7dae0"


class Screen:
    """The subset of terminal features that the recorded programs use: text, newlines, erasing, the cursor, colors, and
    weights."""

    ESCAPE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b.|[\r\n\b]|[^\x1b\r\n\b]")

    def __init__(self):
        # A cell is (character, style, time).
        self.rows, self.row, self.column, self.style = [[]], 0, 0, frozenset()

    def write(self, text, seconds):
        for match in self.ESCAPE.finditer(text):
            if match[2]:
                self.control(match[2], match[1])
            elif match[0] == "\r":
                self.column = 0
            elif match[0] == "\b":
                self.column = max(self.column - 1, 0)
            elif match[0] == "\n":
                self.move(self.row + 1)
            elif not match[0].startswith("\x1b"):
                if self.column == COLUMNS:
                    self.column = 0
                    self.move(self.row + 1)
                line = self.rows[self.row]
                line.extend([(" ", frozenset(), seconds)] * (self.column + 1 - len(line)))
                line[self.column] = (match[0], self.style, seconds)
                self.column += 1

    def move(self, row):
        self.row = max(row, 0)
        self.rows.extend([] for _ in range(self.row + 1 - len(self.rows)))

    def control(self, name, arguments):
        numbers = [int(n) for n in arguments.split(";") if n.isdigit()]
        n = numbers[0] if numbers else 1
        if name == "m":
            self.select(numbers or [0])
        elif name == "A":
            self.move(self.row - n)
        elif name == "B":
            self.move(self.row + n)
        elif name == "C":
            self.column += n
        elif name == "D":
            self.column = max(self.column - n, 0)
        elif name == "G":
            self.column = n - 1
        elif name in "JK":
            whole = numbers[:1] == [2]
            del self.rows[self.row][0 if whole else self.column :]
            if name == "J":
                del self.rows[self.row + 1 :]

    def select(self, numbers):
        for n in numbers:
            if n == 0:
                self.style = frozenset()
            elif n in (1, 2, 3, 4):
                self.style |= {n}
            elif n == 22:
                self.style -= {1, 2}
            elif n in (23, 24):
                self.style -= {n - 20}
            elif n == 39 or 30 <= n <= 37 or 90 <= n <= 97:
                self.style = frozenset(s for s in self.style if s < 30) | ({n} - {39})


WIDTH, LINE, LEFT, TOP = 8.4, 19, 16, 44


def css(style):
    rules = []
    for n in sorted(style):
        if n == 1:
            rules.append("font-weight:bold")
        elif n == 2:
            rules.append("opacity:.65")
        elif n == 3:
            rules.append("font-style:italic")
        elif n == 4:
            rules.append("text-decoration:underline")
        else:
            rules.append(f"fill:{COLORS[n % 10]}")
    return ";".join(rules)


def render(path):
    header, *events = [json.loads(line) for line in Path(path).read_text().splitlines()]
    screen = Screen()
    for seconds, _, text in events:
        screen.write(text, seconds)
    while screen.rows and not any(cell[0].strip() for cell in screen.rows[-1]):
        screen.rows.pop()
    width, height = round(LEFT * 2 + header["width"] * WIDTH), TOP + LINE * len(screen.rows) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        "<title>A terminal session with llama</title>",
        "<style>",
        f"text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:{FOREGROUND};white-space:pre}}",
        "@media (prefers-reduced-motion:no-preference){text{animation:show 1ms backwards}}",
        "@keyframes show{from{opacity:0}}",
        "</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
        *(f'<circle cx="{20 + 20 * i}" cy="18" r="6" fill="{c}"/>' for i, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))),
    ]
    for i, cells in enumerate(screen.rows):
        spans = []
        for column, (character, style, seconds) in enumerate(cells):
            if spans and spans[-1][1:3] == (style, seconds):
                spans[-1][3].append(character)
            else:
                spans.append((column, style, seconds, [character]))
        for column, style, seconds, characters in spans:
            text = "".join(characters)
            if not text.strip():
                continue
            rules = "".join(f"{rule};" for rule in (css(style),) if rule)
            x, length = LEFT + column * WIDTH, len(text) * WIDTH
            out.append(
                f'<text x="{x:.1f}" y="{TOP + LINE * (i + 1) - 5}" textLength="{length:.1f}" xml:space="preserve" '
                f'style="{rules}animation-delay:{seconds:.2f}s">{html.escape(text, quote=False)}</text>'
            )
    return "\n".join([*out, "</svg>"]) + "\n"


def main(arguments):
    if arguments[:1] == ["record"] and len(arguments) == 4:
        record(*arguments[1:])
    elif arguments[:1] == ["render"] and len(arguments) == 2:
        sys.stdout.write(render(arguments[1]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
