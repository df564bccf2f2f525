"""Who may: a summary reaches only what the caller's key, team and budgets allow, and guardrails come first."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.backend import Failure, ScriptedBackend, Summary, Text, is_summary_request, request_text
from tests.support.bodies import HISTORY, TRIGGER, Json, assistant, user
from tests.support.proxy import MASTER_KEY, LiveProxy, base_config, running_proxy

# A key is sk-<team>-<what it may>; `main` names a writer that not everybody may use.
AUTH = """
from litellm.proxy._types import UserAPIKeyAuth

MAY = {
    "all": {"models": []},
    "both": {"models": ["main", "writer"]},
    "main": {"models": ["main"]},
    "group": {"models": ["main", "writers"]},
    "star": {"models": ["*"]},
    "team": {"models": ["all-team-models"], "team_models": ["main"]},
    "teamboth": {"models": ["all-team-models"], "team_models": ["main", "writer"]},
    "spent": {"models": [], "max_budget": 0.001},
    "poor": {"models": [], "model_max_budget": {"writer": {"budget_limit": 0.05, "time_period": "1d"}}},
}

async def auth(request, api_key):
    team, _, what = api_key.removeprefix("sk-").partition("-")
    return UserAPIKeyAuth(api_key=f"hash-{team}-{what}", team_id=team or None, user_id="ann", **MAY[what])
"""
DOORS = ["trigger", "trigger-streamed", "compact", "threshold"]
BLOCKED, MASKED = "forbidden", "hunter2"


def model(name: str, backend: ScriptedBackend, served: str, **info: object) -> Json:
    params = {"model": f"deepseek/{served}", "api_base": backend.url, "api_key": "x"}
    costs = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.001}
    return {"model_name": name, "litellm_params": {**params, **costs}, "model_info": info}


@pytest.fixture(scope="module")
def gateway(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    config = base_config(shared_backend.url)
    small = {"context": 50_000, "output": 4_000, "threshold": 1_500}
    config["model_list"] = [
        model("main", shared_backend, "main-model", compaction={"summary_model": "writer", **small}),
        model("writer", shared_backend, "writer-model", access_groups=["writers"]),
        model("asks-team", shared_backend, "main-model", compaction={"summary_model": "shared"}),
        # A model of the red team alone, under the name `shared`.
        model("red-only", shared_backend, "red-model", team_id="red", team_public_model_name="shared"),
        model("falls", shared_backend, "failing-model"),
    ]
    config["general_settings"].update(custom_auth="team_auth.auth", custom_auth_run_common_checks=True)
    config["litellm_settings"]["enable_post_custom_auth_checks"] = True
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True, "fallbacks": [{"falls": ["writer"]}]}
    words = [{"keyword": BLOCKED, "action": "BLOCK"}, {"keyword": MASKED, "action": "MASK"}]
    own = {"guardrail": "litellm_content_filter", "mode": "pre_call", "default_on": True, "blocked_words": words}
    config["guardrails"] = [{"guardrail_name": "words", "litellm_params": own}]
    with running_proxy(config, {"team_auth.py": AUTH}) as proxy:
        yield proxy


def send(proxy: LiveProxy, door: str, items: list[Json], key: str, group: str = "main") -> httpx.Response:
    """A compaction through one of the doors."""
    if door == "compact":
        return proxy.post("/v1/responses/compact", {"model": group, "input": items}, key)
    if door == "threshold":
        wish = [{"type": "compaction", "compact_threshold": 1_000}]
        long = [items[0], assistant("word " * 2_000), *items[1:]]
        return proxy.post("/v1/responses", {"model": group, "input": long, "context_management": wish}, key)
    body = {"model": group, "stream": door.endswith("streamed"), "input": [*items, TRIGGER]}
    return proxy.post("/v1/responses", body, key)


def writers(backend: ScriptedBackend) -> list[str]:
    """The models that were asked for a summary."""
    return [body["model"] for body in backend.requests if is_summary_request(body)]


def answer_all(backend: ScriptedBackend) -> None:
    backend.answer_with(lambda body: Summary("S1") if is_summary_request(body) else Text("fine"))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("key", ["sk-red-all", "sk-red-both", "sk-red-group", "sk-red-star", "sk-red-teamboth"])
def test_summary_model_writes_for_those_who_may(
    gateway: LiveProxy, backend: ScriptedBackend, door: str, key: str
) -> None:
    """A key that may use the operator's summary model, by whatever rule of LiteLLM's, has its summaries from there."""
    answer_all(backend)
    response = send(gateway, door, list(HISTORY), key)
    assert (response.status_code, writers(backend)) == (200, ["writer-model"])
    assert response.headers["x-litellm-compaction-model"] == "writer"


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("key", ["sk-red-main", "sk-red-team"])
def test_the_requested_model_writes_for_the_others(
    gateway: LiveProxy, backend: ScriptedBackend, door: str, key: str
) -> None:
    """A key, or a team, that may not use the summary model is not let in by a compaction: the model it asked for
    writes, and the header says so."""
    answer_all(backend)
    response = send(gateway, door, list(HISTORY), key)
    assert (response.status_code, writers(backend)) == (200, ["main-model"])
    assert response.headers["x-litellm-compaction-model"] == "main"


def test_the_operator_is_told_once(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """That a caller may not use the summary model stands in the log once, not with every compaction."""
    answer_all(backend)
    for number in range(2):
        send(gateway, "trigger", [*HISTORY, user(str(number))], "sk-blue-main")
    assert gateway.log().count("may not use summary_model writer") == 1


def test_a_teams_own_model_stays_the_teams(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A deployment of one team writes that team's summaries; for another team the requested model does, and neither
    a trigger nor /responses/compact reaches the deployment by its name."""
    answer_all(backend)
    assert send(gateway, "trigger", list(HISTORY), "sk-red-all", "asks-team").status_code == 200
    assert send(gateway, "trigger", list(HISTORY), "sk-blue-all", "asks-team").status_code == 200
    assert writers(backend) == ["red-model", "main-model"]
    assert send(gateway, "trigger", list(HISTORY), "sk-red-all", "shared").status_code == 200
    assert writers(backend)[2:] == ["red-model"]
    for door in ("trigger", "trigger-streamed", "compact"):
        refused = send(gateway, door, list(HISTORY), "sk-blue-all", "shared")
        assert (refused.status_code, "Invalid model name" in refused.text) == (400, True)
    assert len(backend.requests) == 3


