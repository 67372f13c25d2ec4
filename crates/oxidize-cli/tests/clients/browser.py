"""The chat page in headless Chromium: browser.py URL [DIRECTORY FOR SCREENSHOTS]

Uses the DevTools protocol over a pipe, so that only the browser has to be installed.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BROWSER = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if BROWSER is None:
    print("no Chromium")
    sys.exit(77)


class Page:
    """A page of a browser process."""

    def __init__(self) -> None:
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.write = os.pipe()
        self.read, from_browser = os.pipe()

        def connect() -> None:
            # The browser reads from file descriptor 3 and writes to 4.
            reading, writing = os.dup(to_browser), os.dup(from_browser)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self.process = subprocess.Popen(
            [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile.name}", "--window-size=1280,800", "about:blank"],
            preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.buffer = b""
        self.next = 0
        self.session = None
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params):
        self.next += 1
        message = {"id": self.next, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.next:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def receive(self) -> dict:
        while b"\0" not in self.buffer:
            piece = os.read(self.read, 1 << 20)
            if not piece:
                raise AssertionError("the browser has exited")
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(message)
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(message["params"]["exceptionDetails"]["exception"].get("description", "?"))
        if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(message["params"]["entry"]["text"])
        return message

    def run(self, script: str):
        """The value of an expression on the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']['exception'].get('description')}")
        return result["result"].get("value")

    def wait(self, script: str, seconds: float = 60):
        deadline = time.time() + seconds
        while time.time() < deadline:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {script}; errors: {self.errors}")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def screenshot(self, name: str) -> None:
        if len(sys.argv) > 2:
            directory = Path(sys.argv[2])
            directory.mkdir(parents=True, exist_ok=True)
            picture = self.call("Page.captureScreenshot", format="png")["data"]
            (directory / f"{name}.png").write_bytes(base64.b64decode(picture))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def ask(page: Page, text: str) -> None:
    page.run(f"""(() => {{
        const input = document.getElementById('input');
        input.value = {json.dumps(text)};
        input.dispatchEvent(new Event('input'));
        input.dispatchEvent(new KeyboardEvent('keydown', {{ key: 'Enter', bubbles: true, cancelable: true }}));
    }})()""")


def finished(page: Page, n: int) -> None:
    page.wait(f"document.querySelectorAll('.message.assistant .foot button').length === {2 * n} && document.getElementById('stop').hidden")


def main() -> None:
    url = sys.argv[1]
    page = Page()
    try:
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        page.open(url)
        page.wait("document.getElementById('model').value !== ''")
        page.wait("document.getElementById('live-state').textContent === 'running'")
        assert page.run("document.documentElement.dataset.theme") == "light"
        page.screenshot("welcome")

        # Settings reach the request, and stay.
        page.run("document.getElementById('toggle-settings').click()")
        for name, value in (("max_tokens", "60"), ("temperature", "0"), ("system", "You are brief.")):
            page.run(f"(() => {{ const e = document.getElementById('set-{name}'); e.value = '{value}'; e.dispatchEvent(new Event('input')); }})()")
        page.screenshot("settings")
        page.run("document.getElementById('close-settings').click()")

        # An answer is streamed.
        ask(page, "Write a haiku about rust.")
        page.wait("document.querySelector('.message.assistant .bubble.cursor') || document.querySelectorAll('.message.assistant .foot button').length")
        finished(page, 1)
        assert page.run("document.querySelector('.message.assistant .bubble').textContent.length") > 0
        assert "tok/s" in page.run("document.querySelector('.message.assistant .foot').textContent")
        page.screenshot("answer")

        # A long answer is stopped, and the server cancels it.
        page.run("(() => { const e = document.getElementById('set-max_tokens'); e.value = '1500'; e.dispatchEvent(new Event('input')); })()")
        ask(page, "Tell me a very long story.")
        page.wait("!document.getElementById('stop').hidden && document.querySelectorAll('.message.assistant')[1].textContent.length > 5")
        page.wait("Number(document.getElementById('live-running').textContent) === 1")
        page.screenshot("streaming")
        page.run("document.getElementById('stop').click()")
        finished(page, 2)
        page.wait("Number(document.getElementById('live-running').textContent) === 0")

        # Chats and their messages are kept across a reload.
        page.open(url)
        page.wait("document.querySelectorAll('#history .chat').length === 1")
        page.run("document.querySelector('#history .open').click()")
        page.wait("document.querySelectorAll('.message').length === 4")
        assert page.run("document.getElementById('set-temperature').value") == "0"

        # Markdown becomes elements; HTML and scripts in it are shown as text.
        page.run("""(async () => {
            const { render } = await import('/web/markdown.js');
            const box = document.createElement('div');
            box.id = 'box';
            box.className = 'bubble message';
            box.append(render([
                '# Title', '', 'A **bold** word, `code`, [good](https://example.com) and [bad](javascript:alert(1)).',
                '', '- one', '- two', '  - inner', '', '1. first', '2. second', '', '> quoted', '', '| a | b |', '|---|---|', '| 1 | 2 |',
                '', '```rust', 'fn main() { println!("<img src=x onerror=window.hacked=1>"); } // comment', '```',
                '', '<script>window.hacked = 1</script><img src=x onerror="window.hacked=1">',
            ].join('\\n')));
            document.getElementById('messages').append(box);
        })()""")
        shown = page.run("""(() => {
            const box = document.getElementById('box');
            const count = (selector) => box.querySelectorAll(selector).length;
            return [count('h1'), count('strong'), count('a'), count('ul'), count('ul ul'), count('ol li'), count('blockquote'), count('td'),
                    count('.code .t-kw') > 0, count('script'), count('img'), typeof window.hacked];
        })()""")
        assert shown == [1, 1, 1, 2, 1, 2, 1, 2, True, 0, 0, "undefined"], shown
        page.run("document.getElementById('box').scrollIntoView()")
        page.screenshot("markdown")

        # The dark theme is kept across a reload.
        page.run("document.getElementById('toggle-theme').click()")
        page.screenshot("dark")
        page.open(url)
        assert page.run("document.documentElement.dataset.theme") == "dark"

        # A chat is deleted.
        page.wait("document.querySelectorAll('#history .chat').length === 1")
        page.run("document.querySelector('#history .remove').click()")
        assert page.run("JSON.parse(localStorage.getItem('oxidize.chats')).length") == 0

        # The API reference.
        page.open(f"{url}/docs")
        page.wait("document.querySelectorAll('.endpoint').length > 20")
        page.run("document.querySelector('.endpoint').open = true")
        page.screenshot("docs")

        # On a phone.
        page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
        page.open(url)
        page.wait("document.getElementById('model').value !== ''")
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the screen"
        assert page.run("document.getElementById('composer').getBoundingClientRect().width > 300"), "the input is too narrow"
        page.screenshot("phone")
        assert not page.errors, page.errors
    finally:
        page.close()


main()
