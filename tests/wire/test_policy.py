"""Transcripts that do not fit: trimmed after an overflow, folded where the window is known, never in vain."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest

from tests.support.backend import Failure, Gated, ScriptedBackend, Step, Summary, Text, request_text
from tests.support.bodies import MODELS, TRIGGER, Json, assistant, call, output, user
from tests.support.proxy import LiveProxy, base_config, running_proxy
from tests.support.rules import count_tokens

WINDOW = 8_192
# Model groups with limits of their own, as an operator writes them: settings, then other members of model_info.
GROUPS: Mapping[str, tuple[Json, Json]] = {
    "small": ({"context": WINDOW}, {}),
    "small-by-model-info": ({}, {"max_input_tokens": WINDOW, "max_output_tokens": 1_000}),
    "small-trim": ({"context": WINDOW, "oversize": "trim"}, {}),
    "small-two-passes": ({"context": WINDOW, "max_passes": 2}, {}),
    "half": ({"trim_fraction": 0.5}, {}),
    "one-attempt": ({"max_attempts": 1}, {}),
    "with-ledger": ({"on_failure": "ledger"}, {}),
    "ledger-soon": ({"on_failure": "ledger", "deadline_seconds": 1}, {}),
    "writes-elsewhere": ({"summary_model": "small"}, {}),
    "short-deadline": ({"deadline_seconds": 5}, {}),
}


@pytest.fixture(scope="module")
def limited(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """A proxy with the groups above, and fresh ones that have learned nothing yet."""
    config = base_config(shared_backend.url)
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    params = {"model": "deepseek/served-model", "api_base": shared_backend.url, "api_key": "x"}
    names = {**GROUPS, **{f"fresh-{number}": ({}, {}) for number in range(40)}}
    for name, (settings, info) in names.items():
        entry = {"model_name": name, "litellm_params": params, "model_info": {**info, "compaction": settings}}
        config["model_list"].append(entry)
    with running_proxy(config) as proxy:
        yield proxy


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> str:
    """A model group whose window nobody has named yet."""
    taken: set[str] = request.config.stash.setdefault(_TAKEN, set())
    name = f"fresh-{len(taken)}"
    taken.add(name)
    return name


_TAKEN = pytest.StashKey[set[str]]()


def steps(number: int, tokens: int, mark: str = "") -> list[Json]:
    """A request, finished steps of about so many tokens each, one more request."""
    said = [assistant(f"step {place} {mark}" + "word " * (tokens * 4 // 5)) for place in range(number)]
    return [user(f"the task {mark}"), *said, user("go on")]


def ask(proxy: LiveProxy, model: str, items: list[Json], door: str = "plain") -> httpx.Response:
    if door == "compact":
        return proxy.post("/v1/responses/compact", {"model": model, "input": items})
    return proxy.post("/v1/responses", {"model": model, "stream": door == "streamed", "input": [*items, TRIGGER]})


def shown(body: Json) -> list[int]:
    """Numbers of the items in a summary request."""
    return [int(number) for number in re.findall(r'ref="item_0*(\d+)"', request_text(body))]


def opened(proxy: LiveProxy, backend: ScriptedBackend, response: httpx.Response, model: str) -> str:
    """What a model is given for the item of a response."""
    item = next(entry for entry in response.json()["output"] if entry["type"] == "compaction")
    backend.answer_with(lambda _: Text("going on"))
    backend.window = None
    tools = [{"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}]
    answer = proxy.post("/v1/responses", {"model": model, "input": [item, user("next")], "tools": tools})
    assert answer.status_code == 200, answer.text
    return request_text(backend.requests[-1])


@pytest.mark.parametrize("door", ["plain", "streamed", "compact"])
def test_overflow_is_trimmed_once_and_told(limited: LiveProxy, backend: ScriptedBackend, fresh: str, door: str) -> None:
    """After an overflow the oldest removable items go; the model, the headers and the log say how many."""
    backend.script(Failure(400, {"message": "too long", "code": "context_length_exceeded"}), Summary("SUM"))
    response = ask(limited, fresh, steps(10, 100, door), door)
    assert response.status_code == 200, response.text
    assert response.headers["x-litellm-compaction-attempts"] == "2"
    assert response.headers["x-litellm-compaction-dropped"] == "3"
    first, second = backend.requests
    assert shown(first) == list(range(1, 13))
    assert shown(second) == [1, *range(5, 13)]
    assert "3 older transcript items were left out" in request_text(second)
    assert f"model={fresh} writer={fresh} attempts=2 windows=1 dropped=3" in limited.log()


def test_head_of_the_summary_says_what_was_left_out(limited: LiveProxy, backend: ScriptedBackend, fresh: str) -> None:
    """Whoever goes on from the item reads that its writer did not see everything."""
    backend.script(Failure(400, {"message": "too long", "code": "context_length_exceeded"}), Summary("SUM"))
    response = ask(limited, fresh, steps(10, 100, "head"))
    text = opened(limited, backend, response, fresh)
    assert re.search(r"\[3 older transcript items were left out [^\]]*\]\s+SUM", text)


def test_trim_fraction_is_the_operators(limited: LiveProxy, backend: ScriptedBackend) -> None:
    """With `trim_fraction: 0.5` half of the transcript goes at once."""
    backend.script(Failure(400, {"message": "too long", "code": "context_length_exceeded"}), Summary("SUM"))
    response = ask(limited, "half", steps(10, 100))
    assert 5 <= int(response.headers["x-litellm-compaction-dropped"]) <= 6


def test_second_overflow_is_a_failed_compaction(limited: LiveProxy, backend: ScriptedBackend, fresh: str) -> None:
    """One retry, then compaction_failed; nothing is handed out."""
    backend.script(*[Failure(400, {"message": "too long", "code": "context_length_exceeded"})] * 2)
    response = ask(limited, fresh, steps(10, 100, "second"))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "compaction_failed")
    assert "does not fit the summarising model's window" in response.json()["error"]["message"]


def test_one_attempt_is_one(limited: LiveProxy, backend: ScriptedBackend) -> None:
    """`max_attempts: 1` leaves no retry."""
    backend.script(Failure(400, {"message": "too long", "code": "context_length_exceeded"}))
    assert ask(limited, "one-attempt", steps(10, 100)).status_code == 400


# How servers word it (status, message, code); the numbers are what a real one would name for a window of 3,000 tokens.
LENGTH = "maximum context length is 3000 tokens. However,"
WORDINGS: dict[str, tuple[int, str, Any]] = {
    "openai": (400, "Your input exceeds the context window of this model.", "context_length_exceeded"),
    "vllm": (400, f"This model's {LENGTH} your request has 9000 input tokens.", 400),
    "llama.cpp": (
        400,
        "request (9000 tokens) exceeds the available context size (3000 tokens), try increasing it",
        400,
    ),
    "openrouter": (400, f"This endpoint's {LENGTH} you requested about 9000 tokens (9000 of text input).", 400),
    "xai": (400, "This model's maximum prompt length is 3000 but the request contains 9000 tokens.", None),
    "anthropic": (400, "prompt is too long: 9000 tokens > 3000 maximum", None),
    "gemini": (400, "The input token count (9000) exceeds the maximum number of tokens allowed (3000).", 400),
    "mistral": (400, "Prompt contains 9000 tokens, too large for model with 3000 maximum context length", "3051"),
    "groq": (413, "Please reduce the length of the messages or completion.", "context_length_exceeded"),
    "alibaba": (400, "Range of input length should be [1, 3000]", "invalid_parameter_error"),
    "bare-413": (413, "", None),
    "in-a-500": (500, f"This model's {LENGTH} you requested 9000 tokens", None),
    "in-a-200": (200, f"This endpoint's {LENGTH} you requested about 9000 tokens", 400),
}


@pytest.mark.parametrize(("status", "words", "code"), WORDINGS.values(), ids=WORDINGS)
def test_overflow_is_known_by_any_wording(
    limited: LiveProxy, backend: ScriptedBackend, fresh: str, status: int, words: str, code: Any
) -> None:
    """However the backend says it, behind LiteLLM's own errors, the transcript is trimmed, to the limit it names."""
    backend.script(Failure(status, {"message": words, "code": code} if words else {}), Summary("SUM"))
    response = ask(limited, fresh, steps(60, 100, words))
    assert response.status_code == 200, response.text
    assert int(response.headers["x-litellm-compaction-dropped"]) > 0
    if "3000" in words:
        assert count_tokens(backend.requests[1]) < 3_000


