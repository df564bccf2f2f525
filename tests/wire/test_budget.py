"""The budget of a model on a live proxy: outputs clamped, inputs refused before they are sent, usage always there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.backend import BrokenStream, Failure, ScriptedBackend, Summary, Text, ToolCall
from tests.support.bodies import HISTORY, MODELS, TRIGGER, Json, assistant, user
from tests.support.proxy import LiveProxy, base_config, running_proxy

GROUPS: Mapping[str, tuple[Json, Json]] = {  # our settings, other members of model_info
    "small": ({"context": 8_192, "output": 1_234}, {}),
    "small-by-model-info": ({}, {"max_input_tokens": 8_192, "max_output_tokens": 1_234}),
    "small-derived": ({"context": 8_192}, {}),
    "capped": ({"context": 50_000, "output": 1_000, "max_input": 2_000}, {}),
    "not-enforced": ({"context": 8_192, "output": 1_234, "enforce_budget": False}, {}),
    "unknown": ({}, {}),
    "large": ({"context": 100_000, "output": 4_000}, {}),
    "learns": ({}, {}),
}


@pytest.fixture(scope="module")
def gateway(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    config = base_config(shared_backend.url)
    config["router_settings"] = {"num_retries": 0, "context_window_fallbacks": [{"falls-back": ["large"]}]}
    params = {"model": "deepseek/served-model", "api_base": shared_backend.url, "api_key": "x"}
    for name, (settings, info) in {**GROUPS, "falls-back": GROUPS["small"], "two": GROUPS["large"]}.items():
        entry = {"model_name": name, "litellm_params": params, "model_info": {**info, "compaction": settings}}
        config["model_list"].append(entry)
    smaller = {
        "model_name": "two",
        "litellm_params": {**params, "api_key": "y"},
        "model_info": {"max_input_tokens": 8_192},
    }
    config["model_list"].append(smaller)
    with running_proxy(config) as proxy:
        yield proxy


def long_input(tokens: int) -> list[Json]:
    return [user("the task"), assistant("word " * tokens), user("and now?")]


CLAMPS: dict[str, tuple[str, int | None, int | None]] = {  # model, asked for, sent
    "less-than-the-limit": ("small", 100, 100),
    "the-limit": ("small", 1_234, 1_234),
    "more-than-the-limit": ("small", 50_000, 1_234),
    "operators-limit-where-nothing-is-asked": ("small", None, 1_234),
    "model-info": ("small-by-model-info", 50_000, 1_234),
    "nothing-asked-of-a-models-own-limit": ("small-by-model-info", None, None),
    "derived": ("small-derived", 50_000, 2_048),
    "smallest-of-a-group": ("two", 50_000, 2_048),
    "unknown": ("unknown", 50_000, 50_000),
    "unknown-nothing-asked": ("unknown", None, None),
    "not-enforced": ("not-enforced", 50_000, 50_000),
}


@pytest.mark.parametrize(("model", "asked", "sent"), CLAMPS.values(), ids=CLAMPS)
def test_output_is_clamped(
    gateway: LiveProxy, backend: ScriptedBackend, model: str, asked: int | None, sent: int | None
) -> None:
    """The backend is asked for what the client asked for, at most for the model's output; never for more."""
    backend.script(Text("x"))
    bound = {} if asked is None else {"max_output_tokens": asked}
    response = gateway.post("/v1/responses", {"model": model, "input": "hello", **bound})
    assert response.status_code == 200, response.text
    assert backend.requests[0].get("max_tokens") == sent


