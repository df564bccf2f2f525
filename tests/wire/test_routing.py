"""LiteLLM's own routing of a summary's inference: balanced, retried, cooled down, fallen back, and never sent to a
window that it was not planned for."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.backend import (
    Answering,
    Failure,
    ScriptedBackend,
    Step,
    Summary,
    Text,
    is_summary_request,
    request_text,
)
from tests.support.bodies import HISTORY, TRIGGER, Json, assistant, call, output, user
from tests.support.proxy import LiveProxy, base_config, running_proxy
from tests.support.rules import OVERFLOW, count_tokens

DOWN = Failure(500, {"message": "on fire"})
LARGE: Json = {"context": 50_000, "output": 4_000}
SMALL: Json = {"context": 8_000, "output": 1_000}
DOORS = ["trigger", "compact", "threshold"]
# By the model that a deployment serves: what its window is.
WINDOWS = {"small": 8_000, "large": 50_000, "unknown": 3_000}


def deployment(backend: ScriptedBackend, group: str, served: str, **settings: Any) -> Json:
    params = {"model": f"deepseek/{served}", "api_base": backend.url, "api_key": "x"}
    return {"model_name": group, "litellm_params": params, "model_info": {"compaction": settings}}


@pytest.fixture(scope="module")
def gateway(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """Groups named by what they show; a deployment serves the model of its name."""
    entry = functools.partial(deployment, shared_backend)
    config = base_config(shared_backend.url)
    config["model_list"] = [
        entry("pair", "left", **LARGE),
        entry("pair", "right", **LARGE),
        entry("retried", "retried", **LARGE),
        entry("counted", "counted", **LARGE, count_retries=True),
        entry("counted-twice", "counted", **LARGE, count_retries=True, max_attempts=2),
        entry("counted-falls", "down", **LARGE, count_retries=True, max_attempts=4),
        entry("falls", "down", **LARGE),
        entry("alone", "down", **LARGE),
        entry("folds", "down", **LARGE),
        entry("trims", "down", **LARGE, oversize="trim"),
        entry("chooses", "down", **LARGE),
        entry("guesses", "down", **LARGE),
        entry("overflows", "unknown"),
        entry("small", "small", **SMALL),
        entry("large", "large", **LARGE),
        entry("nobody-knows", "free"),
    ]
    config["router_settings"] = {
        "num_retries": 2,
        "retry_after": 0,
        "disable_cooldowns": True,
        "fallbacks": [
            {"falls": ["large"]},
            {"counted-falls": ["large"]},
            {"folds": ["small"]},
            {"trims": ["small"]},
            {"chooses": ["small", "large"]},
            {"guesses": ["nobody-knows"]},
        ],
        "context_window_fallbacks": [{"overflows": ["large"]}],
        "model_group_alias": {"nickname": "small"},
    }
    with running_proxy(config) as proxy:
        yield proxy


def send(proxy: LiveProxy, door: str, items: list[Json], group: str, **members: Any) -> httpx.Response:
    if door == "compact":
        return proxy.post("/v1/responses/compact", {"model": group, "input": items, **members})
    if door == "threshold":
        wish = [{"type": "compaction", "compact_threshold": 1_000}]
        long = [items[0], assistant("word " * 1_500), *items[1:]]
        return proxy.post("/v1/responses", {"model": group, "input": long, "context_management": wish, **members})
    return proxy.post("/v1/responses", {"model": group, "input": [*items, TRIGGER], **members})


def enforcing(answer: Answering) -> Answering:
    """Answers of providers that refuse what is over their window, and of those that are down."""

    def answered(body: Json) -> Step:
        if body["model"].startswith("down"):
            return DOWN
        window = WINDOWS.get(body["model"])
        if window is not None and count_tokens(body) > window:
            return Failure(
                400, {"message": f"This model's maximum context length is {window} tokens.", "code": OVERFLOW}
            )
        return answer(body)

    return answered


def summaries(backend: ScriptedBackend) -> list[str]:
    """The models that were asked for summaries, in order."""
    return [body["model"] for body in backend.requests if is_summary_request(body)]


def session(steps: int = 40, words: int = 300) -> list[Json]:
    """About 13,000 tokens in whole steps, each with a fact of its own."""
    items = [user("fix the parser"), HISTORY[0]]
    for number in range(steps):
        items += [call(f"c{number}"), output(f"c{number}", f"FACT-{number:03} " + "word " * words)]
    return [*items, user("go on")]


def test_balanced_over_the_deployments(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Summaries of a group with two deployments are written by both."""
    backend.answer_with(enforcing(lambda _: Summary("S1")))
    for number in range(40):
        assert send(gateway, "trigger", [*HISTORY, user(str(number))], "pair").status_code == 200
        if len(set(summaries(backend))) > 1:
            break
    assert set(summaries(backend)) == {"left", "right"}


