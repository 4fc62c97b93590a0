"""Expressions of dashboards and alert rules, and the names and labels that they need."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "infra" / "observability"
RULES = FOLDER / "alerts.yaml"
_WORDS = re.compile(r"dynastate_\w+")
_MATCHERS = re.compile(r"(\w+)(?:=~|!~|!=|=)\"")
_GROUPS = re.compile(r"\b(?:by|on|ignoring|group_left) ?\(([^)]*)\)")


def of_dashboard() -> dict[str, str]:
    """Every expression of the dashboard by its panel, with values for Grafana's variables."""
    expressions: dict[str, str] = {}
    panels: Iterable[Mapping[str, Any]] = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    for panel in panels:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "1m").replace("$query", ".*")
            expressions[f"{panel['title']} {target['refId']}"] = text
    return expressions


def of_rules() -> dict[str, str]:
    """Every expression of the alert rules by its name."""
    rules = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in rules for rule in group["rules"]}


def names(expression: str) -> set[str]:
    return set(_WORDS.findall(expression))


def labels(expression: str) -> set[str]:
    """The labels that an expression matches, or groups by."""
    grouped = {label.strip() for group in _GROUPS.findall(expression) for label in group.split(",")}
    return set(_MATCHERS.findall(expression)) | grouped
