"""The alerts, the dashboard and the runbook: they use metrics that exist, belong together, and every alert can fire."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = REPOSITORY / "ops/prometheus/rules.yml"
RULES_TEST = REPOSITORY / "ops/prometheus/rules_test.yml"
SCRAPE = REPOSITORY / "ops/prometheus/prometheus.yml"
DASHBOARD = REPOSITORY / "ops/grafana/tensorhold.json"
RUNBOOK = REPOSITORY / "docs/runbook.md"
PROMTOOL = REPOSITORY / ".prometheus/bin/promtool"

# What Prometheus itself adds.
OTHERS = {"up": {"job", "instance"}, "ALERTS": {"alertname", "alertstate"}}
EVERYWHERE = {"job", "instance"}
# What the steward tells that is neither of one store nor of a node of etcd.
OWN_LABELS: dict[str, set[str]] = {
    "tensorhold_certificate_end_seconds": {"certificate", "at"},
    "tensorhold_steward_stores": {"state"},
    "tensorhold_steward_forgotten_total": set(),
    "tensorhold_steward_missing_holder_since_seconds": {"holder"},
}
# What Grafana puts in for its variables.
VARIABLES = {"$__rate_interval": "1m", "$__range": "1h", "$store": ".*", "${datasource}": "a"}


def known_metrics() -> dict[str, set[str]]:
    """Every name that a query may use, and its labels; of a histogram, the three names of its parts."""
    known = dict(OTHERS)
    row = re.compile(r"^\| `(tensorhold_\w+)` \| (\w+) \| ([^|]*)\|", re.MULTILINE)
    for name, kind, labels in row.findall((REPOSITORY / "docs/metrics.md").read_text()):
        own = set(re.findall(r"`(\w+)`", labels))
        if kind == "histogram":
            known |= {f"{name}_bucket": own | {"le"}, f"{name}_sum": own, f"{name}_count": own}
        else:
            known[name] = own
    told = (REPOSITORY / "crates/steward/src/metrics.rs").read_text().partition("#[cfg(test)]")[0]
    for name in re.findall(r'"(tensorhold_\w+)"', told):
        is_of_all = "compact" in name
        usual = set() if is_of_all else {"endpoint"} if name.startswith("tensorhold_etcd_") else {"store"}
        known[name] = OWN_LABELS.get(name, usual)
    return known


def known_values() -> dict[str, set[str]]:
    """The values that labels have, by the tables of docs/metrics.md."""
    values: dict[str, set[str]] = {}
    row = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([\w, ]+) \|$", re.MULTILINE)
    for label, listed in row.findall((REPOSITORY / "docs/metrics.md").read_text()):
        values.setdefault(label, set()).update(listed.split(", "))
    return values


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    every: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return every


def queries() -> Iterator[tuple[str, str]]:
    """Every query, and where it stands."""
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"]
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]["query"]


def promtool(*arguments: str | Path) -> None:
    assert PROMTOOL.exists(), f"{PROMTOOL} is missing: run .ci/setup, which fetches it"
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_queries_use_metrics_and_labels_that_exist() -> None:
    known, values = known_metrics(), known_values()
    assert len(known) > 70 and {"operation", "call", "outcome"} <= set(values)
    wrong = []
    for where, query in queries():
        names = set(re.findall(r"\b(?:tensorhold_\w+|up|ALERTS)\b", re.sub(r'job=~?"[^"]*"', "", query)))
        wrong += [f"{where}: {name}" for name in names - set(known)]
        labels = set().union(*(known.get(name, set()) for name in names), EVERYWHERE)
        for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
            wrong += [f"{where}: by {label}" for label in re.findall(r"\w+", grouped) if label not in labels]
        for name, matchers in re.findall(r"\b(\w+)\{([^}]*)\}", query):
            for label, value in re.findall(r'(\w+)[=!]~?"([^"]*)"', matchers):
                if label not in known.get(name, set()) | EVERYWHERE:
                    wrong.append(f"{where}: {name} has no label {label}")
                if label in values:
                    wrong += [f"{where}: {label}={one}" for one in value.split("|") if one not in values[label]]
    assert wrong == []


def test_every_alert_says_what_the_operator_needs() -> None:
    for rule in alerts():
        name, notes = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in {"critical", "warning"}, name
        assert set(notes) == {"summary", "description", "runbook_url"}, name
        assert len(notes["summary"]) < 120 and not notes["summary"].endswith("."), name
        assert notes["runbook_url"] == f"{{{{ $externalLabels.tensorhold_book }}}}/runbook.html#{name.lower()}", name


def test_every_alert_has_its_entry_in_the_runbook_and_every_entry_its_alert() -> None:
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in alerts()}
    assert len(severity) == len(alerts())
    _, *parts = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)
    entries = dict(part.split("\n", 1) for part in parts)
    entries.pop("What no alert tells")
    assert set(entries) == set(severity)
    for name, entry in entries.items():
        said = re.findall(r"^\*\*(.+?)\*\*", entry, flags=re.MULTILINE)
        assert said == ["You see", "It means", "Look", "Do", "Over when"], name
        assert f"**You see** ({severity[name]})" in entry, name


def test_what_the_runbook_names_is_there() -> None:
    text = RUNBOOK.read_text()
    commands = (REPOSITORY / "docs/command.md").read_text()
    table = re.findall(r"^\| (`[^|]*) \|", commands, flags=re.MULTILINE)
    there = {word for row in table for code in re.findall(r"`([^`]+)`", row) for word in code.split()}
    used = re.findall(r"`(?:tensorhold|dead|quarantine) ([a-z-]+)(?: (set|ls|show|requeue|drop)\b)?", text)
    words = {word for pair in used for word in pair if word}
    assert {"doctor", "status", "why", "requeue"} <= words <= there
    own = {f"#{heading.lower()}" for heading in re.findall(r"^## (\w+)$", text, flags=re.MULTILINE)}
    for link in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        assert (RUNBOOK.parent / path).exists() if path else f"#{anchor}" in own, link
    told = "".join(path.read_text() for path in (REPOSITORY / "crates/steward/src/http").glob("*.rs"))
    for path in re.findall(r"STEWARD(/[\w/]+)", text):
        assert f'"{path.replace("STORE", "{store}")}"' in told, path


def test_the_rules_and_the_scrape_configuration_are_valid() -> None:
    promtool("check", "rules", "--lint-fatal", RULES)
    promtool("check", "config", SCRAPE)
    jobs = [job["job_name"] for job in yaml.safe_load(SCRAPE.read_text())["scrape_configs"]]
    assert jobs == ["tensorhold-steward", "tensorhold", "mooncake-master"]


def test_each_alert_fires_by_its_cause_and_none_without() -> None:
    promtool("test", "rules", RULES_TEST)
    fired = set()
    for case in yaml.safe_load(RULES_TEST.read_text())["tests"]:
        for one in case.get("promql_expr_test", []):
            fired |= {found for made in one["exp_samples"] for found in re.findall(r'alertname="(\w+)"', made["labels"])}
        fired |= {one["alertname"] for one in case.get("alert_rule_test", []) if one["exp_alerts"]}
    assert fired == {rule["alert"] for rule in alerts()}


def test_the_queries_of_the_dashboard_can_be_parsed(tmp_path: Path) -> None:
    rules = []
    for number, (where, query) in enumerate(queries()):
        for variable, value in VARIABLES.items():
            query = query.replace(variable, value)
        assert "$" not in query, where
        if not where.startswith("variable "):
            rules.append({"record": f"query:{number}", "expr": query})
    assert len(rules) > 100
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", file)


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert board["uid"] == "tensorhold" and board["id"] is None and board["schemaVersion"] >= 39
    assert [one["name"] for one in board["templating"]["list"]] == ["datasource", "store"]
    every = panels()
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not own & taken, panel["title"]
        taken |= own
        if panel["type"] == "row":
            continue
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources), panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters and len(set(letters)) == len(letters), panel["title"]


@pytest.mark.parametrize("operation", ["put", "get", "lease_next", "ack"])
def test_the_dashboard_shows_how_long_operations_take(operation: str) -> None:
    assert any(f'operation="{operation}"' in query and "histogram_quantile" in query for _, query in queries())
