"""Compaction without a trigger, at a threshold of the client's or the operator's: the item first, then the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.backend import Failure, ScriptedBackend, Summary, Text, ToolCall, is_summary_request, request_text
from tests.support.bodies import MODELS, Json, assistant, call, output, system, user
from tests.support.proxy import LiveProxy, base_config, running_proxy

SPENT = (900, 90)
GROUPS: Mapping[str, Json] = {
    "auto": {"auto_compact": True, "context": 8_192, "output": 1_234},
    "auto-low": {"auto_compact": True, "context": 100_000, "output": 4_000, "threshold": 2_000},
    "auto-deadline": {"auto_compact": True, "context": 100_000, "threshold": 2_000, "max_attempts": 1},
    "as-developer": {"auto_compact": True, "context": 100_000, "threshold": 2_000, "summary_role": "developer"},
    "once": {"auto_compact": True, "context": 100_000, "threshold": 2_000, "max_attempts": 1},
    "small": {"context": 8_192, "output": 1_234},
    "unknown": {},
    "unknown-auto": {"auto_compact": True},
}


@pytest.fixture(scope="module")
def gateway(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    config = base_config(shared_backend.url)
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    params = {"model": "deepseek/served-model", "api_base": shared_backend.url, "api_key": "x"}
    for name, settings in GROUPS.items():
        entry = {"model_name": name, "litellm_params": params, "model_info": {"compaction": settings}}
        config["model_list"].append(entry)
    config["model_list"].append(
        {
            "model_name": "one-slot",
            "litellm_params": {**params, "max_parallel_requests": 1},
            "model_info": {"compaction": GROUPS["auto-low"]},
        }
    )
    with running_proxy(config) as proxy:
        yield proxy


def session(tokens: int, mark: str) -> list[Json]:
    """A finished exchange of about so many tokens, and a question."""
    return [user(f"the task {mark}"), assistant("word " * tokens), user("and now?")]


def at(tokens: int | None) -> list[Json]:
    return [{"type": "compaction"} if tokens is None else {"type": "compaction", "compact_threshold": tokens}]


def types(body: Mapping[str, Any]) -> list[str]:
    return [item["type"] for item in body["output"]]


@pytest.mark.parametrize("model", [*MODELS, "unknown"])
def test_item_first_then_the_answer(gateway: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """Over the client's threshold: the item, then the answer, the usage of both, headers that say so."""
    backend.script(Summary("SUM", usage=SPENT), Text("done", usage=(50, 7)))
    asked = {"model": model, "input": session(2_000, model), "context_management": at(1_000)}
    response = gateway.post("/v1/responses", asked)
    assert response.status_code == 200, response.text
    body = response.json()
    assert types(body) == ["compaction", "message"]
    assert set(body["output"][0]) == {"id", "type", "encrypted_content"}
    assert body["usage"]["input_tokens"] == 950
    assert body["usage"]["output_tokens"] == 97
    assert body["usage"]["total_tokens"] == 1_047
    assert response.headers["x-litellm-compaction"] == "threshold"
    assert response.headers["x-litellm-compaction-attempts"] == "1"
    assert response.headers["x-litellm-compaction-model"] == model
    before, after = (int(response.headers[f"x-litellm-compaction-tokens-{when}"]) for when in ("before", "after"))
    assert after < 1_000 < before
    answered = request_text(backend.requests[1])
    assert "SUM" in answered
    assert "and now?" in answered
    assert "word word" not in answered
    assert "context_management" not in backend.requests[1]


@pytest.mark.parametrize("model", MODELS)
def test_streamed(gateway: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """Streamed: the item's two events after the opening ones, everything else shifted by one, numbers without gaps."""
    backend.script(Summary("SUM", usage=SPENT), Text("done", usage=(50, 7)))
    asked = {
        "model": model,
        "input": session(2_000, f"stream {model}"),
        "context_management": at(1_000),
        "stream": True,
    }
    events = gateway.stream("/v1/responses", asked)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:5]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_item.added",
    ]
    assert events[2]["item"] == events[3]["item"]
    assert [event["output_index"] for event in events if "output_index" in event][:2] == [0, 0]
    assert {event["output_index"] for event in events[4:-1] if "output_index" in event} == {1}
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.completed"
    assert types(final) == ["compaction", "message"]
    assert final["output"][0] == events[3]["item"]
    assert final["usage"]["total_tokens"] == 1_047


