"""The page about what was verified says what the records say."""

from __future__ import annotations

import json

from real import verified


def test_the_page_is_what_the_records_say() -> None:
    assert verified.PAGE.read_text() == verified.page(), "run: python -m real.verified, in python/"


def test_nothing_that_failed_is_on_record() -> None:
    records = {path.stem: json.loads(path.read_text()) for path in verified.RECORDS.glob("*.json")}
    assert set(records) == set(verified.PACKAGES)
    cases = [(name, case) for name, found in records.items() for case in found["figures"]["cases"].items()]
    failed = [(name, case) for name, (case, figures) in cases if any(value is False for value in figures.values())]
    assert failed == []
