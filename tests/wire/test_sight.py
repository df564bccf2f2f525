"""What an operator and a client see of compactions: Prometheus, one log line, headers; never text."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import httpx
import pytest

from litellm_compaction.envelope.payload import MAX_PLAIN_BYTES, Payload, compress
from litellm_compaction.envelope.sealing import PREFIX, Caller, KeyRing, seal_payload, write_unsealed
from litellm_compaction.errors import Unreadable
from tests.support.backend import Failure, Gated, ScriptedBackend, Summary, Text
from tests.support.bodies import HISTORY, TRIGGER, Json, assistant, user
from tests.support.proxy import LiveProxy, base_config, read_events, running_proxy
from tests.support.scrape import growth, read_lines, series
from tests.wire.test_one_bill import wait_for_requests

SECRET = "sight-secret-0123456789"
# Keys are sk-<team>-<user>; whatever an operator's own authentication calls a key is no better than the key itself.
AUTH = """
from litellm.proxy._types import LitellmUserRoles, UserAPIKeyAuth

async def auth(request, api_key):
    team, _, person = api_key.removeprefix("sk-").partition("-")
    return UserAPIKeyAuth(api_key=f"raw-key-{team}-{person}", team_id=team, user_id=person)
"""
KEY = "sk-red-ann"
SPENT = (900, 90)


def with_models(backend: ScriptedBackend, callbacks: list[str], **settings: Any) -> Json:
    config = base_config(backend.url, {"keys": [SECRET], **settings})
    config["litellm_settings"]["callbacks"] = callbacks
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    params = {"model": "deepseek/served-model", "api_base": backend.url, "api_key": "x"}
    low = {"auto_compact": True, "context": 100_000, "output": 4_000, "threshold": 2_000, "max_attempts": 1}
    groups: dict[str, Json] = {
        "auto-low": low,
        "noting": {"foreign_items": "note"},
        "hurried": {"deadline_seconds": 1},
        "small": {"context": 2_000, "output": 200},
        "small-too": {"context": 2_000, "output": 200},
        "ledger": {"on_failure": "ledger", "max_attempts": 1},
    }
    for name, own in groups.items():
        config["model_list"].append({"model_name": name, "litellm_params": params, "model_info": {"compaction": own}})
    config["model_list"].append({"model_name": "wild/*", "litellm_params": {**params, "model": "deepseek/*"}})
    return config


@pytest.fixture(scope="module")
def gateway(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """A proxy with teams, LiteLLM's `prometheus` callback and its log at INFO."""
    config = with_models(shared_backend, ["litellm_compaction.handler", "prometheus"])
    config["general_settings"].update(custom_auth="team_auth.auth")
    with running_proxy(config, {"team_auth.py": AUTH}, env={"LITELLM_LOG": "INFO"}) as proxy:
        yield proxy


def ask(proxy: LiveProxy, model: str, items: list[Json], key: str = KEY, **body: Any) -> httpx.Response:
    return proxy.post("/v1/responses", {"model": model, "input": items, **body}, key)


def session(mark: str, tokens: int = 2_500) -> list[Json]:
    """A finished exchange of about so many tokens, and a question."""
    return [user(f"the task {mark}"), assistant("word " * tokens), user("and now?")]


def at(tokens: int) -> list[Json]:
    return [{"type": "compaction", "compact_threshold": tokens}]


def run_of(door: str, model: str, *, attempts: float = 1) -> dict[Any, float]:
    """What a completed compaction adds, but for counts of tokens and seconds."""
    of = {"door": door, "model": model}
    return {
        series("runs_total", **of, outcome="completed"): 1,
        series("attempts_total", **of): attempts,
        series("items_total", **of): 3,
        series("spent_tokens_total", **of, kind="input"): SPENT[0],
        series("spent_tokens_total", **of, kind="output"): SPENT[1],
        series("before_tokens_count", **of): 1,
        series("after_tokens_count", **of): 1,
        series("duration_seconds_count", **of): 1,
    }


def counted(grown: dict[Any, float]) -> dict[Any, float]:
    return {name: value for name, value in grown.items() if not name[0].endswith("_sum")}


