"""Every refusal of the contract that concerns the two doors and their items, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.backend import Failure, ScriptedBackend, Summary, Text
from tests.support.bodies import HISTORY, TRIGGER, assistant, call, compact, output, user
from tests.support.proxy import LiveProxy, base_config, running_proxy, start_and_fail

NOT_LAST = "The 'compaction_trigger' item must be the final input item."
ONLY_ONE = "Only one 'compaction_trigger' item may be provided."
MISSING = "missing_required_parameter"
PAIRING = "invalid_tool_pairing"
FILE_IMAGE = {"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}
SHOT = {"type": "computer_call_output", "call_id": "p", "output": {"type": "computer_screenshot", "file_id": "file_1"}}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    ("items", "code", "message"),
    [
        ([TRIGGER, user("a")], None, NOT_LAST),
        ([user("a"), TRIGGER, user("b")], None, NOT_LAST),
        ([user("a"), TRIGGER, TRIGGER], None, ONLY_ONE),
        ([TRIGGER, user("a"), TRIGGER], None, ONLY_ONE),
        ([TRIGGER], MISSING, None),
        ([{"role": "system", "content": "only rules"}, TRIGGER], MISSING, None),
        ([FILE_IMAGE, TRIGGER], "unsupported_image", None),
        ([{"type": "computer_call", "call_id": "p", "action": {}}, SHOT, TRIGGER], "unsupported_image", None),
        ([user("a"), output("c1", "x"), TRIGGER], PAIRING, None),
        ([call("c1"), output("c1", "x"), call("c1"), TRIGGER], PAIRING, None),
        ([call("c1"), output("c1", "x"), output("c1", "x"), TRIGGER], PAIRING, None),
        ([output("c1", "x"), call("c1"), TRIGGER], PAIRING, None),
    ],
)
def test_bad_trigger_requests(
    proxy: LiveProxy, backend: ScriptedBackend, items: list[Any], code: str | None, message: str | None, stream: bool
) -> None:
    """A request that can't be compacted is a plain 400 before any backend is called, streamed or not."""
    response = proxy.post("/v1/responses", {"model": "local-model", "stream": stream, "input": items})
    assert response.status_code == 400
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "input", code)
    assert message is None or error["message"] == message
    assert backend.requests == []


@pytest.mark.parametrize(
    ("body", "code"),
    [({"input": [*HISTORY, TRIGGER]}, None), ({"input": []}, MISSING), ({}, MISSING), ({"input": ""}, MISSING)],
    ids=["trigger", "empty", "absent", "blank"],
)
def test_bad_compact_requests(
    proxy: LiveProxy, backend: ScriptedBackend, body: dict[str, Any], code: str | None
) -> None:
    """/responses/compact refuses a trigger and an empty conversation."""
    response = proxy.post("/v1/responses/compact", {"model": "local-model", **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "input", code)
    assert backend.requests == []


def test_small_output_limit_is_refused(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A trigger beside max_output_tokens under 20000 is refused as OpenAI refuses it."""
    body = {"model": "local-model", "input": [*HISTORY, TRIGGER], "max_output_tokens": 19_999}
    error = proxy.post("/v1/responses", body).json()["error"]
    assert (error["param"], error["type"]) == ("max_output_tokens", "invalid_request_error")
    backend.script(Summary("S1"))
    assert proxy.post("/v1/responses", {**body, "max_output_tokens": 20_000}).status_code == 200


def test_chain_that_cannot_be_resolved(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """previous_response_id without a store behind it is refused rather than forgotten."""
    body = {"model": "local-model", "input": [TRIGGER], "previous_response_id": "resp_unknown"}
    error = proxy.post("/v1/responses", body).json()["error"]
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    body = {"model": "local-model", "previous_response_id": "resp_unknown"}
    assert proxy.post("/v1/responses/compact", body).json()["error"]["code"] == "previous_response_not_found"
    assert backend.requests == []


@pytest.mark.parametrize("trigger", [[], [TRIGGER]], ids=["ordinary", "trigger"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("damage", ["flip", "cut", "openai", "ollama", "empty", "null"])
def test_unreadable_items(
    proxy: LiveProxy, backend: ScriptedBackend, damage: str, stream: bool, trigger: list[Any]
) -> None:
    """Tampered, cut and foreign items give the one error, and no backend hears of them."""
    backend.script(Summary("S1"))
    good = compact(proxy, HISTORY)["encrypted_content"]
    bad = {
        "flip": good[:200] + ("A" if good[200] != "A" else "B") + good[201:],
        "cut": good[:-7],
        "openai": "gAAAAABoopaqueopaque",
        "ollama": '{"type":"ollama_compaction","version":1,"summary":"s","retained":[]}',
        "empty": "",
        "null": None,
    }[damage]
    item = {"type": "compaction", "id": "cmp_123", "encrypted_content": bad}
    body = {"model": "local-model", "stream": stream, "input": [item, user("go on"), *trigger]}
    response = proxy.post("/v1/responses", body)
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "The encrypted content for item cmp_123 could not be verified. "
        "Reason: Encrypted content could not be decrypted or parsed.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_encrypted_content",
    }
    assert len(backend.requests) == 1


def test_two_invalid_answers_fail(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """Without a valid summary the compaction fails with 400, which Codex does not repeat."""
    backend.script(Text("prose"), Text("more prose"))
    response = proxy.post("/v1/responses", {"model": "local-model", "input": [*HISTORY, TRIGGER]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("api_error", "compaction_failed", None)
    assert error["message"].endswith("The conversation is unchanged.")


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Failure(429, {"message": "slow down", "type": "rate_limit_error"}, {"retry-after": "700"}), 429),
        (Failure(401, {"message": "bad key", "type": "authentication_error"}), 401),
        (Failure(403, {"message": "no access"}), 403),
    ],
    ids=["429", "401", "403"],
)
def test_callers_errors_pass_through(backend: ScriptedBackend, failure: Failure, status: int) -> None:
    """Rate limits and access errors of the backend come out with their own status, Retry-After kept."""
    config = base_config(backend.url)
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    backend.answer_with(lambda _: failure)
    with running_proxy(config) as proxy:
        response = proxy.post("/v1/responses", {"model": "local-model", "input": [*HISTORY, TRIGGER]})
    assert response.status_code == status, response.text
    if "retry-after" in failure.headers:
        assert "700" in {value for name, value in response.headers.items() if name.endswith("retry-after")}


def test_broken_backend_is_a_failed_compaction(backend: ScriptedBackend) -> None:
    """A backend that is down ends in compaction_failed with the operator's status, not in a 500 repeated forever."""
    config = base_config(backend.url, {"failure_status": 500})
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    backend.answer_with(lambda _: Failure(503, {"message": "on fire"}))
    with running_proxy(config) as proxy:
        response = proxy.post("/v1/responses", {"model": "local-model", "input": [*HISTORY, TRIGGER]})
        assert (response.status_code, response.json()["error"]["code"]) == (500, "compaction_failed")


def test_unknown_model_keeps_litellms_error(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A model the proxy does not have is refused in LiteLLM's words, on both doors."""
    ordinary = proxy.post("/v1/responses", {"model": "nope", "input": "hi"})
    trigger = proxy.post("/v1/responses", {"model": "nope", "input": [*HISTORY, TRIGGER]})
    assert (trigger.status_code, trigger.json()) == (ordinary.status_code, ordinary.json())
    assert proxy.post("/v1/responses/compact", {"model": "nope", "input": HISTORY}).status_code == 400
    assert backend.requests == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"speculate": True}, "callback_settings.litellm_compaction.speculate: True is not supported yet"),
        ({"max_attempts": 0}, "callback_settings.litellm_compaction.max_attempts: 0 is not allowed"),
        ({"nonsense": 1}, "callback_settings.litellm_compaction.nonsense: unknown setting"),
    ],
    ids=["not-yet", "impossible", "unknown"],
)
def test_bad_settings_stop_the_proxy(backend: ScriptedBackend, settings: dict[str, Any], named: str) -> None:
    """The proxy does not start on settings that can't be used, and says which."""
    assert named in start_and_fail(base_config(backend.url, settings))


