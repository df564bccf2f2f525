"""Spans of compactions through LiteLLM's own OpenTelemetry callbacks, and metrics of several workers."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.backend import Gated, ScriptedBackend, Summary, Text
from tests.support.bodies import HISTORY, TRIGGER, Json, assistant, renew_history, user
from tests.support.proxy import LiveProxy, base_config, running_proxy
from tests.support.scrape import scrape, series
from tests.support.versions import needs_litellm
from tests.wire.test_one_bill import wait_for_requests

ENV = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "NO_CONTENT"}
OURS, REQUEST, INNER = "litellm_compaction", "Received Proxy Server Request", "litellm_request"
AUTO: Json = {"auto_compact": True, "context": 100_000, "output": 4_000, "threshold": 2_000}


def config_with(backend: ScriptedBackend, *callbacks: str) -> Json:
    config = base_config(backend.url)
    config["litellm_settings"]["callbacks"] = [*callbacks]
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    params = {"model": "deepseek/served-model", "api_base": backend.url, "api_key": "x"}
    entry = {"model_name": "auto", "litellm_params": params, "model_info": {"compaction": AUTO}}
    config["model_list"].append(entry)
    return config


@pytest.fixture(scope="module")
def traced(shared_backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """LiteLLM's `otel` callback with the exporter that prints."""
    with running_proxy(config_with(shared_backend, "otel", "litellm_compaction.handler"), env=ENV) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def workers(shared_backend: ScriptedBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveProxy]:
    """Two workers with metrics, and LiteLLM's second OpenTelemetry callback."""
    config = config_with(shared_backend, "prometheus", "litellm_compaction.handler", "otel")
    folder = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path_factory.mktemp("metrics"))}
    with running_proxy(config, env={**ENV, **folder, "LITELLM_OTEL_V2": "true"}, workers=2) as proxy:
        yield proxy


def ask(proxy: LiveProxy, door: str, items: list[Json] | None = None) -> httpx.Response:
    """One compaction through a door."""
    mark = HISTORY[0]["id"]
    if door == "compact":
        return proxy.post("/v1/responses/compact", {"model": "deepseek", "input": items or HISTORY})
    if door == "trigger":
        return proxy.post("/v1/responses", {"model": "deepseek", "input": [*(items or HISTORY), TRIGGER]})
    return proxy.post("/v1/responses", {"model": "auto", "input": [user(mark), assistant("word " * 2_500), user("?")]})


def read_spans(log: str) -> list[Json]:
    """The spans that the exporter has printed."""
    decoder, spans, place = json.JSONDecoder(), [], 0
    while (place := log.find('{\n    "name"', place)) >= 0:
        try:
            span, place = decoder.raw_decode(log, place)
        except json.JSONDecodeError:  # not all of it is written yet
            place += 1
        else:
            spans.append(span)
    return spans


def spans_of(proxy: LiveProxy, call: str, *needed: str) -> list[Json]:
    """All spans of the trace of one call's compaction, once its parent and those that are needed are there."""
    give_up_at = time.monotonic() + 20
    while True:
        spans = read_spans(proxy.log())
        own = [span for span in spans if span["name"] == OURS and told(span)["call"] == call]
        traces = {span["context"]["trace_id"] for span in own}
        found = [span for span in spans if span["context"]["trace_id"] in traces]
        complete = {span["parent_id"] for span in own} <= {span["context"]["span_id"] for span in found}
        if own and complete and Counter(needed) <= Counter(span["name"] for span in found):
            return found
        assert time.monotonic() < give_up_at, f"no span of {call} among {sorted(span['name'] for span in spans)}"
        time.sleep(0.1)


def told(span: Json) -> Json:
    """The plugin's attributes of a span."""
    return {name.removeprefix(f"{OURS}."): value for name, value in span["attributes"].items()}


def named(spans: list[Json], name: str) -> Json:
    """The one span of a name."""
    (span,) = [span for span in spans if span["name"] == name]
    return span


def children(spans: list[Json], parent: Json) -> list[str]:
    return [span["name"] for span in spans if span["parent_id"] == parent["context"]["span_id"]]


