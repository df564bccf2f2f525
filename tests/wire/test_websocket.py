"""Frames of a WebSocket connection are served as requests of their own: all that HTTP does, they do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.support.backend import Failure, Gated, ScriptedBackend, Summary, Text, is_summary_request, request_text
from tests.support.bodies import HISTORY, MODELS, TRIGGER, Json, assistant, compact, user
from tests.support.proxy import LiveProxy, base_config, running_proxy
from tests.support.versions import needs_litellm

# A key is sk-<team>; the teams `one`, `small` and `poor` have one request at a time, one model, one dollar.
AUTH = """
from litellm.proxy._types import UserAPIKeyAuth

async def auth(request, api_key):
    team = api_key.removeprefix("sk-")
    limits = {
        "one": {"max_parallel_requests": 1},
        "small": {"models": ["deepseek"]},
        "poor": {"max_budget": 1.0},
    }
    return UserAPIKeyAuth(api_key=f"hash-{team}", team_id=team, user_id="ann", **limits.get(team, {}))
"""
ENDS = {"response.completed", "response.incomplete", "error"}
LONG = assistant("word " * 2_000)


@pytest.fixture(scope="module")
def gateway(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """The usual groups, one whose deployment takes one request at a time, one that compacts by itself; a guardrail."""
    config = base_config(shared_backend.url)
    params = {"model": "deepseek/served-model", "api_base": shared_backend.url, "api_key": "x"}
    early = {"context": 50_000, "output": 4_000, "threshold": 1_500, "auto_compact": True}
    config["model_list"] += [
        {"model_name": "narrow", "litellm_params": {**params, "max_parallel_requests": 1}},
        {"model_name": "early", "litellm_params": params, "model_info": {"compaction": early}},
        {
            "model_name": "dear",
            "litellm_params": {**params, "input_cost_per_token": 0.001, "output_cost_per_token": 0.001},
            "model_info": {"max_input_tokens": 5_000, "max_output_tokens": 600},
        },
    ]
    config["general_settings"].update(custom_auth="team_auth.auth", custom_auth_run_common_checks=True)
    config["litellm_settings"]["enable_post_custom_auth_checks"] = True
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    words = {"guardrail": "litellm_content_filter", "mode": "pre_call", "default_on": True}
    words["blocked_words"] = [{"keyword": "forbidden", "action": "BLOCK"}]
    config["guardrails"] = [{"guardrail_name": "words", "litellm_params": words}]
    with running_proxy(config, {"team_auth.py": AUTH}) as proxy:
        yield proxy


@contextmanager
def connected(proxy: LiveProxy, key: str = "sk-red") -> Iterator[Connection]:
    """A connection that names no model, as Codex opens it."""
    address = proxy.url.replace("http", "ws") + "/v1/responses"
    with connect(address, additional_headers={"authorization": f"Bearer {key}"}, proxy=None) as socket:
        yield socket


def ask(socket: Connection, items: Any, model: str = "deepseek", **members: Any) -> list[Json]:
    """One frame; the frames of its answer."""
    socket.send(json.dumps({"type": "response.create", "model": model, "input": items, **members}))
    frames: list[Json] = []
    while not frames or frames[-1]["type"] not in ENDS:
        frames.append(json.loads(socket.recv(timeout=60)))
    return frames


def done(frames: list[Json]) -> list[Json]:
    """The items of an answer that ended well."""
    assert frames[-1]["type"] == "response.completed", frames
    return [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]


def response_id(frames: list[Json]) -> str:
    found = frames[-1]["response"]["id"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("model", MODELS)
def test_trigger_in_a_frame_compacts(gateway: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """A trigger is answered by the events of the contract and one item, which the next frame brings back: the model
    then knows what it holds. So it is also for a provider that LiteLLM would hand the connection to."""
    backend.script(Summary("S-FACT"), Text("fine"))
    with connected(gateway) as socket:
        frames = ask(socket, [*HISTORY, TRIGGER], model, store=False)
        (item,) = done(frames)
        assert [frame["type"].removeprefix("response.") for frame in frames] == [
            "created",
            "in_progress",
            "output_item.added",
            "output_item.done",
            "completed",
        ]
        assert item["type"] == "compaction"
        assert frames[-1]["response"]["output"][0]["encrypted_content"] == item["encrypted_content"]
        assert frames[-1]["response"]["usage"]["total_tokens"] == 120
        assert [part["type"] for part in done(ask(socket, [item, user("go on")], model))] == ["message"]
    assert "S-FACT" in request_text(backend.requests[-1])


def test_the_nested_form_of_a_frame(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A frame may hold its request in `response`."""
    backend.script(Summary("S"))
    with connected(gateway) as socket:
        request = {"model": "deepseek", "input": [*HISTORY, TRIGGER]}
        assert [item["type"] for item in done(ask(socket, [], response=request))] == ["compaction"]


