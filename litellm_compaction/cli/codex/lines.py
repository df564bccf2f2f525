"""Lines for Codex' config.toml: it compacts through the gateway, at the gateway's threshold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

from litellm_compaction.budget.arithmetic import Budget

By = Literal["capabilities", "name"]
_PROVIDER: Final = "litellm"


@dataclass(frozen=True, slots=True)
class Window:
    """What Codex is told, in tokens: its `model_context_window` and `model_auto_compact_token_limit`."""

    context: int
    limit: int


def fit_window(budget: Budget) -> Window:
    """The numbers with which Codex compacts over T and not at it.

    Codex (0.120 to 0.171, measured) compacts once the usage of the last turn has reached the limit, which it lowers to
    90 % of the window it is told. It is told the smallest window of which that is still over T, never more than C.
    """
    limit: Final = budget.threshold + 1
    context: Final = min(budget.context, -(-limit * 10 // 9))
    return Window(context, min(limit, context * 9 // 10))


def write_lines(model: str, budget: Budget, base_url: str, env_key: str, by: By) -> str:
    """The lines as TOML. `by`: whether Codex is told of compaction by a table of capabilities (0.162 and newer), or by
    the provider's name (0.140 to 0.161)."""
    window: Final = fit_window(budget)
    threshold: Final = f"the gateway's threshold of {budget.threshold}"
    at: Final = (
        f"# Codex compacts when a turn has used {window.limit} tokens: over {threshold}."
        if window.limit > budget.threshold
        else f"# Codex goes no higher than 90 % of its window: it compacts at {window.limit}, before {threshold}."
    )
    lines = [
        f"model = {_text(model)}",
        f"model_provider = {_text(_PROVIDER)}",
        f"# The model's window has {budget.context} tokens, up to {budget.output} of them for the answer. Codex is",
        "# told as much as it takes for 90 % of it, its upper bound for the next number, not to be below that.",
        f"model_context_window = {window.context}",
        at,
        f"model_auto_compact_token_limit = {window.limit}",
        "",
        f"[model_providers.{_PROVIDER}]",
        *(
            ['name = "LiteLLM"']
            if by == "capabilities"
            else ["# Codex 0.140 to 0.161 compacts through providers of this name only.", 'name = "OpenAI"']
        ),
        f"base_url = {_text(_with_version(base_url))}",
        f"env_key = {_text(env_key)}",
        'wire_api = "responses"',
        "# A summary may take longer than the five minutes of silence that Codex allows by default.",
        "stream_idle_timeout_ms = 900000",
    ]
    if by == "capabilities":
        lines += ["", f"[model_providers.{_PROVIDER}.capabilities]", 'remote_compaction = "v2"']
    return "\n".join(lines) + "\n"


def _with_version(base_url: str) -> str:
    trimmed: Final = base_url.rstrip("/")
    return trimmed if trimmed.endswith("/v1") else f"{trimmed}/v1"


def _text(value: str) -> str:
    # A JSON string without escapes beyond ASCII's is a TOML basic string.
    return json.dumps(value, ensure_ascii=False)
