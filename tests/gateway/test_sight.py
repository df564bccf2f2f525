"""What is told of a compaction: outcomes, lines, labels; that telling never fails and never tells text."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from types import SimpleNamespace
from typing import Any

import litellm
import pytest
from litellm.proxy._types import hash_token
from litellm.router import Router
from prometheus_client import REGISTRY

from litellm_compaction.compaction.answer import Usage
from litellm_compaction.compaction.compact import Outcome
from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.envelope.payload import Payload
from litellm_compaction.envelope.sealing import Caller, KeyRing
from litellm_compaction.errors import (
    CompactionError,
    CompactionFailed,
    CompactionTimeout,
    TriggerNotLast,
    UnreadableItem,
)
from litellm_compaction.gateway import metrics, sight, tracing
from litellm_compaction.gateway.flights import Result, read_failure, write_failure
from litellm_compaction.gateway.metrics import UNNAMED, label_model
from litellm_compaction.gateway.pending import Pending
from litellm_compaction.gateway.record import key_id, outcome_of
from litellm_compaction.gateway.responses import Frame
from litellm_compaction.gateway.router import inner_metadata
from litellm_compaction.gateway.sight import watch_run
from litellm_compaction.settings import Settings
from tests.support.bodies import assistant, user
from tests.support.scrape import read_line

RESULT = Result(
    item_id="cmp_1",
    content="lcmp1.CONTENT",
    usage=Usage(7, 5),
    attempts=1,
    dropped=0,
    tokens_before=1000,
    tokens_after=100,
    message_tokens=0,
)


def request(**members: Any) -> Pending:
    """A request whose every text is SECRET."""
    given: dict[str, Any] = {
        "origin": "trigger",
        "stream": False,
        "model": "group",
        "settings": Settings.model_validate({"instructions": "SECRET {default}"}),
        "writer_model": "group",
        "writer_settings": Settings.model_validate({}),
        "ring": KeyRing(["SECRET"]),
        "caller": Caller("raw-SECRET-key", "team 1\nx=y", "SECRET@example.org"),
        "expansion": Expansion([user("SECRET"), assistant("SECRET")], (), frozenset()),
        "frame": Frame("resp_1", "cmp_1", "asked", 5),
        "application": "SECRET",
        "extra": {"api_key": "SECRET"},
        "call_id": 'call"1\n2',
    }
    return Pending(**{**given, **members})


def outcome(**members: Any) -> Outcome:
    given: dict[str, Any] = {
        "payload": Payload(origin="trigger", summary="SECRET", kept=({"content": "SECRET"},)),
        "usage": Usage(7, 5),
        "attempts": 1,
        "dropped": 0,
        "shortened": 0,
        "windows": 1,
        "tokens_before": 1000,
        "tokens_after": 100,
        "message_tokens": 0,
    }
    return Outcome(**{**given, **members})


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What LiteLLM's proxy logger gets, in a process without a proxy."""
    monkeypatch.setattr(sight, "current_router", lambda: None)
    caplog.set_level(logging.INFO, "LiteLLM Proxy")
    monkeypatch.setattr(logging.getLogger("LiteLLM Proxy"), "propagate", True)
    return caplog


def text_of(record: logging.LogRecord) -> str:
    return record.getMessage().removeprefix("litellm_compaction: ")


def runs(outcome: str) -> float:
    labels = {"door": "trigger", "model": UNNAMED, "outcome": outcome}
    return REGISTRY.get_sample_value("litellm_compaction_runs_total", labels) or 0.0


