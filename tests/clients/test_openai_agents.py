"""openai-agents' compaction session runs through the proxy unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, SQLiteSession
from agents.memory import OpenAIResponsesCompactionSession

from tests.support.backend import Json, ScriptedBackend, Step, Summary, Text, is_summary_request, request_text
from tests.support.proxy import MASTER_KEY, LiveProxy, base_config, running_proxy

# The session refuses names that do not look like OpenAI's.
MODEL = "gpt-4.1-local"
WORD = "heron-4711"


@pytest.fixture
def gpt_proxy(backend: ScriptedBackend) -> Iterator[LiveProxy]:
    """A proxy whose model carries a name the session accepts."""
    config = base_config(backend.url)
    config["model_list"][0]["model_name"] = MODEL
    with running_proxy(config) as proxy:
        yield proxy


def answer(body: Json) -> Step:
    """A model that knows only what it is sent."""
    text = request_text(body)
    if is_summary_request(body):
        return Summary(f"The assistant chose {WORD}." if WORD in text else "nothing")
    if "choose a word" in text and WORD not in text:
        return Text(f"I choose {WORD}.")
    return Text(f"It is {WORD}." if WORD in text else "I do not know.")


async def test_session_compacts_and_goes_on(gpt_proxy: LiveProxy, backend: ScriptedBackend) -> None:
    """The session replaces its items by the compacted window, and the next run still knows what was said."""
    backend.answer_with(answer)
    async with openai.AsyncOpenAI(base_url=f"{gpt_proxy.url}/v1", api_key=MASTER_KEY, max_retries=0) as client:
        session = OpenAIResponsesCompactionSession(
            session_id="s",
            underlying_session=SQLiteSession("s"),
            client=client,
            model=MODEL,
            compaction_mode="input",
            should_trigger_compaction=lambda _: False,
        )
        agent: Agent[Any] = Agent(name="a", model=OpenAIResponsesModel(model=MODEL, openai_client=client))
        quiet = RunConfig(tracing_disabled=True)
        first = await Runner.run(agent, "choose a word", session=session, run_config=quiet)
        assert WORD in str(first.final_output)
        await session.run_compaction({"force": True})
        kinds = [item.get("type") for item in await session.get_items()]
        assert kinds[-1] == "compaction"
        assert not any(item.get("role") == "assistant" for item in await session.get_items())
        second = await Runner.run(agent, "which one was it?", session=session, run_config=quiet)
        assert WORD in str(second.final_output)
