"""`mode: native` and providers' own items: what a backend does itself passes untouched, and pins what it must."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.bodies import HISTORY, TRIGGER, Json, assistant, user
from tests.support.proxy import LiveProxy, base_config, running_proxy
from tests.support.responses_backend import USAGE, ResponsesBackend, running_responses_backend

ITEM: Json = {"type": "compaction", "id": "cmp_theirs", "encrypted_content": "gAAAA-theirs"}
MESSAGE: Json = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "fine", "annotations": []}],
}
WISH: list[Json] = [{"type": "compaction", "compact_threshold": 1_000}]


@pytest.fixture(scope="module")
def provider() -> Iterator[ResponsesBackend]:
    with running_responses_backend() as backend:
        yield backend


@pytest.fixture(scope="module")
def gateway(provider: ResponsesBackend) -> Iterator[LiveProxy]:
    """A native group with a window, one on `auto`, which is the plugin's own here, and two deployments of one group
    under LiteLLM's affinity of encrypted content."""

    def entry(group: str, served: str, **settings: Any) -> Json:
        params = {"model": f"openai/{served}", "api_base": provider.url, "api_key": "x"}
        return {"model_name": group, "litellm_params": params, "model_info": {"compaction": settings}}

    small = {"context": 4_000, "output": 1_000}
    config = base_config(provider.url)
    config["model_list"] = [
        entry("native", "native-model", mode="native"),
        entry("narrow", "native-model", mode="native", **small),
        entry("auto", "auto-model"),
        entry("pair", "left"),
        entry("pair", "right"),
        entry("native-pair", "native-left", mode="native"),
        entry("native-pair", "native-right", mode="native"),
    ]
    config["router_settings"] = {"optional_pre_call_checks": ["encrypted_content_affinity"], "num_retries": 0}
    with running_proxy(config) as proxy:
        yield proxy


def post(proxy: LiveProxy, model: str, items: list[Json], **members: Any) -> httpx.Response:
    response = proxy.post("/v1/responses", {"model": model, "input": items, **members})
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("model", ["native", "narrow"])
@pytest.mark.parametrize("length", ["short", "over-the-window"])
def test_a_native_trigger_passes_untouched(
    gateway: LiveProxy, provider: ResponsesBackend, model: str, length: str
) -> None:
    """The backend gets the trigger and everything before it as the client sent it, however long, and nothing else."""
    provider.reset(ITEM)
    items = [*HISTORY, assistant("word " * (10 if length == "short" else 8_000)), TRIGGER]
    body = post(gateway, model, items).json()
    (asked,) = provider.asked
    assert (asked.path, asked.body["input"]) == ("/v1/responses", items)
    assert set(asked.body) <= {"model", "input", "stream"}
    assert body["output"][0]["type"] == "compaction"
    assert {key: body["usage"][key] for key in USAGE if "details" not in key} == {
        key: USAGE[key] for key in USAGE if "details" not in key
    }


def test_a_native_trigger_is_streamed_as_it_comes(gateway: LiveProxy, provider: ResponsesBackend) -> None:
    """The provider's own events come through, with its item."""
    provider.reset(ITEM)
    body = {"model": "native", "stream": True, "input": [*HISTORY, TRIGGER]}
    events = gateway.stream("/v1/responses", body)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["compaction"]
    assert events[-1]["type"] == "response.completed"
    assert provider.asked[0].body["input"] == [*HISTORY, TRIGGER]


def test_native_compact_passes_untouched(gateway: LiveProxy, provider: ResponsesBackend) -> None:
    """/responses/compact is the provider's, with its answer."""
    provider.reset(HISTORY[0], ITEM)
    response = gateway.post("/v1/responses/compact", {"model": "native", "input": HISTORY})
    assert response.status_code == 200, response.text
    (asked,) = provider.asked
    assert (asked.path, asked.body["input"]) == ("/v1/responses/compact", HISTORY)
    assert response.json()["object"] == "response.compaction"
    assert "x-litellm-compaction" not in response.headers


@pytest.mark.parametrize("model", ["native", "narrow"])
def test_native_context_management_passes_untouched(gateway: LiveProxy, provider: ResponsesBackend, model: str) -> None:
    """The provider is asked to compact by itself, and its item and answer come back."""
    provider.reset(ITEM, MESSAGE)
    items = [*HISTORY, assistant("word " * 8_000), user("go on")]
    body = post(gateway, model, items, context_management=WISH).json()
    (asked,) = provider.asked
    assert (asked.body["context_management"], asked.body["input"]) == (WISH, items)
    assert "max_output_tokens" not in asked.body
    assert [item["type"] for item in body["output"]] == ["compaction", "message"]