async def test_a_run_has_one_line_and_no_text(lines: pytest.LogCaptureFixture) -> None:
    """Ids and counts, on one line whatever is in them; nothing of transcript, summary, instructions, key or person."""
    before = runs("completed")
    with watch_run(request(), {}, "cmp_1", asyncio.get_running_loop().time()) as run:
        run.account.attempts, run.account.usage = 1, Usage(7, 5)
        run.has_ended(outcome())
    (record,) = lines.records
    assert record.levelno == logging.INFO
    assert "SECRET" not in record.getMessage()
    assert "\n" not in record.getMessage()
    fields = read_line(text_of(record))
    assert fields is not None
    assert (fields["item"], fields["response"]) == ("cmp_1", "resp_1")
    assert (fields["call"], fields["team"]) == ('call"1\n2', "team 1\nx=y")
    assert (fields["items"], fields["tokens_before"], fields["tokens_after"]) == ("2", "1000", "100")
    assert runs("completed") == before + 1


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"dropped": 2}, "dropped=2"),
        ({"shortened": 3}, "shortened=3"),
        ({"failure": CompactionTimeout(5)}, "ledger_after=compaction_timeout"),
    ],
)
async def test_what_an_operator_should_look_at_is_a_warning(
    lines: pytest.LogCaptureFixture, members: dict[str, Any], words: str
) -> None:
    """Something left out, cut short, or written without a model."""
    with watch_run(request(), {}, "cmp_1", 0.0) as run:
        run.has_ended(outcome(**members))
    assert lines.records[0].levelno == logging.WARNING
    assert words in text_of(lines.records[0])


async def test_a_prompt_cut_silently_is_noted(lines: pytest.LogCaptureFixture) -> None:
    """The note is a value like any other, so that the line can still be taken apart."""
    with watch_run(request(), {}, "cmp_1", 0.0) as run:
        run.account.unread = True
        run.has_ended(outcome())
    fields = read_line(text_of(lines.records[0]))
    assert fields is not None
    assert "far fewer prompt tokens" in fields["note"]


async def test_a_cancelled_run_is_told(lines: pytest.LogCaptureFixture) -> None:
    """A compaction that nobody waits for any more has used what it used, and ends as it would have."""
    before = runs("cancelled")
    running = asyncio.Event()

    async def never_ends() -> None:
        with watch_run(request(), {}, "cmp_1", 0.0) as run:
            run.account.attempts = 2
            running.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(never_ends())
    await running.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert runs("cancelled") == before + 1
    fields = read_line(text_of(lines.records[0]))
    assert fields is not None
    assert (fields["outcome"], fields["attempts"]) == ("cancelled", "2")
    assert "item" not in fields


