"""Workers behind one port: one inference, one memory, items that open on all of them, with Redis and without."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tests.support.backend import Gated, ScriptedBackend, Step, Summary, Text, is_summary_request, request_text
from tests.support.bodies import HISTORY, TRIGGER, Json, compact, user
from tests.support.proxy import LiveProxy, base_config, running_proxy
from tests.support.redis import LiveRedis, running_redis

OLD, NEW = "old-secret-0123456789", "new-secret-0123456789"
# Says which worker a request came to, as it comes, and in its answer.
WHO = """
import os
from litellm.integrations.custom_logger import CustomLogger

class Who(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        print(f"worker {os.getpid()} was asked", flush=True)

    async def async_post_call_response_headers_hook(self, data, user_api_key_dict, response, **rest):
        return {"x-worker": str(os.getpid())}

who = Who()
"""
_TRIES = 100


def config_for(backend: ScriptedBackend, redis: LiveRedis, *keys: str) -> Json:
    config = base_config(backend.url, {"keys": list(keys), "cache": redis.url})
    config["litellm_settings"]["callbacks"].append("who.who")
    return config


def asked_workers(proxy: LiveProxy, skipped: int) -> set[str]:
    """The workers that were asked, after so many characters of the log."""
    lines = proxy.log()[skipped:].splitlines()
    return {line.split()[1] for line in lines if line.startswith("worker ") and line.endswith(" was asked")}


def on_both(proxy: LiveProxy, body: Json) -> dict[str, httpx.Response]:
    """One answer of each worker: a connection each time, until both have got one."""
    answers: dict[str, httpx.Response] = {}
    for _ in range(_TRIES):
        response = proxy.post("/v1/responses", body)
        answers[response.headers["x-worker"]] = response
        if len(answers) == 2:
            return answers
    raise AssertionError(f"only {set(answers)} of two workers answered")


def trigger(items: list[Json]) -> Json:
    return {"model": "deepseek", "input": [*items, TRIGGER]}


def another_history() -> list[Json]:
    """A transcript that nobody has asked for in this test."""
    return [*HISTORY, {**HISTORY[2], "id": "another"}]


@pytest.fixture(scope="module")
def redis() -> Iterator[LiveRedis]:
    with running_redis() as server:
        yield server


@pytest.fixture(scope="module")
def pair(shared_backend: ScriptedBackend, redis: LiveRedis) -> Iterator[LiveProxy]:
    """Two workers behind one port, with one Redis."""
    with running_proxy(config_for(shared_backend, redis, OLD), {"who.py": WHO}, workers=2) as proxy:
        yield proxy


def test_both_workers_wait_for_one_inference(pair: LiveProxy, backend: ScriptedBackend) -> None:
    """The same compaction asked for on both workers while it runs is paid once, and both hand out its item."""
    gate = threading.Event()
    backend.script(Gated(Summary("SUM"), gate))
    skipped = len(pair.log())
    with ThreadPoolExecutor(_TRIES) as pool:
        asked: list[Future[httpx.Response]] = []
        while len(asked_workers(pair, skipped)) < 2:
            assert len(asked) < _TRIES, "one worker takes all connections"
            asked.append(pool.submit(pair.post, "/v1/responses", trigger(HISTORY)))
            time.sleep(0.1)
        gate.set()
        answers = [entry.result() for entry in asked]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["x-worker"] for answer in answers}) == 2
    outputs = [answer.json()["output"] for answer in answers]
    assert outputs == [outputs[0]] * len(outputs)
    assert len(backend.requests) == 1


def test_workers_share_their_memory(pair: LiveProxy, backend: ScriptedBackend) -> None:
    """What one worker compacted the other gives again."""
    backend.script(Summary("SUM"))
    item = compact(pair, HISTORY, "deepseek")
    assert [answer.json()["output"] for answer in on_both(pair, trigger(HISTORY)).values()] == [[item], [item]]
    assert len(backend.requests) == 1


def test_items_open_on_both_workers(pair: LiveProxy, backend: ScriptedBackend) -> None:
    """The turn after a compaction goes on from the summary, whichever worker it comes to."""
    backend.script(Summary("S-FACT"))
    item = compact(pair, HISTORY)
    backend.answer_with(lambda _: Text("fine"))
    answers = on_both(pair, {"model": "local-model", "input": [item, user("go on")]})
    assert {answer.status_code for answer in answers.values()} == {200}
    assert all("S-FACT" in request_text(request) for request in backend.requests[1:])


def test_restarted_proxy_remembers_and_opens(
    pair: LiveProxy, shared_backend: ScriptedBackend, backend: ScriptedBackend, redis: LiveRedis
) -> None:
    """A new process with the same keys opens what was sealed before it started, and pays for nothing again."""
    backend.script(Summary("S-FACT"), Text("fine"))
    item = compact(pair, HISTORY)
    with running_proxy(config_for(shared_backend, redis, OLD), {"who.py": WHO}) as restarted:
        assert compact(restarted, HISTORY) == item
        response = restarted.post("/v1/responses", {"model": "local-model", "input": [item, user("go on")]})
    assert response.status_code == 200
    assert "S-FACT" in request_text(backend.requests[1])


def test_keys_rotate_and_redis_comes_and_goes(
    pair: LiveProxy, shared_backend: ScriptedBackend, backend: ScriptedBackend
) -> None:
    """With a new key first and the old one second both workers open old items. Without Redis each of them goes on alone
    and says so once; when it is back they share again."""

    def answer(body: Json) -> Step:
        return Summary(f"S-{len(backend.requests)}") if is_summary_request(body) else Text("fine")

    backend.answer_with(answer)
    item = compact(pair, HISTORY)
    with running_redis() as first:
        config = config_for(shared_backend, first, NEW, OLD)
        with running_proxy(config, {"who.py": WHO}, workers=2) as rotated:
            turns = on_both(rotated, {"model": "local-model", "input": [item, user("go on")]})
            assert {turn.status_code for turn in turns.values()} == {200}
            assert all("S-1" in request_text(request) for request in backend.requests[1:])

            first.stop()
            backend.requests.clear()
            alone = on_both(rotated, trigger(HISTORY))
            alone_again = on_both(rotated, trigger(HISTORY))
            assert {answered.status_code for answered in alone.values()} == {200}
            for worker, answered in alone.items():
                assert alone_again[worker].json()["output"] == answered.json()["output"]
            assert len(backend.requests) == 2
            assert rotated.log().count("Redis cannot be used") == 2

            backend.requests.clear()
            with running_redis(first.port):
                shared = on_both(rotated, trigger(another_history()))
                outputs = [answered.json()["output"] for answered in shared.values()]
            assert outputs[0] == outputs[1]
            assert len(backend.requests) == 1
            assert rotated.log().count("Redis cannot be used") == 2
