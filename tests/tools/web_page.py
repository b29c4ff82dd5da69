#!/usr/bin/env python3
"""Tests the chat page of servers in a headless Chromium.

    python3 tests/tools/web_page.py http://127.0.0.1:8080 http://127.0.0.1:8081 http://127.0.0.1:8082 KEY [DIRECTORY]

The first server accepts everyone, the second requires KEY, and the model of the third produces long reasoning. All models must follow instructions.
Needs `chromium` and `chromedriver` (Debian packages chromium and chromium-driver) and npm. Selenium comes from PyPI and axe-core from npm; both are
installed into the cache. Prints one line per check and exits with a nonzero status at the first failure. Screenshots go to DIRECTORY.
"""

import array
import base64
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import wave

import packages

PACKAGES = ["selenium==4.51.0"]
AXE = "axe-core@4.14.1"
PATIENCE = 120

DESKTOP, PHONE = (1280, 860), (390, 844)


def axe():
    """Returns axe-core, a script that finds accessibility violations."""
    path = packages.cache() / (AXE.replace("@", "-") + ".min.js")
    if not path.exists():
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(["npm", "pack", "--silent", AXE], cwd=directory, check=True, stdout=subprocess.DEVNULL)
            (archive,) = pathlib.Path(directory).glob("*.tgz")
            with tarfile.open(archive) as packed:
                text = packed.extractfile("package/axe.min.js").read()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return path.read_text()


class Page:
    """The chat page of a server, in a separate browser."""

    def __init__(self, url, shots):
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
        for flag in [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
        ]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        self.driver.set_script_timeout(PATIENCE)
        self.url, self.shots, self.requests = url, shots, []
        self.size(*DESKTOP)
        self.driver.get(url)

    def size(self, width, height):
        is_phone = width < 600
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": is_phone})

    def system(self, **features):
        """Emulates media features, such as `prefers_color_scheme="dark"`."""
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def js(self, script, *args):
        return self.driver.execute_script(script, *args)

    def all(self, selector):
        from selenium.webdriver.common.by import By

        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.wait(lambda: self.all(selector), selector)[0]

    def button(self, label, within="body"):
        return self.one(f'{within} button[aria-label="{label}"]')

    def press(self, *keys):
        """Sends keys to the focused element. All keys but the last are held as modifiers."""
        from selenium.webdriver.common.action_chains import ActionChains

        chain = ActionChains(self.driver)
        for key in keys[:-1]:
            chain.key_down(key)
        chain.send_keys(keys[-1])
        for key in keys[:-1]:
            chain.key_up(key)
        chain.perform()

    def wait(self, condition, what, patience=PATIENCE):
        from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException

        end = time.monotonic() + patience
        while time.monotonic() < end:
            try:
                found = condition()
                if found:
                    return found
            except (NoSuchElementException, StaleElementReferenceException):
                pass
            time.sleep(0.02)
        self.shot("failure")
        raise AssertionError(f"timed out waiting for {what}")

    def focused(self):
        return self.js("const e = document.activeElement; return e.id || e.getAttribute('aria-label') || e.textContent.trim()")

    def answers(self):
        """Returns the texts of the displayed answers."""
        return self.js("return [...document.querySelectorAll('.assistant .text')].map((e) => e.textContent)")

    def questions(self):
        return self.js("return [...document.querySelectorAll('.user .text')].map((e) => e.textContent)")

    def is_idle(self):
        return self.js("return document.querySelector('.running') === null && document.querySelector('#send').getAttribute('aria-label') === 'Send'")

    def ask(self, text, waits=True):
        from selenium.webdriver.common.keys import Keys

        n = len(self.answers())
        self.one("#question").send_keys(text, Keys.ENTER)
        self.wait(lambda: len(self.answers()) > n, "the first text of the response")
        if waits:
            self.wait(self.is_idle, "the answer")

    def shot(self, name):
        if self.shots:
            time.sleep(0.3)
            self.driver.save_screenshot(str(self.shots / f"{name}.png"))

    def look(self, name):
        """Takes a screenshot, and checks for overflow and accessibility violations."""
        self.shot(name)
        width = self.js("return [document.documentElement.scrollWidth, document.querySelector('#scroll').scrollWidth - document.querySelector('#scroll').clientWidth, innerWidth]")
        assert width[0] <= width[2] and width[1] <= 0, f"{name} is wider than the page: {width}"
        self.js(axe())
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run().then((r) => done(r.violations.map((v) => [v.id, v.impact, v.nodes.map((n) => n.html.slice(0, 120) + ' ' + n.failureSummary)])))"
        )
        assert not found, f"{name}: {json.dumps(found, indent=1)}"

    def sent(self):
        """Returns the bodies of completion requests since the last call, and records the URLs of all requests."""
        bodies = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] != "Network.requestWillBeSent":
                continue
            request = message["params"]["request"]
            self.requests.append(request["url"])
            if request["url"].endswith("/v1/chat/completions"):
                bodies.append(json.loads(request["postData"]))
        return bodies

    def end(self, *expected):
        """Checks that the page contacted no other host, and that every console message contains one of these words."""
        self.sent()
        elsewhere = [url for url in self.requests if not url.startswith((self.url, "data:", "blob:"))]
        assert not elsewhere, elsewhere
        said = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]
        odd = [line for line in said if not any(word in line for word in expected)]
        assert not odd, odd
        self.driver.quit()