async def test_telling_never_fails(lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics that cannot be written change nothing about a compaction, and are complained of once."""

    def broken(*_: object) -> None:
        raise OSError("no space left on SECRET")

    monkeypatch.setattr(metrics, "count_record", broken)
    sight._complain.cache_clear()  # noqa: SLF001  # what was told once in this process
    for _ in range(2):
        with watch_run(request(), {}, "cmp_1", 0.0) as run:
            run.has_ended(outcome())
    told = [record.getMessage() for record in lines.records if "cannot be written" in record.getMessage()]
    assert told == ["litellm_compaction: metrics or traces cannot be written: OSError"]


def test_only_refusals_are_counted_as_such() -> None:
    """A compaction that failed has been counted as a run."""

    def refused(code: str) -> float:
        return REGISTRY.get_sample_value("litellm_compaction_refused_requests_total", {"code": code}) or 0.0

    before = refused("invalid_request")
    for error in (TriggerNotLast(), CompactionFailed("SECRET", 500)):
        assert sight.refuse(error).to_dict() == error.body()
    assert refused("invalid_request") == before + 1
    assert refused("compaction_failed") == 0


class Spent(Exception):
    """An error of LiteLLM's with a status, and a code that a backend made up."""

    def __init__(self, status: object) -> None:
        super().__init__("SECRET")
        self.status_code = status
        self.code = "made up by a backend"


@pytest.mark.parametrize(
    ("ended", "word"),
    [
        (RESULT, "completed"),
        (RESULT.model_copy(update={"degraded": True}), "ledger"),
        (CompactionFailed("SECRET", 500), "compaction_failed"),
        (read_failure(write_failure(CompactionTimeout(3))), "compaction_timeout"),
        (TriggerNotLast(), "invalid_request"),
        (Spent(429), "rate_limit_exceeded"),
        (Spent(418), "error"),
        (Spent(None), "error"),
        (litellm.exceptions.BudgetExceededError(2.0, 1.0), "budget_exceeded"),
        (RuntimeError("SECRET"), "error"),
        (asyncio.CancelledError(), "cancelled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_outcomes_are_few(ended: Result | BaseException, word: str) -> None:
    """An outcome is a word of a small set, whatever a backend called its error."""
    assert outcome_of(ended) == word


def test_a_made_up_code_is_no_outcome() -> None:
    """A failure read from a shared store may hold any code."""
    error = CompactionError("SECRET")
    error.code = "made up"
    assert outcome_of(error) == "invalid_request"


def test_key_is_told_as_its_hash() -> None:
    """A hash stays what it is, to be found in LiteLLM's tables; anything else is hashed as LiteLLM hashes keys."""
    assert key_id(None) is None
    assert key_id("sk-1") == hash_token("sk-1")
    assert key_id(hash_token("sk-1")) == hash_token("sk-1")


PARAMS = {"model": "openai/x", "api_key": "x", "api_base": "http://127.0.0.1:9/v1"}


@pytest.fixture(scope="module")
def router() -> Router:
    team = {"team_id": "red", "team_public_model_name": "public"}
    return Router(
        model_list=[
            {"model_name": "plain", "litellm_params": PARAMS, "model_info": {"id": "deployment-1"}},
            {"model_name": "wild/*", "litellm_params": {**PARAMS, "model": "openai/*"}},
            {"model_name": "internal_red_1", "litellm_params": PARAMS, "model_info": team},
        ],
        model_group_alias={"alias": "plain"},
    )


# LiteLLM's types warn of themselves while a router is made.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("group", "label"),
    [
        ("plain", "plain"),
        ("alias", "alias"),
        ("public", "public"),
        ("deployment-1", "plain"),
        ("wild/anything", "wild/*"),
        ("wild/anything else", "wild/*"),
        ("never heard of", UNNAMED),
        ("", UNNAMED),
    ],
)
def test_labels_are_the_operators_names(router: Router, group: str, label: str) -> None:
    """A client's own spelling never becomes a label."""
    assert label_model(router, group, "red") == label


def test_labels_without_a_router() -> None:
    assert label_model(None, "plain", None) == UNNAMED


def test_inner_calls_never_get_the_requests_own_span() -> None:
    """LiteLLM ends a request's span with the call that has it: an inner call gets the compaction's, or none."""
    outer = {"user_api_key_hash": "h", tracing.PARENT_KEY: "the request's"}
    assert tracing.PARENT_KEY not in inner_metadata(outer)
    assert inner_metadata({**outer, tracing.SPAN_KEY: "ours"})[tracing.PARENT_KEY] == "ours"


def test_without_a_callback_there_is_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody traces: the metadata are handed on as the very object they are."""
    monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", SimpleNamespace(open_telemetry_logger=None))
    metadata = {"user_api_key_hash": "h"}
    with tracing.open_span(metadata) as span:
        assert span is None
        assert tracing.under(metadata, span) is metadata


def test_an_unreadable_item_is_told_without_its_content(lines: pytest.LogCaptureFixture) -> None:
    """The reason, a digest and whose it was to be."""
    error = UnreadableItem("SECRET-id", "SECRET", "bound_elsewhere")
    sight.tell_refused_item(error, "SECRET", "reject", Caller("raw-SECRET-key", "red", "SECRET"))
    assert "SECRET" not in lines.records[0].getMessage()
    fields = read_line(text_of(lines.records[0]))
    assert fields is not None
    assert (fields["reason"], fields["team"], len(fields["unreadable_item"])) == ("bound_elsewhere", "red", 32)
    assert "bound_elsewhere" not in json.dumps(error.body())
