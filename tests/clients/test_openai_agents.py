"""openai-agents' compaction session runs through the proxy unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, SQLiteSession
from agents.memory import OpenAIResponsesCompactionSession

from tests.clients.forgetful import ForgetfulModel, check_known_by_the_item_alone, kinds
from tests.support.backend import ScriptedBackend
from tests.support.proxy import MASTER_KEY, LiveProxy

Mode = Literal["input", "auto"]
GROUP = "gpt-4.1-local"


@pytest.fixture
async def client(proxy: LiveProxy) -> AsyncIterator[openai.AsyncOpenAI]:
    """The client that the agent and its session share."""
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=MASTER_KEY, max_retries=0) as client:
        yield client


@pytest.mark.parametrize(
    ("mode", "store"),
    [pytest.param("input", None, id="input-mode"), pytest.param("auto", False, id="unstored")],
)
async def test_session_compacts_by_itself_and_goes_on(
    client: openai.AsyncOpenAI, backend: ScriptedBackend, mode: Mode, store: bool | None
) -> None:
    """After its second run the session becomes the compacted window, and the third run still knows the code word."""
    model = ForgetfulModel()
    backend.answer_with(model)
    session = OpenAIResponsesCompactionSession(
        session_id="session",
        underlying_session=SQLiteSession("session"),
        client=client,
        model=GROUP,
        compaction_mode=mode,
        should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= 2,
    )
    agent: Agent[Any] = Agent(
        name="agent",
        instructions="Be brief.",
        model=OpenAIResponsesModel(model=GROUP, openai_client=client),
        model_settings=ModelSettings(store=store),
    )

    async def say(prompt: str) -> str:
        quiet = RunConfig(tracing_disabled=True)
        return str((await Runner.run(agent, prompt, session=session, run_config=quiet)).final_output)

    assert model.word in await say("Please choose a code word.")
    assert model.word in await say("What is the word?")
    assert kinds(backend.requests) == ["turn", "turn", "summary"]
    window: list[Any] = list(await session.get_items())
    assert [item["type"] for item in window] == ["message", "message", "compaction"]
    assert [item.get("role") for item in window] == ["user", "user", None]
    assert model.word in await say("Say it once more.")
    assert kinds(backend.requests) == ["turn", "turn", "summary", "turn"]
    check_known_by_the_item_alone(backend.requests[3], model.word)
