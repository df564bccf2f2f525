"""LiteLLM's router as a library, in a process that is no proxy: compaction and expansion, or an error."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import litellm
import pytest
from litellm.exceptions import RateLimitError
from litellm.llms.custom_httpx.async_client_cleanup import close_litellm_async_clients
from litellm.router import Router

from litellm_compaction.gateway.errors import CompactionProxyException
from litellm_compaction.gateway.hook import CompactionHandler
from tests.support.backend import ScriptedBackend, Summary, Text, is_summary_request, request_text
from tests.support.bodies import HISTORY, TRIGGER, Json, user

Make = Callable[..., Router]
# All of LiteLLM runs in this process, with warnings about its own types and clients.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
async def make_router(backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes a router with the plugin among LiteLLM's callbacks."""
    made: list[Router] = []

    def make(settings: Json | None = None, deployments: int = 1, **params: Any) -> Router:
        monkeypatch.setattr(
            litellm, "callback_settings", {"litellm_compaction": {"keys": ["k" * 32], **(settings or {})}}
        )
        monkeypatch.setattr(litellm, "callbacks", [CompactionHandler()])
        monkeypatch.setattr("litellm.proxy.proxy_server.llm_router", None)
        ways: list[Json] = []
        for number in range(deployments):
            shared = {"api_base": backend.url, "api_key": f"key {number}", **params}
            switched = {"model": "openai/served-model", "use_chat_completions_api": True, **shared}
            ways.append({"model_name": "bridged", "litellm_params": {"model": "deepseek/served-model", **shared}})
            ways.append({"model_name": "switched", "litellm_params": switched})
        router = Router(model_list=ways, allowed_fails=0, num_retries=2, retry_after=0)
        made.append(router)
        return router

    yield make
    for router in made:
        router.discard()  # type: ignore[no-untyped-call]
    # LiteLLM keeps its clients for an hour; their connections belong to the loop of this test.
    await close_litellm_async_clients()  # type: ignore[no-untyped-call]
    litellm.in_memory_llm_clients_cache.flush_cache()  # type: ignore[no-untyped-call]
    gc.collect()


def answer_all(backend: ScriptedBackend) -> None:
    backend.answer_with(lambda body: Summary("S-FACT") if is_summary_request(body) else Text("fine"))


def item_of(response: Any) -> Json:
    found = response.model_dump(mode="json", exclude_none=True)["output"][-1]
    assert found["type"] == "compaction"
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("model", ["bridged", "switched"])
async def test_trigger_compacts_and_the_item_expands(make_router: Make, backend: ScriptedBackend, model: str) -> None:
    """An async call with a trigger is answered with an item and its usage, and the next call knows what it holds."""
    router = make_router()
    answer_all(backend)
    response = await router.aresponses(model=model, input=[*HISTORY, TRIGGER], tools=[], temperature=0.5)
    item = item_of(response)
    assert response.usage.total_tokens == 120
    assert response.model == model
    answer = await router.aresponses(model=model, input=[item, user("go on")])
    assert answer.output[0].type == "message"
    assert len(backend.requests) == 2
    assert "S-FACT" in request_text(backend.requests[1])


async def test_streamed_trigger_compacts(make_router: Make, backend: ScriptedBackend) -> None:
    """A streamed call gets the events of the contract."""
    router = make_router()
    answer_all(backend)
    stream = await router.aresponses(model="bridged", input=[*HISTORY, TRIGGER], stream=True)
    events = [event async for event in stream]
    assert [event.type.value.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "output_item.done",
        "completed",
    ]
    item_of(events[-1].response)


async def test_compact_call_is_answered(make_router: Make, backend: ScriptedBackend) -> None:
    """`acompact_responses` gives the user messages and one item, on a backend that has no such door."""
    router = make_router()
    answer_all(backend)
    response = await router.acompact_responses(model="bridged", input=HISTORY)
    found = response.model_dump(mode="json", exclude_none=True)
    assert found["object"] == "response.compaction"
    assert [item["type"] for item in found["output"]] == ["message", "message", "compaction"]