@pytest.mark.parametrize("stream", [False, True])
def test_below_the_threshold_nothing_changes(gateway: LiveProxy, backend: ScriptedBackend, *, stream: bool) -> None:
    """No item, no header, the answer as without the field, and the backend never sees the field."""
    backend.script(Text("done", usage=(50, 7)), Text("done", usage=(50, 7)))
    plain = {"model": "unknown", "input": session(300, "below"), "stream": stream}
    asked = {**plain, "context_management": at(1_000)}
    if stream:
        first, second = gateway.stream("/v1/responses", plain), gateway.stream("/v1/responses", asked)
        assert [event["type"] for event in first] == [event["type"] for event in second]
        assert first[-1]["response"]["usage"] == second[-1]["response"]["usage"]
    else:
        one, other = gateway.post("/v1/responses", plain), gateway.post("/v1/responses", asked)
        assert "x-litellm-compaction" not in other.headers
        changing = {"id", "created_at", "output"}
        assert {k: v for k, v in one.json().items() if k not in changing} == {
            k: v for k, v in other.json().items() if k not in changing
        }
        assert types(other.json()) == ["message"]
    assert backend.requests[0] == backend.requests[1]


def counted(gateway: LiveProxy, backend: ScriptedBackend, model: str, items: list[Json]) -> int:
    """Tokens of an input as the plugin counts it, from the usage that it writes where a backend sends none."""
    backend.script(Text("x", usage=None))
    usage = gateway.post("/v1/responses", {"model": model, "input": items}).json()["usage"]
    assert isinstance(usage["input_tokens"], int)
    return int(usage["input_tokens"])