def check_chat(page):
    assert page.wait(lambda: page.focused() == "question", "the focus")
    page.wait(lambda: "8,192" in page.one("#about").text, "the model")
    page.look("empty-light")
    page.one("#question").send_keys("Tell me a long story about a lighthouse.\ue007")
    seen = set()

    def comes():
        text = page.answers()
        seen.add(len(text[0]) if text else 0)
        return len(seen) > 4

    page.wait(comes, "a streamed response")
    assert page.one("#send").get_attribute("aria-label") == "Stop"
    page.wait(page.is_idle, "the answer")
    (body,) = page.sent()
    assert set(body) == {"model", "messages", "stream", "stream_options", "reasoning_control"}, body
    assert "of 8,192 tokens" in page.one("#figures").text and "tokens/s" in page.one(".speed").text
    assert len(page.answers()[0]) > 100
    spoken = page.js("return document.querySelector('#said').textContent")
    assert page.answers()[0].split()[-1] in spoken, "the live region lacks the end of the response"
    print("chat:", page.answers()[0][:60], "…", page.one(".speed").text)


def check_stop(page):
    import urllib.request

    def n_busy():
        with urllib.request.urlopen(f"{page.url}/slots") as response:
            return sum(slot["is_processing"] for slot in json.load(response))

    page.ask("Tell me another long story, about a whale.", waits=False)
    page.wait(lambda: len(page.answers()[1]) > 20, "a part of the response")
    assert n_busy() == 1
    page.one("#send").click()
    page.wait(page.is_idle, "the stop")
    page.wait(lambda: n_busy() == 0, "an idle slot", 10)
    text = page.answers()[1]
    assert "Stopped." in page.one(".last .note").text
    page.one(".last .cut button").click()
    page.wait(lambda: len(page.answers()[1]) > len(text) + 20, "the continued response")
    assert page.answers()[1].startswith(text.strip())
    page.press("\ue00c")
    page.wait(page.is_idle, "Esc to stop")
    bodies = page.sent()
    assert bodies[1]["continue_final_message"] is True and bodies[1]["messages"][-1]["role"] == "assistant"
    print("stop and continue:", len(text), "and", len(page.answers()[1]), "characters")


def check_settings(page):
    page.one("#settings-button").click()
    page.look("settings-light")
    page.one("#set-temperature").send_keys("9")
    page.one("dialog .primary").click()
    assert "from 0 to 5" in page.one("#set-temperature-error").text and page.focused() == "set-temperature"
    page.one("#set-temperature").send_keys("\ue003" * 3 + "0")
    page.one("#set-max_tokens").send_keys("24")
    page.one("#set-seed").send_keys("7")
    page.one("#set-system").send_keys("You are brief.")
    page.one("dialog .primary").click()
    page.wait(lambda: not page.all("dialog"), "the dialog to be closed")
    assert page.focused() == "settings-button", "the focus did not return to the button"
    page.ask("What is the capital of France?")
    (body,) = page.sent()
    assert (body["temperature"], body["max_tokens"], body["seed"], body["messages"][0]["role"]) == (0, 24, 7, "system")
    assert "top_p" not in body and page.answers()[-1] != "", body
    print("settings:", page.answers()[-1])


