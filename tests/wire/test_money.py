"""One row of spend for each real inference, under whom it was for; nothing twice, and nothing of it to a backend."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.backend import Answering, ScriptedBackend, Step, Summary, Text, is_summary_request
from tests.support.bodies import HISTORY, TRIGGER, Json, assistant, user
from tests.support.proxy import LiveProxy, base_config, running_proxy

CALLBACKS = """
import json
from litellm.integrations.custom_logger import CustomLogger

class Rows(CustomLogger):
    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        row = kwargs["standard_logging_object"]
        told = {name: row["metadata"].get("user_api_key_" + name) for name in ("hash", "team_id", "user_id")}
        print("ROW " + json.dumps(told | {
            "end_user": row["end_user"], "tags": row["request_tags"], "type": row["call_type"],
            "tokens": row["total_tokens"], "cost": row["response_cost"], "group": row["model_group"],
        }), flush=True)

rows = Rows()
"""
AUTH = """
from litellm.proxy._types import UserAPIKeyAuth

async def auth(request, api_key):
    team, _, person = api_key.removeprefix("sk-").partition("-")
    name = "hash-" + api_key
    return UserAPIKeyAuth(
        api_key=name, team_id=team, user_id=person, metadata={"tags": ["of-the-key"]}, tpm_limit=10**6
    )
"""
DOORS = ["trigger", "trigger-streamed", "compact", "threshold", "threshold-streamed"]
PRICE = 0.001


def config_for(backend: ScriptedBackend, **router: Any) -> Json:
    config = base_config(backend.url)
    for entry in config["model_list"]:
        entry["litellm_params"] |= {"input_cost_per_token": PRICE, "output_cost_per_token": PRICE}
        entry["model_info"] = {"compaction": {"context": 50_000, "output": 4_000}}
    config["litellm_settings"]["callbacks"] += ["rows.rows"]
    config["litellm_settings"]["enable_post_custom_auth_checks"] = True
    config["general_settings"].update(custom_auth="team_auth.auth", custom_auth_run_common_checks=True)
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True, **router}
    return config


@pytest.fixture(scope="module")
def gateway(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    with running_proxy(config_for(shared_backend), {"rows.py": CALLBACKS, "team_auth.py": AUTH}) as proxy:
        yield proxy


def send(proxy: LiveProxy, door: str, items: list[Json], key: str, **members: Any) -> httpx.Response:
    body: Json = {"model": "deepseek", "stream": door.endswith("streamed"), "user": "customer-7", **members}
    path = "/v1/responses"
    if door == "compact":
        path, body["input"] = "/v1/responses/compact", items
    elif door.startswith("threshold"):
        body["context_management"] = [{"type": "compaction", "compact_threshold": 1_000}]
        body["input"] = [items[0], assistant("word " * 2_000), *items[1:]]
    else:
        body["input"] = [*items, TRIGGER]
    with proxy.client(key) as client:
        return client.post(path, json=body, headers={"x-litellm-tags": "of-the-request"})


def rows(proxy: LiveProxy, key: str, number: int) -> list[Json]:
    """The rows of a key, when there are so many and the log has been still for a second: LiteLLM writes them later."""
    found: list[Json] = []
    since, give_up_at = time.monotonic(), time.monotonic() + 30
    while time.monotonic() < give_up_at:
        lines = [json.loads(line[4:]) for line in proxy.log().splitlines() if line.startswith("ROW ")]
        now = [row for row in lines if row["hash"] == f"hash-{key}"]
        if len(now) != len(found):
            found, since = now, time.monotonic()
        if len(found) >= number and time.monotonic() - since > 1:
            return found
        time.sleep(0.1)
    raise AssertionError(f"rows of {key}: {found}")


def usage_of(response: httpx.Response) -> Json:
    """The usage a client is told, of a body or of a stream's last event."""
    if response.headers["content-type"].startswith("text/event-stream"):
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        usage: Json = events[-1]["response"]["usage"]
        return usage
    body: Json = response.json()["usage"]
    return body


def scripted(*steps: Step) -> Answering:
    """Summaries by a script, everything else answered."""
    left = list(steps)
    return lambda body: left.pop(0) if is_summary_request(body) else Text("fine", usage=(7, 3))


