"""The embedded model: it quotes what it was sent, and says so when it was sent nothing."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from litellm_compaction.cli.demo.backend import EmbeddedBackend
from litellm_compaction.cli.demo.extractive_model import UNKNOWN, answer, summarise
from litellm_compaction.cli.demo.session import load_session
from litellm_compaction.cli.demo.transcript_reader import Entry, read_entries, read_text
from litellm_compaction.conversation.items import classify_items
from litellm_compaction.conversation.transcript import render_blocks, write_blocks

QUESTION = "Which test was still failing, and why was the retry limit set to 7?"
SUMMARY_TOOL = {"type": "function", "function": {"name": "create_summary", "parameters": {}}}


@pytest.fixture
def backend() -> Iterator[EmbeddedBackend]:
    with EmbeddedBackend() as running:
        yield running


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False) as opened:
        yield opened


def transcript() -> str:
    """The bundled session as the plugin shows it to a summariser."""
    blocks = render_blocks(classify_items(load_session().items))
    return "".join(str(getattr(part, "text", "")) for part in write_blocks(blocks, "0a1b2c3d", images=False))


def chat(client: httpx.Client, backend: EmbeddedBackend, **body: Any) -> Any:
    return client.post(f"{backend.url}/chat/completions", json={"model": "m", **body}).raise_for_status().json()


def test_summary_comes_as_the_forced_tool_call(client: httpx.Client, backend: EmbeddedBackend) -> None:
    """A request with `create_summary` is answered by one call of it, with a summary made of the transcript."""
    content = [{"type": "text", "text": transcript()}]
    done = chat(client, backend, messages=[{"role": "user", "content": content}], tools=[SUMMARY_TOOL])
    choice = done["choices"][0]
    arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
    assert choice["finish_reason"] == "tool_calls"
    assert "127 seconds" in arguments["summary"]
    assert "do not touch migrations/" in arguments["summary"]
    assert arguments["retain_item_ids"] == ["item_000070"]
    assert backend.received[0].is_summary
    assert done["usage"]["total_tokens"] > 0


def test_answer_is_quoted_from_what_was_sent(client: httpx.Client, backend: EmbeddedBackend) -> None:
    """With the summary in its messages the model knows both parts of the answer."""
    summary = summarise(read_entries(transcript())).text
    messages = [{"role": "user", "content": summary}, {"role": "user", "content": QUESTION}]
    text = chat(client, backend, messages=messages)["choices"][0]["message"]["content"]
    assert "test_claim_skips_rows_leased_by_another_worker" in text
    assert "127" in text


def test_nothing_sent_nothing_known(client: httpx.Client, backend: EmbeddedBackend) -> None:
    """Without the summary the model says that it does not know: the demo cannot pass by accident."""
    text = chat(client, backend, messages=[{"role": "user", "content": QUESTION}])["choices"][0]["message"]["content"]
    assert text.count(UNKNOWN) == 2
    assert "127" not in text


def test_streamed_answer_is_the_same_text(client: httpx.Client, backend: EmbeddedBackend) -> None:
    """The chunks of a stream join to the answer, and the last one carries the usage."""
    messages = [{"role": "user", "content": "The cap is 64 seconds."}, {"role": "user", "content": "What is the cap?"}]
    with client.stream(
        "POST", f"{backend.url}/chat/completions", json={"messages": messages, "stream": True}
    ) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    chunks = [json.loads(line) for line in lines[:-1]]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == "The cap is 64 seconds."
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert lines[-1] == "[DONE]"


def test_other_paths_are_not_found(client: httpx.Client, backend: EmbeddedBackend) -> None:
    """Like most self-hosted servers it has no Responses API."""
    assert client.post(f"{backend.url}/responses", json={}).status_code == 404
    assert client.get(f"{backend.url}/models").status_code == 200


def test_answer_needs_most_of_the_words() -> None:
    """A sentence that shares one word with the question is no answer."""
    assert answer("Which harbour was closed?", ["The harbour is large."]).startswith(UNKNOWN)


def test_why_is_answered_by_a_reason_only() -> None:
    """The bare statement does not answer a why."""
    known = ["The limit is set to 7.", "The limit is set to 7 because 6 is too short."]
    assert answer("Why is the limit set to 7?", known) == known[1]


@pytest.mark.parametrize(
    "text",
    [
        '<item ref="item_000001" type="message" role="user">\nHello\n</item>\n',
        "[item_000001] user message:\nHello",
        "### item_000001 (user)\n\nHello\n",
    ],
)
def test_entries_are_read_whatever_the_layout(text: str) -> None:
    """Tags, brackets or headings: a line with a reference opens an item."""
    assert read_entries(text) == [Entry("item_000001", "user", "Hello")]


def test_text_after_a_closing_tag_belongs_to_no_item() -> None:
    """The order that follows the transcript is not quoted as something the assistant said."""
    text = '<item-1 ref="item_000001" role="assistant">\nDone.\n</item-1>\nNow call the tool.'
    assert [entry.text for entry in read_entries(text)] == ["Done."]


def test_images_are_named() -> None:
    """A content part without text is shown as an image."""
    parts = [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert read_text(parts) == "see [image]\n"


def test_empty_transcript_still_gives_a_summary() -> None:
    """There is always something to hand back: an empty summary would be refused."""
    assert summarise([]).text