def test_bad_model_settings_stop_the_proxy(backend: ScriptedBackend) -> None:
    """A wrong value under model_info.compaction is found at start-up too."""
    config = base_config(backend.url)
    config["model_list"][1]["model_info"] = {"compaction": {"context": "large"}}
    assert "model_info.compaction of 'deepseek'.context: 'large' is not allowed" in start_and_fail(config)


def test_misplaced_trigger_can_be_normalized(backend: ScriptedBackend) -> None:
    """`misplaced_trigger: normalize` takes one trigger, wherever it stood; `max_attempts: 1` repairs nothing."""
    settings = {"misplaced_trigger": "normalize", "max_attempts": 1, "foreign_items": "note", "seal": False}
    with running_proxy(base_config(backend.url, settings)) as proxy:
        backend.script(Summary("S1"), Text("prose"), Text("ok"), Text("ok"))
        body = {"model": "local-model", "input": [TRIGGER, user("a"), TRIGGER, user("b")]}
        item = proxy.post("/v1/responses", body).json()["output"][0]
        failed = proxy.post("/v1/responses", {"model": "local-model", "input": [user("c"), TRIGGER]})
        assert failed.json()["error"]["code"] == "compaction_failed"
        assert '"summary": "S1"' in item["encrypted_content"]
        assert proxy.post("/v1/responses", {"model": "local-model", "input": [item, user("go")]}).status_code == 200
        foreign = {"type": "compaction", "encrypted_content": "gAAAAopaque"}
        assert proxy.post("/v1/responses", {"model": "local-model", "input": [foreign, user("go")]}).status_code == 200
    assert "S1" in str(backend.requests[2])
    assert "made by another server" in str(backend.requests[3])
    assert assistant("never sent") not in backend.requests


def test_deep_nesting_is_a_clear_refusal(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """An item nested deeper than can be read is a 400, not a 500 that Codex repeats."""
    value: Any = "deep"
    for _ in range(700):
        value = [value]
    body = {"model": "local-model", "input": [user("a"), {"type": "never_heard_of", "v": value}, TRIGGER]}
    response = proxy.post("/v1/responses", body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "input"
    assert backend.requests == []


def test_words_in_a_message_do_not_choose_the_status(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """LiteLLM reads a status out of certain words; a failed compaction keeps the operator's."""
    backend.script(Failure(400, {"message": "No deployments available", "type": "invalid_request_error"}))
    response = proxy.post("/v1/responses", {"model": "local-model", "input": [*HISTORY, TRIGGER]})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "compaction_failed")


def test_client_switches_do_not_reach_the_delivery(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A LiteLLM parameter in the client's body changes nothing about how its compaction is answered."""
    backend.script(Summary("S1"))
    body = {"model": "local-model", "input": [*HISTORY, TRIGGER], "use_chat_completions_api": True}
    assert proxy.post("/v1/responses", body).status_code == 200
