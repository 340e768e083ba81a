"""Writes the lock files of the Python side: every package, its release and its hash.

    .venv/bin/python .ci/lock.py                       # all of them
    .venv/bin/python .ci/lock.py requirements-wheel    # one

To be run after a change of a requirements file; `.ci/setup` refuses lock files that are older
than what they were made from. pip resolves the requirements as it would install them (nothing is installed) and reports
the files that it would take, with their SHA-256. The lock holds for CPython 3.11 on x86-64 Linux, which is what `.ci/setup`
makes, and names no index: whichever one pip is configured for has to have these very files.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# With what each file depends on, and without: see the head of the second file.
LOCKED = {"requirements-installer": [], "requirements": [], "requirements-frameworks": ["--no-deps"], "requirements-wheel": []}


def resolve(requirements: Path, options: list[str]) -> list[tuple[str, str, str]]:
    """The packages that pip would install: name, version, SHA-256."""
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    asked = ["--dry-run", "--ignore-installed", "--report", "-", "--requirement", str(requirements)]
    report = json.loads(subprocess.run([*pip, *options, *asked], check=True, stdout=subprocess.PIPE).stdout)
    found = []
    for package in report["install"]:
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        hashes = package["download_info"].get("archive_info", {}).get("hashes", {})
        if "sha256" not in hashes:
            sys.exit(f"lock: the index gives no SHA-256 for {name} {version}: use another index")
        found.append((name, version, hashes["sha256"]))
    return sorted(found, key=lambda package: package[0].lower())


def main() -> None:
    if sys.version_info[:2] != (3, 11):
        sys.exit(f"lock: CPython 3.11 is what .ci/setup installs into, not {sys.version.split()[0]}")
    for name in sys.argv[1:] or LOCKED:
        if name not in LOCKED:
            sys.exit(f"lock: there is no {name}; there are {', '.join(LOCKED)}")
        options = LOCKED[name]
        requirements = HERE / f"{name}.txt"
        packages = resolve(requirements, options)
        made_from = hashlib.sha256(requirements.read_bytes()).hexdigest()
        lines = [f"# Made by .ci/lock.py from {requirements.name}; do not edit.", f"# made from: {made_from}"]
        lines += [f"{package}=={version} --hash=sha256:{digest}" for package, version, digest in packages]
        (HERE / f"{name}.lock").write_text("\n".join(lines) + "\n")
        print(f"lock: {name}.lock has {len(packages)} packages")


if __name__ == "__main__":
    main()