def check_versions(page):
    first = page.answers()[-1]
    page.button("Regenerate", ".last").click()
    page.wait(lambda: page.all(".last .versions"), "two versions")
    page.wait(page.is_idle, "the answer")
    assert page.one(".last .versions").text == "2/2"
    assert page.answers()[-1] == first, "regenerating with temperature 0 changed the response"
    page.button("Previous version", ".last").click()
    assert page.one(".last .versions").text == "1/2" and page.focused() == "Next version"
    n = len(page.questions())
    page.button("Edit", f".message:nth-last-child(2)").click()
    page.one(".edit textarea").send_keys("\ue009a\ue000", "What is the capital of Italy?")
    page.one(".edit .primary").click()
    page.wait(lambda: "Italy" in page.questions()[-1], "the edited message")
    page.wait(page.is_idle, "the answer")
    assert len(page.questions()) == n and page.answers()[-1] not in ("", first), page.answers()[-1]
    page.button("Previous version", ".message:nth-last-child(2)").click()
    assert page.answers()[-1] == first and "France" in page.questions()[-1]
    print("versions:", page.one(".last .versions").text)


def check_history(page):
    shown = (page.questions(), page.answers())
    page.one("#question").send_keys("a draft")
    page.driver.refresh()
    page.wait(lambda: page.answers(), "the chat")
    assert (page.questions(), page.answers()) == shown, "a reload changed the chat"
    assert page.one("#question").get_attribute("value") == "a draft"
    page.press("\ue009", "\ue008", "o")
    page.wait(lambda: not page.answers(), "a new chat")
    assert page.focused() == "question"
    page.ask("Say hello.")
    page.driver.back()
    page.wait(lambda: not page.answers(), "the previous page")
    page.driver.forward()
    page.wait(lambda: len(page.answers()) == 1, "the chat again")
    page.press("\ue009", "k")
    assert page.focused() == "search"
    page.one("#search").send_keys("lighthouse story")
    page.wait(lambda: len(page.all("#chats li")) == 1, "search results")
    page.one("#chats a").send_keys("\ue007")
    page.wait(lambda: page.answers() == shown[1], "the chat")
    page.one("#search").clear()
    page.one("#search").send_keys(" \ue003")
    menu(page, "Rename", 0)
    page.one(".rename").send_keys("\ue009a\ue000", "Hello there", "\ue007")
    page.wait(lambda: "Hello there" in page.one("#chats").text, "the name")
    menu(page, "Delete", 0)
    page.wait(lambda: "Hello there" not in page.one("#chats").text, "the chat to be deleted")
    page.one(".notice button").click()
    page.wait(lambda: "Hello there" in page.one("#chats").text, "the chat to be restored")
    name = page.wait(lambda: page.one("#chats li.shown a").get_attribute("title"), "the chat's name")
    menu(page, "Delete", 1)
    page.wait(lambda: not page.answers(), "a new chat after deleting the open one")
    page.one(".notice button").click()
    open_chat(page, name)
    assert page.answers() == shown[1]
    page.press("\ue009", "\ue008", "o")
    page.ask("Tell me a long story about a river.", waits=False)
    page.wait(lambda: len(page.answers()[0]) > 20, "a part of the response")
    page.sent()
    time.sleep(1.5)
    page.driver.refresh()
    page.wait(lambda: page.answers() and "cut off" in page.one(".last .note").text, "the saved part of the response")
    text = page.answers()[0].strip()
    page.one(".last .cut button").click()
    page.wait(lambda: len(page.answers()[0]) > len(text) + 20, "the continued response")
    assert page.answers()[0].startswith(text)
    page.wait(page.is_idle, "the answer")
    print("history:", len(page.all("#chats li")), "chats")


def menu(page, label, at):
    """Chooses an item of the menu of a chat with keys. `at` is the index of the chat in the list."""
    page.js("document.querySelectorAll('#chats .icon-button')[arguments[0]].focus()", at)
    page.press("\ue007")
    items = [item.text for item in page.all("#menu button")]
    for _ in range(items.index(label)):
        page.press("\ue015")
    page.press("\ue007")


