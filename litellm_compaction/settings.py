"""The operator's settings: one validated model, resolved once, global values under per-model ones.

Source: `callback_settings.litellm_compaction` and `model_list[].model_info.compaction` (contract, section 2).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from litellm_compaction.errors import SettingsError

_ENVIRONMENT: Final = "os.environ/"
_TEXT_KEYS: Final = frozenset({"keys", "summary_model", "instructions", "cache"})

_CACHE: Final = r"^(local|rediss?://.+|unix://.+)$"
PositiveInt = Annotated[StrictInt, Field(ge=1)]
Threshold = Literal["auto"] | PositiveInt | Annotated[float, Field(strict=True, gt=0, lt=1)]
Secret = Annotated[StrictStr, Field(min_length=1)]


def _whole(value: object) -> object:
    """Literals take 400.0 and True for their equals; a status is an integer."""
    if type(value) is not int:
        raise ValueError("not an integer")
    return value


class Settings(BaseModel):
    """All settings of one model group, in tokens and seconds where a unit applies."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    summary_model: Annotated[StrictStr, Field(min_length=1)] | None = Field(
        None, description="Model group that writes summaries; null: the model the client named."
    )
    mode: Literal["auto", "own", "native"] = Field("auto", description="Who compacts: this plugin or the backend.")
    max_attempts: Annotated[StrictInt, Field(ge=1, le=10)] = Field(3, description="Inferences per compaction at most.")
    count_retries: StrictBool = Field(
        default=False, description="Whether LiteLLM's own retries and fallbacks count against `max_attempts`."
    )
    trim_fraction: Annotated[float, Field(strict=True, gt=0, lt=1)] = Field(
        0.2, description="Share dropped after an overflow."
    )
    oversize: Literal["fold", "trim"] = Field("fold", description="What to do with a transcript that cannot fit.")
    max_passes: PositiveInt = Field(8, description="Windows of one fold at most.")
    failure_status: Annotated[Literal[400, 500], BeforeValidator(_whole)] = Field(
        400, description="HTTP status of `compaction_failed`."
    )
    deadline_seconds: Annotated[float, Field(strict=True, gt=0, le=86400)] = Field(
        240, description="Wall-clock limit of one compaction, all attempts together."
    )
    context: PositiveInt | None = Field(None, description="C, total context window, shared by input and output.")
    output: PositiveInt | None = Field(None, description="O, maximum output tokens.")
    max_input: PositiveInt | None = Field(None, description="The model's own input limit, below C - O.")
    threshold: Threshold = Field("auto", description="T: `auto`, tokens, or a fraction of C.")
    threshold_rule: Literal["seed", "smooth"] = Field("seed", description="Rule that derives T.")
    auto_compact: StrictBool = Field(default=False, description="Compact at T even when not asked.")
    enforce_budget: StrictBool = Field(default=True, description="Refuse what cannot fit, clamp the output.")
    keep_recent_tokens: Annotated[StrictInt, Field(ge=0)] = Field(
        20_000, description="Newest items kept verbatim beside the summary."
    )
    retained_fraction: Annotated[float, Field(strict=True, gt=0, lt=1)] = Field(
        0.4, description="Ceiling of all verbatim-kept items, as a share of C."
    )
    user_message_tokens: Annotated[StrictInt, Field(ge=0)] = Field(
        64_000, description="User messages returned verbatim by /responses/compact, newest first."
    )
    ledger: StrictBool = Field(default=True, description="Add to every summary what the transcript says by itself.")
    on_failure: Literal["error", "ledger"] = Field("error", description="No valid summary: error, or the ledger.")
    seal: StrictBool = Field(default=True, description="Encrypt items; false: readable JSON.")
    keys: Annotated[tuple[Secret, ...], Field(min_length=1)] | None = Field(
        None, description="Secrets, newest first; the first seals, all open."
    )
    bind: Literal["team", "user", "key", "none"] = Field("team", description="Who may open an item.")
    foreign_items: Literal["reject", "note"] = Field("reject", description="An item this plugin cannot open.")
    misplaced_trigger: Literal["reject", "normalize"] = Field("reject", description="A trigger that is not last.")
    summary_role: Literal["user", "developer", "tool"] = Field("user", description="Role of the restored summary.")
    instructions: Annotated[StrictStr, Field(min_length=1)] | None = Field(
        None, description="Replaces the summary instructions; `{default}` stands for the built-in text."
    )
    speculate: StrictBool = Field(default=False, description="Prepare the summary ahead of the threshold.")
    cache: Annotated[StrictStr, Field(pattern=_CACHE)] | None = Field(
        None, description="Shared store for single-flight: null for LiteLLM's cache, `local`, or a Redis URL."
    )


# Keys whose effect comes with a later issue: naming one is refused, except with the value that says what
# happens today anyway. Without this an operator would believe in a protection that is not there.
NOT_SUPPORTED_YET: Final[Mapping[str, object]] = {
    "ledger": False,
    "speculate": False,
}


