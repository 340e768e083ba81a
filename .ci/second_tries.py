"""Which tests passed only when they were tried again, in Rust and in Python: counted, named, and bounded.

    second_tries.py junit REPORT LIST    adds what nextest's report calls flaky to the list
    second_tries.py again CACHE LIST     after a run of pytest that failed: adds what failed, and ends with 0 if all of it may be
                                         tried once more
    second_tries.py judge LIST           prints the list, and ends with 1 if it is longer than MOST

Real servers have timeouts of their own, and a busy machine starves them: so a test that waits for them may be tried once more.
A test of the promise may not: bytes that are wrong once are wrong. In Rust, `.config/nextest.toml` says which may.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree
from pathlib import Path

MOST = 2

PROMISE = (
    "test_kv_sealed", "test_lost", "test_memory_in_flight", "test_poison", "test_restore", "test_sealed", "test_specforge_equivalence",
    "test_values",
)  # fmt: skip
"""Of Python: what is lost, torn, forged or freed too early."""


def add(names: list[str], into: Path) -> None:
    with into.open("a", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in names)


def junit(report: Path, into: Path) -> int:
    cases = xml.etree.ElementTree.parse(report).getroot().iter("testcase")
    flaky = [case for case in cases if case.find("flakyFailure") is not None or case.find("flakyError") is not None]
    add([f"{case.get('classname')} {case.get('name')}" for case in flaky], into)
    return 0


def again(cache: Path, into: Path) -> int:
    failed = sorted(json.loads((cache / "v/cache/lastfailed").read_text(encoding="utf-8")))
    once = [name for name in failed if Path(name.split("::")[0]).stem in PROMISE]
    if once:
        print("not tried again, because the promise is what they test:", *once, sep="\n  ")
        return 1
    add(failed, into)
    return 0


def judge(tries: Path) -> int:
    names = tries.read_text(encoding="utf-8").splitlines()
    print(f"{len(names)} tests needed a second try", *names, sep="\n  ")
    if len(names) > MOST:
        print(f"That is more than {MOST}: find out why before anything lands.")
        return 1
    return 0


def main(command: str, *paths: str) -> int:
    return {"junit": junit, "again": again, "judge": judge}[command](*map(Path, paths))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
