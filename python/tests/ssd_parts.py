"""What tests of the SSD tier have in common."""

from __future__ import annotations

import re
import time
import uuid

import numpy

from tensorhold import kv
from servers import REPOSITORY

MIB = 1 << 20


def printed(section: str, kind: str) -> list[str]:
    """The blocks of this kind in a section of ``docs/ssd.md``."""
    text = (REPOSITORY / "docs/ssd.md").read_text()
    return re.findall(rf"```{kind}\n(.*?)```", text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0], re.DOTALL)


def crowd_out(pages: kv.PageStore, keys: list[str], within: float = 60.0) -> list[str]:
    """Puts other pages until these are on SSD only. Returns those that are."""
    memory = numpy.full(MIB, 9, dtype=numpy.uint8)
    run = pages.register(memory)
    deadline = time.monotonic() + within
    cold: list[str] = []
    while len(cold) < len(keys) and time.monotonic() < deadline:
        names = [f"crowd/{uuid.uuid4().hex}" for _ in range(8)]
        pages.put(names, [run.address] * len(names), [MIB] * len(names))
        hints = pages.exists(keys)
        cold = [key for key, hint in zip(keys, hints, strict=True) if hint is not None and not hint.in_dram]
    pages.unregister(run)
    return cold
