"""The operator's settings: defaults of the contract's table, refusals that name key, value and range."""

from __future__ import annotations

from typing import Any

import pytest

from litellm_compaction.errors import SettingsError
from litellm_compaction.settings import NOT_SUPPORTED_YET, Settings, merge_settings, parse_settings

WHERE = "callback_settings.litellm_compaction"

# The table of the contract, section 2.
DEFAULTS: dict[str, Any] = {
    "summary_model": None,
    "mode": "auto",
    "max_attempts": 3,
    "count_retries": False,
    "trim_fraction": 0.2,
    "oversize": "fold",
    "max_passes": 8,
    "failure_status": 400,
    "deadline_seconds": 240,
    "context": None,
    "output": None,
    "max_input": None,
    "threshold": "auto",
    "threshold_rule": "seed",
    "auto_compact": False,
    "enforce_budget": True,
    "keep_recent_tokens": 20_000,
    "retained_fraction": 0.4,
    "user_message_tokens": 64_000,
    "ledger": True,
    "on_failure": "error",
    "seal": True,
    "keys": None,
    "bind": "team",
    "foreign_items": "reject",
    "misplaced_trigger": "reject",
    "summary_role": "user",
    "instructions": None,
    "speculate": False,
    "cache": None,
}

# key, impossible value, words that tell what is allowed
BAD: list[tuple[str, Any, str]] = [
    ("summary_model", "", "at least 1 character"),
    ("summary_model", 7, "string"),
    ("mode", "both", "'auto', 'own' or 'native'"),
    ("max_attempts", 0, "an integer from 1 to 10"),
    ("max_attempts", 11, "an integer from 1 to 10"),
    ("max_attempts", "three", "an integer from 1 to 10"),
    ("max_attempts", True, "an integer from 1 to 10"),
    ("count_retries", "sometimes", "boolean"),
    ("trim_fraction", 1, "a number between 0 and 1"),
    ("oversize", "drop", "'fold' or 'trim'"),
    ("max_passes", 0, "an integer of at least 1"),
    ("failure_status", 503, "400 or 500"),
    ("deadline_seconds", 0, "more than 0 and at most 86400"),
    ("deadline_seconds", float("nan"), "more than 0 and at most 86400"),
    ("context", 0, "greater than or equal to 1"),
    ("context", 1.5, "integer"),
    ("output", -1, "greater than or equal to 1"),
    ("max_input", "many", "integer"),
    ("threshold", 1.0, "'auto', a number of tokens of at least 1, or a fraction between 0 and 1"),
    ("threshold", 0, "'auto', a number of tokens"),
    ("threshold", 0.0, "'auto', a number of tokens"),
    ("threshold", -1, "'auto', a number of tokens"),
    ("threshold", 100_000.0, "'auto', a number of tokens"),
    ("threshold", float("nan"), "'auto', a number of tokens"),
    ("threshold", True, "'auto', a number of tokens"),
    ("threshold", "85%", "'auto', a number of tokens"),
    ("context", True, "integer"),
    ("context", "128k", "integer"),
    ("output", 0, "greater than or equal to 1"),
    ("output", 1e5, "integer"),
    ("max_input", 0, "greater than or equal to 1"),
    ("threshold_rule", "linear", "'seed' or 'smooth'"),
    ("auto_compact", 1, "boolean"),
    ("enforce_budget", "yes", "boolean"),
    ("keep_recent_tokens", -1, "greater than or equal to 0"),
    ("retained_fraction", 0, "a number between 0 and 1"),
    ("user_message_tokens", 1.0, "integer"),
    ("ledger", "no", "boolean"),
    ("on_failure", "ignore", "'error' or 'ledger'"),
    ("seal", 0, "boolean"),
    ("bind", "org", "'team', 'user', 'key' or 'none'"),
    ("foreign_items", "drop", "'reject' or 'note'"),
    ("misplaced_trigger", "ignore", "'reject' or 'normalize'"),
    ("summary_role", "system", "'user', 'developer' or 'tool'"),
    ("instructions", "", "at least 1 character"),
    ("speculate", 2, "boolean"),
    ("cache", 5, "null for LiteLLM's cache, 'local', or the URL of a Redis"),
    ("cache", "memcached://host", "null for LiteLLM's cache, 'local', or the URL of a Redis"),
]

# key, the value that asks for what does not exist yet
LATER: list[tuple[str, Any]] = [
    ("ledger", True),
    ("speculate", True),
    ("summary_model", "ledger"),
]


def refusal(values: object) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_settings(values, WHERE)
    return caught.value.message


def test_defaults_are_those_of_the_contract() -> None:
    """Every key of the contract's table exists with its default, and no other key does."""
    assert parse_settings(None, WHERE).model_dump() == DEFAULTS


@pytest.mark.parametrize("key", sorted(DEFAULTS))
def test_every_setting_is_described(key: str) -> None:
    """Each setting carries the sentence that `check` and the README show."""
    assert Settings.model_fields[key].description