@pytest.mark.parametrize("door", ["trigger", "compact", "auto"])
def test_span_under_the_request_and_over_the_inference(traced: LiveProxy, backend: ScriptedBackend, door: str) -> None:
    """A compaction is a span of its request with ids and counts; LiteLLM's span of the inference is a part of it."""
    backend.script(Summary("the SUMMARY", usage=(900, 90)), *([Text("done")] if door == "auto" else []))
    response = ask(traced, door)
    assert response.status_code == 200, response.text
    spans = spans_of(traced, response.headers["x-litellm-call-id"])
    ours, request = named(spans, OURS), named(spans, REQUEST)
    assert ours["parent_id"] == request["context"]["span_id"]
    assert children(spans, ours).count(INNER) == 1
    assert children(spans, request).count(INNER) == 1
    assert ours["status"] == {"status_code": "OK"}
    item = next(entry for entry in response.json()["output"] if entry["type"] == "compaction")
    found = told(ours)
    assert (found["door"], found["source"], found["outcome"], found["attempts"]) == (door, "run", "completed", 1)
    assert (found["item"], found["input_tokens"], found["output_tokens"]) == (item["id"], 900, 90)
    assert request["start_time"] <= ours["start_time"] < ours["end_time"] <= request["end_time"]
    for text in ("SUMMARY", "heron", "word word", item["encrypted_content"]):
        assert text not in json.dumps(ours)


def test_failure_is_an_error_by_its_code(traced: LiveProxy, backend: ScriptedBackend) -> None:
    """A failed compaction's span has the status of an error, its code and no words; each attempt is a part of it."""
    backend.script(Text("PROSE of a model"), Text("PROSE of a model"))
    response = ask(traced, "trigger")
    assert response.status_code == 400
    spans = spans_of(traced, response.headers["x-litellm-call-id"])
    ours = named(spans, OURS)
    assert ours["status"] == {"status_code": "ERROR", "description": "compaction_failed"}
    assert children(spans, ours).count(INNER) == 2
    assert ours["events"] == []
    assert (told(ours)["outcome"], told(ours)["error"]) == ("compaction_failed", "CompactionFailed")
    assert "PROSE" not in json.dumps(ours)


def test_joined_and_remembered_have_spans_of_their_own(traced: LiveProxy, backend: ScriptedBackend) -> None:
    """Each request sees in its own trace how long it waited for a compaction, and whose inference it was."""
    gate = threading.Event()
    backend.script(Gated(Summary("SUM"), gate))
    body = {"model": "deepseek", "stream": True, "input": [*HISTORY, TRIGGER]}
    with ThreadPoolExecutor(1) as pool, traced.client() as client:
        first = pool.submit(ask, traced, "trigger")
        wait_for_requests(backend, 1)
        with client.stream("POST", "/v1/responses", json=body) as second:
            lines = second.iter_lines()
            next(lines)  # it waits for the one that runs
            gate.set()
            for _ in lines:
                pass
        calls = {"run": first.result().headers, "joined": second.headers, "remembered": ask(traced, "trigger").headers}
    for source, headers in calls.items():
        spans = spans_of(traced, headers["x-litellm-call-id"])
        ours = named(spans, OURS)
        assert ours["parent_id"] == named(spans, REQUEST)["context"]["span_id"]
        assert told(ours)["source"] == source
        assert children(spans, ours).count(INNER) == (source == "run")
        # A stream begins only after a few seconds of waiting.
        waited = told(ours)["seconds"]
        assert waited > 1 if source == "joined" else waited >= 0


@needs_litellm("1.108", "the second callback of an older one writes no spans here")
def test_second_callback_puts_the_inference_under_it_too(workers: LiveProxy, backend: ScriptedBackend) -> None:
    """With LITELLM_OTEL_V2 the summary's call is a part of the compaction's span, the request's own call is not."""
    backend.script(Summary("SUM"), Text("done"))
    response = ask(workers, "auto")
    assert response.status_code == 200, response.text
    spans = spans_of(workers, response.headers["x-litellm-call-id"], "chat auto", "chat auto")
    assert children(spans, named(spans, OURS)).count("chat auto") == 1


def test_workers_are_added_up(workers: LiveProxy, backend: ScriptedBackend) -> None:
    """Whichever worker is asked, /metrics has the compactions of both, each once."""
    wanted = series("runs_total", door="trigger", model="deepseek", outcome="completed")
    before = scrape(workers).get(wanted, 0)
    number = 8
    backend.answer_with(lambda _: Summary("SUM"))
    for _ in range(number):
        renew_history()
        assert ask(workers, "trigger").status_code == 200
    assert [scrape(workers)[wanted] - before for _ in range(6)] == [number] * 6


def test_missing_folder_of_metrics_costs_no_compaction(shared_backend: ScriptedBackend, tmp_path: Path) -> None:
    """Where metrics cannot be written compactions go on, and the log says so once."""
    folder = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "nowhere")}
    shared_backend.reset()
    shared_backend.answer_with(lambda _: Summary("SUM"))
    with running_proxy(base_config(shared_backend.url), env=folder) as proxy:
        for _ in range(2):
            renew_history()
            assert ask(proxy, "trigger").status_code == 200
        assert proxy.log().count("metrics or traces cannot be written") == 1