def parse_settings(values: object, where: str) -> Settings:
    """Validate one mapping of settings. `where` names it in messages (`callback_settings.litellm_compaction`).

    Raises SettingsError naming the key, the value and the allowed range.
    """
    return _validate(_resolve(values, where), where)


def merge_settings(global_values: object, model_values: object, model: str) -> Settings:
    """Settings of one model group: its own values over the global ones."""
    where: Final = f"model_info.compaction of {model!r}"
    own: Final = _resolve(model_values, where)
    # `keys` and `cache` belong to the proxy, not to a model: an item must open whatever model reads it.
    for key in ("keys", "cache"):
        if key in own:
            raise SettingsError(f"{where}: {key!r} can only be set under callback_settings.litellm_compaction")
    _validate(own, where)
    return _validate({**_resolve(global_values, "callback_settings.litellm_compaction"), **own}, where)


def _resolve(values: object, where: str) -> dict[str, object]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise SettingsError(f"{where}: expected a mapping of settings, got {type(values).__name__}")
    return {str(key): _from_environment(str(key), value, f"{where}.{key}") for key, value in values.items()}


def _from_environment(key: str, value: object, where: str) -> object:
    if isinstance(value, list | tuple):
        return [_from_environment(key, entry, where) for entry in value]
    if not isinstance(value, str):
        return value
    if not value.startswith(_ENVIRONMENT):
        # LiteLLM has put variables of single values in by now, as text.
        return value if key in _TEXT_KEYS else _typed(value)
    name: Final = value.removeprefix(_ENVIRONMENT)
    found: Final = os.environ.get(name)
    if found is None:
        raise SettingsError(f"{where}: environment variable {name!r} is not set")
    return found if key in _TEXT_KEYS else _typed(found)


def _typed(text: str) -> object:
    """An environment value as YAML would have read it: numbers and booleans are not strings."""
    lowered: Final = text.strip().lower()
    if lowered in {"true", "false"}:
        return lowered == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _validate(values: dict[str, object], where: str) -> Settings:
    _refuse_unknown(values, where)
    try:
        settings: Final = Settings.model_validate(values)
    except ValidationError as error:
        first: Final = error.errors(include_url=False)[0]
        key: Final = str(first["loc"][0]) if first["loc"] else "?"
        raise SettingsError(
            f"{where}.{key}: {_shown(key, values)} is not allowed: {_allowed(key, first['msg'])}"
        ) from None
    # After the validation: an impossible value is named as impossible, not as something for later.
    _refuse_not_yet(values, where)
    _refuse_over_the_window(settings, where)
    return settings


def _refuse_over_the_window(settings: Settings, where: str) -> None:
    """Output, threshold and input limit are parts of `context`, where the operator says that."""
    window: Final = settings.context
    if window is None:
        return
    threshold: Final = settings.threshold if isinstance(settings.threshold, int) else None
    for key, value, most in (
        ("output", settings.output, window - 1),
        ("threshold", threshold, window - 1),
        ("max_input", settings.max_input, window),
    ):
        if value is not None and value > most:
            allowed = f"less than 'context' ({window})" if most < window else f"at most 'context' ({window})"
            raise SettingsError(f"{where}.{key}: {value} is not allowed: allowed is {allowed}")


def _refuse_unknown(values: Mapping[str, object], where: str) -> None:
    for key in values:
        if key not in Settings.model_fields:
            known = ", ".join(sorted(Settings.model_fields))
            raise SettingsError(
                f"{where}.{key}: unknown setting (value {_shown(key, values)}); known settings: {known}"
            )


def _shown(key: str, values: Mapping[str, object]) -> str:
    """A value for a message; what is or may be meant as a secret is not shown."""
    return "(hidden)" if any(word in key.lower() for word in ("key", "secret")) else repr(values.get(key))


def _refuse_not_yet(values: Mapping[str, object], where: str) -> None:
    for key, today in NOT_SUPPORTED_YET.items():
        if values.get(key, today) != today:
            raise SettingsError(f"{where}.{key}: {values[key]!r} is not supported yet; leave the key out")
    if values.get("summary_model") == "ledger":
        raise SettingsError(f"{where}.summary_model: 'ledger' is not supported yet")


_RANGES: Final[Mapping[str, str]] = {
    "max_attempts": "an integer from 1 to 10",
    "trim_fraction": "a number between 0 and 1",
    "max_passes": "an integer of at least 1",
    "failure_status": "400 or 500",
    "deadline_seconds": "seconds, more than 0 and at most 86400",
    "threshold": "'auto', a number of tokens of at least 1, or a fraction between 0 and 1",
    "retained_fraction": "a number between 0 and 1",
    "keys": "a list of at least one secret",
    "cache": "null for LiteLLM's cache, 'local', or the URL of a Redis (redis://, rediss://, unix://)",
}


def _allowed(key: str, message: str) -> str:
    allowed: Final = _RANGES.get(key)
    return f"allowed is {allowed}" if allowed else message[:1].lower() + message[1:]
