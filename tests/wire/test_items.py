"""Items that come back: expanded once, in their place, for every model, however a client spells them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.support.backend import ScriptedBackend, Summary, Text, message_texts, request_text
from tests.support.bodies import HISTORY, TRIGGER, Json, assistant, call, compact, output, system, user
from tests.support.proxy import LiveProxy

TOOLS = [{"type": "function", "name": "shell", "parameters": {"type": "object"}}]


def follow_up(proxy: LiveProxy, backend: ScriptedBackend, items: list[Any], model: str = "local-model") -> Json:
    """Send an ordinary turn; what the backend got."""
    backend.script(Text("fine"))
    response = proxy.post("/v1/responses", {"model": model, "input": items, "tools": TOOLS})
    assert response.status_code == 200, response.text
    return backend.requests[-1]


def texts(body: Json) -> list[tuple[str, str]]:
    """(role, text) of a chat request's messages."""
    return [(message["role"], "".join(message_texts(message))) for message in body["messages"]]


@pytest.mark.parametrize("model", ["local-model", "deepseek", "hosted"])
def test_item_is_expanded_at_its_place(proxy: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """The summary stands where the item stood, once, for whatever model reads it."""
    backend.script(Summary("the code word is heron"))
    item = compact(proxy, HISTORY)
    got = texts(follow_up(proxy, backend, [user("first words"), item, user("go on")], model))
    assert [role for role, _ in got] == ["user", "user", "user", "user"]
    assert got[0][1] == "first words"
    assert "the code word is heron" in got[1][1]
    assert got[-1][1] == "go on"
    assert str(got).count("the code word is heron") == 1


@pytest.mark.parametrize(
    "respell",
    [
        lambda item: {**item, "type": "compaction_summary"},
        lambda item: {**item, "type": "context_compaction"},
        lambda item: {key: value for key, value in item.items() if key != "id"},
        lambda item: {**item, "id": None},
        lambda item: {**item, "created_by": "somebody", "unknown_key": {"a": 1}},
        lambda item: {
            **item,
            "encrypted_content": f"litellm_enc:{base64.b64encode(b'model-id').decode()};{item['encrypted_content']}",
        },
    ],
    ids=["compaction_summary", "context_compaction", "no-id", "null-id", "unknown-keys", "litellm-wrapping"],
)
def test_every_spelling_is_read(proxy: LiveProxy, backend: ScriptedBackend, respell: Any) -> None:
    """What clients and LiteLLM make of an item on the way is accepted."""
    backend.script(Summary("S-FACT"))
    item = compact(proxy, HISTORY)
    assert "S-FACT" in request_text(follow_up(proxy, backend, [respell(item), user("go on")]))


def test_input_may_end_with_the_item(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """In the middle of a turn the item is the last thing, and the model is told to carry on."""
    backend.script(Summary("S-FACT"))
    item = compact(proxy, [user("t"), call("c1"), output("c1", "3 failed")])
    got = follow_up(proxy, backend, [user("t"), item])
    assert "S-FACT" in request_text(got)
    # The result nobody had reacted to is kept as it was, with its call.
    assert [message["role"] for message in got["messages"]][-2:] == ["assistant", "tool"]
    assert "3 failed" in texts(got)[-1][1]


def test_selected_items_come_back_verbatim(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """An item the model named is kept word for word, a call with its output, in the old order."""
    items = [
        user("t"),
        call("c1"),
        output("c1", "EXACT RESULT"),
        assistant("seen " * 400),
        user("next"),
        assistant("ok"),
    ]
    backend.script(Summary("S1", retain=("item_000003",)))
    got = follow_up(proxy, backend, [compact(proxy, items), user("go on")])
    roles = [message["role"] for message in got["messages"]]
    assert roles.index("assistant") == roles.index("tool") - 1
    assert ("tool", "EXACT RESULT") in texts(got)


def test_system_text_comes_back_only_where_none_is(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A client that cut its system message gets it back; one that sends its own keeps only its own."""
    backend.script(Summary("S1"))
    item = compact(proxy, [system("OLD RULES"), *HISTORY])
    without = follow_up(proxy, backend, [item, user("go on")])
    assert texts(without)[0] == ("system", "OLD RULES")
    own = follow_up(proxy, backend, [system("NEW RULES"), item, user("go on")])
    assert "OLD RULES" not in request_text(own)
    assert "NEW RULES" in request_text(own)


def test_second_compaction_folds_the_first_in(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """The earlier summary is shown to the summariser and replaced by its answer; items never nest."""
    backend.script(Summary("FIRST SUMMARY"), Summary("SECOND SUMMARY"))
    first = compact(proxy, [system("OLD RULES"), *HISTORY])
    second = compact(proxy, [user("fix the parser"), first])
    shown = request_text(backend.requests[1])
    assert shown.count("FIRST SUMMARY") == 1
    assert 'type="earlier_summary"' in shown
    # A client that still sends the first one does not get it expanded beside the second.
    got = follow_up(proxy, backend, [first, second, user("go on")])
    assert "FIRST SUMMARY" not in request_text(got)
    assert request_text(got).count("SECOND SUMMARY") == 1
    assert texts(got)[0] == ("system", "OLD RULES")


def test_earlier_summary_is_no_user_message(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """/responses/compact gives back the user's words, and an earlier summary is none of them."""
    backend.script(Summary("FIRST SUMMARY"), Summary("SECOND SUMMARY"))
    first = compact(proxy, HISTORY)
    body = proxy.post("/v1/responses/compact", {"model": "hosted", "input": [user("a"), first, user("b")]}).json()
    given = [item["content"][0]["text"] for item in body["output"][:-1]]
    assert not any("FIRST SUMMARY" in text for text in given)
    assert given[0] == "a"
    assert given[-1] == "b"


def test_compact_output_is_a_whole_new_window(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """The output of /responses/compact, sent back as it came with a new message, says everything once."""
    backend.script(Summary("S-FACT"))
    window = proxy.post("/v1/responses/compact", {"model": "local-model", "input": HISTORY}).json()["output"]
    got = request_text(follow_up(proxy, backend, [*window, user("and now?")]))
    for once in ("fix the parser", "go on", "S-FACT", "and now?"):
        assert got.count(once) == 1 or once == "go on"
    assert texts(backend.requests[-1])[-1][1] == "and now?"


def test_item_survives_another_proxy_with_the_same_keys(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """An item says nothing in clear, and holds the same for a request that is streamed."""
    backend.script(Summary("a very secret summary"), Text("fine"))
    item = compact(proxy, [user("hush hush"), assistant("yes")])
    assert "secret" not in str(item)
    assert "hush" not in str(item)
    body = {"model": "local-model", "stream": True, "input": [item, user("go on")]}
    assert proxy.stream("/v1/responses", body)[-1]["type"] == "response.completed"
    assert "a very secret summary" in request_text(backend.requests[-1])


def test_retried_trigger_after_an_item(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """An item directly before a trigger is a transcript like any other."""
    backend.script(Summary("S1"), Summary("S2"))
    item = compact(proxy, HISTORY)
    assert proxy.post("/v1/responses", {"model": "deepseek", "input": [item, TRIGGER]}).status_code == 200
