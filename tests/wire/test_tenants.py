"""Other callbacks and other tenants: nothing gets past a guardrail, no item gets to another team."""

from __future__ import annotations

from typing import Any

from tests.support.backend import ScriptedBackend, Summary, Text, request_text
from tests.support.bodies import HISTORY, TRIGGER, assistant, compact, user
from tests.support.proxy import base_config, running_proxy

# A masker and a blocker as operators write them: pre-call hooks on the parsed request.
CALLBACKS = """
from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger

def walk(value, change):
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [walk(entry, change) for entry in value]
    if isinstance(value, dict):
        return {key: walk(entry, change) for key, entry in value.items()}
    return value

class Masker(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        if "FORBIDDEN" in str(data["input"]):
            raise HTTPException(status_code=422, detail={"error": "blocked topic"})
        data["input"] = walk(data["input"], lambda text: text.replace("SECRET-0000", "[masked]"))
        return data

masker = Masker()
"""
AUTH = """
from litellm.proxy._types import UserAPIKeyAuth

async def auth(request, api_key):
    name = api_key.removeprefix("sk-")
    team, _, person = name.partition("-")
    return UserAPIKeyAuth(api_key=f"hash-{name}", team_id=team or None, user_id=person)
"""
FILES = {"guards.py": CALLBACKS, "team_auth.py": AUTH}


def config_with(backend: ScriptedBackend, callbacks: list[str], **general: Any) -> dict[str, Any]:
    """The base config with other callbacks."""
    config = base_config(backend.url)
    config["litellm_settings"]["callbacks"] = callbacks
    config["general_settings"].update(general)
    return config


def test_guardrail_listed_later_comes_first(backend: ScriptedBackend) -> None:
    """A guardrail listed after the plugin masks and blocks before any backend sees the text, on both doors."""
    callbacks = ["litellm_compaction.handler", "guards.masker"]
    secret = [user("the password is SECRET-0000"), assistant("noted")]
    with running_proxy(config_with(backend, callbacks), FILES) as proxy:
        backend.script(Summary("S1 FORBIDDEN"), Summary("S2"))
        item = compact(proxy, secret)
        window = proxy.post("/v1/responses/compact", {"model": "hosted", "input": secret}).json()["output"]
        assert window[0]["content"][0]["text"] == "the password is [masked]"
        for request in backend.requests:
            assert "SECRET-0000" not in request_text(request)
            assert "[masked]" in request_text(request)
        for path, items in (
            ("/v1/responses", [user("FORBIDDEN"), TRIGGER]),
            ("/v1/responses/compact", [user("FORBIDDEN")]),
            # Listed later, it also sees what a returned item holds.
            ("/v1/responses", [item, user("go on")]),
        ):
            blocked = proxy.post(path, {"model": "local-model", "input": items})
            assert blocked.status_code == 422, blocked.text
    assert len(backend.requests) == 2


def test_guardrail_listed_first_is_heard(backend: ScriptedBackend) -> None:
    """A guardrail listed before the plugin works on the request as the client sent it."""
    with running_proxy(config_with(backend, ["guards.masker", "litellm_compaction.handler"]), FILES) as proxy:
        backend.script(Summary("S1"))
        compact(proxy, [user("the password is SECRET-0000")])
    assert "SECRET-0000" not in request_text(backend.requests[0])


def test_items_are_bound_to_their_team(backend: ScriptedBackend) -> None:
    """An item opens for everybody of its team and for nobody else, by the same error as a broken one."""
    config = config_with(backend, ["litellm_compaction.handler"], custom_auth="team_auth.auth")
    with running_proxy(config, FILES) as proxy:
        backend.script(Summary("S1"), Text("fine"))
        item = compact(proxy, HISTORY, key="sk-red-ann")
        body = {"model": "local-model", "input": [item, user("go on")]}
        assert proxy.post("/v1/responses", body, "sk-red-bob").status_code == 200
        refused = proxy.post("/v1/responses", body, "sk-blue-ann")
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "invalid_encrypted_content"
    assert len(backend.requests) == 2