def test_what_a_native_window_cannot_hold_is_refused(gateway: LiveProxy, provider: ResponsesBackend) -> None:
    """An ordinary request of a native group is held to its budget like any other, unless the provider may cut it."""
    provider.reset(MESSAGE)
    body = {"model": "narrow", "input": [user("word " * 8_000)]}
    refused = gateway.post("/v1/responses", body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert provider.asked == []
    assert gateway.post("/v1/responses", {**body, "truncation": "auto"}).status_code == 200


def test_providers_items_pass_and_the_plugins_are_expanded(gateway: LiveProxy, provider: ResponsesBackend) -> None:
    """In one input the provider's own item stays as it is; what this plugin has sealed is a summary in words."""
    provider.reset(MESSAGE)
    ours = post(gateway, "auto", [*HISTORY, TRIGGER]).json()["output"][0]
    provider.reset(MESSAGE)
    post(gateway, "native", [user("a"), ITEM, user("b"), ours, user("c")])
    sent = provider.asked[0].body["input"]
    assert ITEM in sent
    assert ours["encrypted_content"] not in str(sent)
    assert "S-FACT" in str(sent)


def test_auto_is_the_plugins_own_elsewhere(gateway: LiveProxy, provider: ResponsesBackend) -> None:
    """On `auto` a server that is not api.openai.com is asked for a summary, never handed a trigger; its own items are
    refused, since it could not be known to read them."""
    provider.reset()
    body = post(gateway, "auto", [*HISTORY, TRIGGER]).json()
    assert [asked.path for asked in provider.asked] == ["/v1/chat/completions"]
    assert body["output"][0]["type"] == "compaction"
    refused = gateway.post("/v1/responses", {"model": "auto", "input": [ITEM, user("b")]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_encrypted_content")


@pytest.mark.parametrize("door", ["trigger", "trigger-streamed", "compact"])
def test_affinity_writes_nothing_into_an_item(gateway: LiveProxy, provider: ResponsesBackend, door: str) -> None:
    """Id and content of the plugin's item are its own, and the same in every event, whatever LiteLLM would make of
    them."""
    provider.reset()
    if door == "compact":
        items = [gateway.post("/v1/responses/compact", {"model": "pair", "input": HISTORY}).json()["output"][-1]]
    elif door == "trigger":
        items = post(gateway, "pair", [*HISTORY, TRIGGER]).json()["output"]
    else:
        body = {"model": "pair", "stream": True, "input": [*HISTORY, TRIGGER]}
        events = gateway.stream("/v1/responses", body)
        items = [event["item"] for event in events if "item" in event] + events[-1]["response"]["output"]
        assert len(items) == 3
    for item in items:
        assert item["id"].startswith("cmp_")
        assert item["encrypted_content"].startswith("lcmp1.")
    assert len({(item["id"], item["encrypted_content"]) for item in items}) == 1


def models(proxy: LiveProxy) -> list[Json]:
    """The rows of LiteLLM's model listing."""
    with proxy.client() as client:
        found: list[Json] = client.get("/model/info").json()["data"]
    return found


def test_affinity_never_pins_a_portable_item(gateway: LiveProxy, provider: ResponsesBackend) -> None:
    """Under LiteLLM's affinity the plugin's item comes back as it was sealed or wrapped, opens either way, and both
    deployments answer requests that bring it."""
    provider.reset(MESSAGE)
    response = post(gateway, "pair", [*HISTORY, TRIGGER])
    item = response.json()["output"][0]
    # As LiteLLM wraps what it takes for a provider's: with the deployment it came from.
    left = next(row["model_info"]["id"] for row in models(gateway) if row["litellm_params"]["model"] == "openai/left")
    origin = base64.b64encode(f"model_id:{left}".encode()).decode()
    wrapped = {**item, "encrypted_content": f"litellm_enc:{origin};{item['encrypted_content']}"}
    provider.reset(MESSAGE)
    for number in range(40):
        post(gateway, "pair", [wrapped if number % 2 else item, user(str(number))])
        if {asked.body["model"] for asked in provider.asked[1::2]} == {"left", "right"}:
            break
    assert {asked.body["model"] for asked in provider.asked} == {"left", "right"}
    assert all("S-FACT" in str(asked.body["input"]) for asked in provider.asked)


@pytest.mark.parametrize("kind", ["reasoning", "compaction"])
def test_affinity_still_pins_native_items(gateway: LiveProxy, provider: ResponsesBackend, kind: str) -> None:
    """What a provider has encrypted goes back to the deployment it came from, as the provider wrote it."""
    blob: Json = {"type": kind, "id": "rs_1" if kind == "reasoning" else "cmp_1", "encrypted_content": "gAAAA-theirs"}
    if kind == "reasoning":
        blob["summary"] = []
    provider.reset(blob, MESSAGE)
    first = post(gateway, "native-pair", list(HISTORY)).json()
    origin = provider.asked[0].body["model"]
    provider.reset(MESSAGE)
    for number in range(12):
        post(gateway, "native-pair", [*HISTORY, first["output"][0], user(str(number))])
    assert {asked.body["model"] for asked in provider.asked} == {origin}
    returned = [item for item in provider.asked[0].body["input"] if item.get("type") == kind]
    assert [item["encrypted_content"] for item in returned] == ["gAAAA-theirs"]
