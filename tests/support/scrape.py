"""What a proxy tells Prometheus and its log of compactions, in a form that tests can compare."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

from tests.support.proxy import LiveProxy

PREFIX = "litellm_compaction_"
Series = tuple[str, frozenset[tuple[str, str]]]
_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


def series(name: str, **labels: str) -> Series:
    """A series by its name without the prefix, and its labels."""
    return name, frozenset(labels.items())


def scrape(proxy: LiveProxy) -> dict[Series, float]:
    """The plugin's samples, without those of buckets and of when a series began."""
    with proxy.client() as client:
        answer = client.get("/metrics/")
    assert answer.status_code == 200, answer.text
    return {
        series(sample.name.removeprefix(PREFIX), **sample.labels): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name.startswith(PREFIX) and not sample.name.endswith(("_bucket", "_created"))
    }


class Growth(dict[Series, float]):
    """By how much each series grew within a block; series that did not are not in it."""

    def of(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        """The series of one name that grew, by their labels."""
        return {labels: value for (found, labels), value in self.items() if found == name}


@contextmanager
def growth(proxy: LiveProxy) -> Iterator[Growth]:
    """Filled when the block ends."""
    before, grown = scrape(proxy), Growth()
    yield grown
    after = scrape(proxy)
    grown.update({name: value - before.get(name, 0.0) for name, value in after.items() if value != before.get(name, 0)})


def read_lines(log: str) -> list[dict[str, str]]:
    """The fields of each of the plugin's log lines that has some."""
    lines = [line.partition("litellm_compaction: ")[2] for line in log.splitlines() if "litellm_compaction: " in line]
    return [fields for line in lines if (fields := read_line(line))]


def read_line(line: str) -> dict[str, str] | None:
    """name=value pairs; None for a line that holds anything else."""
    found = {name: json.loads(value) if value[0] == '"' else value for name, value in _FIELD.findall(line)}
    return found if _FIELD.sub("", line).strip() == "" else None
