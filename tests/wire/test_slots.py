"""`max_parallel_requests: 1` of a key, of a team and of a deployment: a compaction takes one slot, and gives it back
however it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.support.backend import Failure, Gated, Hangup, ScriptedBackend, Step, Summary, Text, is_summary_request
from tests.support.bodies import HISTORY, TRIGGER, Json, assistant, user
from tests.support.proxy import LiveProxy, base_config, running_proxy

# A key is sk-<which limit>-<name>.
AUTH = """
from litellm.proxy._types import UserAPIKeyAuth

async def auth(request, api_key):
    which, _, name = api_key.removeprefix("sk-").partition("-")
    limit = {"key": {"max_parallel_requests": 1}, "team": {"team_max_parallel_requests": 1}, "none": {}}[which]
    return UserAPIKeyAuth(api_key=f"hash-{api_key}", team_id=f"team-{name}", **limit)
"""
DOORS = ["trigger", "trigger-streamed", "compact", "threshold", "threshold-streamed"]


@pytest.fixture(scope="module")
def gateway(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """Nothing repeated; a deployment of one request at a time, and one whose compactions may take two seconds."""
    config = base_config(shared_backend.url)
    params = {"model": "deepseek/served-model", "api_base": shared_backend.url, "api_key": "x"}
    small = {"context": 50_000, "output": 4_000}
    config["model_list"] = [
        {"model_name": "deepseek", "litellm_params": params, "model_info": {"compaction": small}},
        {
            "model_name": "narrow",
            "litellm_params": {**params, "max_parallel_requests": 1},
            "model_info": {"compaction": small},
        },
        {
            "model_name": "soon",
            "litellm_params": params,
            "model_info": {"compaction": {**small, "deadline_seconds": 2}},
        },
    ]
    config["general_settings"].update(custom_auth="team_auth.auth", custom_auth_run_common_checks=True)
    config["litellm_settings"]["enable_post_custom_auth_checks"] = True
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    with running_proxy(config, {"team_auth.py": AUTH}) as proxy:
        yield proxy


def request(door: str, items: list[Json], model: str) -> tuple[str, Json]:
    body: Json = {"model": model, "stream": door.endswith("streamed")}
    if door == "compact":
        return "/v1/responses/compact", {"model": model, "input": items}
    if door.startswith("threshold"):
        wish = [{"type": "compaction", "compact_threshold": 1_000}]
        return "/v1/responses", {
            **body,
            "context_management": wish,
            "input": [items[0], assistant("word " * 2_000), *items[1:]],
        }
    return "/v1/responses", {**body, "input": [*items, TRIGGER]}


def send(
    proxy: LiveProxy, door: str, items: list[Json], key: str, model: str = "deepseek", timeout: float = 60
) -> httpx.Response:
    path, body = request(door, items, model)
    with proxy.client(key) as client:
        return client.post(path, json=body, timeout=timeout)


def ordinary(proxy: LiveProxy, key: str, model: str = "deepseek") -> int:
    return proxy.post("/v1/responses", {"model": model, "input": "hi"}, key).status_code


def assert_free(proxy: LiveProxy, key: str, model: str = "deepseek") -> None:
    """The slot is there again, at most a moment after the answer: LiteLLM gives it back in a callback."""
    give_up_at = time.monotonic() + 20
    while (status := ordinary(proxy, key, model)) != 200:
        assert status == 429
        assert time.monotonic() < give_up_at, "the slot was never given back"
        time.sleep(0.1)


def answering(backend: ScriptedBackend, *steps: Step) -> None:
    """Summaries by the steps, everything else answered."""
    left = list(steps)
    backend.answer_with(lambda body: left.pop(0) if is_summary_request(body) and left else Text("fine"))


ENDS: dict[str, tuple[Step, ...]] = {
    "success": (Summary("S1"),),
    "failure": (Text("prose"), Text("prose")),
    "hangup": (Hangup(),),
    "rate-limit": (Failure(429, {"message": "slow down"}, {"retry-after": "700"}),),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("which", ["key", "team"])
def test_the_slot_is_free_after_every_end(
    gateway: LiveProxy, backend: ScriptedBackend, which: str, door: str, end: str
) -> None:
    """A compaction never waits for its own slot, and after any end of it the next request is served."""
    key = f"sk-{which}-{door}-{end}"
    answering(backend, *ENDS[end])
    status = send(gateway, door, list(HISTORY), key).status_code
    # At a threshold a compaction that fails leaves the request as it is.
    expected = {"failure": 400, "hangup": 400, "rate-limit": 429}.get(end, 200)
    assert status == (200 if door.startswith("threshold") else expected)
    assert_free(gateway, key)


@pytest.mark.parametrize("door", DOORS)
def test_the_slot_is_free_after_a_refusal(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A request that is refused before any backend is asked takes no slot along."""
    key = f"sk-key-refused-{door}"
    answering(backend)
    bad = {"type": "compaction", "encrypted_content": "gAAAAopaque"}
    for _ in range(2):
        assert send(gateway, door, [bad, *HISTORY], key).status_code == 400
    assert_free(gateway, key)


