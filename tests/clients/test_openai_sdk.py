"""The OpenAI SDK's own calls work unchanged."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import CompactedResponse, ResponseCompletedEvent, ResponseOutputItemDoneEvent

from tests.support.backend import Failure, ScriptedBackend, Summary, Text, request_text
from tests.support.bodies import HISTORY, TRIGGER, assistant, output, user
from tests.support.proxy import MASTER_KEY, LiveProxy

# The SDK types the user's messages of a compacted window as output messages and warns of it when it sends them back.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
# In no item kept verbatim: where it arrives, the summary arrived.
FACT = "the summary says heron"
NEXT = user("the word?")


@pytest.fixture
def client(proxy: LiveProxy) -> Iterator[openai.OpenAI]:
    """The SDK as a user sets it up; one try, so that an error is the first one."""
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=MASTER_KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def history() -> list[Any]:
    """A transcript no other test sends: a compaction asked for again would be answered from memory."""
    return [*HISTORY, user(f"this is {uuid.uuid4()}")]


@pytest.fixture
async def async_client(proxy: LiveProxy) -> AsyncIterator[openai.AsyncOpenAI]:
    """The asynchronous SDK, set up likewise."""
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=MASTER_KEY, max_retries=0) as client:
        yield client


# The SDK types input items as unions of TypedDicts; a client that replays answers has plain objects.
def as_input(*items: Any) -> Any:
    return list(items)


def check_event_order(events: list[Any]) -> None:
    """Fails unless the events are typed, in order, and hold one and the same item."""
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done, completed = events[-2:]
    assert isinstance(done, ResponseOutputItemDoneEvent)
    assert isinstance(completed, ResponseCompletedEvent)
    assert done.item.type == "compaction"
    assert [item.model_dump() for item in completed.response.output] == [done.item.model_dump()]
    assert events[2].item.id == done.item.id


def test_compact_and_replay(client: openai.OpenAI, backend: ScriptedBackend, history: list[Any]) -> None:
    """`responses.compact` returns a CompactedResponse whose output goes back as it came."""
    backend.script(Summary(FACT), Text("heron"))
    compacted = client.responses.compact(model="local-model", input=as_input(*history))
    assert isinstance(compacted, CompactedResponse)
    assert compacted.object == "response.compaction"
    assert [item.type for item in compacted.output] == ["message", "message", "message", "compaction"]
    assert compacted.usage.total_tokens == 120
    answer = client.responses.create(model="local-model", input=as_input(*compacted.output, NEXT))
    assert answer.output_text == "heron"
    assert FACT in request_text(backend.requests[-1])


def test_trigger_and_replay(client: openai.OpenAI, backend: ScriptedBackend, history: list[Any]) -> None:
    """`responses.create` with a trigger returns an ordinary Response whose typed output goes back as it came."""
    backend.script(Summary(FACT), Text("heron"))
    response = client.responses.create(model="deepseek", input=as_input(*history, TRIGGER))
    assert [item.type for item in response.output] == ["compaction"]
    assert response.output_text == ""
    assert response.status == "completed"
    assert response.model == "deepseek"
    assert response.usage is not None
    assert response.usage.total_tokens == 120
    answer = client.responses.create(model="deepseek", input=as_input(*response.output, NEXT))
    assert answer.output_text == "heron"
    assert FACT in request_text(backend.requests[-1])


def test_streamed_trigger(client: openai.OpenAI, backend: ScriptedBackend, history: list[Any]) -> None:
    """`create(stream=True)` gives typed events in order, the item in `done` and in the completed response."""
    backend.script(Summary(FACT))
    check_event_order(
        list(client.responses.create(model="local-model", input=as_input(*history, TRIGGER), stream=True))
    )


def test_stream_helper_and_replay(client: openai.OpenAI, backend: ScriptedBackend, history: list[Any]) -> None:
    """`responses.stream` ends with a final response whose output goes back as it came, into a stream as well."""
    backend.script(Summary(FACT), Text("heron"))
    with client.responses.stream(model="local-model", input=as_input(*history, TRIGGER)) as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["compaction"]
    assert final.usage is not None
    assert final.usage.total_tokens == 120
    with client.responses.stream(model="local-model", input=as_input(*final.output, NEXT)) as stream:
        assert stream.get_final_response().output_text == "heron"
    assert FACT in request_text(backend.requests[-1])


async def test_async_compact_trigger_and_replay(
    async_client: openai.AsyncOpenAI, backend: ScriptedBackend, history: list[Any]
) -> None:
    """The asynchronous client compacts by both doors, one after the other, and goes on."""
    backend.script(Summary("the first summary"), Summary(FACT), Text("heron"))
    compacted = await async_client.responses.compact(model="hosted", input=as_input(*history))
    again = await async_client.responses.create(model="hosted", input=as_input(*compacted.output, TRIGGER))
    assert "the first summary" in request_text(backend.requests[-1])
    assert [item.type for item in again.output] == ["compaction"]
    answer = await async_client.responses.create(model="hosted", input=as_input(*again.output, NEXT))
    assert answer.output_text == "heron"
    assert FACT in request_text(backend.requests[-1])


async def test_async_streams(async_client: openai.AsyncOpenAI, backend: ScriptedBackend, history: list[Any]) -> None:
    """The asynchronous client streams a trigger, by `create(stream=True)` and by the helper."""
    backend.script(Summary("the first summary"), Summary(FACT))
    items = as_input(*history, TRIGGER)
    events = await async_client.responses.create(model="local-model", input=items, stream=True)
    check_event_order([event async for event in events])
    more = as_input(*history, NEXT, TRIGGER)
    async with async_client.responses.stream(model="local-model", input=more) as stream:
        final = await stream.get_final_response()
    assert [item.type for item in final.output] == ["compaction"]


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([TRIGGER, user("a")], None),
        ([user("a"), TRIGGER, TRIGGER], None),
        ([TRIGGER], "missing_required_parameter"),
        ([output("c1", "x"), TRIGGER], "invalid_tool_pairing"),
    ],
    ids=["misplaced", "twice", "nothing", "pairing"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_trigger_errors_are_typed(
    client: openai.OpenAI, backend: ScriptedBackend, items: list[Any], code: str | None, stream: bool
) -> None:
    """A refused trigger is a BadRequestError with the contract's code and param, streamed or not."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model="local-model", input=as_input(*items), stream=stream)
    assert (raised.value.code, raised.value.param, raised.value.type) == (code, "input", "invalid_request_error")
    assert backend.requests == []