@pytest.mark.parametrize("model", MODELS)
def test_overflow_is_known_on_each_way_to_a_backend(limited: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """Whichever of LiteLLM's providers the request passes."""
    words = "This model's maximum prompt length is 3000 but the request contains 9000 tokens."
    backend.script(Failure(400, {"message": words}), Summary("SUM"))
    response = ask(limited, model, steps(60, 100, model))
    assert response.status_code == 200, response.text
    assert response.headers["x-litellm-compaction-attempts"] == "2"


OTHERS: dict[str, tuple[int, str, Any]] = {
    "payload": (413, "Request Entity Too Large", None),
    "image": (400, "image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes", None),
    "rate": (413, "Request too large on tokens per minute (TPM): Limit 6000, Requested 9000", "rate_limit_exceeded"),
    "output": (400, "max_tokens is too large: 99999. This model supports at most 16384 completion tokens", None),
}


@pytest.mark.parametrize(("status", "words", "code"), OTHERS.values(), ids=OTHERS)
def test_other_limits_are_no_overflow(
    limited: LiveProxy, backend: ScriptedBackend, fresh: str, status: int, words: str, code: Any
) -> None:
    """Limits of bytes, pictures, requests a minute or output are not answered by leaving history out."""
    backend.script(Failure(status, {"message": words, "code": code}))
    response = ask(limited, fresh, steps(10, 100, words))
    assert response.status_code in {400, 413, 429}
    assert len(backend.requests) == 1


def facts_backend(window: int, report: Callable[[Json], None] = lambda _: None) -> Callable[[Json], Step]:
    """A summariser that keeps every line it is shown that names a fact."""

    def answer(body: Json) -> Step:
        report(body)
        facts = sorted(set(re.findall(r"FACT \d+: .*", request_text(body))))
        return Summary("facts:\n" + "\n".join(facts), usage=(count_tokens(body), 50))

    return answer


def long_session(window: int, times: int) -> tuple[list[Json], list[str]]:
    """A session of so many windows with ten facts planted in tool results, and the facts."""
    pairs = 100
    facts = [f"FACT {n}: the staging port of service {n} is {4000 + 37 * n}" for n in range(10)]
    lines = max(1, window * times * 4 // pairs // 60)
    items = [user("make the tests pass and keep the facts")]
    for place in range(pairs):
        log = [
            f"[{place:03d}.{line:04d}] checked src/module_{line % 17}.py, nothing to report" for line in range(lines)
        ]
        if place % 10 == 4:
            log.insert(lines * (place % 7) // 7, facts[place // 10])
        items += [
            call(f"c{place}", arguments=json.dumps({"cmd": f"check {place}"})),
            output(f"c{place}", "\n".join(log)),
        ]
    return [*items, assistant("all checked"), user("go on")], facts


@pytest.mark.parametrize("model", ["small", "small-by-model-info", "writes-elsewhere"])
def test_ten_windows_of_history_keep_their_facts(limited: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """A transcript of ten times the window is folded: no request over the window, at most eight, nine of ten facts."""
    items, facts = long_session(WINDOW, 10)
    sizes: list[int] = []
    backend.window = WINDOW
    backend.answer_with(facts_backend(WINDOW, lambda body: sizes.append(count_tokens(body) + body["max_tokens"])))
    response = ask(limited, model, [user(model), *items])
    assert response.status_code == 200, response.text
    assert 1 < len(sizes) <= 8
    assert max(sizes) <= WINDOW
    assert response.headers["x-litellm-compaction-attempts"] == str(len(sizes))
    assert int(response.headers["x-litellm-compaction-tokens-before"]) > 8 * WINDOW
    if model != "writes-elsewhere":  # its own window, which the item has to fit, is unknown
        assert int(response.headers["x-litellm-compaction-tokens-after"]) < WINDOW * 0.7
    usage = response.json()["usage"]
    assert usage["output_tokens"] == 50 * len(sizes)
    text = opened(limited, backend, response, model)
    assert sum(fact in text for fact in facts) >= 9


def test_oversize_trim_is_one_window(limited: LiveProxy, backend: ScriptedBackend) -> None:
    """`oversize: trim` leaves out what does not fit before the first inference, which then fits."""
    backend.window = WINDOW
    backend.script(Summary("SUM"))
    response = ask(limited, "small-trim", steps(100, 200))
    assert response.status_code == 200, response.text
    assert response.headers["x-litellm-compaction-attempts"] == "1"
    assert int(response.headers["x-litellm-compaction-dropped"]) > 50


def test_max_passes_bounds_the_fold(limited: LiveProxy, backend: ScriptedBackend) -> None:
    """`max_passes: 2` are two inferences, whatever the length."""
    backend.window = WINDOW
    backend.script(Summary("ONE"), Summary("TWO"))
    response = ask(limited, "small-two-passes", steps(200, 400))
    assert response.status_code == 200, response.text
    assert "ONE" in request_text(backend.requests[1])


def test_learned_window_is_not_overflowed_again(limited: LiveProxy, backend: ScriptedBackend, fresh: str) -> None:
    """A limit once named is kept to from then on: the next transcript is folded at once."""
    backend.window = 6_000
    backend.answer_with(facts_backend(6_000))
    first = ask(limited, fresh, steps(60, 150, "one"))
    assert first.status_code == 200, first.text
    assert first.headers["x-litellm-compaction-attempts"] == "2"
    asked = len(backend.requests)
    second = ask(limited, fresh, steps(60, 150, "two"))
    assert second.status_code == 200, second.text
    assert second.headers["x-litellm-compaction-dropped"] == "0"
    assert all(count_tokens(body) <= 6_000 for body in backend.requests[asked:])


def test_item_larger_than_the_window_is_shortened(limited: LiveProxy, backend: ScriptedBackend) -> None:
    """One tool result of three windows: its head and tail are seen, with a mark, and the open call stays."""
    backend.window = WINDOW
    backend.answer_with(lambda _: Summary("SUM"))
    result = output("c", "HEAD " + "noise " * 20_000 + "TAIL")
    response = ask(limited, "small-trim", [user("t"), assistant("a"), call("c"), result])
    assert response.status_code == 200, response.text
    seen = request_text(backend.requests[-1])
    assert "HEAD" in seen
    assert "TAIL" in seen
    assert re.search(r"\[… [\d,]+ characters cut …\]", seen)
    kept = opened(limited, backend, response, "small-trim")
    assert "HEAD" in kept
    assert "TAIL" in kept


def test_request_survives_a_giant_result_in_the_middle_of_a_turn(limited: LiveProxy, backend: ScriptedBackend) -> None:
    """Compacted in the middle of a turn, after a result of three windows: the item alone has the request, word for
    word, and the call with a part of its result."""
    backend.answer_with(lambda _: Summary("SUM"))
    request = user("CURRENT REQUEST: rename foo to bar")
    items = [user("first"), assistant("ok"), request, call("c"), output("c", "HEAD " + "noise " * 20_000)]
    response = ask(limited, "small", items)
    assert response.status_code == 200, response.text
    text = opened(limited, backend, response, "small")
    assert "CURRENT REQUEST: rename foo to bar" in text
    assert "HEAD" in text


def test_error_that_echoes_the_transcript_teaches_nothing(
    limited: LiveProxy, backend: ScriptedBackend, fresh: str
) -> None:
    """A validation error that shows the request again, in which somebody quotes an overflow: failed, and the group's
    next compaction is asked for as ever."""
    quoted = "prompt is too long: 9000 tokens > 4000 maximum"
    backend.script(Failure(422, {"message": "bad body: " + "x" * 1000 + quoted}), Summary("SUM"))
    assert ask(limited, fresh, [user(f"explain: {quoted}"), assistant("well")]).status_code == 400
    response = ask(limited, fresh, steps(60, 150, "after"))
    assert response.headers["x-litellm-compaction-attempts"] == "1"


def test_a_million_blanks_can_be_compacted(limited: LiveProxy, backend: ScriptedBackend, fresh: str) -> None:
    """What tokenizers die of is counted in pieces."""
    backend.script(Summary("SUM"))
    response = ask(
        limited, fresh, [user("look"), call("c"), output("c", "x" + " " * 1_100_000 + "y"), assistant("seen")]
    )
    assert response.status_code == 200, response.text


def test_rate_limit_within_the_deadline_is_waited_for(limited: LiveProxy, backend: ScriptedBackend, fresh: str) -> None:
    """`Retry-After: 1` is obeyed: the client gets its item, and one inference is counted."""
    backend.script(Failure(429, {"message": "slow down"}, {"retry-after": "1"}), Summary("SUM"))
    response = ask(limited, fresh, steps(2, 10, "wait"))
    assert response.status_code == 200, response.text
    assert response.headers["x-litellm-compaction-attempts"] == "1"


def test_rate_limit_beyond_the_deadline_is_passed_on(limited: LiveProxy, backend: ScriptedBackend) -> None:
    """A wait that would pass the deadline is the client's to decide: 429 at once, `Retry-After` kept."""
    backend.script(Failure(429, {"message": "slow down"}, {"retry-after": "60"}))
    response = ask(limited, "short-deadline", steps(2, 10))
    assert response.status_code == 429
    assert response.headers["retry-after"] == "60"


def test_error_that_cost_nothing_is_not_remembered(limited: LiveProxy, backend: ScriptedBackend, fresh: str) -> None:
    """A refused key: the next request asks the backend again."""
    backend.script(Failure(401, {"message": "bad key"}), Summary("SUM"))
    assert ask(limited, fresh, steps(2, 10, "key")).status_code == 401
    assert ask(limited, fresh, steps(2, 10, "key")).status_code == 200


def test_routers_own_retries_do_not_sleep_over_the_deadline(
    shared_backend: ScriptedBackend, backend: ScriptedBackend
) -> None:
    """With LiteLLM's default retries too a long wait is passed on at once, and a short one is obeyed."""
    config = base_config(shared_backend.url, {"deadline_seconds": 10})
    with running_proxy(config) as patient:
        backend.script(Failure(429, {"message": "slow down"}, {"retry-after": "30"}))
        refused = ask(patient, "deepseek", steps(2, 10))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")
        backend.script(Failure(429, {"message": "slow down"}, {"retry-after": "1"}), Summary("SUM"))
        assert ask(patient, "hosted", steps(2, 10)).status_code == 200


@pytest.mark.parametrize("model", ["with-ledger", "ledger-soon"])
def test_ledger_in_place_of_a_summary(limited: LiveProxy, backend: ScriptedBackend, model: str) -> None:
    """`on_failure: ledger`: no valid summary, or none in time, and the client still gets an item that says so."""
    patch = "*** Begin Patch\n*** Update File: src/parser.py\n*** End Patch"
    items = [
        user("fix the parser"),
        {"type": "custom_tool_call", "call_id": "p", "name": "apply_patch", "input": patch},
        {"type": "custom_tool_call_output", "call_id": "p", "output": "Success. Updated the following files:"},
        assistant("done"),
        user("run the tests"),
    ]
    gate = threading.Event()
    late: Step = Gated(Summary("too late"), gate)
    backend.script(*([Text("prose")] * 2 if model == "with-ledger" else [late]))
    response = ask(limited, model, items)
    gate.set()
    assert response.status_code == 200, response.text
    text = opened(limited, backend, response, model)
    assert "No model could write a summary" in text
    assert "src/parser.py" in text
    assert "run the tests" in text


def test_silent_truncation_is_warned_of(limited: LiveProxy, backend: ScriptedBackend, fresh: str) -> None:
    """A backend that reports far fewer prompt tokens than it was sent: the operator reads of it in the log."""
    backend.script(Summary("SUM", usage=(400, 20)))
    response = ask(limited, fresh, steps(20, 200, "cut"))
    assert response.status_code == 200, response.text
    line = next(line for line in limited.log().splitlines() if f"model={fresh} " in line)
    assert "far fewer prompt tokens" in line


def test_caches_never_answer_a_compaction(shared_backend: ScriptedBackend, backend: ScriptedBackend) -> None:
    """With LiteLLM's response cache on, two conversations get two items, and neither transcript is in the cache."""
    config = base_config(shared_backend.url)
    config["litellm_settings"] |= {"cache": True, "cache_params": {"type": "local"}}
    with running_proxy(config) as cached:
        backend.script(Summary("FIRST"), Summary("SECOND"), Text("ok"), Text("ok"))
        items = [ask(cached, "deepseek", steps(2, 10, mark)).json()["output"][0] for mark in ("one", "two")]
        for item, words in zip(items, ("FIRST", "SECOND"), strict=True):
            cached.post("/v1/responses", {"model": "deepseek", "input": [item, user("next")]})
            assert words in request_text(backend.requests[-1])
