"""How compactions fail: before a stream as a status with a body, after its start as events, always with one code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.backend import Failure, Gated, Hangup, Reply, ScriptedBackend, Summary, Text
from tests.support.bodies import HISTORY, TRIGGER, Json, assistant, user
from tests.support.proxy import LiveProxy, base_config, read_event, running_proxy

# A wait that no deadline of these tests has room for: it is passed on at once.
RATE_LIMIT = Failure(429, {"message": "slow down", "type": "rate_limit_error"}, {"retry-after": "700"})
BAD_KEY = Failure(401, {"message": "bad key", "type": "authentication_error"})
NO_ACCESS = Failure(403, {"message": "no access", "type": "permission_error"})
DOORS = ["plain", "streamed", "compact"]


@pytest.fixture(scope="module")
def single_try(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """A proxy whose router repeats nothing, with models of short deadlines and of another failure status."""
    config = base_config(shared_backend.url)
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    for name, settings in (
        ("one-second", {"deadline_seconds": 1}),
        ("five-seconds", {"deadline_seconds": 5}),
        ("status-500", {"failure_status": 500}),
    ):
        params = {"model": "deepseek/served-model", "api_base": shared_backend.url, "api_key": "x"}
        config["model_list"].append(
            {"model_name": name, "litellm_params": params, "model_info": {"compaction": settings}}
        )
    with running_proxy(config) as proxy:
        yield proxy


def ask(proxy: LiveProxy, door: str, model: str = "local-model", items: list[Json] = HISTORY) -> httpx.Response:
    """A compaction through one of the doors."""
    if door == "compact":
        return proxy.post("/v1/responses/compact", {"model": model, "input": items})
    return proxy.post("/v1/responses", {"model": model, "stream": door == "streamed", "input": [*items, TRIGGER]})


@pytest.mark.parametrize("door", DOORS)
def test_rate_limit_keeps_retry_after(single_try: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A backend's rate limit is a 429 under whose `Retry-After`, by that very name, clients wait."""
    backend.answer_with(lambda _: RATE_LIMIT)
    response = ask(single_try, door)
    assert response.status_code == 429, response.text
    assert response.headers.get("retry-after") == "700"


@pytest.mark.parametrize("failure", [RATE_LIMIT, BAD_KEY, NO_ACCESS], ids=["429", "401", "403"])
@pytest.mark.parametrize("door", DOORS)
def test_callers_error_is_classed_as_litellm_does(
    single_try: LiveProxy, backend: ScriptedBackend, door: str, failure: Failure
) -> None:
    """Rate limits and access errors have LiteLLM's own status, type, param and code, streamed or not."""
    backend.answer_with(lambda _: failure)
    ordinary = single_try.post("/v1/responses", {"model": "local-model", "input": "hi"})
    response = ask(single_try, door)
    assert (ordinary.status_code, response.status_code) == (failure.status, failure.status)
    ours, theirs = response.json()["error"], ordinary.json()["error"]
    assert {key: ours[key] for key in ("type", "param", "code")} == {
        key: theirs[key] for key in ("type", "param", "code")
    }


@pytest.mark.parametrize("failure", [RATE_LIMIT, BAD_KEY, NO_ACCESS], ids=["429", "401", "403"])
def test_callers_error_is_worded_as_litellm_does(
    single_try: LiveProxy, backend: ScriptedBackend, failure: Failure
) -> None:
    """Rate limits and access errors come out in the words of an ordinary request's error."""
    backend.answer_with(lambda _: failure)
    ordinary = single_try.post("/v1/responses", {"model": "local-model", "input": "hi"})
    assert ask(single_try, "plain").json() == ordinary.json()