@pytest.mark.parametrize(("key", "value", "allowed"), BAD, ids=[f"{key}={value!r}" for key, value, _ in BAD])
def test_impossible_value_is_refused(key: str, value: object, allowed: str) -> None:
    """The message names the key, the value and what is allowed."""
    message = refusal({key: value})
    assert message.startswith(f"{WHERE}.{key}: {value!r} is not allowed: ")
    assert allowed in message


def test_every_setting_has_an_impossible_value_above() -> None:
    """The table of refusals covers every key; `keys` has tests of its own, its values are never shown."""
    assert {key for key, _, _ in BAD} == set(DEFAULTS) - {"keys"}


@pytest.mark.parametrize(
    "keys", [[], [""], "one-secret-alone", [5], ["good-secret", ""]], ids=["none", "blank", "string", "number", "mixed"]
)
def test_bad_keys_are_refused_without_showing_them(keys: object) -> None:
    """A bad key ring is refused, and no secret stands in the message."""
    message = refusal({"keys": keys})
    assert message == f"{WHERE}.keys: (hidden) is not allowed: allowed is a list of at least one secret"


def test_unknown_key_is_refused_with_the_known_ones() -> None:
    """A misspelt key is named with its value, beside all keys there are."""
    message = refusal({"summery_model": "x"})
    assert message.startswith(f"{WHERE}.summery_model: unknown setting (value 'x')")
    assert all(key in message for key in DEFAULTS)


@pytest.mark.parametrize(
    ("values", "kind"), [(["mode"], "list"), ("own", "str"), (7, "int")], ids=["list", "string", "number"]
)
def test_section_must_be_a_mapping(values: object, kind: str) -> None:
    """A section that is no mapping is refused by its type."""
    assert refusal(values) == f"{WHERE}: expected a mapping of settings, got {kind}"


@pytest.mark.parametrize(("key", "value"), LATER, ids=[f"{key}={value!r}" for key, value in LATER])
def test_what_does_not_work_yet_is_refused(key: str, value: object) -> None:
    """A setting without an effect today is refused rather than believed."""
    message = refusal({key: value})
    assert message.startswith(f"{WHERE}.{key}: {value!r} is not supported yet")


def test_every_setting_of_a_later_issue_is_refused_above() -> None:
    """The table above covers all keys that are not supported yet."""
    assert {key for key, _ in LATER} == {*NOT_SUPPORTED_YET, "summary_model"}


@pytest.mark.parametrize(("key", "today"), NOT_SUPPORTED_YET.items(), ids=NOT_SUPPORTED_YET)
def test_value_that_says_what_happens_today_is_accepted(key: str, today: object) -> None:
    """Switching off what does not exist yet is true, and accepted."""
    assert getattr(parse_settings({key: today}, WHERE), key) == today


# Settings of budgets, as written, and as read.
BUDGETS: list[tuple[str, Any]] = [
    ("threshold", "auto"),
    ("threshold", 1),
    ("threshold", 372_000),
    ("threshold", 0.85),
    ("threshold_rule", "seed"),
    ("threshold_rule", "smooth"),
    ("auto_compact", True),
    ("auto_compact", False),
    ("enforce_budget", True),
    ("enforce_budget", False),
]


@pytest.mark.parametrize(("key", "value"), BUDGETS, ids=[f"{key}={value!r}" for key, value in BUDGETS])
def test_settings_of_budgets(key: str, value: object) -> None:
    """A threshold in every form, the rule, who is compacted and what is refused; of a type that stays what it was."""
    read = getattr(parse_settings({key: value}, WHERE), key)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(("context", "threshold"), [(8192, 8192), (8192, 10_000), (1, 1)])
def test_threshold_has_to_be_smaller_than_the_window(context: int, threshold: int) -> None:
    """One that no prompt can pass is refused, with both numbers; also where they stand in two places."""
    message = refusal({"context": context, "threshold": threshold})
    assert message.startswith(f"{WHERE}.threshold: {threshold} is not allowed: allowed is less than")
    assert f"({context})" in message
    with pytest.raises(SettingsError, match=r"model_info\.compaction of 'm'\.threshold"):
        merge_settings({"threshold": threshold}, {"context": context}, "m")


def test_input_limit_has_to_be_inside_the_window() -> None:
    """The whole window is allowed, which the output shortens anyway; more is refused."""
    assert refusal({"context": 8192, "max_input": 8193}) == (
        f"{WHERE}.max_input: 8193 is not allowed: allowed is at most 'context' (8192)"
    )
    assert parse_settings({"context": 8192, "max_input": 8192}, WHERE).max_input == 8192
    assert parse_settings({"max_input": 8193}, WHERE).max_input == 8193


