"""Makes the asyncio face from the blocking one, so that each call is written once:

    python tools/asyncio_face.py            # writes tensorhold/_awaited.py from tensorhold/_blocking.py
    python tools/asyncio_face.py --check    # says whether that is up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "tensorhold"
SOURCE, MADE = PACKAGE / "_blocking.py", PACKAGE / "_awaited.py"

# What the two faces say differently, besides `async def` and `await`.
WORDS = {
    '"""The calls of the blocking face: each waits for its result. ``_awaited.py`` is made from this file."""': (
        '"""The calls of the asyncio face. Made from ``_blocking.py`` by ``tools/asyncio_face.py``: change that."""'
    ),
    "def __enter__": "def __aenter__",
    "def __exit__": "def __aexit__",
    "            self.ack()\n": "            await self.ack()\n",
    "            (self.release() if": "            await (self.release() if",
    "            self.flush()\n": "            await self.flush()\n",
    "            with store.writer() as writer:\n": "            async with store.writer() as writer:\n",
    "                    writer.put(sample, tensors": "                    await writer.put(sample, tensors",
    "import Stream\n": "import AsyncStream\n",
    "Stream[Lease]": "AsyncStream[Lease]",
    "return Stream(": "return AsyncStream(",
}


def awaited(blocking: str) -> str:
    """The asyncio face of the blocking one."""
    text = re.sub(r"self\._calls\.(.+)\.wait\(\)", r"await self._calls.\1", blocking)
    for plain, other in WORDS.items():
        if plain not in text:
            raise ValueError(f"{SOURCE.name} has no {plain!r} any more: change WORDS")
        text = text.replace(plain, other)
    # A call has a timeout; entering and leaving a block, and waiting for calls, are calls, too.
    return re.sub(r"^    def (\w+)\((.*?)\) ->", _as_coroutine, text, flags=re.DOTALL | re.MULTILINE)


def _as_coroutine(method: re.Match[str]) -> str:
    name, parameters = method[1], method[2]
    is_call = re.search(r"\btimeout:", parameters) or name in ("__aenter__", "__aexit__", "flush")
    return f"    async def {name}({parameters}) ->" if is_call else method[0]


def main() -> int:
    """Writes the asyncio face, or checks it."""
    made = awaited(SOURCE.read_text(encoding="utf-8"))
    if sys.argv[1:] != ["--check"]:
        MADE.write_text(made, encoding="utf-8")
        return 0
    if MADE.is_file() and MADE.read_text(encoding="utf-8") == made:
        return 0
    print(f"{MADE.name} is not what {SOURCE.name} says: run python {Path(__file__).name}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