def test_output_is_clamped_to_what_the_window_leaves(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Prompt and output fit the window together, with the error of the count on top."""
    backend.script(Text("x"), Text("x"))
    for asked in ({"max_output_tokens": 1_234}, {}):
        items = long_input(6_700)
        response = gateway.post("/v1/responses", {"model": "small-by-model-info", "input": items, **asked})
        assert response.status_code == 200, response.text
        sent = backend.requests[-1]["max_tokens"]
        assert 256 <= sent <= 8_192 - 6_700


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["small", "small-by-model-info", "small-derived", "two"])
def test_what_cannot_fit_is_refused_before_any_backend(
    gateway: LiveProxy, backend: ScriptedBackend, model: str, *, stream: bool
) -> None:
    """400 context_length_exceeded with the numbers, also for a stream, and nothing is sent."""
    response = gateway.post("/v1/responses", {"model": model, "input": long_input(8_000), "stream": stream})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "context_length_exceeded",
        "input",
    )
    assert "exceeds the context window of this model" in error["message"]
    assert "8192" in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert backend.requests == []


def test_models_own_input_limit(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """An input over `max_input` is refused, however large the window."""
    backend.script(Text("x"))
    assert gateway.post("/v1/responses", {"model": "capped", "input": long_input(1_500)}).status_code == 200
    response = gateway.post("/v1/responses", {"model": "capped", "input": long_input(2_000)})
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "2000" in response.json()["error"]["message"]


def test_instructions_and_tools_count(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """What stands beside the input takes the window, too, and the refusal says how much it is."""
    tool = {"type": "function", "name": "t", "description": "word " * 5_000, "parameters": {"type": "object"}}
    asked = {"model": "small", "input": "hello", "instructions": "word " * 3_500, "tools": [tool]}
    response = gateway.post("/v1/responses", asked)
    assert response.status_code == 400
    assert "instructions and tools" in response.json()["error"]["message"]
    assert backend.requests == []


def test_unknown_limits_enforce_nothing(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Nothing is guessed: a request of any length passes, and so it does where the operator switched it off."""
    backend.script(Text("x"), Text("x"))
    for model in ("unknown", "not-enforced"):
        assert gateway.post("/v1/responses", {"model": model, "input": long_input(20_000)}).status_code == 200


def test_larger_model_answers_where_one_is_configured(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """LiteLLM's `context_window_fallbacks` go on working: the budget of the model that answers counts."""
    backend.script(Text("x"))
    asked = {"model": "falls-back", "input": long_input(9_000), "max_output_tokens": 50_000}
    response = gateway.post("/v1/responses", asked)
    assert response.status_code == 200, response.text
    assert backend.requests[0]["max_tokens"] == 4_000


def test_refusals_put_no_deployment_into_cooldown(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """However many requests are too long, the next one that is not is served."""
    for _ in range(5):
        assert gateway.post("/v1/responses", {"model": "small", "input": long_input(9_000)}).status_code == 400
    backend.script(Text("x"))
    assert gateway.post("/v1/responses", {"model": "small", "input": "hello"}).status_code == 200


WORDINGS: dict[str, tuple[int, Mapping[str, Any]]] = {
    "openai": (400, {"message": "Your input exceeds the context window.", "code": "context_length_exceeded"}),
    "vllm": (400, {"message": "This model's maximum context length is 3000 tokens. However, you requested 9000"}),
    "llama.cpp": (400, {"message": "request (9000 tokens) exceeds the available context size (3000 tokens)"}),
    "openrouter": (400, {"message": "This endpoint's maximum context length is 3000 tokens. You requested 9000."}),
    "alibaba": (400, {"message": "Range of input length should be [1, 3000]"}),
    "payload": (413, {"message": "prompt is too long: 9000 tokens > 3000 maximum"}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("status", "error"), WORDINGS.values(), ids=WORDINGS)
def test_a_backends_own_overflow(
    gateway: LiveProxy, backend: ScriptedBackend, model: str, status: int, error: Mapping[str, Any], *, stream: bool
) -> None:
    """Whatever its wording: the code that clients know, and the backend's words."""
    backend.script(Failure(status, error))
    response = gateway.post("/v1/responses", {"model": model, "input": "hello", "stream": stream})
    assert response.status_code == 400, response.text
    told = response.json()["error"]
    assert (told["type"], told["code"], told["param"]) == ("invalid_request_error", "context_length_exceeded", "input")
    assert error["message"].split(".")[0] in told["message"]


@pytest.mark.parametrize("model", MODELS)
def test_a_backends_overflow_inside_a_stream(gateway: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """After the first words: `error` and `response.failed` with the same code, numbered without gaps."""
    backend.script(BrokenStream("some words", WORDINGS["vllm"][1]))
    events = gateway.stream("/v1/responses", {"model": model, "input": "hello", "stream": True})
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers[-2:] == [event.get("sequence_number") for event in events[-2:]]
    # Older LiteLLMs do not number their own events: then the numbers there are only grow.
    assert numbers == (list(range(len(events))) if len(numbers) == len(events) else sorted(set(numbers)))
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    told, failed = events[-2]["error"], events[-1]["response"]
    assert told["code"] == failed["error"]["code"] == "context_length_exceeded"
    assert failed["status"] == "failed"
    assert told["message"].endswith(f"The backend refused it: {WORDINGS['vllm'][1]['message']}")


@pytest.mark.parametrize(
    ("status", "message"), [(400, "invalid temperature"), (429, "slow down"), (500, "boom"), (401, "no")]
)
def test_other_errors_stay_litellms(gateway: LiveProxy, backend: ScriptedBackend, status: int, message: str) -> None:
    """What is no overflow is answered as LiteLLM answers it."""
    backend.script(Failure(status, {"message": message}))
    response = gateway.post("/v1/responses", {"model": "unknown", "input": "hello"})
    assert response.status_code == status
    assert response.json()["error"]["code"] != "context_length_exceeded"


def test_a_learned_window_is_enforced(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """The window that a backend named in a refusal holds for the next request of that model."""
    words = "This model's maximum context length is 3000 tokens. However, you requested 9000 tokens."
    backend.script(Failure(400, {"message": words}), Text("x"))
    assert gateway.post("/v1/responses", {"model": "learns", "input": long_input(9_000)}).status_code == 400
    response = gateway.post("/v1/responses", {"model": "learns", "input": long_input(9_000)})
    assert "3000 tokens, as its backend said" in response.json()["error"]["message"]
    assert len(backend.requests) == 1
    asked = {"model": "learns", "input": "hello", "max_output_tokens": 5_000}
    assert gateway.post("/v1/responses", asked).status_code == 200
    assert backend.requests[-1]["max_tokens"] == 750


def test_a_written_window_is_not_shrunk_by_a_refusal(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """What the operator says comes first: one refusal with a smaller number does not stop the requests after it."""
    words = "This model's maximum context length is 3000 tokens. However, you requested 9000 tokens."
    backend.script(Failure(400, {"message": words}), Text("x"))
    asked = {"model": "large", "input": long_input(9_000), "max_output_tokens": 3_999}
    assert gateway.post("/v1/responses", asked).status_code == 400
    assert gateway.post("/v1/responses", asked).status_code == 200
    assert backend.requests[-1]["max_tokens"] == 3_999


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", [*MODELS, "small"])
def test_usage_is_always_there(gateway: LiveProxy, backend: ScriptedBackend, model: str, *, stream: bool) -> None:
    """A backend that reports no usage: the answer carries one, counted, with input, output and their sum."""
    backend.script(Text("three short words", usage=None))
    asked = {"model": model, "input": "hello there, " * 50, "stream": stream}
    if stream:
        body = gateway.stream("/v1/responses", asked)[-1]["response"]
    else:
        body = gateway.post("/v1/responses", asked).json()
    usage = body["usage"]
    assert 100 <= usage["input_tokens"] <= 250
    assert 2 <= usage["output_tokens"] <= 20
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_reported_usage_is_not_touched(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """What a backend reports stands, also for tool calls."""
    backend.script(ToolCall((("shell", "{}"),), usage=(77, 5)))
    tools = [{"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}]
    body = gateway.post("/v1/responses", {"model": "small", "input": "hello", "tools": tools}).json()
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"], body["usage"]["total_tokens"]) == (77, 5, 82)


def test_last_usage_counts_for_the_same_conversation(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A backend whose tokenizer needs fewer tokens than ours: its own number decides about the next turn."""
    items = long_input(6_900)
    backend.script(Text("x", usage=(5_000, 5)), Text("x"))
    assert gateway.post("/v1/responses", {"model": "small", "input": items}).status_code == 200
    longer = [*items, assistant("word " * 1_500), user("and now?")]
    assert gateway.post("/v1/responses", {"model": "small", "input": longer}).status_code == 200
    other = [user("the task, another one"), *longer[1:]]
    assert gateway.post("/v1/responses", {"model": "small", "input": other}).status_code == 400


MALFORMED: dict[str, tuple[str, str, str | None, str]] = {  # JSON, param, code, message
    "unknown-type": (
        '[{"type":"foo"}]',
        "context_management",
        None,
        "Unsupported context_management type: 'foo'.",
    ),
    "below-minimum": (
        '[{"type":"compaction","compact_threshold":999}]',
        "context_management[0].compact_threshold",
        "integer_below_min_value",
        (
            "Invalid 'context_management[0].compact_threshold': integer below minimum value. "
            "Expected a value >= 1000, but got 999 instead."
        ),
    ),
    "zero": (
        '[{"type":"compaction","compact_threshold":0}]',
        "context_management[0].compact_threshold",
        "integer_below_min_value",
        (
            "Invalid 'context_management[0].compact_threshold': integer below minimum value. "
            "Expected a value >= 1000, but got 0 instead."
        ),
    ),
    "empty": (
        "[]",
        "context_management",
        "empty_array",
        (
            "Invalid 'context_management': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead."
        ),
    ),
    "decimal": (
        '[{"type":"compaction","compact_threshold":1000.0}]',
        "context_management[0].compact_threshold",
        "invalid_type",
        (
            "Invalid type for 'context_management[0].compact_threshold': expected an integer, but got a decimal number "
            "instead."
        ),
    ),
    "string-threshold": (
        '[{"type":"compaction","compact_threshold":"1000"}]',
        "context_management[0].compact_threshold",
        "invalid_type",
        "Invalid type for 'context_management[0].compact_threshold': expected an integer, but got a string instead.",
    ),
    "boolean-threshold": (
        '[{"type":"compaction","compact_threshold":true}]',
        "context_management[0].compact_threshold",
        "invalid_type",
        "Invalid type for 'context_management[0].compact_threshold': expected an integer, but got a boolean instead.",
    ),
    "array-threshold": (
        '[{"type":"compaction","compact_threshold":[1000]}]',
        "context_management[0].compact_threshold",
        "invalid_type",
        "Invalid type for 'context_management[0].compact_threshold': expected an integer, but got an array instead.",
    ),
    "object": (
        '{"type":"compaction"}',
        "context_management",
        "invalid_type",
        "Invalid type for 'context_management': expected an array of objects, but got an object instead.",
    ),
    "string": (
        '"compaction"',
        "context_management",
        "invalid_type",
        "Invalid type for 'context_management': expected an array of objects, but got a string instead.",
    ),
    "string-entry": (
        '["compaction"]',
        "context_management[0]",
        "invalid_type",
        "Invalid type for 'context_management[0]': expected an object, but got a string instead.",
    ),
    "no-type": (
        "[{}]",
        "context_management[0].type",
        "missing_required_parameter",
        "Missing required parameter: 'context_management[0].type'.",
    ),
    "extra-key": (
        '[{"type":"compaction","foo":1}]',
        "context_management[0].foo",
        "unknown_parameter",
        "Unknown parameter: 'context_management[0].foo'.",
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("value", "param", "code", "message"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_context_management(
    gateway: LiveProxy,
    backend: ScriptedBackend,
    value: str,
    param: str,
    code: str | None,
    message: str,
    *,
    stream: bool,
) -> None:
    """Refused as OpenAI does, to the letter, before anything is sent."""
    asked = {"model": "small", "input": "hello", "stream": stream, "context_management": json.loads(value)}
    response = gateway.post("/v1/responses", asked)
    assert response.status_code == 400
    told = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    assert response.json() == {"error": told}
    assert backend.requests == []


def test_malformed_beside_a_trigger(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A trigger does not hide it; /responses/compact ignores the field, as it does others of the other door."""
    asked = {"model": "unknown", "input": [*HISTORY, TRIGGER], "context_management": []}
    assert gateway.post("/v1/responses", asked).json()["error"]["code"] == "empty_array"
    assert backend.requests == []
    backend.script(Summary("SUM"), Summary("SUM"))
    assert gateway.post("/v1/responses/compact", {**asked, "input": HISTORY}).status_code == 200
    wish = [{"type": "compaction", "compact_threshold": 1_000}]
    response = gateway.post("/v1/responses", {**asked, "context_management": wish})
    assert [item["type"] for item in response.json()["output"]] == ["compaction"]


def test_null_context_management_is_none(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A null asks for nothing and reaches no backend."""
    backend.script(Text("x"))
    response = gateway.post("/v1/responses", {"model": "small", "input": "hello", "context_management": None})
    assert response.status_code == 200, response.text
