"""Everything in this folder runs real clients, against one proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.codex import nothing_outside
from tests.support.backend import ScriptedBackend
from tests.support.proxy import LiveProxy, base_config, running_proxy

# Model groups beside the usual ones, and their settings.
GROUPS = {
    "gpt-4.1-local": {},  # openai-agents' session refuses names that do not look like OpenAI's
    "summary-alone": {"keep_recent_tokens": 0},
    "fails-with-500": {"failure_status": 500},
    "budgeted": {"context": 100_000, "output": 20_000},  # T is 80,000
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def shared_proxy(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """In place of the usual one: a proxy that also has the groups above."""
    config = base_config(shared_backend.url)
    local = config["model_list"][0]
    for name, settings in GROUPS.items():
        config["model_list"].append({**local, "model_name": name, "model_info": {"compaction": settings}})
    with running_proxy(config) as proxy:
        yield proxy


@pytest.fixture
def outside() -> Iterator[str]:
    """Where a client's way out of loopback ends; a client that takes it fails the test."""
    with nothing_outside() as url:
        yield url
