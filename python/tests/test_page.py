"""The steward's page in a browser, on a real cluster under load; and what ``tensorhold top`` shows of it.

With ``TENSORHOLD_PICTURES=docs/images`` the pictures of the documentation are taken.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import tensorhold
from browser import ENTER, SHIFT, SPACE, TAB, Browser, chromium, eventually
from servers import BUILD_WITHIN_S, REPOSITORY, Cluster

STORE = "eagle/run-7"
OTHER = "llama/run-2"
HOSTILE = "<img src=x onerror=\"document.title='broken'\">"
TOKEN = "th_token-for-one-store"
MIB = 1 << 20
STATE = "return document.getElementById('state').dataset.state"


@cache
def serve() -> Path:
    """The program of a steward. CI has built it with the tests; the same command finds it again."""
    build = ["build", "--locked", "--quiet", "--workspace", "--all-features", "--example=serve", "--message-format=json"]
    command = [os.environ.get("CARGO", "cargo"), *build]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=BUILD_WITHIN_S)
    assert built.returncode == 0, built.stderr
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    [program] = [message["executable"] for message in messages if message.get("executable")]
    return Path(program)


@contextmanager
def steward(cluster: Cluster, **http: Any) -> Iterator[str]:
    """A steward of the store; its address."""
    environment = {**cluster.client_env, "MC_LOG_LEVEL": "ERROR"}
    engine = {"master": cluster.master, "metadata": cluster.metadata, "admin": cluster.admin, "environment": environment}
    etcd = {"endpoints": cluster.etcd}
    options = {
        "stores": [{"store": STORE}, {"store": OTHER}],
        "look_every": "1s",
        "etcd": {"reach": etcd},
        "http": {"listen": "127.0.0.1:0", **http},
    }
    settings = {"reach": {"engine": engine, "etcd": etcd}, "steward": options}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [serve()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={"TENSORHOLD_VENV": str(REPOSITORY / ".venv"), **os.environ},
            text=True,
            start_new_session=True,
        )
        assert process.stdin and process.stdout
        with process:
            try:
                process.stdin.write(json.dumps(settings) + "\n")
                process.stdin.flush()
                address = process.stdout.readline().strip()
                if not address:
                    process.wait(30)
                    errors.seek(0)
                    raise RuntimeError(f"no steward: {errors.read()}")
                yield f"http://{address}"
            finally:
                # Its standard input ends: it stops.
                process.stdin.close()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()


class Load:
    """A producer and a consumer at work: some samples wait, some are leased for long, a few become dead letters."""

    def __init__(self, cluster: Cluster) -> None:
        settings = cluster.settings()
        self.producer = tensorhold.open(STORE, role="producer-0", budget=48 * MIB, **settings)
        self.consumer = tensorhold.open(STORE, role="trainer-0", **settings)
        self._over = threading.Event()
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._guarded, args=[work]) for work in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(error)

    def _produce(self) -> None:
        for n in range(20_000):
            if self._over.is_set():
                return
            tensor = bytes((1 + n % 7) * MIB // 16)
            try:
                self.producer.put(f"step-{n:05}", {"hidden": tensor}, groups=["trainers"], max_attempts=1, timeout=2)
            except (TimeoutError, tensorhold.TensorholdError) as error:
                # The budget is spent: it waits, and so it is shown.
                if not isinstance(error, TimeoutError) and "budget" not in str(error):
                    raise
            self._over.wait(0.01)

    def _consume(self) -> None:
        held: list[tensorhold.Lease] = []  # until the end; `close` ends the store
        n, renew_at = 0, time.monotonic() + 10
        while not self._over.is_set():
            for lease in self.consumer.take("trainers", 4, timeout=0.5):
                n += 1
                if n % 100 == 0:
                    lease.nack()
                elif n % 10 == 0 and len(held) < 6:
                    held.append(lease)
                else:
                    lease.get()
                    lease.ack()
            if time.monotonic() > renew_at:
                self.consumer.renew_many(held)
                renew_at = time.monotonic() + 10
            self._over.wait(0.05 if n % 200 < 150 else 0.2)
    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        self.consumer.close()
        self.producer.end(others=True)
        self.producer.close()
        assert not self.failures, self.failures


@dataclass
class Scene:
    cluster: Cluster
    load: Load
    browser: Browser
    address: str


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    load = Load(cluster)
    try:
        with steward(cluster) as address, chromium() as browser:
            yield Scene(cluster, load, browser, address)
    finally:
        load.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    asked = os.environ.get("TENSORHOLD_PICTURES")
    return REPOSITORY / asked if asked else tmp_path_factory.mktemp("pictures")


def shrink(picture: Path) -> None:
    """Fewer colours: a picture of text needs no more."""
    from PIL import Image

    with Image.open(picture) as opened:
        small = opened.convert("RGB").quantize(64, kmeans=2, dither=Image.Dither.NONE)
    small.save(picture, optimize=True)
    # How much is on it depends on the machine: only those that are kept must be small.
    assert "TENSORHOLD_PICTURES" not in os.environ or picture.stat().st_size < 150_000, picture.stat().st_size


def open_page(browser: Browser, address: str) -> None:
    browser.open(address + "/")
    browser.until("the page is live", STATE + " === 'live'")


def complaints(browser: Browser) -> list[str]:
    return [line for line in browser.log() if "favicon" not in line]


SIZES = [("light", 1280, 1000), ("dark", 1280, 1000), ("light", 400, 900), ("dark", 400, 900)]


@pytest.mark.parametrize(("scheme", "width", "height"), SIZES)
def test_everybody_can_use_it(scene: Scene, pictures: Path, scheme: str, width: int, height: int) -> None:
    browser = scene.browser
    browser.show_as(scheme=scheme, width=width, height=height)
    open_page(browser, scene.address)
    browser.until("a chart is drawn", "return document.querySelectorAll('#chart path').length > 0")
    browser.until("leases are shown", "return document.querySelectorAll('#leases tbody th').length > 2")
    if width > 400:
        points = 60 if "TENSORHOLD_PICTURES" in os.environ else 3
        browser.until("there is something to see", "return past.points.length > arguments[0]", points, within=90)
        browser.show_as(scheme=scheme, width=width, height=browser.run("return document.documentElement.scrollHeight"))
        picture = pictures / f"page-{scheme}.png"
        browser.picture(picture)
        shrink(picture)
    browser.run("for (const id of ['sessions', 'points']) document.getElementById(id).open = true")
    browser.until("sessions are shown", "return document.querySelectorAll('#sessions tbody th').length > 2")
    assert browser.barriers() == []
    shown = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert shown[0] <= shown[1], f"it is wider than the window: {shown}"
    assert complaints(browser) == []


@pytest.mark.parametrize("width", [320, 400, 620, 850, 1280])
def test_nothing_is_cut_off_at_an_edge(scene: Scene, width: int) -> None:
    browser = scene.browser
    browser.show_as(scheme="light", width=width, height=900)
    open_page(browser, scene.address)
    browser.until("leases are shown", "return document.querySelectorAll('#leases tbody th').length > 2")
    browser.until("dead letters are shown", "return document.querySelectorAll('#dead tbody th').length > 0")
    browser.run("for (const id of ['sessions', 'points']) document.getElementById(id).open = true")
    browser.until("sessions are shown", "return document.querySelectorAll('#sessions tbody th').length > 2")
    cut = """
        return [...document.querySelectorAll('.wide')].filter((one) => one.scrollWidth > one.clientWidth + 1)
            .map((one) => [one.querySelector('table').id || one.closest('details').id, one.scrollWidth, one.clientWidth]);
    """
    assert browser.run(cut) == [], "columns are behind the edge"
    letters = "return document.querySelector('#chart text').getBoundingClientRect().height"
    assert browser.until("a chart is drawn", letters) > 9, "its text is too small to read"
    row = "document.querySelector('#stores tbody tr')"
    shown = browser.run(f"return [...{row}.children].map((cell) => cell.getBoundingClientRect().right)")
    assert len(shown) == 9 and all(0 < right <= width for right in shown), shown


def test_what_needs_attention_comes_first_and_names_its_runbook(scene: Scene) -> None:
    browser = scene.browser
    browser.show_as(scheme="light", width=1280, height=1000)
    open_page(browser, scene.address)
    told = "return document.getElementById('attention').hidden ? '' : document.getElementById('attention').textContent"
    letters = "runbook.md#tensorholddeadletters"
    said = browser.until("dead letters are told", f"return (() => {{ {told} }})().includes('{letters}')")
    assert said
    above = "const top = (id) => document.getElementById(id).getBoundingClientRect().top; return top('attention') < top('stores')"
    assert browser.run(above)
    group = "const cells = document.querySelector('#groups tbody tr').children; return [...cells].map((cell) => cell.textContent)"
    browser.until("changes are told", f"return /s$/.test((() => {{ {group} }})()[2])")
    name, waiting, change, oldest, _leased = browser.run(group)
    assert name == "trainers" and int(waiting.replace(",", "")) > 0, waiting
    assert re.fullmatch(r"[+−][\d.,]+/s", change), change
    assert oldest.endswith(" ago"), oldest


def test_figures_follow_the_store(scene: Scene) -> None:
    browser, store = scene.browser, scene.load.consumer
    browser.show_as(scheme="light", width=1280, height=1750)
    open_page(browser, scene.address)
    # The second state is live, its third cell has the bytes.
    live = "return document.querySelectorAll('#states tbody tr')[1].children[2].textContent"
    before = browser.run(live)
    browser.until("bytes change under load", f"{live} !== arguments[0]", before, within=10)
    # A lease of a group of its own is the oldest but for those of the load; it comes, and goes.
    scene.load.producer.put("watched", {"x": bytes(100)}, groups=["watchers"], timeout=30)
    [lease] = store.take("watchers", timeout=10)
    row = "return [...document.querySelectorAll('#leases tbody tr')].some((r) => r.textContent.includes('group watchers'))"
    begun = time.monotonic()
    browser.until("the lease is shown", row, within=10)
    print(f"a lease was shown after {time.monotonic() - begun:.2f} s")
    lease.ack()
    browser.until("the lease is gone", row.replace("return", "return !"), within=10)
    for section in ["pressure", "states", "leases", "groups", "actions", "holders", "dead"]:
        browser.until(f"{section} has rows", f"return document.querySelectorAll('#{section} tbody th').length > 0")
    said = browser.run("return document.querySelector('#chart svg').getAttribute('aria-label')")
    assert "live" in said and "at most" in said, said
    # A screen reader is told when the connection changes, and not every second.
    told = """
        const done = arguments[arguments.length - 1];
        let changes = 0;
        const watcher = new MutationObserver((found) => { changes += found.length; });
        for (const region of document.querySelectorAll('[role=status], [aria-live]')) {
            watcher.observe(region, { childList: true, characterData: true, subtree: true });
        }
        setTimeout(() => done(changes), 2500);
    """
    assert browser.run_until_done(told) == 0, "it chatters"


def test_what_others_wrote_is_text(scene: Scene) -> None:
    with tensorhold.open(STORE, role=HOSTILE, **scene.cluster.settings()) as hostile:
        scene.load.producer.put("for-the-hostile", {"x": bytes(100)}, groups=["hostile"], timeout=30)
        [lease] = hostile.take("hostile", timeout=10)
        see_that_it_is_text(scene)
        lease.ack()


def see_that_it_is_text(scene: Scene) -> None:
    browser = scene.browser
    open_page(browser, scene.address)
    held = "return [...document.querySelectorAll('#leases tbody td')].some((cell) => cell.textContent.includes(arguments[0]))"
    browser.until("a hostile name is shown", held, HOSTILE)
    browser.run("document.getElementById('sessions').open = true")
    browser.until("and among the sessions", held.replace("#leases", "#sessions"), HOSTILE)
    assert browser.run("return document.querySelectorAll('main img').length") == 0
    assert browser.run("return document.title") == "Tensorhold steward"
    # Should a text ever become an element: its script is not let run.
    browser.run("document.getElementById('about').innerHTML = arguments[0]", HOSTILE)
    eventually("the policy refuses it", lambda: any("Content Security Policy" in line for line in browser.log()), 10)
    assert browser.run("return document.title") == "Tensorhold steward"


def focused(browser: Browser) -> str:
    script = "const at = document.activeElement; return at.id || at.dataset.key || at.textContent.trim().slice(0, 40)"
    return str(browser.run(script))


def test_it_is_used_by_keyboard(scene: Scene) -> None:
    browser = scene.browser
    open_page(browser, scene.address)
    browser.press(TAB)
    assert focused(browser) == "Skip to the figures"
    browser.press(ENTER)
    assert focused(browser) == "main"

    def tab_to(name: str, most: int = 40) -> None:
        seen = []
        for _ in range(most):
            browser.press(TAB)
            seen.append(focused(browser))
            if seen[-1] == name:
                outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", f"one does not see that {name} has the focus"
                return
        raise AssertionError(f"Tab does not reach {name}: {seen}")

    title = "return document.getElementById('store-title').textContent === `Store ${arguments[0]}`"
    tab_to(OTHER)
    browser.press(ENTER)
    browser.until("the other store is shown", title, OTHER)
    assert focused(browser) == OTHER, "the focus stays while figures change"
    browser.press(SHIFT, TAB)
    assert focused(browser) == STORE
    browser.press(SPACE)
    browser.until("the store is shown", title, STORE)
    browser.run("document.getElementById('sessions').open = false")
    script = "return document.activeElement.matches('#sessions > summary')"
    for _ in range(40):
        browser.press(TAB)
        if browser.run(script):
            break
    assert browser.run(script), "Tab does not reach the sessions"
    browser.press(ENTER)
    browser.until("sessions are shown", "return document.querySelectorAll('#sessions tbody th').length > 2")
    browser.press(TAB)
    assert focused(browser) == "filter"
    browser.press(*"producer-0")
    browser.until("it filters", "return document.querySelectorAll('#sessions tbody th').length === 1")
    browser.run("const at = document.getElementById('filter'); at.value = ''; at.dispatchEvent(new Event('input'))")
    tab_to("role")
    for expected in ["ascending", "descending"]:
        browser.press(ENTER)
        assert browser.run("return document.activeElement.closest('th').getAttribute('aria-sort')") == expected
        rows = "[...document.querySelectorAll('#sessions tbody tr')]"
        roles = browser.run(f"return {rows}.map((row) => row.children[1].textContent)")
        assert roles == sorted(roles, key=str.lower, reverse=expected == "descending") or len(set(roles)) < 2, roles
    assert complaints(browser) == []


def test_a_thousand_sessions_are_a_table_that_one_can_use(scene: Scene) -> None:
    browser = scene.browser
    open_page(browser, scene.address)
    browser.run("document.getElementById('sessions').open = true")
    browser.until("sessions are shown", "return document.querySelectorAll('#sessions tbody th').length > 2")
    # As many as are read from the steward; reading them is measured by `crates/steward/tests/many.rs`.
    took = browser.run("""
        readingSessions = true;
        sessions.all = Array.from({ length: 1000 }, (_, n) => ({
            session: n.toString(16).padStart(16, "0"), host: `node-${n % 40}`, pid: 1000 + n, program: "python3.11",
            version: "0.1.0", role: `trainer-${n}`, steward: false, started_ms: 1e12 + n,
        }));
        const begun = performance.now();
        drawSessions();
        return performance.now() - begun;
    """)
    print(f"1,000 sessions are drawn in {took:.1f} ms")
    assert took < 200
    assert browser.run("return document.querySelectorAll('#sessions tbody tr').length") == 50
    assert browser.run("return document.getElementById('sessions-shown').textContent") == "1 to 50 of 1,000"
    browser.run("document.getElementById('page-after').focus()")
    browser.press(ENTER)
    assert browser.run("return document.getElementById('page-at').textContent") == "Page 2 of 20"
    browser.run("document.getElementById('filter').focus()")
    browser.press(*"trainer-77")
    assert browser.run("return document.getElementById('sessions-shown').textContent") == "1 to 11 of 11"
    assert browser.barriers() == []


def test_a_token_is_asked_for_and_kept_in_the_tab(scene: Scene) -> None:
    entry = {"name": "one", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest(), "stores": [STORE]}
    browser = scene.browser
    with steward(scene.cluster, tokens=[entry]) as address:
        browser.open(address + "/")
        browser.until("it asks", STATE + " === 'refused'")
        assert browser.run("return document.getElementById('figures').hidden")
        assert focused(browser) == "token"
        assert browser.barriers() == []
        browser.press(*"wrong", ENTER)
        browser.until("it says so", "return document.getElementById('state').textContent === 'The steward refuses the token'")
        browser.press(*TOKEN, ENTER)
        browser.until("it is live", STATE + " === 'live'")
        names = "return [...document.querySelectorAll('#stores tbody button')].map((one) => one.textContent)"
        assert browser.run(names) == [STORE], "the store of the token"
        browser.open(address + "/")
        browser.until("the tab remembers it", STATE + " === 'live'")
        assert browser.run("return [location.href, document.cookie, localStorage.length]") == [address + "/", "", 0]
        browser.run("document.getElementById('forget').click()")
        browser.until("it asks again", STATE + " === 'refused'")
        assert browser.run("return sessionStorage.length") == 0
        browser.log()


def test_a_page_of_another_site_reads_nothing(scene: Scene) -> None:
    class Blank(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    # In threads that nobody waits for: a browser also opens connections on which it asks nothing.
    with ThreadingHTTPServer(("127.0.0.1", 0), Blank) as server:
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            scene.browser.open(f"http://127.0.0.1:{server.server_port}/")
            script = """
                const done = arguments[arguments.length - 1];
                fetch(arguments[0] + "/v1/overview").then((a) => a.text(), (error) => error.name).then(done);
            """
            read = scene.browser.run_until_done(script, scene.address)
        finally:
            server.shutdown()
            thread.join(30)
    assert read == "TypeError"
    scene.browser.log()


def test_a_lost_steward_is_told_and_found_again(scene: Scene) -> None:
    browser = scene.browser
    with steward(scene.cluster) as address:
        open_page(browser, address)
    lost = "const at = document.getElementById('state'); return at.dataset.state === 'lost' && at.textContent"
    said = browser.until("it is told", lost)
    assert re.search(r"lost at .*:.*The figures below are old", said), said
    assert browser.run("return document.querySelectorAll('#states tbody th').length") == 6, "they stay to be seen"
    with steward(scene.cluster, listen=urllib.parse.urlsplit(address).netloc):
        browser.until("it is found again", STATE + " === 'live'", within=40)
    browser.log()


@pytest.mark.parametrize(("columns", "lines"), [(120, 40), (60, 30), (40, 30)])
def test_top_shows_the_same_in_a_terminal(scene: Scene, pictures: Path, columns: int, lines: int) -> None:
    socket = f"tensorhold-{uuid.uuid4().hex[:8]}"
    variables = {**os.environ, **scene.cluster.variables(), "PYTHONPATH": str(REPOSITORY / "python"), "LANG": "C.UTF-8"}

    def tmux(*arguments: str) -> str:
        ran = subprocess.run(
            ["tmux", "-L", socket, "-f", "/dev/null", *arguments], capture_output=True, text=True, timeout=30, env=variables
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    command = [sys.executable, "-m", "tensorhold", "top", "--store", STORE]
    wanted = ["waiting", "dead", "oldest", "change", "/s", *(["producer-0"] if columns == 120 else [])]

    def screen() -> str:
        return tmux("capture-pane", "-p")

    tmux("new-session", "-d", "-x", str(columns), "-y", str(lines), *command)
    try:
        # The heads of tables are in capitals.
        eventually("it shows the store", lambda: all(word in screen().lower() for word in wanted), more=screen)
        shown = tmux("capture-pane", "-e", "-p")
        tmux("send-keys", "q")
    finally:
        subprocess.run(["tmux", "-L", socket, "kill-server"], capture_output=True, timeout=30)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "tensorhold top" in plain and "q quits" in plain and STORE in plain, plain
    if columns < 120:
        # At 60 columns all of it fits at times.
        assert "more lines" in plain or (columns == 60 and f"sessions of store {STORE}" in plain), plain
        return
    assert "needs attention:" in plain and "runbook.md#tensorholddeadletters" in plain, plain
    page = as_html(shown.rstrip())
    browser = scene.browser
    browser.show_as(scheme="dark", width=1040, height=40 + 18 * page.count("\n"))
    browser.open("data:text/html;charset=utf-8," + urllib.parse.quote(page))
    picture = pictures / "top.png"
    browser.picture(picture)
    shrink(picture)


def test_bold_and_reversed_text_of_a_terminal_is_so_in_the_picture() -> None:
    page = as_html("\x1b[1mA<\x1b[0mb\x1b[7mc\x1b[27md\n")
    assert page.endswith('<pre><span class="b">A&lt;</span><span class="">b</span><span class="r">c</span><span class="">d</span></pre>')


def as_html(terminal: str) -> str:
    """What a terminal shows; bold and reversed text are enough for ``top``."""
    lines = []
    for line in terminal.rstrip("\n").split("\n"):
        parts = re.split(r"\x1b\[([0-9;]*)m", line)
        text, bold, reverse = html.escape(parts[0]), False, False
        for codes, part in zip(parts[1::2], parts[2::2], strict=True):
            for code in (codes or "0").split(";"):
                bold = code == "1" or (bold and code not in ("0", "22"))
                reverse = code == "7" or (reverse and code not in ("0", "27"))
            names = " ".join(name for name, on in [("b", bold), ("r", reverse)] if on)
            text += f'<span class="{names}">{html.escape(part)}</span>'
        lines.append(text)
    style = (
        "body{margin:0;background:#10141a;color:#e7eaee}pre{margin:10px;font:14px/18px 'DejaVu Sans Mono',monospace}"
        ".b{font-weight:bold}.r{background:#e7eaee;color:#10141a}"
    )
    return f"<!doctype html><meta charset=utf-8><style>{style}</style><pre>{chr(10).join(lines)}</pre>"