@pytest.mark.parametrize("door", DOORS)
def test_deadline_is_a_504(single_try: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A compaction over its deadline is compaction_timeout with 504, before a stream starts."""
    gate = threading.Event()
    backend.script(Gated(Summary("late"), gate))
    response = ask(single_try, door, "one-second")
    gate.set()
    assert response.status_code == 504, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("api_error", None, "compaction_timeout")


def late_events(proxy: LiveProxy, model: str, gate: threading.Event) -> list[dict[str, Any]]:
    """The events of a stream that opened before its compaction ended; the gate opens at the first of them."""
    body = {"model": model, "stream": True, "input": [*HISTORY, TRIGGER]}
    events = []
    with proxy.client() as client, client.stream("POST", "/v1/responses", json=body) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            event = read_event(line)
            if event is not None:
                events.append(event)
                if model != "five-seconds":
                    gate.set()
    gate.set()
    return events


LATE = pytest.mark.parametrize(
    ("model", "step", "code"),
    [
        ("five-seconds", Summary("never in time"), "compaction_timeout"),
        ("local-model", RATE_LIMIT, "rate_limit_exceeded"),
        ("local-model", BAD_KEY, "invalid_api_key"),
        ("status-500", Failure(503, {"message": "on fire"}), "compaction_failed"),
    ],
    ids=["deadline", "429", "401", "503"],
)


@LATE
def test_failure_after_the_start_has_its_code(
    single_try: LiveProxy, backend: ScriptedBackend, model: str, step: Reply | Failure, code: str
) -> None:
    """After a stream has begun a failure is told by `response.failed` with the one code, numbered without gaps."""
    gate = threading.Event()
    backend.script(Gated(step, gate))
    events = late_events(single_try, model, gate)
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"], failed["output"]) == ("failed", code, [])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@LATE
def test_failure_after_the_start_is_two_events(
    single_try: LiveProxy, backend: ScriptedBackend, model: str, step: Reply | Failure, code: str
) -> None:
    """After a stream has begun a failure is `error`, then `response.failed`, with one code, and nothing more."""
    gate = threading.Event()
    backend.script(Gated(step, gate))
    events = late_events(single_try, model, gate)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "error",
        "response.failed",
    ]
    assert (events[3].get("error") or events[3])["code"] == code


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("model", "status"), [("local-model", 400), ("status-500", 500)])
def test_no_valid_summary_has_the_operators_status(
    single_try: LiveProxy, backend: ScriptedBackend, model: str, status: int, door: str
) -> None:
    """Two invalid answers are compaction_failed under `failure_status`, on every door, and no third is asked for."""
    backend.script(Text("prose"), Text("more prose"))
    response = ask(single_try, door, model)
    assert response.status_code == status
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("api_error", None, "compaction_failed")


@pytest.mark.parametrize("door", DOORS)
def test_hangup_is_a_failed_compaction(single_try: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A backend that hangs up ends in compaction_failed, never in an empty success."""
    backend.answer_with(lambda _: Hangup())
    response = ask(single_try, door)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "compaction_failed")


@pytest.mark.parametrize("door", DOORS)
def test_repair_is_counted_everywhere(single_try: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """An invalid answer and a valid one are two attempts in the header and one sum in the usage."""
    backend.script(Text("prose", usage=(11, 2)), Text('{"summary": "S1"}', usage=(13, 4)))
    response = ask(single_try, door)
    assert response.headers["x-litellm-compaction-attempts"] == "2"
    if door == "streamed":
        assert '"input_tokens":24' in response.text.replace(" ", "")
        assert '"total_tokens":30' in response.text.replace(" ", "")
        return
    usage = response.json()["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (24, 6, 30)


def test_a_failure_changes_nothing(single_try: LiveProxy, backend: ScriptedBackend) -> None:
    """After a failure the conversation goes on with a model that hears all of it."""
    backend.script(Text("prose"), Text("more prose"), Text("fine"))
    items = [user("a failure keeps this"), assistant("noted")]
    assert ask(single_try, "plain", items=items).status_code == 400
    response = single_try.post("/v1/responses", {"model": "local-model", "input": [*items, user("go on")]})
    assert response.status_code == 200, response.text
    assert "a failure keeps this" in str(backend.requests[-1])
