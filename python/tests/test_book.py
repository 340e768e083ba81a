"""The book: what it prints is run, what it is made from is compared, what it quotes is searched for.

Blocks of ``docs/**/*.md`` in one of the languages ``python``, ``sh`` and ``console`` are run on a live cluster, which the
environment names: the Python blocks of a page one after the other, in one process; each block of ``sh`` as a script, in a
folder with the examples; of ``console`` the lines that begin with ``$``. A block that is not run here says so in a comment
before it, which the reader of the book does not see:

    <!-- not run: why -->
    <!-- run by: path of the test that runs it -->
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import book_reference
import tensorhold
from browser import chromium
from real import processes
from servers import REPOSITORY, Cluster

DOCS = REPOSITORY / "docs"
EXAMPLES = REPOSITORY / "examples"
WITHIN_S = 300.0
RUN = ("python", "sh", "console")
SHOWN = ("text", "json", "rust", "toml", "yaml")
"""Languages of blocks that show something. Those in Rust are files that are compiled with the crates."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    note: str
    """The comment before it: ``not run: …``, ``run by: …``, or nothing."""

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.note

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    blocks: list[Block] = []
    begun: tuple[int, str, str, str] | None = None
    lines: list[str] = []
    note = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        bare = line.strip()
        if begun is not None:
            if bare == "```":
                start, language, comment, indent = begun
                text = "\n".join(one.removeprefix(indent) for one in lines)
                blocks.append(Block(page, start, language, text, comment))
                begun = None
            else:
                lines.append(line)
        elif bare.startswith("```"):
            begun, lines = (number, bare[3:], note, line[: len(line) - len(line.lstrip())]), []
        if found := re.fullmatch(r"<!-- ((?:not run|run by): .+) -->", bare):
            note = found[1]
        elif bare:
            note = ""
    assert begun is None, f"{page}: a block does not end"
    return blocks


PAGES = sorted(DOCS.rglob("*.md"))
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RUN_HERE = [block for block in BLOCKS if block.is_run]


def in_page_order(language: str) -> list[Path]:
    return list(dict.fromkeys(block.page for block in RUN_HERE if block.language == language))


def named(path: Path) -> str:
    return path.relative_to(DOCS).as_posix()