async def test_errors_can_be_read(make_router: Make, backend: ScriptedBackend) -> None:
    """What the plugin refuses is raised with OpenAI's error body, and no backend is asked."""
    router = make_router()
    with pytest.raises(CompactionProxyException) as misplaced:
        await router.aresponses(model="bridged", input=[TRIGGER, *HISTORY])
    assert misplaced.value.to_dict()["message"] == "The 'compaction_trigger' item must be the final input item."
    with pytest.raises(CompactionProxyException) as foreign:
        await router.aresponses(model="bridged", input=[{"type": "compaction", "encrypted_content": "abc"}])
    assert foreign.value.to_dict()["code"] == "invalid_encrypted_content"
    with pytest.raises(CompactionProxyException) as unknown:
        await router.aresponses(model="bridged", input=[TRIGGER], previous_response_id="resp_of_yesterday")
    assert unknown.value.to_dict()["code"] == "previous_response_not_found"
    wish = [{"type": "compaction", "compact_threshold": 1_000}]
    with pytest.raises(CompactionProxyException, match="cannot compact so"):
        await router.aresponses(model="bridged", input=HISTORY, context_management=wish)
    assert backend.requests == []


@pytest.mark.parametrize("status", [400, 500])
async def test_failed_compaction_costs_once_and_no_deployment(
    make_router: Make, backend: ScriptedBackend, status: int
) -> None:
    """The router repeats a failed call, but the compaction behind it is not run again, and the deployments, which have
    done nothing wrong, stay in use."""
    router = make_router({"failure_status": status}, deployments=2)
    backend.answer_with(lambda body: Text("no summary") if "tools" in body else Text("fine"))
    for _ in range(5):
        with pytest.raises(CompactionProxyException) as failed:
            await router.aresponses(model="bridged", input=[*HISTORY, TRIGGER])
        assert (failed.value.error.status, failed.value.to_dict()["code"]) == (status, "compaction_failed")
    assert await router.cooldown_cache.async_get_active_cooldowns(router.get_model_ids(), None) == []
    asked = len(backend.requests)
    assert asked <= 3
    await router.aresponses(model="bridged", input="go on")
    assert len(backend.requests) == asked + 1


async def test_one_slot_of_a_deployment_is_told(make_router: Make, backend: ScriptedBackend) -> None:
    """The call holds the slot that its summary would need: LiteLLM's own words for that, at once, and no deadlock. A
    summary model with deployments of its own has slots of its own."""
    router = make_router(max_parallel_requests=1)
    with pytest.raises(RateLimitError, match="max_parallel_requests"):
        await router.aresponses(model="bridged", input=[*HISTORY, TRIGGER])
    answer_all(backend)
    await router.aresponses(model="bridged", input="go on")
    apart = make_router({"summary_model": "switched"}, max_parallel_requests=1)
    item_of(await apart.aresponses(model="bridged", input=[*HISTORY, TRIGGER]))


async def test_the_router_that_makes_the_call_writes_the_summary(make_router: Make, backend: ScriptedBackend) -> None:
    """With two routers in a program each call is served by its own."""
    first, second = make_router(timeout=50), make_router()
    answer_all(backend)
    for router in (first, second):
        before = router.total_calls["deepseek/served-model"]
        item_of(await router.aresponses(model="bridged", input=[*HISTORY, user(str(id(router))), TRIGGER]))
        assert router.total_calls["deepseek/served-model"] == before + 2


@pytest.mark.parametrize(
    "members",
    [
        {"input": [*HISTORY, TRIGGER]},
        {"input": [{"type": "compaction", "encrypted_content": "abc"}, user("go on")]},
        {"input": HISTORY, "context_management": [{"type": "compaction", "compact_threshold": 1_000}]},
    ],
    ids=["trigger", "item", "context_management"],
)
def test_synchronous_call_is_refused(make_router: Make, backend: ScriptedBackend, members: Json) -> None:
    """LiteLLM shows the plugin no synchronous call: what it would have to handle there is an error."""
    router = make_router()
    with pytest.raises(CompactionProxyException, match="aresponses") as refused:
        router.responses(model="bridged", **members)
    assert refused.value.to_dict()["param"] == "input"
    assert backend.requests == []


def test_other_synchronous_calls_pass(make_router: Make, backend: ScriptedBackend) -> None:
    """A synchronous call that has nothing to do with the plugin is LiteLLM's own, and so is one for a native group."""
    router = make_router({"mode": "native"})
    backend.script(Text("fine"), Text("fine"))
    assert router.responses(model="bridged", input="hello").output[0].type == "message"
    router.responses(model="bridged", input=[user("hello"), TRIGGER])