def test_deltas_reach_the_model_with_what_came_before(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """With `previous_response_id` a frame brings what is new; the model sees the whole conversation."""
    backend.script(Text("the word is heron"), Text("yes"), Text("and again"))
    with connected(gateway) as socket:
        first = response_id(ask(socket, [user("choose a word")], store=False))
        second = response_id(ask(socket, [user("sure?")], store=False, previous_response_id=first))
        done(ask(socket, "once more", store=False, previous_response_id=second))
    sent = request_text(backend.requests[-1])
    places = [sent.index(text) for text in ("choose a word", "the word is heron", "sure?", "yes", "once more")]
    assert places == sorted(places)


def test_what_a_warm_up_brings_is_part_of_the_conversation(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """`generate: false` is answered without a model, and its input is there for the frame that builds on it."""
    backend.script(Text("fine"))
    with connected(gateway) as socket:
        warm = ask(socket, [user("the word is heron")], generate=False)
        assert [frame["type"] for frame in warm] == ["response.created", "response.completed"]
        done(ask(socket, [user("go on")], previous_response_id=response_id(warm)))
    assert "heron" in request_text(backend.requests[0])


def test_trigger_as_a_delta_compacts_the_whole_conversation(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Behind `[compaction_trigger]` with a `previous_response_id` stands all that this id stands for, and the summary
    takes its place for what builds on the answer."""
    backend.script(Text("the word is heron"), Summary("S-FACT"), Text("fine"))
    with connected(gateway) as socket:
        first = response_id(ask(socket, [user("choose a word " * 30)], store=False))
        frames = ask(socket, [TRIGGER], store=False, previous_response_id=first)
        assert [item["type"] for item in done(frames)] == ["compaction"]
        done(ask(socket, [user("go on")], store=False, previous_response_id=response_id(frames)))
    summary, turn = backend.requests[1:]
    assert "choose a word" in request_text(summary)
    assert "the word is heron" in request_text(summary)
    assert "S-FACT" in request_text(turn)


def test_a_response_nobody_knows_is_not_half_a_conversation(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A trigger that builds on an unknown response is refused, and no backend is asked."""
    with connected(gateway) as socket:
        refused = ask(socket, [TRIGGER], previous_response_id="resp_of_yesterday")[-1]
    assert (refused["status"], refused["error"]["code"]) == (400, "previous_response_not_found")
    assert backend.requests == []


def test_errors_are_those_of_the_contract_and_the_connection_goes_on(
    gateway: LiveProxy, backend: ScriptedBackend
) -> None:
    """An error comes with its status, type, code and param, and the next frame is served."""
    backend.answer_with(lambda _body: Text("no summary"))
    with connected(gateway) as socket:
        assert ask(socket, [TRIGGER, *HISTORY])[-1] == {
            "type": "error",
            "status": 400,
            "error": {
                "message": "The 'compaction_trigger' item must be the final input item.",
                "type": "invalid_request_error",
                "param": "input",
                "code": None,
            },
        }
        foreign = {"type": "compaction", "encrypted_content": "abc"}
        assert ask(socket, [foreign, user("go on")])[-1]["error"]["code"] == "invalid_encrypted_content"
        socket.send("no JSON")
        assert json.loads(socket.recv(timeout=30))["error"]["type"] == "invalid_request_error"
        failed = ask(socket, [*HISTORY, TRIGGER])[-1]
        assert (failed["status"], failed["error"]["code"]) == (400, "compaction_failed")
        done(ask(socket, [user("go on")]))


def test_rate_limit_of_a_backend_keeps_its_wait(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A 429 comes as one, with the `Retry-After` that the backend gave."""
    backend.answer_with(lambda _body: Failure(429, {"message": "slow down"}, {"retry-after": "3600"}))
    with connected(gateway) as socket:
        refused = ask(socket, [*HISTORY, TRIGGER])[-1]
    assert (refused["status"], refused["headers"]) == (429, {"retry-after": "3600"})


def test_item_of_another_team_is_refused(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """An item opens for the team it was made for, by whatever way it comes."""
    backend.script(Summary("S-FACT"))
    item = compact(gateway, HISTORY, key="sk-red")
    with connected(gateway, "sk-blue") as socket:
        refused = ask(socket, [item, user("go on")])[-1]
    assert refused["error"]["code"] == "invalid_encrypted_content"
    assert len(backend.requests) == 1


@pytest.mark.parametrize("model", ["deepseek", "early"])
def test_thresholds_hold_for_frames(gateway: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """`context_management`, and the operator's `auto_compact`, put the item in front of the answer."""
    backend.answer_with(lambda body: Summary("S-FACT") if is_summary_request(body) else Text("fine"))
    wish: Json = (
        {} if model == "early" else {"context_management": [{"type": "compaction", "compact_threshold": 1_000}]}
    )
    with connected(gateway) as socket:
        frames = ask(socket, [*HISTORY[:1], LONG, user("go on")], model, **wish)
        assert [item["type"] for item in done(frames)] == ["compaction", "message"]
        done(ask(socket, [user("and on")], model, previous_response_id=response_id(frames)))
    assert "S-FACT" in request_text(backend.requests[-1])
    assert "word word" not in request_text(backend.requests[-1])


@needs_litellm("1.108", "an older one holds the slot of a connection for as long as it is open")
@pytest.mark.parametrize(("key", "model"), [("sk-one", "deepseek"), ("sk-red", "narrow")])
def test_one_slot_is_enough(gateway: LiveProxy, backend: ScriptedBackend, key: str, model: str) -> None:
    """A connection holds no slot of its key or deployment: turns and compactions get theirs, and give it back."""
    backend.script(Text("one"), Summary("S"), Text("two"))
    with connected(gateway, key) as socket:
        done(ask(socket, [user("go")], model))
        assert [item["type"] for item in done(ask(socket, [*HISTORY, TRIGGER], model))] == ["compaction"]
        done(ask(socket, [user("go on")], model))


def test_a_connection_holds_nothing_of_a_budget(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """What LiteLLM sets aside of a budget for a connection does not keep its frames from being paid."""
    backend.script(Text("one"))
    with connected(gateway, "sk-poor") as socket:
        done(ask(socket, [user("go")], "dear", max_output_tokens=500))


def test_a_frame_may_what_its_key_may(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A model that the key may not use is refused in a later frame as well, and guardrails read every frame."""
    backend.script(Text("one"))
    with connected(gateway, "sk-small") as socket:
        done(ask(socket, [user("go")]))
        assert ask(socket, [user("go")], "hosted")[-1]["status"] == 403
        assert ask(socket, [user("say the forbidden thing")])[-1]["status"] == 400
    assert len(backend.requests) == 1


@needs_litellm("1.108", "an older one holds the slot of a connection for as long as it is open")
def test_client_that_leaves_ends_what_is_under_way(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """When a client goes in the middle of a compaction it ends, and its slot comes back while the backend is silent."""
    gate = threading.Event()
    backend.answer_with(lambda body: Gated(Summary("S"), gate) if is_summary_request(body) else Text("fine"))
    try:
        with connected(gateway, "sk-one") as socket:
            socket.send(json.dumps({"type": "response.create", "model": "deepseek", "input": [*HISTORY, TRIGGER]}))
            assert json.loads(socket.recv(timeout=30))["type"] == "response.created"
        _wait_for(lambda: _is_served(gateway, "sk-one"))
    finally:
        gate.set()


def _is_served(proxy: LiveProxy, key: str) -> bool:
    with connected(proxy, key) as socket, suppress(ConnectionClosed):  # LiteLLM admits no connection without a slot
        return bool(ask(socket, [user("go on")])[-1]["type"] == "response.completed")
    return False


def _wait_for(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.1)
