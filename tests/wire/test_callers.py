"""Keys and teams through LiteLLM's own checks: who may open an item, and who may compact."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.backend import ScriptedBackend, Summary, Text, request_text
from tests.support.bodies import HISTORY, TRIGGER, Json, compact, user
from tests.support.proxy import LiveProxy, base_config, running_proxy

# Keys are sk-<team>-<user>; the user `deep` may use one model only.
AUTH = """
from litellm.proxy._types import UserAPIKeyAuth

async def auth(request, api_key):
    name = api_key.removeprefix("sk-")
    team, _, person = name.partition("-")
    extra = {"models": ["deepseek"]} if person == "deep" else {}
    return UserAPIKeyAuth(api_key=f"hash-{name}", team_id=team or None, user_id=person or None, **extra)
"""
DOORS = ["ordinary", "ordinary-streamed", "trigger", "trigger-streamed", "compact"]


@pytest.fixture(scope="module")
def teams(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """A proxy with keys, teams and users, and nothing repeated by its router."""
    config = base_config(shared_backend.url)
    config["general_settings"].update(custom_auth="team_auth.auth", custom_auth_run_common_checks=True)
    config["litellm_settings"]["enable_post_custom_auth_checks"] = True
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    with running_proxy(config, {"team_auth.py": AUTH}) as proxy:
        yield proxy


def send(proxy: LiveProxy, door: str, items: list[Json], key: str, model: str = "deepseek") -> httpx.Response:
    """A request through one of the doors."""
    if door == "compact":
        return proxy.post("/v1/responses/compact", {"model": model, "input": items}, key)
    trigger = [TRIGGER] if door.startswith("trigger") else []
    body = {"model": model, "stream": door.endswith("streamed"), "input": [*items, *trigger]}
    return proxy.post("/v1/responses", body, key)


@pytest.mark.parametrize("door", DOORS)
def test_another_team_opens_nothing(teams: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """On every door another team's item is refused in the very words of a damaged one, and no backend is asked."""
    backend.script(Summary("S1"))
    item = compact(teams, HISTORY, "deepseek", "sk-red-ann")
    foreign = send(teams, door, [item, user("go on")], "sk-blue-ann")
    damaged = {**item, "encrypted_content": item["encrypted_content"][:-9]}
    broken = send(teams, door, [damaged, user("go on")], "sk-red-ann")
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (400, "invalid_encrypted_content")
    assert foreign.json() == broken.json()
    assert len(backend.requests) == 1


def test_the_whole_team_opens(teams: LiveProxy, backend: ScriptedBackend) -> None:
    """Every user of the team opens the team's item, with any model."""
    backend.script(Summary("S-FACT"), Text("fine"))
    item = compact(teams, HISTORY, "deepseek", "sk-red-ann")
    assert send(teams, "ordinary", [item, user("go on")], "sk-red-bob", "hosted").status_code == 200
    assert "S-FACT" in request_text(backend.requests[1])


def test_without_a_team_an_item_is_the_users(teams: LiveProxy, backend: ScriptedBackend) -> None:
    """A caller without a team binds items to the user: another user, or a team, opens none of them."""
    backend.script(Summary("S1"), Text("fine"))
    item = compact(teams, HISTORY, "deepseek", "sk--ann")
    assert send(teams, "ordinary", [item, user("go on")], "sk--ann").status_code == 200
    for stranger in ("sk--bob", "sk-red-bob"):
        assert send(teams, "ordinary", [item, user("go on")], stranger).status_code == 400
    assert len(backend.requests) == 2


@pytest.mark.parametrize("door", ["trigger", "trigger-streamed", "compact"])
def test_a_model_the_key_may_not_use(teams: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A key that may not use the model is refused as LiteLLM refuses it, and no backend is asked."""
    ordinary = send(teams, "ordinary", HISTORY, "sk-red-deep", "local-model")
    refused = send(teams, door, HISTORY, "sk-red-deep", "local-model")
    assert ordinary.status_code in {401, 403}
    assert (refused.status_code, refused.json()) == (ordinary.status_code, ordinary.json())
    assert backend.requests == []
    backend.script(Summary("S1"))
    assert send(teams, door, HISTORY, "sk-red-deep").status_code == 200