@pytest.mark.parametrize("door", DOORS)
def test_the_slot_is_free_after_a_timeout(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A compaction that is not done in time gives its slot back with the error."""
    key = f"sk-key-late-{door}"
    gate = threading.Event()
    answering(backend, Gated(Summary("late"), gate))
    assert send(gateway, door, list(HISTORY), key, "soon").status_code == (200 if "threshold" in door else 504)
    assert_free(gateway, key)
    gate.set()


@pytest.mark.parametrize("door", ["trigger-streamed", "threshold-streamed"])
def test_the_slot_is_free_after_a_lost_stream(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A client that hangs up in the middle of its stream gets its slot back, while the summary still runs or after."""
    key = f"sk-key-gone-{door}"
    gate = threading.Event()
    # At a threshold the stream begins after the compaction.
    answering(backend, Gated(Summary("S1"), gate) if door == "trigger-streamed" else Summary("S1"))
    path, body = request(door, list(HISTORY), "deepseek")
    with gateway.client(key) as client, client.stream("POST", path, json=body) as response:
        next(response.iter_lines())
    assert_free(gateway, key)
    gate.set()


@pytest.mark.parametrize("door", DOORS)
def test_the_slot_is_free_after_a_client_without_patience(
    gateway: LiveProxy, backend: ScriptedBackend, door: str
) -> None:
    """A client that goes away before the first byte gets its slot back when its compaction has ended."""
    key = f"sk-key-impatient-{door}"
    gate = threading.Event()
    answering(backend, Gated(Summary("S1"), gate))
    with pytest.raises(httpx.ReadTimeout):
        send(gateway, door, list(HISTORY), key, timeout=1)
    gate.set()
    assert_free(gateway, key)


@pytest.mark.parametrize("door", DOORS)
def test_a_deployment_of_one_request(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """The summary's own call finds the slot of a deployment that takes one request at a time, again and again."""
    answering(backend, Summary("S1"), Summary("S2"))
    for number in range(2):
        items = [*HISTORY, user(f"turn {number}")]
        assert send(gateway, door, items, f"sk-none-{door}", "narrow").status_code == 200
    assert_free(gateway, f"sk-none-{door}", "narrow")


@pytest.mark.parametrize("door", ["trigger", "compact", "threshold"])
def test_the_limit_is_in_force_meanwhile(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """While a key's compaction runs, a second request of the key is one too many."""
    key = f"sk-key-busy-{door}"
    gate = threading.Event()
    answering(backend, Gated(Summary("S1"), gate))
    answers: list[int] = []
    running = threading.Thread(target=lambda: answers.append(send(gateway, door, list(HISTORY), key).status_code))
    running.start()
    give_up_at = time.monotonic() + 30
    while not backend.requests:
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    assert ordinary(gateway, key) == 429
    gate.set()
    running.join()
    assert answers == [200]
    assert_free(gateway, key)