FOREIGN = {"type": "compaction", "encrypted_content": "gAAAAnonsense"}


@pytest.mark.parametrize(
    ("call", "code", "param"),
    [
        (lambda r: r.compact(model="local-model", input=[]), "missing_required_parameter", "input"),
        (lambda r: r.compact(model="local-model", input=[*HISTORY, TRIGGER]), None, "input"),
        (
            lambda r: r.compact(model="local-model", previous_response_id="resp_unknown"),
            "previous_response_not_found",
            "previous_response_id",
        ),
        (lambda r: r.compact(model="local-model", input=[FOREIGN, NEXT]), "invalid_encrypted_content", None),
        (lambda r: r.create(model="local-model", input=[FOREIGN, NEXT]), "invalid_encrypted_content", None),
        (lambda r: r.create(model="local-model", input=[FOREIGN], stream=True), "invalid_encrypted_content", None),
    ],
    ids=["compact-nothing", "compact-trigger", "compact-chain", "compact-foreign", "foreign", "foreign-streamed"],
)
def test_other_errors_are_typed(
    client: openai.OpenAI, backend: ScriptedBackend, call: Callable[[Any], object], code: str | None, param: str | None
) -> None:
    """What `compact` refuses, and an item nobody can open, are BadRequestErrors as well."""
    with pytest.raises(openai.BadRequestError) as raised:
        call(client.responses)
    assert (raised.value.code, raised.value.param, raised.value.type) == (code, param, "invalid_request_error")
    assert backend.requests == []


async def test_async_error_is_typed(async_client: openai.AsyncOpenAI, backend: ScriptedBackend) -> None:
    """The asynchronous client raises the same, before any event of a stream."""
    with pytest.raises(openai.BadRequestError) as raised:
        await async_client.responses.create(model="local-model", input=as_input(TRIGGER, NEXT), stream=True)
    assert (raised.value.code, raised.value.param, raised.value.type) == (None, "input", "invalid_request_error")
    assert backend.requests == []


@pytest.mark.parametrize(
    ("model", "error"),
    [("local-model", openai.BadRequestError), ("fails-with-500", openai.InternalServerError)],
    ids=["400", "500"],
)
@pytest.mark.parametrize("door", ["compact", "plain", "streamed"])
def test_failure_status_is_the_operators(
    client: openai.OpenAI,
    backend: ScriptedBackend,
    model: str,
    error: type[openai.APIStatusError],
    door: str,
    history: list[Any],
) -> None:
    """A failed compaction is a BadRequestError, with `failure_status: 500` an InternalServerError, with its code."""
    backend.answer_with(lambda _: Text("prose"))
    calls: dict[str, Callable[[], object]] = {
        "compact": lambda: client.responses.compact(model=model, input=as_input(*history)),
        "plain": lambda: client.responses.create(model=model, input=as_input(*history, TRIGGER)),
        "streamed": lambda: client.responses.create(model=model, input=as_input(*history, TRIGGER), stream=True),
    }
    with pytest.raises(error) as raised:
        calls[door]()
    assert (raised.value.code, raised.value.param, raised.value.type) == ("compaction_failed", None, "api_error")
    assert 1 <= len(backend.requests) <= 3


def long_history(mark: str) -> list[Any]:
    return [user(f"the task {mark}"), assistant("word " * 1_500), NEXT]


def test_context_management(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    """The SDK's own parameter: the typed item first, the answer after it; its output goes back as it came."""
    backend.script(Summary(FACT), Text("heron"), Text("heron again"))
    items = long_history(f"{uuid.uuid4()}")
    wish: Any = [{"type": "compaction", "compact_threshold": 1_000}]
    answer = client.responses.create(model="local-model", input=as_input(*items), context_management=wish)
    assert [item.type for item in answer.output] == ["compaction", "message"]
    assert answer.output_text == "heron"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 135
    following = as_input(*items, *answer.output, user("again?"))
    again = client.responses.create(model="local-model", input=following, context_management=wish)
    assert [item.type for item in again.output] == ["message"]
    assert FACT in request_text(backend.requests[-1])
    assert "word word" not in request_text(backend.requests[-1])


def test_context_management_streamed(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    """The SDK's stream accumulates the answer behind the item."""
    backend.script(Summary(FACT), Text("heron"))
    wish: Any = [{"type": "compaction", "compact_threshold": 1_000}]
    items = as_input(*long_history(f"{uuid.uuid4()}"))
    with client.responses.stream(model="local-model", input=items, context_management=wish) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in final.output] == ["compaction", "message"]
    assert final.output_text == "heron"


def test_too_long_is_typed(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    """A backend's overflow arrives with the code that programs look for."""
    # Without a number: the proxy serves other tests, and would hold them to a window that a backend has named.
    backend.script(Failure(400, {"message": "the request exceeds the available context size, try increasing it"}))
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="local-model", input="hello")
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
