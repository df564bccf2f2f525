"""What makes two requests the same, the windows backends have named, and what stays verbatim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from litellm_compaction.budget.limits import ModelLimits
from litellm_compaction.compaction.plan import Limits
from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.envelope.sealing import Caller, KeyRing
from litellm_compaction.gateway.budgets import Windows
from litellm_compaction.gateway.pending import Pending
from litellm_compaction.gateway.responses import Frame
from litellm_compaction.gateway.runner import kept_limits, write_key
from litellm_compaction.settings import Settings
from tests.support.bodies import assistant, user


def make(**values: Any) -> Settings:
    """Settings with some values of their own."""
    return Settings.model_validate(values)


def request(**members: Any) -> Pending:
    """A request like any other of the same client, made anew each time."""
    given: dict[str, Any] = {
        "origin": "trigger",
        "stream": False,
        "model": "group",
        "settings": make(),
        "writer_model": "group",
        "writer_settings": make(),
        "ring": KeyRing(["secret"]),
        "caller": Caller("key", "team", "user"),
        "expansion": Expansion([user("first"), assistant("second"), user("third")], (), frozenset({0})),
        "frame": Frame("resp_1", "cmp_1", "asked", 5),
        "extra": {"fallbacks": ["other"], "priority": 1},
    }
    return Pending(**{**given, **members})


def with_items(*items: dict[str, Any]) -> Pending:
    return request(expansion=Expansion(list(items), (), frozenset({0})))


SAME: dict[str, Callable[[], Pending]] = {
    "equal": request,
    "streamed": lambda: request(stream=True),
    "another-response": lambda: request(frame=Frame("resp_2", "cmp_2", "asked", 9)),
    "members-of-the-body": lambda: request(client_members=frozenset({"metadata"})),
    "order-of-members": lambda: request(extra={"priority": 1, "fallbacks": ["other"]}),
    "order-in-an-item": lambda: with_items(dict(reversed(user("first").items())), assistant("second"), user("third")),
    "place-of-the-store": lambda: request(settings=make(cache="local"), writer_settings=make(cache="local")),
    "keys": lambda: request(settings=make(keys=["k"]), writer_settings=make(keys=["l", "k"])),
}


@pytest.mark.parametrize("other", SAME.values(), ids=SAME)
def test_same_request_has_the_same_key(other: Callable[[], Pending]) -> None:
    """How it is delivered, when it came and which secrets and stores there are change nothing about an answer."""
    assert write_key(other()) == write_key(request())


DIFFERENT: dict[str, Callable[[], Pending]] = {
    "key": lambda: request(caller=Caller("other", "team", "user")),
    "team": lambda: request(caller=Caller("key", "other", "user")),
    "user": lambda: request(caller=Caller("key", "team", "other")),
    "no-key": lambda: request(caller=Caller(None, "team", "user")),
    "ids-in-other-places": lambda: request(caller=Caller("team", "key", "user")),
    "model": lambda: request(model="other"),
    "origin": lambda: request(origin="compact"),
    "application": lambda: request(application="Keep the numbers."),
    "empty-application": lambda: request(application=""),
    "extra-value": lambda: request(extra={"fallbacks": ["third"], "priority": 1}),
    "extra-left-out": lambda: request(extra={"fallbacks": ["other"]}),
    "first-item": lambda: with_items(user("First"), assistant("second"), user("third")),
    "middle-item": lambda: with_items(user("first"), assistant("second."), user("third")),
    "last-item": lambda: with_items(user("first"), assistant("second"), user("third ")),
    "role": lambda: with_items(user("first"), user("second"), user("third")),
    "order": lambda: with_items(user("first"), user("third"), assistant("second")),
    "item-more": lambda: with_items(user("first"), assistant("second"), user("third"), user("third")),
    "item-less": lambda: with_items(user("first"), assistant("second")),
    "no-items": with_items,
    "summaries": lambda: request(expansion=replace(request().expansion, summaries=frozenset({1}))),
    "no-summaries": lambda: request(expansion=replace(request().expansion, summaries=frozenset())),
}


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=DIFFERENT)
def test_different_request_has_another_key(other: Callable[[], Pending]) -> None:
    """Who asks, for what and of what: each difference is another compaction."""
    assert write_key(other()) != write_key(request())


# One value of each setting that is not its default.
SETTINGS: dict[str, Any] = {
    "summary_model": "small",
    "mode": "own",
    "max_attempts": 4,
    "count_retries": True,
    "trim_fraction": 0.3,
    "oversize": "trim",
    "max_passes": 9,
    "failure_status": 500,
    "deadline_seconds": 241,
    "context": 1,
    "output": 1,
    "max_input": 1,
    "threshold": 5,
    "threshold_rule": "smooth",
    "auto_compact": True,
    "enforce_budget": False,
    "keep_recent_tokens": 1,
    "retained_fraction": 0.5,
    "user_message_tokens": 1,
    "ledger": False,
    "on_failure": "ledger",
    "seal": False,
    "bind": "key",
    "foreign_items": "note",
    "misplaced_trigger": "normalize",
    "summary_role": "developer",
    "instructions": "Be brief.",
    "speculate": True,
}


def test_every_setting_is_listed() -> None:
    """A new setting has to be thought of here."""
    assert SETTINGS.keys() == Settings.model_fields.keys() - {"keys", "cache"}


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_makes_another_key(name: str) -> None:
    """After a change of settings nothing old is given, and reader and writer are not mistaken for each other."""
    changed = make(**{name: SETTINGS[name]})
    keys = [
        write_key(request()),
        write_key(request(settings=changed)),
        write_key(request(writer_settings=changed)),
        write_key(request(settings=changed, writer_settings=changed)),
    ]
    assert len(set(keys)) == 4


def test_key_tells_nothing() -> None:
    """A key in Redis or in a log is a digest, in which no text can be read."""
    assert int(write_key(request()), 16)
    assert len(write_key(request())) == 64


def test_content_that_is_no_json_has_a_key() -> None:
    """What a hook put into the transcript may be anything; lone surrogates come from cut emoji."""
    assert write_key(with_items({"type": "message", "content": {1, 2}})) != write_key(with_items(user("\ud83d")))


def test_smallest_window_seen_counts() -> None:
    """A group is as large as the smallest deployment that has refused, each group by itself."""
    windows = Windows()
    assert windows.of("group") is None
    for seen, smallest in ((32_768, 32_768), (8_192, 8_192), (131_072, 8_192)):
        windows.learn("group", seen)
        assert windows.of("group") == smallest
    assert windows.of("other") is None


KEPT: dict[str, tuple[Settings, ModelLimits, int, Limits]] = {
    "unknown-small": (make(), ModelLimits(), 400, Limits(100, None)),
    "unknown-large": (make(), ModelLimits(), 10**6, Limits(20_000, None)),
    "nothing-recent": (make(keep_recent_tokens=0), ModelLimits(), 10**6, Limits(0, None)),
    "empty-transcript": (make(), ModelLimits(context=100_000), 0, Limits(0, 40_000)),
    "rounded-down": (make(), ModelLimits(), 7, Limits(1, None)),
    "large-window": (make(), ModelLimits(context=200_000, output=64_000), 10**6, Limits(20_000, 80_000)),
    "quarter-of-the-threshold": (make(), ModelLimits(context=32_000, output=8_000), 10**6, Limits(3_904, 12_800)),
    "threshold-of-its-own": (make(threshold=8_000), ModelLimits(context=32_000), 10**6, Limits(2_000, 12_800)),
    "input-of-its-own": (make(), ModelLimits(400_000, 128_000, 10_000), 10**6, Limits(2_500, 160_000)),
    "input-only": (make(), ModelLimits(max_input=10_000), 10**6, Limits(2_500, 4_000)),
    "output-only": (make(), ModelLimits(output=10_000), 10**6, Limits(20_000, None)),
    "fraction": (make(retained_fraction=0.5), ModelLimits(context=1_001, output=1), 8, Limits(2, 500)),
    "no-room": (make(), ModelLimits(context=200), 10**6, Limits(0, 80)),
}


@pytest.mark.parametrize(("settings", "reader", "tokens", "limits"), KEPT.values(), ids=KEPT)
def test_what_stays_verbatim(settings: Settings, reader: ModelLimits, tokens: int, limits: Limits) -> None:
    """The newest: the setting, a quarter of the transcript and of the input at most; all: a share of the window."""
    assert kept_limits(settings, reader, tokens) == limits