@pytest.mark.parametrize("threshold", ["auto", 8191, 0.999], ids=["auto", "less", "share"])
def test_threshold_inside_the_window(threshold: object) -> None:
    """Up to one token less than the window, and every share of it."""
    assert parse_settings({"context": 8192, "threshold": threshold}, WHERE).threshold == threshold
    assert parse_settings({"threshold": 10**9}, WHERE).threshold == 10**9


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("summary_model", "small", "small"),
        ("max_attempts", "2", 2),
        ("retained_fraction", "0.5", 0.5),
        ("seal", "False", False),
        ("context", "500000", 500_000),
    ],
    ids=["string", "integer", "fraction", "boolean", "tokens"],
)
def test_value_from_the_environment_is_typed(
    key: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`os.environ/NAME` stands for the variable's value, read as YAML would have read it."""
    monkeypatch.setenv("COMPACTION_TEST", text)
    assert getattr(parse_settings({key: "os.environ/COMPACTION_TEST"}, WHERE), key) == value


@pytest.mark.parametrize("secret", ["1234", "true", "1e5", "os.environ/NOT_AGAIN"])
def test_secret_from_the_environment_stays_a_string(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret is taken letter by letter, also where it looks like a number."""
    monkeypatch.setenv("COMPACTION_TEST", secret)
    assert parse_settings({"keys": ["os.environ/COMPACTION_TEST", "old"]}, WHERE).keys == (secret, "old")


def test_missing_environment_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is not set is named with the key that wants it."""
    monkeypatch.delenv("COMPACTION_TEST", raising=False)
    message = refusal({"mode": "os.environ/COMPACTION_TEST"})
    assert message == f"{WHERE}.mode: environment variable 'COMPACTION_TEST' is not set"


def test_bad_value_from_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the variable held is named, not the variable."""
    monkeypatch.setenv("COMPACTION_TEST", "99")
    assert refusal({"max_attempts": "os.environ/COMPACTION_TEST"}).startswith(f"{WHERE}.max_attempts: 99 is not")


def test_model_settings_win_over_global_ones() -> None:
    """A model's own values replace the global ones, which stay for the rest."""
    merged = merge_settings({"max_attempts": 2, "bind": "key"}, {"max_attempts": 1}, "m")
    assert (merged.max_attempts, merged.bind, merged.mode) == (1, "key", "auto")


@pytest.mark.parametrize("own", [None, {}], ids=["null", "empty"])
def test_model_without_settings_has_the_global_ones(own: object) -> None:
    """A model that says nothing gets the global values."""
    assert merge_settings({"bind": "none"}, own, "m") == parse_settings({"bind": "none"}, WHERE)


@pytest.mark.parametrize(("key", "value"), [("keys", ["s"]), ("cache", "redis"), ("keys", None)])
def test_settings_of_the_proxy_are_refused_per_model(key: str, value: object) -> None:
    """Keys and cache belong to the proxy: an item must open whatever model reads it."""
    with pytest.raises(SettingsError, match=f"model_info.compaction of 'm': '{key}' can only be set under {WHERE}"):
        merge_settings(None, {key: value}, "m")


@pytest.mark.parametrize(
    "cache", [None, "local", "redis://host:6379/1", "rediss://user:word@host", "unix:///run/redis"]
)
def test_cache_is_litellms_none_or_a_redis(cache: str | None) -> None:
    """The shared store: LiteLLM's own, none, or a Redis by its URL."""
    assert parse_settings({"cache": cache}, WHERE).cache == cache


@pytest.mark.parametrize(("context", "output"), [(8192, 8192), (8192, 10_000), (1, 1)])
def test_output_has_to_be_smaller_than_the_window(context: int, output: int) -> None:
    """The output is a part of the window: as much or more is refused, with both numbers."""
    message = refusal({"context": context, "output": output})
    assert message.startswith(f"{WHERE}.output: {output} is not allowed")
    assert str(context) in message
    with pytest.raises(SettingsError, match=r"model_info\.compaction of 'm'"):
        merge_settings({"context": context}, {"output": output}, "m")


def test_bad_model_value_names_the_model() -> None:
    """A bad value per model is refused with the model's name."""
    with pytest.raises(SettingsError, match=r"model_info\.compaction of 'm'\.mode: 'x' is not allowed"):
        merge_settings(None, {"mode": "x"}, "m")


def test_settings_cannot_be_changed() -> None:
    """Settings are fixed once read."""
    with pytest.raises(ValueError, match="frozen"):
        parse_settings(None, WHERE).mode = "own"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [("context", "8000", 8000), ("retained_fraction", "0.5", 0.5), ("seal", "false", False), ("bind", "none", "none")],
)
def test_values_come_as_text_where_litellm_resolved_them(key: str, text: str, value: object) -> None:
    """LiteLLM puts environment variables of single values in before the plugin sees them, always as text."""
    assert getattr(parse_settings({key: text}, WHERE), key) == value


@pytest.mark.parametrize("key", ["summary_model", "instructions"])
def test_text_stays_text(key: str) -> None:
    """A name or an instruction that looks like a number is none."""
    assert getattr(parse_settings({key: "4"}, WHERE), key) == "4"
