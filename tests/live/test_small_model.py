"""A real small model behind the proxy. Opt-in: LIVE_MODEL_BASE names an OpenAI-compatible server on loopback.

Asserted are structure and planted facts, never wording.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.bodies import TRIGGER, assistant, call, output, user
from tests.support.proxy import MASTER_KEY, LiveProxy, running_proxy

BASE = os.environ.get("LIVE_MODEL_BASE")
pytestmark = [
    pytest.mark.live_model,
    pytest.mark.skipif(BASE is None, reason="LIVE_MODEL_BASE is not set"),
]
CONVERSATION = [
    user("The importer in src/import_csv.py drops the last row of every file. Find out why and fix it."),
    call("c1", arguments='{"command": "sed -n 1,40p src/import_csv.py"}'),
    output(
        "c1", "def rows(lines):\n    for number in range(len(lines) - 1):\n        yield lines[number].split(';')\n"
    ),
    assistant("The loop stops one line early: range(len(lines) - 1). I will iterate over the lines themselves."),
    call("c2", "apply_patch", '{"patch": "- for number in range(len(lines) - 1): + for line in lines:"}'),
    output("c2", "Success. Updated src/import_csv.py"),
    call("c3", arguments='{"command": "pytest -q tests/test_import_csv.py"}'),
    output("c3", "FAILED tests/test_import_csv.py::test_semicolon - AssertionError\n1 failed, 6 passed"),
    assistant("test_semicolon still fails: the fixture expects port 5433, and the settings say 5432."),
]


@pytest.fixture(scope="module")
def live_proxy() -> Iterator[LiveProxy]:
    params = {"model": "openai/served", "api_base": BASE, "api_key": "x", "use_chat_completions_api": True}
    config = {
        "model_list": [{"model_name": "small", "litellm_params": params}],
        "litellm_settings": {"callbacks": ["litellm_compaction.handler"]},
        "callback_settings": {"litellm_compaction": {"deadline_seconds": 600, "keep_recent_tokens": 0}},
        "general_settings": {"master_key": MASTER_KEY},
    }
    with running_proxy(config) as proxy:
        yield proxy


def test_small_model_compacts_and_goes_on(live_proxy: LiveProxy) -> None:
    """A 1.5B model compacts through the trigger, and answers a question from the item alone."""
    with live_proxy.client() as client:
        client.timeout = 600
        compacted = client.post("/v1/responses", json={"model": "small", "input": [*CONVERSATION, TRIGGER]})
        assert compacted.status_code == 200, compacted.text
        (item,) = compacted.json()["output"]
        assert compacted.json()["usage"]["input_tokens"] > 0
        question = user("Which file did we change? Answer with its path.")
        answer = client.post("/v1/responses", json={"model": "small", "input": [item, question]})
    assert answer.status_code == 200, answer.text
    said = "".join(part["text"] for entry in answer.json()["output"] for part in entry.get("content") or ())
    assert "import_csv.py" in said


def test_small_model_compacts_at_a_threshold_and_answers(live_proxy: LiveProxy) -> None:
    """A conversation over the client's threshold: one request brings the item, and an answer out of the summary."""
    filler = call("c4", arguments='{"command": "cat docs/history.md"}')
    long_ago = output("c4", "The release notes of that year say nothing about imports. " * 250)
    question = user("Which file did we change for the missing row? Answer with its path.")
    asked = {
        "model": "small",
        "input": [*CONVERSATION[:7], filler, CONVERSATION[7], long_ago, CONVERSATION[8], question],
        "context_management": [{"type": "compaction", "compact_threshold": 2_000}],
    }
    with live_proxy.client() as client:
        client.timeout = 600
        answer = client.post("/v1/responses", json=asked)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert [entry["type"] for entry in body["output"]][:2] == ["compaction", "message"]
    assert int(answer.headers["x-litellm-compaction-tokens-after"]) < 2_000
    said = "".join(part["text"] for entry in body["output"][1:] for part in entry.get("content") or ())
    assert "import_csv.py" in said
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] + body["usage"]["output_tokens"]