@pytest.mark.parametrize("door", DOORS)
def test_retried_within_one_attempt(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """LiteLLM repeats what failed; the client sees one compaction, and one attempt in its headers."""
    left: list[Step] = [DOWN, DOWN, Summary("S1")]
    backend.answer_with(lambda body: left.pop(0) if is_summary_request(body) else Text("fine"))
    response = send(gateway, door, list(HISTORY), "retried")
    assert (response.status_code, len(summaries(backend))) == (200, 3), response.text
    assert response.headers["x-litellm-compaction-attempts"] == "1"


def test_retries_count_where_the_operator_says_so(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """With `count_retries` every inference that was sent is an attempt, in the headers too."""
    left: list[Step] = [DOWN, DOWN, Summary("S1")]
    backend.answer_with(lambda _: left.pop(0))
    response = send(gateway, "trigger", list(HISTORY), "counted")
    assert (response.status_code, response.headers["x-litellm-compaction-attempts"]) == (200, "3"), response.text


@pytest.mark.parametrize("steps", [[DOWN, DOWN], [Text("prose"), DOWN], [DOWN, Text("prose")]])
def test_no_inference_is_sent_beyond_the_limit(gateway: LiveProxy, backend: ScriptedBackend, steps: list[Step]) -> None:
    """With `count_retries` and two attempts there are two inferences, whatever the router would like to repeat."""
    left = list(steps)
    backend.answer_with(lambda _: left.pop(0))
    response = send(gateway, "trigger", list(HISTORY), "counted-twice")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "compaction_failed")
    assert "max_attempts" not in response.text
    assert len(backend.requests) == 2


def test_counted_retries_and_a_fallback(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """The tries of a group that is down and the one of its fallback are all in the header."""
    backend.answer_with(enforcing(lambda _: Summary("S1")))
    response = send(gateway, "trigger", list(HISTORY), "counted-falls")
    assert response.status_code == 200, response.text
    assert (set(summaries(backend)), summaries(backend)[-1]) == ({"down", "large"}, "large")
    assert response.headers["x-litellm-compaction-attempts"] == str(len(backend.requests))


def test_a_failing_deployment_cools_down(shared_backend: ScriptedBackend, backend: ScriptedBackend) -> None:
    """A deployment that failed a summary is left alone afterwards, by ordinary requests too."""
    config = base_config(shared_backend.url)
    config["model_list"] = [deployment(backend, "uneven", served, **LARGE) for served in ("down", "healthy")]
    config["router_settings"] = {"num_retries": 2, "retry_after": 0, "allowed_fails": 0, "cooldown_time": 120}
    backend.answer_with(enforcing(lambda body: Summary("S1") if is_summary_request(body) else Text("fine")))
    with running_proxy(config) as proxy:
        for number in range(20):
            assert send(proxy, "trigger", [*HISTORY, user(str(number))], "uneven").status_code == 200
            if "down" in summaries(backend):
                break
        assert "down" in summaries(backend)
        before = len(backend.requests)
        for number in range(6):
            assert send(proxy, "trigger", [*HISTORY, user(f"more {number}")], "uneven").status_code == 200
            assert proxy.post("/v1/responses", {"model": "uneven", "input": "hi"}).status_code == 200
    assert {body["model"] for body in backend.requests[before:]} == {"healthy"}


@pytest.mark.parametrize("door", DOORS)
def test_fallen_back(gateway: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """Where the group is down its fallback writes, and the header names it."""
    backend.answer_with(enforcing(lambda body: Summary("S1") if is_summary_request(body) else Text("fine")))
    response = send(gateway, door, list(HISTORY), "falls")
    assert response.status_code == 200, response.text
    assert summaries(backend)[-1] == "large"
    # At a threshold the request itself falls back first, and is compacted for the group that answers.
    assert response.headers["x-litellm-compaction-model"] == "large"


def test_fallbacks_of_the_client(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """The client's own `fallbacks` hold for its summary."""
    backend.answer_with(enforcing(lambda _: Summary("S1")))
    response = send(gateway, "trigger", list(HISTORY), "alone", fallbacks=["large"])
    assert response.status_code == 200, response.text
    assert (summaries(backend)[0], summaries(backend)[-1]) == ("down", "large")
    assert response.headers["x-litellm-compaction-model"] == "large"


def test_an_alias_is_the_group_it_stands_for(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A `model_group_alias` is compacted by its group, under the settings of that group."""
    backend.answer_with(enforcing(lambda _: Summary("S1")))
    response = send(gateway, "trigger", session(), "nickname")
    assert response.status_code == 200, response.text
    assert len(summaries(backend)) > 1
    assert set(summaries(backend)) == {"small"}
    assert response.headers["x-litellm-compaction-model"] == "nickname"


def assert_whole(backend: ScriptedBackend, model: str, steps: int) -> None:
    """Every fact of the session was read by the model."""
    read = "\n".join(request_text(body) for body in backend.requests if body["model"] == model)
    assert [number for number in range(steps) if f"FACT-{number:03}" not in read] == []


def test_a_smaller_fallback_gets_what_fits(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A transcript planned for a large window is folded for the small one that answers: nothing is lost, and nothing
    too long is ever sent."""
    backend.answer_with(enforcing(lambda _: Summary("S1")))
    response = send(gateway, "trigger", session(), "folds")
    assert response.status_code == 200, response.text
    sent = [count_tokens(body) for body in backend.requests if body["model"] == "small"]
    assert len(sent) > 1
    assert max(sent) <= WINDOWS["small"]
    assert_whole(backend, "small", 40)
    assert response.headers["x-litellm-compaction-model"] == "small"
    assert response.headers["x-litellm-compaction-dropped"] == "0"


def test_policies_of_the_operator_repeat_and_cool_nothing_unsent(
    shared_backend: ScriptedBackend, backend: ScriptedBackend
) -> None:
    """What was not sent to a fallback is neither repeated by a retry policy nor held against its deployment."""
    config = base_config(shared_backend.url)
    params = {"api_base": shared_backend.url, "api_key": "x"}
    policy = {"BadRequestErrorAllowedFails": 0}
    config["model_list"] = [
        {
            "model_name": "large",
            "litellm_params": {"model": "deepseek/down", **params},
            "model_info": {"compaction": LARGE},
        },
        {
            "model_name": "small",
            "litellm_params": {"model": "deepseek/small", **params},
            "model_info": {"compaction": SMALL, "allowed_fails_policy": policy},
        },
    ]
    config["router_settings"] = {
        "num_retries": 0,
        "retry_policy": {"BadRequestErrorRetries": 5},
        "fallbacks": [{"large": ["small"]}],
    }
    backend.answer_with(enforcing(lambda body: Summary("S1") if is_summary_request(body) else Text("fine")))
    with running_proxy(config) as proxy:
        response = send(proxy, "trigger", session(), "large")
        assert response.status_code == 200, response.text
        assert proxy.post("/v1/responses", {"model": "small", "input": "hi"}).status_code == 200
    assert_whole(backend, "small", 40)


def test_a_smaller_fallback_is_trimmed_for(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """With `oversize: trim` the oldest steps go, and are counted."""
    backend.answer_with(enforcing(lambda _: Summary("S1")))
    response = send(gateway, "trigger", session(), "trims")
    assert response.status_code == 200, response.text
    assert [body["model"] for body in backend.requests].count("small") == 1
    assert int(response.headers["x-litellm-compaction-dropped"]) > 0


def test_a_larger_fallback_is_preferred(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Of two fallbacks the one that can hold the whole transcript writes; the smaller one is not asked."""
    backend.answer_with(enforcing(lambda _: Summary("S1")))
    assert send(gateway, "trigger", session(), "chooses").status_code == 200
    assert set(summaries(backend)) == {"down", "large"}
    assert summaries(backend).count("large") == 1


def test_a_fallback_nobody_knows_is_sent_all(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """Of an unknown window nothing is guessed."""
    backend.answer_with(enforcing(lambda _: Summary("S1")))
    assert send(gateway, "trigger", session(), "guesses").status_code == 200
    assert summaries(backend)[-1] == "free"


def test_context_window_fallbacks(gateway: LiveProxy, backend: ScriptedBackend) -> None:
    """A window nobody knew is overflowed once; the operator's larger model then reads the transcript whole."""
    backend.answer_with(enforcing(lambda _: Summary("S1")))
    response = send(gateway, "trigger", session(), "overflows")
    assert response.status_code == 200, response.text
    assert summaries(backend) == ["unknown", "large"]
    assert_whole(backend, "large", 40)
    assert response.headers["x-litellm-compaction-dropped"] == "0"
