"""Boxes and arrows as SVG, for the pictures of the book.

A picture follows the colours of the reader's system, as the book does, and needs no font and no script. Each program in
this folder draws one: without arguments it writes the picture beside itself, with ``--check`` it says whether that is up
to date. What a picture names is compared with the code, so that a state that is added cannot be missed.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]

STYLE = """
text { font: 14px sans-serif; fill: #1a1c23; text-anchor: middle }
.name { font-weight: bold }
.note { font-size: 12px; fill: #4a4e5a }
.left { text-anchor: start }
.box { fill: #e8ecf7; stroke: #3f51b5; stroke-width: 1.5 }
.area { fill: none; stroke: #8a90a0; stroke-dasharray: 5 4 }
.line { fill: none; stroke: #4a4e5a; stroke-width: 1.5; marker-end: url(#end) }
.end { fill: #4a4e5a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e8ef }
  .note { fill: #b8bdca }
  .box { fill: #262b40; stroke: #8c9eff }
  .line { stroke: #b8bdca }
  .end { fill: #b8bdca }
}
"""


class Picture:
    """One picture: what is drawn first lies below."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []
        self.said: set[str] = set()

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        """A line of text around a point, or with ``left`` from it."""
        self.said.add(words)
        self._parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, name: str, *notes: str) -> None:
        """A state, with what it means."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{34 + 17 * len(notes)}" rx="6" class="box"/>')
        self.text(x + width / 2, y + 22, name, "name")
        for line, note in enumerate(notes):
            self.text(x + width / 2, y + 41 + 17 * line, note, "note")

    def area(self, x: float, y: float, width: float, height: float, name: str) -> None:
        """A frame around several states."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" class="area"/>')
        self.text(x + 12, y + 18, name, "note left")

    def arrow(self, path: str) -> None:
        """An arrow along an SVG path."""
        self._parts.append(f'<path d="{path}" class="line"/>')

    def svg(self) -> str:
        """The file."""
        width, height = self._size
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
                f"<title>{escape(self._title)}</title>",
                f"<style>{STYLE}</style>",
                '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
                '<path d="M0 0 8 4 0 8z" class="end"/></marker></defs>',
                *self._parts,
                "</svg>\n",
            ]
        )


def variants(path: str, name: str) -> set[str]:
    """The variants of a Rust enum."""
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    body = re.search(rf"pub enum {name} \{{\n(.*?)\n\}}", text, re.DOTALL)
    if body is None:
        raise SystemExit(f"{path} has no enum {name} any more")
    return set(re.findall(r"^    (\w+)", body[1], re.MULTILINE))


def finish(picture: Picture, named: dict[str, set[str]], file: str) -> None:
    """Writes the picture, or checks it, if it names all that the code names."""
    for where, names in named.items():
        missing = sorted(name for name in names if name not in picture.said)
        if missing:
            raise SystemExit(f"{file} does not show {', '.join(missing)} of {where}")
    drawn, path = picture.svg(), HERE / file
    if sys.argv[1:] != ["--check"]:
        path.write_text(drawn, encoding="utf-8")
    elif not path.is_file() or path.read_text(encoding="utf-8") != drawn:
        raise SystemExit(f"{file} is not what its program draws: run the program beside it")