@pytest.mark.parametrize("door", DOORS)
def test_one_row_for_each_inference(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A compaction that needed a repair is two rows with the caller, the end user, the request's tags and one more;
    what LiteLLM notes of the outer request costs nothing and has no tokens that are not its own."""
    key = f"sk-red-{door}"
    repaired = Text('{"summary": "S1"}', usage=(200, 30))
    left: list[Step] = [Text("prose", usage=(100, 20)), repaired]
    backend.answer_with(lambda _: left.pop(0) if left else Text("fine", usage=(7, 3)))
    response = send(gateway, door, list(HISTORY), key)
    assert response.status_code == 200, response.text
    answer = 10 if door.startswith("threshold") else 0
    found = rows(gateway, key, 3)
    booked = [row for row in found if row["type"] == "acompletion"]
    outer = [row for row in found if row["type"] != "acompletion"]
    assert sorted(row["tokens"] for row in booked) == [120, 230]
    assert [(row["tokens"], row["cost"]) for row in outer] == [(answer, pytest.approx(answer * PRICE))]
    for row in booked:
        assert row["cost"] == pytest.approx(row["tokens"] * PRICE)
        assert (row["team_id"], row["user_id"], row["end_user"]) == ("red", door, "customer-7")
        assert {"of-the-key", "of-the-request", "compaction"} <= set(row["tags"])
    assert usage_of(response)["total_tokens"] == 350 + answer


@pytest.mark.parametrize("door", ["trigger", "compact"])
def test_tokens_are_counted_once_against_the_limit(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """Of the key's tokens a minute a compaction takes what its inferences took, and no more."""
    key = f"sk-blue-{door}"
    backend.answer_with(scripted(Summary("S1", usage=(4_000, 100))))
    before = remaining(gateway, key)
    assert send(gateway, door, list(HISTORY), key).status_code == 200
    rows(gateway, key, 3)
    after = remaining(gateway, key)
    assert before - after == pytest.approx(4_110, abs=20)


def remaining(proxy: LiveProxy, key: str) -> int:
    """Tokens that LiteLLM says the key has left this minute, asked by an ordinary request of ten."""
    with proxy.client(key) as client:
        response = client.post("/v1/responses", json={"model": "deepseek", "input": "hi", "max_output_tokens": 5})
    assert response.status_code == 200, response.text
    rows(proxy, key, 1)
    return int(response.headers["x-ratelimit-api_key-remaining-tokens"])


@pytest.mark.parametrize("door", DOORS)
def test_nothing_of_the_proxy_reaches_a_backend(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """Neither members that a provider does not know nor anything that names the caller is in a request to a backend."""
    backend.answer_with(scripted(Summary("S1")))
    metadata = {"tags": ["of-the-body"], "trace": "trace-9"}
    response = send(gateway, door, [*HISTORY, user(door)], "sk-green-someone", metadata=metadata)
    assert response.status_code == 200, response.text
    summary = next(raw for raw, body in zip(backend.raw, backend.requests, strict=True) if is_summary_request(body))
    for word in (b"metadata", b"user_api_key", b"sk-green", b"someone", b"of-the", b"trace-9", b"litellm"):
        assert word not in summary


def test_tags_that_route_stay_the_requests_own(shared_backend: ScriptedBackend, backend: ScriptedBackend) -> None:
    """With tag filtering on, the summary is routed by the request's own tags, and its row has the plugin's tag too."""
    config = config_for(shared_backend, enable_tag_filtering=True)
    for entry in config["model_list"]:
        entry["litellm_params"]["tags"] = ["of-the-request"]
    with running_proxy(config, {"rows.py": CALLBACKS, "team_auth.py": AUTH}) as proxy:
        backend.answer_with(scripted(Summary("S1")))
        response = send(proxy, "trigger", list(HISTORY), "sk-red-tagged")
        assert response.status_code == 200, response.text
        booked = [row for row in rows(proxy, "sk-red-tagged", 2) if row["type"] == "acompletion"]
    assert [{"of-the-request", "compaction"} <= set(row["tags"]) for row in booked] == [True]