def doors(proxy: LiveProxy, door: str) -> httpx.Response:
    """One compaction through a door, on `hosted` or on the model that has a threshold of the operator's."""
    if door == "trigger":
        return ask(proxy, "hosted", [*HISTORY, TRIGGER])
    if door == "compact":
        return proxy.post("/v1/responses/compact", {"model": "hosted", "input": HISTORY}, KEY)
    if door == "threshold":
        return ask(proxy, "hosted", session(str(HISTORY[0])), context_management=at(1_000))
    return ask(proxy, "auto-low", session(str(HISTORY[0])))


@pytest.mark.parametrize("door", ["trigger", "compact", "threshold", "auto"])
def test_each_door_is_counted_once(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """One compaction adds one run, its inferences, items and tokens under its door and model, and nothing else."""
    answer = [] if door in {"trigger", "compact"} else [Text("done")]
    backend.script(Summary("SUM", usage=SPENT), *answer)
    with growth(gateway) as grown:
        response = doors(gateway, door)
    assert response.status_code == 200, response.text
    model = "auto-low" if door == "auto" else "hosted"
    assert counted(grown) == run_of(door, model)
    of = {"door": door, "model": model}
    assert 0 < grown[series("after_tokens_sum", **of)] < grown[series("before_tokens_sum", **of)]
    assert grown[series("duration_seconds_sum", **of)] < 30


def test_ordinary_requests_leave_no_trace(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A request that has nothing to do with the plugin adds nothing to the metrics and no line to the log."""
    backend.script(Text("hello"))
    seen = len(gateway.log())
    with growth(gateway) as grown:
        assert ask(gateway, "hosted", [user("hi")]).status_code == 200
    assert grown == {}
    assert read_lines(gateway.log()[seen:]) == []


def test_failure_is_counted_with_its_code_and_paid_once(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """No valid summary: a run with the code, its attempts and tokens; asked again, it is remembered and no run."""
    backend.script(Text("prose", usage=(10, 5)), Text("prose", usage=(10, 5)))
    seen = len(gateway.log())
    with growth(gateway) as grown:
        answers = [ask(gateway, "hosted", [*HISTORY, TRIGGER]) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [400, 400]
    of = {"door": "trigger", "model": "hosted"}
    assert counted(grown) == {
        series("runs_total", **of, outcome="compaction_failed"): 1,
        series("reused_total", **of, source="remembered", outcome="compaction_failed"): 1,
        series("attempts_total", **of): 2,
        series("spent_tokens_total", **of, kind="input"): 20,
        series("spent_tokens_total", **of, kind="output"): 10,
        series("duration_seconds_count", **of): 1,
    }
    ran, again = read_lines(gateway.log()[seen:])
    assert (ran["source"], ran["outcome"], ran["attempts"]) == ("run", "compaction_failed", "2")
    assert (again["source"], again["outcome"], again["attempts"]) == ("remembered", "compaction_failed", "0")
    assert ":WARNING: " in next(line for line in gateway.log()[seen:].splitlines() if "source=run" in line)


def test_deadline_and_callers_errors_have_outcomes(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A deadline, a rate limit and a transcript that cannot be compacted are told apart."""
    gate = threading.Event()
    slow = Failure(429, {"message": "slow down"}, {"retry-after": "700"})
    backend.script(Gated(Summary("LATE"), gate), slow)
    with growth(gateway) as grown:
        assert ask(gateway, "hurried", [*HISTORY, TRIGGER]).status_code == 504
        gate.set()
        assert ask(gateway, "hosted", [*HISTORY, TRIGGER]).status_code == 429
        broken = [user("a"), {"type": "function_call_output", "call_id": "c", "output": "x"}, TRIGGER]
        assert ask(gateway, "hosted", broken).status_code == 400
    runs = {dict(labels)["outcome"]: value for labels, value in grown.of("runs_total").items()}
    assert runs == {"compaction_timeout": 1, "rate_limit_exceeded": 1}
    # What cannot be compacted at all is no failure of a compaction.
    assert grown.of("refused_requests_total") == {series("", code="invalid_tool_pairing")[1]: 1}


def test_ledger_is_an_outcome(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A ledger in place of a model's summary is told apart, with the code of what kept the model from writing."""
    backend.script(Text("prose"))
    seen = len(gateway.log())
    with growth(gateway) as grown:
        response = ask(gateway, "ledger", [*HISTORY, TRIGGER])
    assert response.status_code == 200, response.text
    assert grown[series("runs_total", door="trigger", model="ledger", outcome="ledger")] == 1
    (line,) = read_lines(gateway.log()[seen:])
    assert (line["outcome"], line["ledger_after"]) == ("ledger", "compaction_failed")


def test_dropped_items_are_counted(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """What had to be left out after an overflow is in the metrics, the log and the headers, with one number."""
    items = [entry for number in range(20) for entry in (user(f"q{number} {HISTORY[0]}"), assistant("word " * 200))]
    words = {"message": "The prompt is too long.", "code": "context_length_exceeded"}
    backend.script(Failure(400, words), Summary("SUM", usage=SPENT))
    seen = len(gateway.log())
    with growth(gateway) as grown:
        response = ask(gateway, "hosted", [*items, TRIGGER])
    assert response.status_code == 200, response.text
    dropped = int(response.headers["x-litellm-compaction-dropped"])
    of = {"door": "trigger", "model": "hosted"}
    assert 0 < dropped == grown[series("dropped_items_total", **of)]
    assert (grown[series("items_total", **of)], grown[series("attempts_total", **of)]) == (40, 2)
    (line,) = read_lines(gateway.log()[seen:])
    assert (line["dropped"], line["attempts"]) == (str(dropped), "2")


def test_joined_and_remembered_are_not_paid_again(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """One runs, one joins it while it runs, one is remembered: one run and one inference, and three lines."""
    gate = threading.Event()
    backend.script(Gated(Summary("SUM", usage=SPENT), gate))
    seen = len(gateway.log())
    body = {"model": "hosted", "input": [*HISTORY, TRIGGER]}
    with growth(gateway) as grown, ThreadPoolExecutor(1) as pool, gateway.client(KEY) as client:
        first = pool.submit(ask, gateway, "hosted", [*HISTORY, TRIGGER])
        wait_for_requests(backend, 1)
        with client.stream("POST", "/v1/responses", json={**body, "stream": True}) as second:
            lines = second.iter_lines()
            next(lines)  # it waits for the one that runs
            early = {name: value for name, value in second.headers.items() if name.startswith("x-litellm-compaction")}
            assert early == {"x-litellm-compaction": "trigger", "x-litellm-compaction-model": "hosted"}
            gate.set()
            assert read_events(lines)[-1]["type"] == "response.completed"
        assert first.result().status_code == 200
        third = ask(gateway, "hosted", [*HISTORY, TRIGGER])
    of = {"door": "trigger", "model": "hosted"}
    assert counted(grown) == {
        **run_of("trigger", "hosted"),
        series("reused_total", **of, source="joined", outcome="completed"): 1,
        series("reused_total", **of, source="remembered", outcome="completed"): 1,
    }
    told = read_lines(gateway.log()[seen:])
    assert sorted(line["source"] for line in told) == ["joined", "remembered", "run"]
    assert {line["item"] for line in told} == {third.json()["output"][0]["id"]}
    assert len({line["call"] for line in told}) == 3


def test_prefix_is_remembered_and_extended(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A client that sends its history again, and then with more behind it, pays nothing, and both are told apart."""
    items = session(str(HISTORY[0]))
    backend.script(Summary("SUM", usage=SPENT), Text("one"), Text("two"), Text("three"))
    ask(gateway, "auto-low", items)
    with growth(gateway) as grown:
        ask(gateway, "auto-low", items)
        longer = ask(gateway, "auto-low", [*items, assistant("one"), user("more")])
    assert longer.headers["x-litellm-compaction-attempts"] == "0"
    of = {"door": "auto", "model": "auto-low", "outcome": "completed"}
    assert grown == {
        series("reused_total", **of, source="remembered"): 1,
        series("reused_total", **of, source="extended"): 1,
    }


def test_requests_left_as_they_are_are_counted(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Over the threshold and nothing to gain: the reason is a label."""
    backend.script(Text("ok"))
    with growth(gateway) as grown:
        ask(gateway, "auto-low", [user("word " * 2_500)])
    assert grown == {series("skipped_total", model="auto-low", reason="forced"): 1}


RED, BLUE = Caller("k", "red", "ann"), Caller("k", "blue", "ann")
RING, OTHER_RING = KeyRing([SECRET]), KeyRing(["another-secret-0123456789"])
PAYLOAD = Payload(origin="trigger", summary="the code word is heron")


def sealed(plain: bytes) -> str:
    """Any bytes, sealed with the proxy's own key."""
    key_id, cipher = RING.sealing
    nonce = os.urandom(12)
    content = cipher.encrypt(nonce, compress(plain), PREFIX.encode() + key_id)
    return PREFIX + base64.urlsafe_b64encode(key_id + nonce + content).decode().rstrip("=")


def own(caller: Caller = RED, ring: KeyRing = RING) -> str:
    return seal_payload(PAYLOAD, ring, caller, "team", os.urandom)


def flipped() -> str:
    good = own()
    return good[:120] + ("A" if good[120] != "A" else "B") + good[121:]


UNREADABLE: dict[str, Callable[[], Any]] = {
    "foreign": lambda: "gAAAAABoopaqueopaque",
    "malformed": lambda: None,
    "tampered": flipped,
    "unknown_key": lambda: own(ring=OTHER_RING),
    "bound_elsewhere": lambda: own(BLUE),
    "unsealed_not_allowed": lambda: write_unsealed(PAYLOAD),
    "unknown_version": lambda: sealed(json.dumps({**PAYLOAD.model_dump(), "version": 2}).encode()),
    "too_large": lambda: sealed(b" " * (MAX_PLAIN_BYTES + 1)),
}


@pytest.mark.parametrize("reason", UNREADABLE)
def test_refused_items_are_counted_by_reason(gateway: LiveProxy, backend: ScriptedBackend, reason: str) -> None:
    """The operator sees why an item was refused, in metrics and log; the client is told the same for every reason."""
    raw = {"type": "compaction", "id": "cmp_x", "encrypted_content": UNREADABLE[reason]()}
    seen = len(gateway.log())
    with growth(gateway) as grown:
        response = ask(gateway, "hosted", [raw, user("go on")])
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "The encrypted content for item cmp_x could not be verified. "
        "Reason: Encrypted content could not be decrypted or parsed.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_encrypted_content",
    }
    assert grown == {
        series("refused_items_total", reason=reason, handling="reject"): 1,
        series("refused_requests_total", code="invalid_encrypted_content"): 1,
    }
    (line,) = read_lines(gateway.log()[seen:])
    assert (line["reason"], line["handling"], line["team"]) == (reason, "reject", "red")
    assert backend.requests == []


def test_noted_item_is_counted_as_such(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """An item that a note stands in for is counted too, under how it was handled, and the request goes on."""
    backend.script(Text("ok"))
    raw = {"type": "compaction", "encrypted_content": UNREADABLE["foreign"]()}
    with growth(gateway) as grown:
        assert ask(gateway, "noting", [raw, user("go on")]).status_code == 200
    assert grown == {series("refused_items_total", reason="foreign", handling="note"): 1}


def test_every_reason_is_tried() -> None:
    """A new reason has to be thought of here."""
    assert set(UNREADABLE) == set(get_args(Unreadable))


def test_refused_requests_are_counted_by_code(gateway: LiveProxy) -> None:
    """What is refused at the door is counted by the code of the contract, no code as `invalid_request`."""
    with growth(gateway) as grown:
        ask(gateway, "hosted", [TRIGGER, user("a")])
        ask(gateway, "hosted", [TRIGGER])
    assert grown == {
        series("refused_requests_total", code="invalid_request"): 1,
        series("refused_requests_total", code="missing_required_parameter"): 1,
    }


@pytest.mark.parametrize("by", ["the plugin", "a backend"])
def test_too_long_requests_are_counted_once(gateway: LiveProxy, backend: ScriptedBackend, by: str) -> None:
    """An ordinary request over its window is one refusal, whoever found out and however many groups were tried."""
    words = {"message": "This model's maximum context length is 1 token.", "code": "context_length_exceeded"}
    backend.script(*([] if by == "the plugin" else [Failure(400, words)]))
    with growth(gateway) as grown:
        model, tokens = ("small", 5_000) if by == "the plugin" else ("noting", 10)
        fallbacks: Json = {"fallbacks": ["small-too"]} if by == "the plugin" else {}
        assert ask(gateway, model, [user("word " * tokens)], **fallbacks).status_code == 400
    assert grown == {series("refused_requests_total", code="context_length_exceeded"): 1}


def test_clients_make_no_labels(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A name that only a client chose is the operator's pattern in the metrics; one nobody serves is not there."""
    backend.script(Summary("ONE", usage=SPENT), Summary("TWO", usage=SPENT))
    with growth(gateway) as grown:
        for name in ("wild/one", "wild/two"):
            assert ask(gateway, name, [*HISTORY, TRIGGER]).status_code == 200
        ask(gateway, "nobody-serves-this", [*HISTORY, TRIGGER])
    assert {dict(labels)["model"] for _, labels in grown} == {"wild/*"}
    assert grown[series("runs_total", door="trigger", model="wild/*", outcome="completed")] == 2


@pytest.mark.parametrize("door", ["trigger", "compact", "threshold", "auto"])
def test_one_line_a_compaction(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """The log has one line with ids and the headers' numbers, and nothing of the transcript, the summary or the key."""
    answer = [] if door in {"trigger", "compact"} else [Text("done")]
    backend.script(Summary("the SUMMARY", usage=SPENT), *answer)
    seen = len(gateway.log())
    response = doors(gateway, door)
    (line,) = read_lines(gateway.log()[seen:])
    item = next(entry for entry in response.json()["output"] if entry["type"] == "compaction")
    assert line["item"] == item["id"]
    assert line["call"] == response.headers["x-litellm-call-id"]
    assert (line["door"], line["source"], line["outcome"]) == (door, "run", "completed")
    assert (line["team"], len(line["key"])) == ("red", 64)
    assert (line["input_tokens"], line["output_tokens"]) == tuple(map(str, SPENT))
    assert line["attempts"] == response.headers["x-litellm-compaction-attempts"]
    assert line["writer"] == response.headers["x-litellm-compaction-model"]
    assert ("response" in line) == (door in {"trigger", "compact"})
    assert door != "compact" or line["response"] == response.json()["id"]
    raw = next(text for text in gateway.log()[seen:].splitlines() if "litellm_compaction: " in text)
    for secret in ("SUMMARY", "heron", "word word", "the task", "raw-key", KEY, SECRET, item["encrypted_content"]):
        assert secret not in raw


def test_call_id_of_a_client_stays_on_its_line(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A client chooses its call's id and may write anything there: it makes no second line and no second field."""
    backend.script(Summary("SUM"))
    seen = len(gateway.log())
    with gateway.client(KEY) as client:
        client.headers["x-litellm-call-id"] = 'x outcome=completed "quoted"'
        body = {"model": "hosted", "input": [*HISTORY, TRIGGER]}
        assert client.post("/v1/responses", json=body).status_code == 200
    (line,) = read_lines(gateway.log()[seen:])
    assert line["call"] == 'x outcome=completed "quoted"'


def stream_headers(proxy: LiveProxy, body: Json) -> httpx.Headers:
    """Headers of a streamed answer that was read to its end."""
    with proxy.client(KEY) as client, client.stream("POST", "/v1/responses", json=body) as response:
        assert response.status_code == 200, response.read()
        assert read_events(response.iter_lines())[-1]["type"] == "response.completed"
        return response.headers


@pytest.mark.parametrize("again", [False, True], ids=["paid", "again"])
@pytest.mark.parametrize("way", ["trigger", "trigger-stream", "compact", "threshold", "threshold-stream", "auto"])
def test_headers_on_every_way(gateway: LiveProxy, backend: ScriptedBackend, way: str, *, again: bool) -> None:
    """All six headers come with every finished compaction, whoever paid it, on every door, streamed or not."""
    door, _, streamed = way.partition("-")
    answers = [] if door in {"trigger", "compact"} else [Text("done")] * (2 if again else 1)
    backend.script(Summary("SUM", usage=SPENT), *answers)
    headers = {}
    for _ in range(2 if again else 1):
        if streamed:
            over = door == "threshold"
            items = session(str(HISTORY[0])) if over else [*HISTORY, TRIGGER]
            body = {"model": "hosted", "stream": True, "input": items}
            headers = dict(stream_headers(gateway, {**body, "context_management": at(1_000)} if over else body))
        else:
            headers = dict(doors(gateway, door).headers)
    found = {name: value for name, value in headers.items() if name.startswith("x-litellm-compaction")}
    assert found.pop("x-litellm-compaction") == door
    assert found.pop("x-litellm-compaction-model") == ("auto-low" if door == "auto" else "hosted")
    assert found.pop("x-litellm-compaction-attempts") == "1"
    assert found.pop("x-litellm-compaction-dropped") == "0"
    assert int(found.pop("x-litellm-compaction-tokens-before")) > 0
    assert int(found.pop("x-litellm-compaction-tokens-after")) > 0
    assert found == {}
