"""The Grafana dashboard asks for metrics and labels that the plugin has, and leaves none of them out."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.errors import NothingToCompact
from litellm_compaction.gateway import metrics
from litellm_compaction.gateway.record import CANCELLED, COMPLETED, LEDGER, Asked, Record

FILE = Path(__file__).parents[1] / "config_examples" / "grafana" / "litellm_compaction.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]

# What of PromQL the dashboard uses.
_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<window>\[\$__(?:rate_interval|range)\])"""
    r"""|(?P<number>\d+(?:\.\d+)?)|(?P<sign>=~|!~|!=|[-+*/(){},=]))"""
)
_FUNCTIONS = {"sum", "increase", "rate", "histogram_quantile", "vector"}
_WORDS = {"by", "or"}


@pytest.fixture(scope="module")
def samples() -> dict[str, set[str]]:
    """Names and labels of every sample that the plugin can give, from having counted one of each."""
    asked = Asked("trigger", "m", "m", None, None, None, None)
    done = Record(asked=asked, source="run", outcome="completed", tokens_before=9, tokens_after=1, usage=Usage(1, 1))
    metrics.count_record(done, "m")
    metrics.count_record(Record(asked=asked, source="joined", outcome="completed"), "m")
    metrics.count_refused_item("foreign", "reject")
    metrics.count_refused_request(NothingToCompact())
    metrics.count_skipped("m", "stuck")
    found: dict[str, set[str]] = {}
    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name.startswith("litellm_compaction_") and not sample.name.endswith("_created"):
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def read_tokens(expression: str) -> list[tuple[str, str]]:
    """(kind, text) of each token. Raises AssertionError on what is none."""
    tokens, place = [], 0
    while place < len(expression.rstrip()):
        match = _TOKEN.match(expression, place)
        assert match is not None, expression[place:]
        assert match.lastgroup is not None
        tokens.append((match.lastgroup, match[match.lastgroup]))
        place = match.end()
    return tokens


def check_brackets(tokens: list[tuple[str, str]]) -> None:
    waiting = []
    for _, text in tokens:
        if text in {"(", "{"}:
            waiting.append({"(": ")", "{": "}"}[text])
        elif text in {")", "}"}:
            assert waiting.pop() == text
    assert waiting == []


def read_selectors(tokens: list[tuple[str, str]]) -> tuple[dict[str, set[str]], set[str]]:
    """The metrics with the labels their selectors name, and the labels that are summed by."""
    metrics_of: dict[str, set[str]] = {}
    grouped: set[str] = set()
    words = iter(tokens)
    current = ""
    for kind, text in words:
        if text == "by":
            assert next(words)[1] == "("
            grouped |= {
                name for sort, name in itertools.takewhile(lambda token: token[1] != ")", words) if sort == "word"
            }
        elif text == "{":
            inside = list(itertools.takewhile(lambda token: token[1] != "}", words))
            metrics_of[current] |= {name for sort, name in inside if sort == "word"}
        elif kind == "word" and text not in _FUNCTIONS | _WORDS:
            current = text
            metrics_of.setdefault(current, set())
    return metrics_of, grouped


@pytest.mark.parametrize("expression", [expression for _, expression in EXPRESSIONS], ids=[t for t, _ in EXPRESSIONS])
def test_expressions_name_what_there_is(samples: dict[str, set[str]], expression: str) -> None:
    """Every expression can be read; its metrics exist, and have the labels it selects and sums by."""
    tokens = read_tokens(expression)
    check_brackets(tokens)
    asked, grouped = read_selectors(tokens)
    assert asked
    for name, labels in asked.items():
        assert name in samples
        assert labels <= samples[name]
        assert grouped <= samples[name]


def test_nothing_is_left_out(samples: dict[str, set[str]]) -> None:
    """Every metric has a panel."""
    asked = {name for _, expression in EXPRESSIONS for name in read_selectors(read_tokens(expression))[0]}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in samples}
    assert families == {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}


def test_values_that_are_selected_exist() -> None:
    """The outcomes that count as no failure are the ones that the plugin gives."""
    (chosen,) = set(re.findall(r'outcome!~"([^"]*)"', " ".join(expression for _, expression in EXPRESSIONS)))
    assert set(chosen.split("|")) == {CANCELLED, COMPLETED, LEDGER}


def test_dashboard_can_be_imported() -> None:
    """What Grafana needs is there: a data source to choose, and panels with ids, places and targets of their own."""
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= DASHBOARD.keys()
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert {name for name in used if not name.startswith("__")} == variables.keys()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in PANELS:
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {source["uid"] for source in sources} == {"${datasource}"}
        assert panel["description"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for variable in (variables["model"], variables["door"]):
        assert variable["query"]["query"] == f"label_values(litellm_compaction_runs_total, {variable['name']})"


def test_panels_do_not_overlap() -> None:
    """Each cell of the grid belongs to one panel."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        rows = range(place["y"], place["y"] + place["h"])
        cells = set(itertools.product(range(place["x"], place["x"] + place["w"]), rows))
        assert place["x"] + place["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
