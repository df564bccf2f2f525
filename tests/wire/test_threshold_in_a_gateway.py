"""Compaction at a threshold beside what a gateway has: maskers, spend, fallbacks, keys, workers, model listing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.backend import ScriptedBackend, Summary, Text, is_summary_request, request_text
from tests.support.bodies import Json, assistant, user
from tests.support.proxy import LiveProxy, base_config, running_proxy
from tests.support.redis import running_redis

COMPACTS: Json = {"auto_compact": True, "context": 100_000, "output": 4_000, "threshold": 2_000}
CALLBACKS = """
import json
from litellm.integrations.custom_logger import CustomLogger

class Masker(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        if isinstance(data.get("input"), list):
            data["input"] = json.loads(json.dumps(data["input"]).replace("hunter2", "[masked]"))
        return data

class Spend(CustomLogger):
    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        row = kwargs["standard_logging_object"]
        told = {"tokens": row["total_tokens"], "tags": row["request_tags"], "type": row["call_type"],
                "key": row["metadata"]["user_api_key_hash"], "group": row["model_group"]}
        print("SPEND " + json.dumps(told), flush=True)

masker, spend = Masker(), Spend()
"""
AUTH = """
from litellm.proxy._types import UserAPIKeyAuth

async def auth(request, api_key):
    extra = {"max_parallel_requests": 1} if api_key.endswith("one") else {}
    return UserAPIKeyAuth(api_key="hash-" + api_key, team_id="red", user_id="ann", **extra)
"""


def session(mark: str, tokens: int = 2_500) -> list[Json]:
    return [user(f"the task {mark}"), assistant("word " * tokens), user("and now?")]


def types(body: Mapping[str, Any]) -> list[str]:
    return [item["type"] for item in body["output"]]


def config_for(backend: ScriptedBackend, **settings: Any) -> dict[str, Any]:
    config = base_config(backend.url, settings)
    params = {"model": "deepseek/served-model", "api_base": backend.url, "api_key": "x"}
    groups: dict[str, Json] = {
        "compacts": COMPACTS,
        "breaks": {"auto_compact": True, "context": 200_000, "output": 4_000, "threshold": 100_000},
    }
    config["model_list"] += [
        {"model_name": name, "litellm_params": params, "model_info": {"compaction": own}}
        for name, own in groups.items()
    ]
    return config


@pytest.fixture(scope="module")
def gateway(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    config = config_for(shared_backend)
    config["litellm_settings"]["callbacks"] += ["more.masker", "more.spend"]
    config["litellm_settings"]["enable_post_custom_auth_checks"] = True
    config["general_settings"].update(custom_auth="team_auth.auth", custom_auth_run_common_checks=True)
    dead = {"model": "deepseek/served-model", "api_base": "http://127.0.0.1:9/v1", "api_key": "x"}
    own = {"compaction": {"context": 200_000, "output": 4_000, "auto_compact": True, "threshold": 100_000}}
    config["model_list"].append({"model_name": "dead", "litellm_params": dead, "model_info": own})
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True, "fallbacks": [{"dead": ["compacts"]}]}
    with running_proxy(config, {"more.py": CALLBACKS, "team_auth.py": AUTH}) as proxy:
        yield proxy


def wait_for_rows(proxy: LiveProxy, *tokens: int) -> list[Json]:
    """The spend rows since the first with such tokens; LiteLLM writes them after the answer."""
    for _ in range(100):
        found = [json.loads(line[6:]) for line in proxy.log().splitlines() if line.startswith("SPEND ")]
        if {row["tokens"] for row in found} >= set(tokens):
            return found
        time.sleep(0.1)
    raise AssertionError(f"no rows of {tokens} in {found}")


def test_a_masker_listed_later_is_heard(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Neither the summary's call nor the answer's sees what it has masked."""
    backend.script(Summary("SUM"), Text("done"))
    items = [*session("masker")[:2], user("the password is hunter2, and now?")]
    response = gateway.post("/v1/responses", {"model": "compacts", "input": items}, "sk-ann")
    assert types(response.json()) == ["compaction", "message"], response.text
    for body in backend.requests:
        assert "hunter2" not in request_text(body)
        assert "[masked]" in request_text(body)


@pytest.mark.parametrize("stream", [False, True])
def test_one_row_of_spend_for_each_inference(gateway: LiveProxy, backend: ScriptedBackend, *, stream: bool) -> None:
    """The summary under the caller's key with its tag, the answer with its own tokens alone: nothing twice."""
    offset = 1_000 if stream else 0
    backend.script(Summary("SUM", usage=(9_000 + offset, 90)), Text("done", usage=(500 + offset, 7)))
    asked = {"model": "compacts", "input": session(f"spend {stream}"), "stream": stream}
    response = gateway.post("/v1/responses", asked, "sk-ann")
    assert response.status_code == 200, response.text
    summary, answer = 9_090 + offset, 507 + offset
    found = wait_for_rows(gateway, summary, answer)
    booked = [(row["tokens"], "compaction" in row["tags"], row["key"]) for row in found]
    assert booked.count((summary, True, "hash-sk-ann")) == 1
    assert booked.count((answer, False, "hash-sk-ann")) == 1
    assert summary + answer not in {row["tokens"] for row in found}


def test_a_fallback_is_held_to_its_own_threshold(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """The group that was asked would not compact; the one that answers does, by its own numbers."""
    backend.script(Summary("SUM"), Text("done"))
    response = gateway.post("/v1/responses", {"model": "dead", "input": session("fallback")}, "sk-ann")
    assert response.status_code == 200, response.text
    assert types(response.json()) == ["compaction", "message"]


def test_one_request_at_a_time_is_enough(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """With `max_parallel_requests: 1` on the key the compaction does not wait for its own request."""
    for number in range(3):
        backend.script(Summary("SUM"), Text("done"))
        asked = {"model": "compacts", "input": session(f"one {number}")}
        response = gateway.post("/v1/responses", asked, "sk-one")
        assert types(response.json()) == ["compaction", "message"], response.text


def test_budgets_stand_in_the_model_listing(gateway: LiveProxy) -> None:
    """`/model/info` and `/v1/model/info` carry C, O, I, T and where they come from; null where they are unknown."""
    for path in ("/model/info", "/v1/model/info"):
        with gateway.client("sk-ann") as client:
            listed = {row["model_name"]: row["model_info"] for row in client.get(path).json()["data"]}
        assert listed["compacts"]["compaction_budget"] == {
            "context": 100_000,
            "output": 4_000,
            "max_input": None,
            "input": 96_000,
            "threshold": 2_000,
            "source": "settings",
        }
        assert listed["deepseek"]["compaction_budget"] is None


def test_another_worker_knows_the_prefix(shared_backend: ScriptedBackend, backend: ScriptedBackend) -> None:
    """The summary of a prefix is in the shared store: a client that ignored its item pays nothing on another worker."""
    items = session("workers")
    with (
        running_redis() as redis,
        running_proxy(config_for(shared_backend, cache=redis.url)) as first,
        running_proxy(config_for(shared_backend, cache=redis.url)) as second,
    ):
        backend.script(Summary("SUM"), Text("first"), Text("second"))
        assert types(first.post("/v1/responses", {"model": "compacts", "input": items}).json())[0] == "compaction"
        longer = [*items, assistant("first"), user("third")]
        response = second.post("/v1/responses", {"model": "compacts", "input": longer})
        assert types(response.json()) == ["compaction", "message"]
        assert response.headers["x-litellm-compaction-attempts"] == "0"
        assert [is_summary_request(body) for body in backend.requests] == [True, False, False]