# Hostile model output.
HOSTILE = r"""# Title <img src="http://elsewhere.example/a.png" onerror="window.hacked=1">
<script>window.hacked=2</script><style>body{display:none}</style>
<iframe src="http://elsewhere.example/"></iframe><form action="http://elsewhere.example/"><input name=q></form>

[a](javascript:window.hacked=3) [b](data:text/html,<script>window.hacked=4</script>) ![c](http://elsewhere.example/b.png) [d](https://example.org/)
[e]: javascript:window.hacked=5

[e] <svg onload="window.hacked=6"><a href="javascript:window.hacked=7">x</a></svg> <math><mtext><img src=x onerror=window.hacked=8></mtext></math>

$\href{javascript:window.hacked=9}{x}$ $\url{javascript:window.hacked=10}$ $\includegraphics{http://elsewhere.example/c.png}$ \(\htmlId{question}{x}\) $\class{skip}{x}$
$</span><img src=x onerror=window.hacked=11>$ \(\text{<img src=x onerror=window.hacked=12>}\) $\rule{900em}{900em}$ $\def\a{\a\a}\a$

$$ \label{question} x \tag{<b>1</b>} $$

```"><img src=x onerror=window.hacked=13>
</code></pre><img src=x onerror=window.hacked=14>
```

| <b onclick=window.hacked=15>x</b> | `y` |
|:-:|--|
| <img src=x onerror=window.hacked=16> | $E = mc^2$ and $\frac{1}{2}$ |
"""

FINE = r"""## A leaf at work

Plants turn **light** into *chemical* energy; [a page](https://example.org/) tells more of `chlorophyll`.

1. Light is taken up
2. Water is split:
   - oxygen leaves
   - electrons move on

> It feeds nearly all that lives.

The balance is $6\,CO_2 + 6\,H_2O \to C_6H_{12}O_6 + 6\,O_2$, and of a photon

$$E = h\nu = \frac{hc}{\lambda}$$

| Stage | Place | Yield |
|---|---|--:|
| Light reactions | thylakoid | 18 ATP |
| Calvin cycle | stroma | 1 sugar |

```python
# The energy of a photon
def energy(wavelength: float) -> float:
    return 6.626e-34 * 2.998e8 / wavelength

print(f"{energy(680e-9):.3e}")
```
"""


def check_text(page):
    def chat(title, text, **fields):
        question = {"parent": None, "role": "user", "content": "How do plants live on light?"}
        answer = {"parent": "a", "role": "assistant", "content": text, "finish": "stop", **fields}
        return {"title": title, "settings": {}, "nodes": {"a": question, "b": answer}, "leaf": "b"}

    stats = {"generated": 230, "rate": 48.2, "prompt": 31, "thinking": 3200}
    fine = chat("Plants", FINE, reasoning="What do they *want* to know?", stats=stats)
    chats = [chat("Hostile", HOSTILE), fine]
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump({"format": "llama-chats", "version": 1, "chats": chats}, file)
    page.one("#data").click()
    page.look("files-light")
    page.one("dialog input[type=file]").send_keys(file.name)
    page.wait(lambda: "2 chats added" in page.one("#notices").text, "the chats")
    os.unlink(file.name)
    open_chat(page, "Hostile")
    page.shot("hostile")
    assert page.js("return window.hacked") is None
    kinds = page.js("return [...document.querySelectorAll('.assistant .text *')].map((e) => e.localName)")
    assert not set(kinds) & {"img", "script", "style", "iframe", "form", "input", "object", "embed", "link"}, kinds
    assert kinds.count("svg") == kinds.count("path"), "an SVG element is not an icon of a button"
    odd = page.js(
        "return [...document.querySelectorAll('.assistant .text *')].flatMap((e) => [...e.attributes].filter((a) => /^on|^id$|^src|^style$/.test(a.name) && !(a.name === 'style' && e.closest('math'))).map((a) => e.outerHTML))"
    )
    assert not odd, odd
    links = page.js("return [...document.querySelectorAll('.assistant .text [href]')].map((e) => e.getAttribute('href'))")
    assert links and all(link.startswith(("http://", "https://")) for link in links), links
    assert page.js("return document.querySelectorAll('.assistant math').length") > 2, "formulas were not rendered as MathML"
    sizes = page.js("return [...document.querySelectorAll('.assistant .formula')].map((e) => e.getBoundingClientRect().height)")
    assert max(sizes) < 2000, sizes
    open_chat(page, "Plants")
    page.one("summary").click()
    page.wait(lambda: page.one(".thought em").text == "want", "reasoning text")
    page.one("summary").click()
    page.js("Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => { window.copied = text; } } })")
    page.button("Copy code").click()
    page.wait(lambda: (page.js("return window.copied") or "").startswith("# The energy"), "the copy")
    page.button("Copy message", ".assistant").click()
    page.wait(lambda: page.js("return window.copied") == FINE, "the copied message")
    print("text:", len(kinds), "hostile elements, all sanitized")


