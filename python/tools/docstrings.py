"""Docstrings as the book shows them: what they mark with Sphinx's roles is shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Roles(griffe.Extension):
    """Rewrites the roles of each docstring."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called for each object that is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", obj.docstring.value)