@pytest.mark.parametrize("door", DOORS)
def test_a_spent_budget_is_refused_first(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A key that has spent its budget gets LiteLLM's own refusal on every door, and no backend is asked."""
    answer_all(backend)
    for _ in range(50):
        ordinary = gateway.post("/v1/responses", {"model": "main", "input": "hi"}, "sk-red-spent").json().get("error")
        if ordinary:
            break
    backend.requests.clear()
    refused = send(gateway, door, list(HISTORY), "sk-red-spent").json()["error"]
    assert ordinary["type"] == "budget_exceeded"
    assert (refused["type"], refused["code"], refused["param"]) == ("budget_exceeded", ordinary["code"], None)
    assert backend.requests == []


def test_a_budget_of_the_summary_model_counts(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A key that has spent its budget for the summary model goes on with the model it asked for."""
    answer_all(backend)
    for number in range(20):
        assert send(gateway, "trigger", [*HISTORY, user(str(number))], "sk-red-poor").status_code == 200
        if writers(backend)[-1] == "main-model":
            break
    assert writers(backend)[0] == "writer-model"
    assert writers(backend)[-1] == "main-model"


def test_fallbacks_of_the_inner_call_are_the_callers(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """LiteLLM's fallbacks of a summary go only where the key may go."""

    def answer(body: Json) -> Failure | Summary:
        return Failure(500, {"message": "down"}) if body["model"] == "failing-model" else Summary("S1")

    backend.answer_with(answer)
    assert send(gateway, "trigger", list(HISTORY), "sk-red-all", "falls").status_code == 200
    assert [body["model"] for body in backend.requests] == ["failing-model", "writer-model"]
    # `sk-red-main` may use `main` only, and is refused `falls` at the door; a key of both but the writer is not.
    assert send(gateway, "trigger", list(HISTORY), "sk-red-main", "falls").status_code in {401, 403}
    assert len(backend.requests) == 2


@pytest.mark.parametrize("door", DOORS)
def test_a_guardrail_blocks_every_door(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """LiteLLM's own content filter refuses a compaction as it refuses an ordinary request: same status, same body, and
    no backend sees the text."""
    items = [user(f"this is {BLOCKED}"), assistant("noted"), user("go on")]
    ordinary = gateway.post("/v1/responses", {"model": "main", "input": items}, "sk-red-all")
    refused = send(gateway, door, items, "sk-red-all")
    assert ordinary.status_code == 400
    assert (refused.status_code, refused.json()) == (ordinary.status_code, ordinary.json())
    assert backend.requests == []


@pytest.mark.parametrize("door", DOORS)
def test_a_guardrail_masks_on_every_door(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """What the content filter masks reaches no backend and comes back nowhere."""
    answer_all(backend)
    response = send(gateway, door, [HISTORY[0], user(f"it is {MASKED}"), user("go on")], "sk-red-all")
    assert response.status_code == 200, response.text
    assert MASKED not in response.text
    assert backend.requests
    for body in backend.requests:
        assert MASKED not in request_text(body)
    assert "it is " in request_text(backend.requests[0])


def test_a_guardrail_sees_what_an_item_holds(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A filter that LiteLLM runs after the plugin reads the restored summary, and blocks it."""
    backend.script(Summary(f"all of it is {BLOCKED}"))
    item = send(gateway, "trigger", list(HISTORY), "sk-red-all").json()["output"][0]
    for extra in ([], [TRIGGER]):
        body = {"model": "main", "input": [item, user("go on"), *extra]}
        refused = gateway.post("/v1/responses", body, "sk-red-all")
        assert (refused.status_code, BLOCKED in refused.text) == (400, True)
    assert len(backend.requests) == 1


REROUTES = """
from litellm.integrations.custom_logger import CustomLogger

class Reroutes(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        data["model"] = "writer"
        return data

reroutes = Reroutes()
"""


def test_a_hook_that_chooses_another_model_is_followed(
    shared_backend: ScriptedBackend, backend: ScriptedBackend
) -> None:
    """Where a hook listed later sends the request to another model, its summary is written there and nowhere else."""
    config = base_config(shared_backend.url)
    small = {"context": 50_000, "output": 4_000}
    config["model_list"] = [
        model("main", shared_backend, "main-model", compaction=small),
        model("writer", shared_backend, "writer-model", compaction=small),
    ]
    config["litellm_settings"]["callbacks"] += ["reroutes.reroutes"]
    with running_proxy(config, {"reroutes.py": REROUTES}) as proxy:
        answer_all(backend)
        for door in DOORS:
            response = send(proxy, door, [*HISTORY, user(door)], MASTER_KEY)
            assert (response.status_code, response.headers["x-litellm-compaction-model"]) == (200, "writer")
    assert {body["model"] for body in backend.requests} == {"writer-model"}