@pytest.fixture(scope="module")
def variables(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the command is in the path, and the cluster is found."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "tensorhold"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tensorhold "$@"\n')
    command.chmod(0o755)
    path = [str(folder), str(Path(sys.executable).parent), str(REPOSITORY / ".etcd/bin"), os.environ["PATH"]]
    return {
        **os.environ,
        **cluster.variables(),
        "PYTHONPATH": str(REPOSITORY / "python"),
        "PATH": os.pathsep.join(path),
        "ETCDCTL_ENDPOINTS": ",".join(cluster.etcd),
        "MC_LOG_LEVEL": "ERROR",
    }


def of_a_page(variables: dict[str, str], folder: Path) -> dict[str, str]:
    """A page has an index of its own, so that pages may use the same names; and its own place for ``tensorhold up``."""
    return {**variables, "TENSORHOLD_ETCD_ROOT": f"book-{uuid.uuid4().hex[:12]}", "XDG_STATE_HOME": str(folder / "state")}


def run(command: list[str], variables: dict[str, str], folder: Path, what: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, env=variables, cwd=folder)
    assert ran.returncode == 0, f"{what} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"


@pytest.mark.parametrize("page", in_page_order("python"), ids=named)
def test_the_python_of_a_page_runs(page: Path, variables: dict[str, str], tmp_path: Path) -> None:
    blocks = [block for block in RUN_HERE if block.page == page and block.language == "python"]
    script = tmp_path / "page.py"
    # Each line where it is on the page, so that an error names it.
    lines = [""] * len(page.read_text(encoding="utf-8").splitlines())
    for block in blocks:
        code = block.text.splitlines()
        lines[block.line : block.line + len(code)] = code
    script.write_text("\n".join(lines), encoding="utf-8")
    run([sys.executable, str(script)], of_a_page(variables, tmp_path), tmp_path, str(blocks[0]))


@pytest.mark.parametrize("block", [block for block in RUN_HERE if block.language != "python"], ids=str)
def test_the_commands_of_a_block_run(block: Block, variables: dict[str, str], tmp_path: Path) -> None:
    commands = block.text
    if block.language == "console":
        commands = "\n".join(line[2:] for line in commands.splitlines() if line.startswith("$ "))
    folder = tmp_path / "examples"
    shutil.copytree(EXAMPLES, folder)
    run(["bash", "-euo", "pipefail", "-c", commands], of_a_page(variables, tmp_path), folder, str(block))


def test_every_block_is_run_or_says_why_not() -> None:
    strange = [str(block) for block in BLOCKS if block.language not in RUN + SHOWN]
    assert not strange, f"give each block one of the languages {RUN + SHOWN}"
    for block in BLOCKS:
        if block.language == "rust":
            source = re.fullmatch(r'--8<-- "(crates/\w[\w-]*/examples/[\w/]+\.rs)"', block.text.strip())
            assert source and (REPOSITORY / source[1]).is_file(), f"{block}: include an example, which is compiled"
        kind, _, what = block.note.partition(": ")
        if kind == "run by":
            runner = REPOSITORY / what
            assert runner.is_file() and block.page.name in runner.read_text(encoding="utf-8"), f"{block}: {what} does not name it"
    counts = {kind: sum(1 for block in BLOCKS if block.note.startswith(kind)) for kind in ("run by", "not run")}
    print(f"{len(RUN_HERE)} blocks are run here, {counts['run by']} by other tests, {counts['not run']} are not run")
    assert RUN_HERE


def test_what_is_made_from_the_code_is_what_the_code_says() -> None:
    page, made = DOCS / "errors.md", book_reference.errors_page()
    if os.environ.get("TENSORHOLD_REFERENCE") == "write":
        page.write_text(made, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == made, "its first lines say how to make it again"


@pytest.mark.parametrize("picture", ["sample", "page", "parts"])
def test_the_pictures_show_what_the_code_says(picture: str) -> None:
    command = [sys.executable, "-B", str(DOCS / f"pictures/{picture}.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr


def test_the_book_is_read_and_searched_without_a_network(variables: dict[str, str], tmp_path: Path) -> None:
    site = tmp_path / "site"
    # A link or an anchor that leads nowhere, a page that is not in the order, something from elsewhere: each ends the build.
    run(["mkdocs", "build", "--strict", "--site-dir", str(site)], variables, REPOSITORY, "mkdocs build")
    with chromium() as browser:
        for scheme in ("light", "dark"):
            browser.show_as(scheme=scheme, width=1280, height=900)
            browser.open((site / "concepts.html").as_uri())
            browser.until("the pictures are there", "return [...document.images].every((one) => one.naturalWidth > 0)")
            assert browser.barriers() == []
        browser.log()  # axe-core asks for style sheets once more, which a page that is a file may not
        browser.open(f"{(site / 'index.html').as_uri()}?q=dead+letter")
        found = "return [...document.querySelectorAll('.md-search-result__link')].map((one) => one.getAttribute('href'))"
        links = browser.until("the search has found something", f"const all = (() => {{ {found} }})(); return all.length && all")
        assert any("custody.html" in link or "glossary.html" in link for link in links), links
        assert browser.log() == []


def test_messages_that_are_quoted_are_messages_of_the_code() -> None:
    folders = [
        (REPOSITORY / "crates", "*/src/**/*.rs"),
        (REPOSITORY / "python/src", "**/*.rs"),
        (REPOSITORY / "python/tensorhold", "**/*.py"),
    ]
    code = "\n".join(path.read_text(encoding="utf-8") for folder, files in folders for path in folder.glob(files))
    # Texts over several lines: a backslash at the end of a line, or one literal after the other.
    code = re.sub(r'\\\n\s*|"\s*\n\s*f?"', "", code)
    rows = [line.split(" | ")[0] for line in (DOCS / "failures.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    quoted = [message for row in rows for message in re.findall(r"`([^`]+)`", row) if " " in message and "…" not in message]
    assert len(quoted) > 25
    assert [message for message in quoted if message not in code] == []


def test_the_cluster_of_operations_md_serves_a_store(cluster: Cluster, tmp_path: Path, store_name: str) -> None:
    """The master and the holder as printed, on free ports, with less memory."""
    printed = [block.text for block in blocks_of(DOCS / "operations.md") if block.note.endswith("test_book.py")]
    rpc, admin, port = processes.free_ports(3)
    mine = {"50051": str(rpc), "9003": str(admin), "50052": str(port), "32GB": "256MB"}
    settings = {
        **cluster.settings(),
        "master": f"127.0.0.1:{rpc}",
        "admin": [f"http://127.0.0.1:{admin}"],
        "metadata": "P2PHANDSHAKE",
    }
    deadline = time.monotonic() + 60
    with ExitStack() as stack:
        for name, command in zip(("master", "holder"), printed, strict=True):
            for usual, here in mine.items():
                command = command.replace(usual, here)
            shell = ["bash", "-ec", f"exec {command}"]
            stack.enter_context(processes.started(shell, processes.environment(), tmp_path / f"{name}.log"))
        store = None
        while store is None:
            try:
                store = stack.enter_context(tensorhold.open(store_name, pool_bytes=64 << 20, timeout=10, **settings))
                store.put("sample-1", {"x": b"committed"}, groups=["trainers"], timeout=10)
            except (tensorhold.Capacity, tensorhold.Unavailable):
                store = None  # they are not there yet
                assert time.monotonic() < deadline, json.dumps({f.name: f.read_text()[-2000:] for f in tmp_path.glob("*.log")})
                time.sleep(0.2)
        [lease] = store.take("trainers")
        with lease:
            assert lease.get()["x"].tobytes() == b"committed"