def open_chat(page, title):
    # The list is redrawn after a change.
    links = page.wait(lambda: [link for link in page.all("#chats a") if link.get_attribute("title") == title], "the chat in the list")
    assert len(links) == 1
    page.js("arguments[0].click()", links[0])
    page.wait(lambda: page.one("h1").text == title or page.js("return document.querySelector('h1').textContent") == title, title)


def check_looks(page):
    def background():
        return page.js("return getComputedStyle(document.body).backgroundColor")

    page.js("document.querySelector('#scroll').scrollTop = 0")
    page.look("chat-light")
    light = background()
    page.one("#theme").click()
    page.one("#theme").click()
    assert "dark" in page.one("#theme").text and background() != light
    page.driver.refresh()
    page.wait(lambda: page.answers(), "the chat")
    assert "dark" in page.one("#theme").text, "a reload reset the theme"
    page.js("document.querySelector('#scroll').scrollTop = 0")
    page.look("chat-dark")
    dark = background()
    page.one("#theme").click()
    assert background() == light
    page.system(prefers_color_scheme="dark")
    assert background() == dark, "the page ignores the color scheme of the system"
    page.one("#settings-button").click()
    page.look("settings-dark")
    page.press("\ue00c")
    page.size(*PHONE)
    page.wait(lambda: page.one("#open-sidebar").is_displayed(), "the mobile layout")
    page.js("document.querySelector('#scroll').scrollTop = 0")
    page.look("phone-dark")
    page.system(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    page.look("phone-light")
    assert page.js("return document.querySelector('#sidebar').inert")
    page.one("#open-sidebar").click()
    page.wait(lambda: page.focused() == "close-sidebar", "the list")
    assert page.js("return document.querySelector('#page').inert")
    page.look("phone-list")
    page.press("\ue00c")
    page.wait(lambda: page.focused() == "open-sidebar", "the focus to return")
    page.js("document.querySelector('#scroll').scrollTop = 1e6")
    page.shot("phone-end")
    sizes = page.js(
        "return [...document.querySelectorAll('button, a, select, textarea, summary')].filter((e) => e.checkVisibility() && !e.closest('[inert]') && !e.closest('.text')).map((e) => [e.id || e.ariaLabel, e.getBoundingClientRect().height])"
    )
    small = [size for size in sizes if 1 < size[1] < 24]
    assert not small, f"touch targets below 24 pixels: {small}"
    page.size(*DESKTOP)
    print("looks: light, dark, and mobile; no axe violations")


def check_keys(page):
    """Checks that Tab reaches all controls, and that a chat needs no mouse."""
    page.driver.get("about:blank")
    page.driver.get(page.url)
    page.wait(lambda: page.focused() == "question", "the focus")
    page.press("\ue008", "\ue004")
    seen = []
    while page.focused() not in seen and len(seen) < 100:
        seen.append(page.focused())
        page.press("\ue008", "\ue004")
    for name in ["settings-button", "theme", "data", "search", "new-chat", "Skip to the message input"]:
        assert name in seen, (name, seen)
    while page.focused() != "Skip to the message input":
        page.press("\ue008", "\ue004")
    page.press("\ue007")
    page.wait(lambda: page.focused() == "question", "the focus")
    page.press("first line")
    page.press("\ue008", "\ue007")
    page.press("second line")
    assert page.one("#question").get_attribute("value") == "first line\nsecond line"
    page.press("\ue007")
    page.wait(lambda: page.questions() == ["first line\nsecond line"], "the message")
    page.wait(page.is_idle, "the answer")
    print("keys:", len(seen), "stops")


def check_lost_server(page):
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.press("\ue009", "\ue008", "o")
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": True, **network})
    page.ask("Say hello.", waits=False)
    page.wait(lambda: "cannot be reached. Retrying" in page.one(".last .note").text, "the reason")
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": False, **network})
    page.wait(lambda: page.is_idle() and len(page.answers()[-1]) > 0, "the answer")
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": True, **network})
    page.ask("Say hello again.", waits=False)
    page.press("\ue00c")
    page.wait(page.is_idle, "Esc to cancel the retries")
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": False, **network})
    page.one("#settings-button").click()
    page.js("document.querySelector('#set-system').value = 'word '.repeat(9000)")
    page.one("dialog .primary").click()
    page.ask("Say hello.")
    page.wait(lambda: "tokens" in page.one(".last .error").text, "the reason for the error")
    page.look("error-light")
    page.one("#settings-button").click()
    page.js("document.querySelector('#set-system').value = ''")
    page.one("dialog .primary").click()
    page.one(".last .error button").click()
    page.wait(lambda: page.is_idle() and len(page.answers()[-1]) > 0, "the answer")
    print("reconnected:", page.answers()[-1][:40])


def check_key(page, key):
    page.one("#key").send_keys("wrong\ue007")
    page.wait(lambda: "does not take this key" in page.one("dialog").text, "the error message")
    page.look("key-light")
    page.one("#key").clear()
    page.one("#key").send_keys(f"{key}\ue007")
    page.wait(lambda: "8,192" in page.one("#about").text, "the model")
    page.ask("Say hello.")
    assert page.answers()[0] != ""
    print("key:", page.answers()[0][:40])


def check_thinking(page):
    page.ask("Tell me how plants live on light, step by step.", waits=False)
    page.wait(lambda: "Thinking" in page.one(".last summary").text, "the reasoning")
    button = page.one(".last .note button")
    assert button.text == "Answer now"
    button.click()
    page.wait(lambda: "Thought for" in page.one(".last summary").text and page.answers()[-1], "the answer")
    page.press("\ue00c")
    page.wait(page.is_idle, "Esc to stop the response")
    page.look("thinking-light")
    page.sent()
    assert any(url.endswith("/v1/chat/completions/control") for url in page.requests)
    print("thinking:", page.one(".last summary").text, "then", page.answers()[-1][:40])


# Adds audio to the capabilities of the model, which only reads text.
READS_AUDIO = """
const original = window.fetch;
window.fetch = async (...request) => {
  const response = await original(...request);
  if (!response.url.endsWith('/v1/models')) {
    return response;
  }
  const models = await response.json();
  models.data.forEach((model) => (model.capabilities = [...(model.capabilities ?? []), 'audio']));
  return Response.json(models);
};
"""


def check_recording(page):
    """Checks that a microphone recording is attached as WAV and sent."""
    assert not page.one("#record").is_displayed(), "the recording button is visible for a text model"
    page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": READS_AUDIO})
    page.driver.get(page.url)
    record = page.one("#record")
    page.wait(record.is_displayed, "the button")
    record.click()
    page.wait(lambda: page.one("#recording").text == "0:01", "a second of audio")
    page.look("recording-light")
    record.click()
    page.wait(lambda: "Recording 1.wav" in page.one("#chips").text, "the recording")
    assert not page.one("#recording").is_displayed()
    page.ask("Describe the sound.", waits=False)
    page.wait(page.is_idle, "the error message")
    (body,) = page.sent()
    sound = body["messages"][-1]["content"][0]["input_audio"]
    with wave.open(io.BytesIO(base64.b64decode(sound["data"]))) as file:
        assert (sound["format"], file.getnchannels(), file.getframerate()) == ("wav", 1, 16000)
        samples = array.array("h", file.readframes(file.getnframes()))
    # The simulated microphone beeps.
    assert len(samples) > 12000 and max(samples) > 3000, (len(samples), max(samples, default=0))
    print("recording:", len(samples), "samples")


def main():
    first, second, third, key, *rest = sys.argv[1:]
    shots = pathlib.Path(rest[0]) if rest else None
    if shots:
        shots.mkdir(parents=True, exist_ok=True)
    page = Page(first, shots)
    for check in [check_chat, check_stop, check_settings, check_versions, check_history, check_text, check_looks, check_keys]:
        check(page)
    page.end()
    page = Page(first, shots)
    check_lost_server(page)
    page.end("ERR_INTERNET_DISCONNECTED", "status of 400")
    page = Page(first, shots)
    check_recording(page)
    page.end("status of 400")
    page = Page(second, shots)
    check_key(page, key)
    page.end("status of 401")
    page = Page(third, shots)
    check_thinking(page)
    page.end()


if __name__ == "__main__":
    try:
        import selenium  # noqa: F401
    except ImportError:
        python = packages.python("browser", PACKAGES)
        os.execv(python, [python, *sys.argv])
    main()
