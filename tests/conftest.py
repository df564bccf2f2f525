"""Fixtures of all layers. A proxy takes about ten seconds to start, so one serves a whole session."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.backend import ScriptedBackend, running_backend
from tests.support.bodies import renew_history
from tests.support.proxy import LiveProxy, base_config, running_proxy

# What decides must decide the same twice; at a developer's machine new examples are looked for each time.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")


@pytest.fixture(autouse=True)
def conversation() -> None:
    """Each test has a conversation of its own."""
    renew_history()


@pytest.fixture(scope="session")
def shared_backend() -> Iterator[ScriptedBackend]:
    with running_backend() as backend:
        yield backend


@pytest.fixture(scope="session")
def shared_proxy(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    with running_proxy(base_config(shared_backend.url)) as proxy:
        yield proxy


@pytest.fixture
def backend(shared_backend: ScriptedBackend) -> Iterator[ScriptedBackend]:
    """The provider behind `proxy`; whatever it did not expect fails the test."""
    shared_backend.reset()
    yield shared_backend
    shared_backend.verify()


@pytest.fixture
def proxy(shared_proxy: LiveProxy) -> LiveProxy:
    """A proxy with default settings."""
    return shared_proxy
