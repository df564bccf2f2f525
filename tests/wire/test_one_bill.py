"""One bill: the same compaction asked for again, at once or later, here or on another worker, is paid once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from redis import Redis

from tests.support.backend import Gated, ScriptedBackend, Summary, Text, ToolCall
from tests.support.bodies import HISTORY, TRIGGER, Json
from tests.support.proxy import LiveProxy, base_config, read_events, running_proxy
from tests.support.redis import LiveRedis, running_redis


def ask(proxy: LiveProxy, items: list[Json], model: str = "deepseek") -> httpx.Response:
    return proxy.post("/v1/responses", {"model": model, "input": [*items, TRIGGER]})


def wait_for_requests(backend: ScriptedBackend, number: int) -> None:
    give_up_at = time.monotonic() + 30
    while len(backend.requests) < number:
        assert time.monotonic() < give_up_at, "the backend was not asked"
        time.sleep(0.05)


def lose_stream(proxy: LiveProxy, gate: threading.Event | None = None) -> None:
    """Ask for a streamed compaction and hang up at its first event; the gate opens only after that."""
    body = {"model": "deepseek", "stream": True, "input": [*HISTORY, TRIGGER]}
    with proxy.client() as client, client.stream("POST", "/v1/responses", json=body) as response:
        next(response.iter_lines())
    if gate is not None:
        gate.set()


def test_four_at_once_cost_one_inference(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """Four identical requests at one time, streamed and not, get one and the same item from one inference."""
    gate = threading.Event()
    backend.script(Gated(Summary("SUM"), gate))

    def stream(_: int) -> Json:
        events = proxy.stream("/v1/responses", {"model": "deepseek", "stream": True, "input": [*HISTORY, TRIGGER]})
        item: Json = events[-1]["response"]["output"][0]
        return item

    with ThreadPoolExecutor(4) as pool:
        plain = [pool.submit(ask, proxy, list(HISTORY)) for _ in range(2)]
        streams = [pool.submit(stream, number) for number in range(2)]
        wait_for_requests(backend, 1)
        gate.set()
        items = [entry.result().json()["output"][0] for entry in plain] + [entry.result() for entry in streams]
    assert items == [items[0]] * 4
    assert len(backend.requests) == 1


def test_asked_again_later_costs_nothing(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """The same answer is given again: item, usage and numbers; only the response has an id of its own."""
    backend.script(Summary("SUM"))
    first, second = ask(proxy, HISTORY), ask(proxy, HISTORY)
    for member in ("output", "usage", "model"):
        assert first.json()[member] == second.json()[member]
    numbers = [name for name in first.headers if name.startswith("x-litellm-compaction")]
    assert [first.headers[name] for name in numbers] == [second.headers[name] for name in numbers]
    assert first.json()["id"] != second.json()["id"]


def test_stream_lost_while_it_ran_costs_nothing_again(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A client that lost its stream and asks again joins the compaction that still runs."""
    gate = threading.Event()
    backend.script(Gated(Summary("SUM"), gate))
    lose_stream(proxy)
    body = {"model": "deepseek", "stream": True, "input": [*HISTORY, TRIGGER]}
    with proxy.client() as client, client.stream("POST", "/v1/responses", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        gate.set()
        events = read_events(lines)
    assert events[-1]["type"] == "response.completed"
    assert {event["item"]["id"] for event in events if "item" in event} == {events[-1]["response"]["output"][0]["id"]}


def test_stream_lost_before_the_end_costs_nothing_afterwards(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """What ran on without its client is there when it comes back."""
    gate = threading.Event()
    backend.script(Gated(Summary("SUM"), gate))
    lose_stream(proxy, gate)
    assert ask(proxy, HISTORY).status_code == 200


def test_plain_request_lost_is_finished_for_its_retry(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A client that is not streamed, times out and asks again pays once as well."""
    gate = threading.Event()
    backend.script(Gated(Summary("SUM"), gate))
    with proxy.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/responses", json={"model": "deepseek", "input": [*HISTORY, TRIGGER]}, timeout=2)
    gate.set()
    assert ask(proxy, HISTORY).status_code == 200


def test_failure_is_answered_from_memory(proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """A compaction that failed is not paid a second time within a minute: the same error comes back."""
    backend.script(Text("prose"), Text("prose"))
    first, second = ask(proxy, HISTORY), ask(proxy, HISTORY)
    assert first.status_code == 400
    assert first.json()["error"]["code"] == "compaction_failed"
    assert (second.status_code, second.json()) == (first.status_code, first.json())


@pytest.mark.parametrize("change", ["model", "door", "item"])
def test_another_request_is_another_compaction(proxy: LiveProxy, backend: ScriptedBackend, change: str) -> None:
    """Another model, door or transcript is not the same."""
    backend.script(Summary("ONE"), Summary("TWO"))
    ask(proxy, HISTORY)
    if change == "model":
        ask(proxy, HISTORY, "hosted")
    elif change == "door":
        proxy.post("/v1/responses/compact", {"model": "deepseek", "input": HISTORY})
    else:
        ask(proxy, [HISTORY[0], HISTORY[1], {**HISTORY[2], "id": "another"}])
    assert len(backend.requests) == 2


@pytest.fixture(scope="module")
def redis() -> Iterator[LiveRedis]:
    with running_redis() as server:
        yield server


@pytest.fixture(scope="module")
def workers(shared_backend: ScriptedBackend, redis: LiveRedis) -> Iterator[tuple[LiveProxy, LiveProxy]]:
    """Two proxies with the same keys on one Redis: one knows it from LiteLLM's cache, one from the plugin's setting."""
    first = base_config(shared_backend.url)
    params = {"type": "redis", "host": "127.0.0.1", "port": redis.port}
    first["litellm_settings"] |= {"cache": True, "cache_params": params}
    second = base_config(shared_backend.url, {"cache": redis.url})
    with running_proxy(first) as one, running_proxy(second) as two:
        yield one, two


def test_two_workers_share_one_inference(workers: tuple[LiveProxy, LiveProxy], backend: ScriptedBackend) -> None:
    """The same compaction asked for on two workers at one time runs on one of them; both hand out its item."""
    gate = threading.Event()
    backend.script(Gated(Summary("SUM"), gate))
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, worker, list(HISTORY)) for worker in (*workers, *workers)]
        wait_for_requests(backend, 1)
        gate.set()
        answers = [entry.result() for entry in asked]
    assert [answer.status_code for answer in answers] == [200] * 4
    outputs = [answer.json()["output"] for answer in answers]
    assert outputs == [outputs[0]] * 4


def test_two_workers_share_their_memory(workers: tuple[LiveProxy, LiveProxy], backend: ScriptedBackend) -> None:
    """What one worker finished the other gives again, a failure too."""
    backend.script(Summary("SUM"), Text("prose"), Text("prose"))
    outputs = [ask(worker, HISTORY).json()["output"] for worker in workers]
    assert outputs[0] == outputs[1]
    other = [*HISTORY, {**HISTORY[2], "id": "another"}]
    errors = [ask(worker, other) for worker in workers]
    assert [error.status_code for error in errors] == [400, 400]
    assert errors[0].json() == errors[1].json()


def test_redis_holds_nothing_readable(
    workers: tuple[LiveProxy, LiveProxy], backend: ScriptedBackend, redis: LiveRedis
) -> None:
    """What is shared is encrypted, under digests: items, and failures, which may quote the model or its backend."""
    planted = json.dumps({"summary": "s", "retain_item_ids": ["SECRET"]})
    bad = ToolCall((("create_summary", planted),))
    backend.script(Summary("THE SECRET SUMMARY"), bad, bad)
    ask(workers[0], HISTORY)
    assert "SECRET" in ask(workers[0], [*HISTORY, {**HISTORY[2], "id": "another"}]).text
    with Redis(port=redis.port) as client:
        dump = b"\n".join(key + client.get(key) for key in client.keys("litellm_compaction:*"))
    assert b"litellm_compaction:result:" in dump
    assert b"SECRET" not in dump
    assert b"heron" not in dump


def test_without_redis_a_worker_goes_on_alone(shared_backend: ScriptedBackend, backend: ScriptedBackend) -> None:
    """Redis gone: compactions work, single-flight holds within the worker, and the log says so once."""
    with running_redis() as gone:
        config = base_config(shared_backend.url, {"cache": gone.url})
        with running_proxy(config) as lonely:
            backend.script(Summary("ONE"), Summary("TWO"))
            assert ask(lonely, HISTORY).status_code == 200
            gone.stop()
            other = [*HISTORY, {**HISTORY[2], "id": "another"}]
            outputs = [ask(lonely, other).json()["output"] for _ in range(2)]
            assert outputs[0] == outputs[1]
            assert lonely.log().count("Redis cannot be used") == 1
