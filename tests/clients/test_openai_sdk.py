"""The OpenAI SDK's own calls work unchanged."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.responses import CompactedResponse, ResponseCompletedEvent, ResponseOutputItemDoneEvent

from tests.support.backend import ScriptedBackend, Summary, Text, request_text
from tests.support.bodies import HISTORY, TRIGGER, output, user
from tests.support.proxy import MASTER_KEY, LiveProxy, base_config, running_proxy

# The SDK types the user's messages of a compacted window as output messages and warns of it when it sends them back.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
FACT = "the code word is heron"


def client_of(proxy: LiveProxy) -> openai.OpenAI:
    """The SDK as a user sets it up; one try, so that an error is the first one."""
    return openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=MASTER_KEY, max_retries=0)


# The SDK types input items as unions of TypedDicts; a client that replays answers has plain objects.
def as_input(*items: Any) -> Any:
    return list(items)


def test_compact_and_replay(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """`responses.compact` returns a CompactedResponse whose output goes back as it came."""
    backend.script(Summary(FACT), Text("heron"))
    with client_of(proxy) as client:
        compacted = client.responses.compact(model="local-model", input=as_input(*HISTORY))
        assert isinstance(compacted, CompactedResponse)
        assert compacted.object == "response.compaction"
        assert compacted.output[-1].type == "compaction"
        assert compacted.usage.total_tokens == 120
        window = as_input(*compacted.output, user("the word?"))
        answer = client.responses.create(model="local-model", input=window)
    assert answer.output_text == "heron"
    assert FACT in request_text(backend.requests[-1])


def test_typed_output_is_replayed_as_objects(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """The typed items themselves can be put into the next input, without being turned into anything else."""
    backend.script(Summary(FACT), Text("heron"))
    with client_of(proxy) as client:
        response = client.responses.create(model="deepseek", input=as_input(*HISTORY, TRIGGER))
        assert [item.type for item in response.output] == ["compaction"]
        assert response.output_text == ""
        assert response.status == "completed"
        assert response.model == "deepseek"
        answer = client.responses.create(model="deepseek", input=as_input(*response.output, user("the word?")))
    assert answer.output_text == "heron"
    assert FACT in request_text(backend.requests[-1])


def test_streamed_trigger(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """`create(stream=True)` gives typed events, the item in `done` and in the completed response."""
    backend.script(Summary(FACT))
    with client_of(proxy) as client:
        events = list(client.responses.create(model="local-model", input=as_input(*HISTORY, TRIGGER), stream=True))
    done = [event for event in events if isinstance(event, ResponseOutputItemDoneEvent)]
    completed = events[-1]
    assert isinstance(completed, ResponseCompletedEvent)
    assert [event.item.type for event in done] == ["compaction"]
    assert completed.response.output[0].model_dump() == done[0].item.model_dump()


def test_stream_helper(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """`responses.stream` ends with a final response that holds the item."""
    backend.script(Summary(FACT))
    with (
        client_of(proxy) as client,
        client.responses.stream(model="local-model", input=as_input(*HISTORY, TRIGGER)) as stream,
    ):
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["compaction"]
    assert final.usage is not None
    assert final.usage.total_tokens == 120


async def test_async_client(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """The asynchronous client does the same."""
    backend.script(Summary(FACT), Summary("second"))
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=MASTER_KEY, max_retries=0) as client:
        compacted = await client.responses.compact(model="hosted", input=as_input(*HISTORY))
        again = await client.responses.create(model="hosted", input=as_input(*compacted.output, TRIGGER))
    assert [item.type for item in again.output] == ["compaction"]
    assert FACT in request_text(backend.requests[-1])


@pytest.mark.parametrize(
    ("items", "code", "param"),
    [
        ([TRIGGER, user("a")], None, "input"),
        ([output("c1", "x"), TRIGGER], "invalid_tool_pairing", "input"),
        ([{"type": "compaction", "encrypted_content": "gAAAAnonsense"}, user("a")], "invalid_encrypted_content", None),
    ],
    ids=["misplaced", "pairing", "foreign"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_errors_are_typed(
    proxy: LiveProxy, backend: ScriptedBackend, items: list[Any], code: str | None, param: str | None, stream: bool
) -> None:
    """A refusal is a BadRequestError with the contract's code and param, streamed or not."""
    with client_of(proxy) as client, pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model="local-model", input=as_input(*items), stream=stream)
    assert (raised.value.code, raised.value.param, raised.value.type) == (code, param, "invalid_request_error")
    assert backend.requests == []


def test_failure_status_is_the_operators(backend: ScriptedBackend) -> None:
    """With `failure_status: 500` a failed compaction is an InternalServerError with its code."""
    with running_proxy(base_config(backend.url, {"failure_status": 500})) as proxy, client_of(proxy) as client:
        backend.script(Text("prose"), Text("prose"))
        with pytest.raises(openai.InternalServerError) as raised:
            client.responses.compact(model="local-model", input=as_input(*HISTORY))
    assert raised.value.code == "compaction_failed"