def test_at_the_threshold_and_over_it(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """An input of exactly N tokens is not compacted at N, and is at N - 1."""
    items = session(1_500, "exactly")
    tokens = counted(gateway, backend, "unknown", items)
    backend.script(Text("x"), Summary("SUM"), Text("x"))
    at_it = gateway.post("/v1/responses", {"model": "unknown", "input": items, "context_management": at(tokens)})
    assert types(at_it.json()) == ["message"]
    over = gateway.post("/v1/responses", {"model": "unknown", "input": items, "context_management": at(tokens - 1)})
    assert types(over.json()) == ["compaction", "message"]


def test_the_models_own_threshold(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """`auto_compact` compacts over T of the contract's fourth row, 6,958, and not at it."""
    base = counted(gateway, backend, "unknown", session(6_000, "own"))
    at_it, over = session(6_000 + 6_958 - base, "own"), session(6_000 + 6_959 - base, "own")
    assert counted(gateway, backend, "unknown", at_it) == 6_958
    backend.script(Text("x"), Summary("SUM"), Text("x"))
    response = gateway.post("/v1/responses", {"model": "auto", "input": at_it})
    assert types(response.json()) == ["message"], response.text
    response = gateway.post("/v1/responses", {"model": "auto", "input": over})
    assert types(response.json()) == ["compaction", "message"]
    assert response.headers["x-litellm-compaction"] == "auto"


def test_null_means_the_models_own(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Without a number the threshold is T; for a model of unknown limits there is none."""
    backend.script(Summary("SUM"), Text("x"), Text("x"))
    asked = {"model": "small", "input": session(7_100, "null"), "context_management": at(None)}
    assert types(gateway.post("/v1/responses", asked).json()) == ["compaction", "message"]
    assert types(gateway.post("/v1/responses", {**asked, "model": "unknown"}).json()) == ["message"]


def test_unknown_limits_are_not_guessed(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """`auto_compact` without a known window does nothing, however long the input."""
    backend.script(Text("x"))
    response = gateway.post("/v1/responses", {"model": "unknown-auto", "input": session(50_000, "guess")})
    assert types(response.json()) == ["message"]


def test_the_next_turn_goes_on_from_the_item(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Everything before the item is superseded by it, and its own tokens are few: nothing is compacted again."""
    items = session(2_500, "next")
    backend.script(Summary("SUM"), Text("first"), Text("second"))
    first = gateway.post("/v1/responses", {"model": "auto-low", "input": items}).json()
    following = [*items, *first["output"], user("third")]
    second = gateway.post("/v1/responses", {"model": "auto-low", "input": following})
    assert types(second.json()) == ["message"]
    text = request_text(backend.requests[-1])
    assert "word word" not in text
    assert text.count("and now?") == 1
    assert "first" in text
    assert "third" in text


def test_whoever_ignores_the_item_does_not_pay_again(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """The whole history again and a bit more: the summary of the prefix is used, with an item of its own, unpaid."""
    items = session(2_500, "ignores")
    backend.script(Summary("SUM", usage=SPENT), Text("first", usage=(50, 7)), Text("second", usage=(60, 8)))
    gateway.post("/v1/responses", {"model": "auto-low", "input": items})
    longer = [*items, assistant("first"), user("third")]
    response = gateway.post("/v1/responses", {"model": "auto-low", "input": longer})
    body = response.json()
    assert types(body) == ["compaction", "message"]
    assert response.headers["x-litellm-compaction-attempts"] == "0"
    assert body["usage"]["total_tokens"] == 68
    text = request_text(backend.requests[-1])
    assert "SUM" in text
    assert "word word" not in text
    assert [word in text for word in ("and now?", "first", "third")] == [True] * 3
    # And that item stands for all of it.
    backend.script(Text("third answer"))
    again = gateway.post("/v1/responses", {"model": "auto-low", "input": [*longer, *body["output"], user("fourth")]})
    assert types(again.json()) == ["message"]
    text = request_text(backend.requests[-1])
    assert [text.count(word) for word in ("and now?", "third", "fourth", "SUM")] == [1, 1, 1, 1]


def test_the_prefix_is_used_for_as_long_as_it_fits(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """When summary and rest are over the threshold themselves, they are compacted: not the whole history again."""
    items = session(2_500, "fits")
    backend.script(Summary("SUM"), Text("first"), Summary("SECOND"), Text("second"))
    gateway.post("/v1/responses", {"model": "auto-low", "input": items})
    longer = [*items, assistant("longer " * 2_100), user("third")]
    response = gateway.post("/v1/responses", {"model": "auto-low", "input": longer})
    assert types(response.json()) == ["compaction", "message"]
    summarised = request_text(backend.requests[2])
    assert is_summary_request(backend.requests[2])
    assert "SUM" in summarised
    assert "word word" not in summarised
    assert "SECOND" in request_text(backend.requests[3])


@pytest.mark.parametrize("model", ["auto-low", "as-developer"])
def test_a_later_item_replaces_the_earlier_one(gateway: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """Compacted twice: the model reads the second summary alone, in the same request and in the next, in any role."""
    items = session(2_500, f"twice {model}")
    backend.script(Summary("FIRST"), Text("one"), Summary("SECOND"), Text("two"), Text("three"))
    first = gateway.post("/v1/responses", {"model": model, "input": items}).json()
    longer = [*items, *first["output"], user("more"), assistant("word " * 2_500), user("and then?")]
    second = gateway.post("/v1/responses", {"model": model, "input": longer}).json()
    assert types(second) == ["compaction", "message"]
    gateway.post("/v1/responses", {"model": model, "input": [*longer, *second["output"], user("last")]})
    assert "FIRST" in request_text(backend.requests[2])
    for body in backend.requests[3:]:
        text = request_text(body)
        assert (text.count("SECOND"), text.count("FIRST"), text.count("word word")) == (1, 0, 0)


def test_a_known_prefix_serves_where_a_new_compaction_fails(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Summary and rest are over the threshold and compacting them fails: the turn after that goes on from the summary
    that is there, and does not try again at once."""
    items = session(2_500, "serves")
    backend.script(Summary("SUM"), Text("one"), Failure(500, {"message": "boom"}), Text("two"), Text("three"))
    gateway.post("/v1/responses", {"model": "once", "input": items})
    longer = [*items, assistant("longer " * 2_100), user("third")]
    gateway.post("/v1/responses", {"model": "once", "input": longer})
    again = gateway.post("/v1/responses", {"model": "once", "input": [*longer, assistant("two"), user("fourth")]})
    assert types(again.json()) == ["compaction", "message"]
    text = request_text(backend.requests[-1])
    assert ("SUM" in text, "word word" in text, "longer longer" in text) == (True, False, True)


@pytest.mark.parametrize("given", [[5], [None], "nothing"])
def test_odd_input_is_the_backends_to_refuse(gateway: LiveProxy, backend: ScriptedBackend, given: Any) -> None:
    """A threshold makes no error of its own out of input that LiteLLM or the backend reads otherwise."""
    backend.answer_with(lambda _: Text("x"))
    plain = gateway.post("/v1/responses", {"model": "unknown", "input": given})
    asked = gateway.post("/v1/responses", {"model": "unknown", "input": given, "context_management": at(1_000)})
    assert asked.status_code == plain.status_code, asked.text


def test_system_text_and_open_work_stay(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """In the middle of a tool loop: system text, the user's request and the newest result reach the model."""
    tools = [{"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}]
    items = [
        system("be brief"),
        user("build it"),
        call("c1", arguments='{"cmd": "make"}'),
        output("c1", "noise " * 2_500),
        call("c2", arguments='{"cmd": "make test"}'),
        output("c2", "3 passed"),
    ]
    backend.script(Summary("SUM"), ToolCall((("shell", "{}"),)))
    asked = {"model": "auto-low", "input": items, "tools": tools, "instructions": "you are an agent"}
    response = gateway.post("/v1/responses", asked)
    assert types(response.json()) == ["compaction", "function_call"]
    text = request_text(backend.requests[1])
    assert [word in text for word in ("be brief", "build it", "3 passed", "you are an agent")] == [True] * 4
    assert "noise noise" not in text


def test_fixed_part_over_the_threshold_is_said_once(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Instructions that are over T alone: no compaction, one line in the log, the request is served."""
    backend.script(*[Text("x")] * 3)
    asked = {"model": "auto-low", "input": session(900, "fixed"), "instructions": "rule " * 2_500}
    for _ in range(3):
        assert types(gateway.post("/v1/responses", asked).json()) == ["message"]
    lines = [line for line in gateway.log().splitlines() if "model=auto-low" in line and "alone take" in line]
    assert len(lines) == 1, lines


def test_no_gain_is_not_paid_twice(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A summary as long as what it stands for is not used, and the next turn does not try again."""
    items = session(2_500, "no gain")
    backend.script(Summary("blah " * 2_600), Text("x"), Text("x"))
    first = gateway.post("/v1/responses", {"model": "auto-low", "input": items})
    assert types(first.json()) == ["message"]
    assert "word word" in request_text(backend.requests[1])
    second = gateway.post("/v1/responses", {"model": "auto-low", "input": [*items, assistant("x"), user("more")]})
    assert types(second.json()) == ["message"]


def test_the_users_new_question_stays_whole(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """However long it is beside the window: the model answers what was asked, not a part of it."""
    backend.answer_with(lambda body: Summary("SUM") if is_summary_request(body) else Text("x"))
    question = " ".join(f"line-{number}" for number in range(1_200))
    items = [user("the task"), assistant("word " * 6_000), user(question)]
    response = gateway.post("/v1/responses", {"model": "auto", "input": items})
    assert types(response.json()) == ["compaction", "message"], response.text
    assert question in request_text(backend.requests[-1])


def test_a_question_that_leaves_no_room_is_refused_unpaid(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """More words of the user's than the window takes: nothing is summarised, nothing is sent."""
    items = [user("the task"), assistant("word " * 3_000), user("why " * 8_500)]
    response = gateway.post("/v1/responses", {"model": "auto", "input": items})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert backend.requests == []


def test_a_long_question_alone_is_no_history(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """One request of the user's that nobody has answered: there is nothing to summarise, and nothing is paid."""
    backend.script(Text("x"))
    response = gateway.post("/v1/responses", {"model": "auto-low", "input": "why " * 2_500})
    assert types(response.json()) == ["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_compaction_that_fits_is_served(gateway: LiveProxy, backend: ScriptedBackend, *, stream: bool) -> None:
    """No valid summary, and the window holds the input: the answer comes, the log says why there is no item, and the
    next turn does not fail for the same money."""
    items = session(2_500, f"fails {stream}")
    backend.script(Failure(500, {"message": "boom"}), Text("x"), Text("y"))
    asked = {"model": "auto-deadline", "input": items, "stream": stream}
    if stream:
        body = gateway.stream("/v1/responses", asked)[-1]["response"]
    else:
        body = gateway.post("/v1/responses", asked).json()
    assert types(body) == ["message"]
    assert "model=auto-deadline over its threshold, not compacted: failed=compaction_failed" in gateway.log()
    longer = [*items, assistant("x"), user("more")]
    assert types(gateway.post("/v1/responses", {"model": "auto-deadline", "input": longer}).json()) == ["message"]


def test_a_failed_compaction_that_does_not_fit_is_an_error(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Where the window does not hold the input either, the client is told what went wrong."""
    backend.script(Failure(500, {"message": "boom"}))
    items = session(9_000, "error")
    # Asked again, and with a turn more: told again, and not paid again.
    for given in (items, items, [*items, user("hello?")]):
        response = gateway.post("/v1/responses", {"model": "auto", "input": given})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "compaction_failed"), response.text


@pytest.mark.parametrize("stream", [False, True])
def test_an_overflow_under_the_threshold_is_compacted_when_tried_again(
    gateway: LiveProxy, backend: ScriptedBackend, *, stream: bool
) -> None:
    """A backend that counts more than the plugin: it refuses once, and from then on the conversation is known to be
    over, so that the client's next try goes on from a summary."""
    items = session(6_000, f"foreign {stream}")
    words = "This model's maximum context length is 8192 tokens. However, your messages resulted in 8300 tokens."
    backend.script(Failure(400, {"message": words}), Summary("SUM"), Text("done"))
    asked = {"model": "auto", "input": items, "stream": stream}
    refused = gateway.post("/v1/responses", asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    if stream:
        assert types(gateway.stream("/v1/responses", asked)[-1]["response"]) == ["compaction", "message"]
    else:
        assert types(gateway.post("/v1/responses", asked).json()) == ["compaction", "message"]


def test_over_the_window_is_compacted_where_asked_for(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """An input over the whole window goes on from its summary instead of being refused."""
    backend.script(Summary("SUM"), Text("done"))
    asked = {"model": "small", "input": session(8_200, "window"), "context_management": at(1_000_000)}
    backend.window = 8_192
    response = gateway.post("/v1/responses", asked)
    assert response.status_code == 200, response.text
    assert types(response.json()) == ["compaction", "message"]


def test_the_only_slot_is_free_for_the_summary(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A deployment with `max_parallel_requests: 1` serves the summary and then the answer."""
    backend.script(Summary("SUM"), Text("done"))
    response = gateway.post("/v1/responses", {"model": "one-slot", "input": session(2_500, "slot")})
    assert types(response.json()) == ["compaction", "message"], gateway.log()[-3000:]


def test_usage_that_nobody_reports_is_of_what_was_sent(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """The answer's part is counted from the compacted input, whatever is known of the model's window."""
    backend.script(Summary("SUM", usage=SPENT), Text("done", usage=None))
    asked = {"model": "unknown", "input": session(3_000, "unreported"), "context_management": at(1_000)}
    usage = gateway.post("/v1/responses", asked).json()["usage"]
    assert SPENT[0] < usage["input_tokens"] < SPENT[0] + 500


def test_the_same_request_again_is_not_paid_again(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A client that tries again gets the same item and is told the same of it."""
    asked = {"model": "auto-low", "input": session(2_500, "again")}
    backend.script(Summary("SUM"), Text("one"), Text("two"))
    first, second = (gateway.post("/v1/responses", asked) for _ in range(2))
    assert types(first.json()) == ["compaction", "message"]
    assert second.json()["output"][0] == first.json()["output"][0]
    assert second.json()["usage"] == first.json()["usage"]
    for name in ("attempts", "tokens-before", "tokens-after"):
        assert second.headers[f"x-litellm-compaction-{name}"] == first.headers[f"x-litellm-compaction-{name}"]


def test_a_retry_of_the_router_tells_what_was_spent(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """The answer's backend fails once and LiteLLM tries again: one summary, and its tokens are in the usage."""
    backend.script(Summary("SUM", usage=SPENT), Failure(500, {"message": "boom"}), Text("done", usage=(50, 7)))
    asked = {"model": "auto-low", "input": session(2_500, "retry"), "num_retries": 1}
    response = gateway.post("/v1/responses", asked)
    assert response.status_code == 200, response.text
    assert types(response.json()) == ["compaction", "message"]
    assert response.json()["usage"]["total_tokens"] == 1_047
