"""Hooks of MkDocs: the book loads nothing from elsewhere, so that it can be read without a network; and a screen reader is told
what the dialog of the search is, which the theme leaves without a name."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.exceptions import PluginError

LOADED = re.compile(r'<(?:script|link|img|iframe|source|video)\b[^>]*?(?:src|href)="?((?:https?:)?//[^"\s>]+)')


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Called with the HTML of each page."""
    if found := LOADED.findall(output):
        raise PluginError(f"{page.file.src_uri} loads {', '.join(sorted(set(found)))}: bring it into docs/")
    search = 'data-md-component="search" role="dialog"'
    return output.replace(search, f'{search} aria-label="Search"')
