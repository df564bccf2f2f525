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
    """The numbers with which Codex compacts over T and not at it, as far as its own bounds allow.

    Codex compacts once its count has reached the limit (`>=` in its source), which it lowers to 90 % of the window it
    is told, rounded down. It is told the smallest window of which that is over T, but no less than I: what is over its
    window it shortens before it sends it. Never more than C.
    """
    limit: Final = budget.threshold + 1
    context: Final = min(budget.context, max(budget.input, -(-limit * 10 // 9)))
    return Window(context, min(limit, context * 9 // 10))


def write_lines(model: str, budget: Budget, base_url: str, env_key: str, by: By) -> str:
    """The lines as TOML. `by`: whether Codex is told of compaction by a table of capabilities (0.162 and newer), or by
    the provider's name (0.140 to 0.161)."""
    window: Final = fit_window(budget)
    threshold: Final = f"the gateway's threshold of {budget.threshold}"
    if window.limit > budget.threshold:
        why = f"{window.context} is the least that holds that input and leaves the next number its say."
        at = [f"# Codex compacts from {window.limit} tokens on: over {threshold}, not at it."]
    else:
        why = "it is told of the whole window."
        at = [
            f"# Codex goes no higher than 90 % of its window, {window.limit} of {window.context} tokens: it compacts",
            f"# before {threshold} is passed.",
        ]
    over: Final = window.context > budget.input
    lines = [
        f"model = {_text(model)}",
        f"model_provider = {_text(_PROVIDER)}",
        f"# The model has a window of {budget.context} tokens, {budget.output} of them for the answer, and takes",
        f"# {budget.input} of input. Codex cuts tool outputs over the window it is told, and compacts at 90 % of it at",
        f"# the latest: {why}",
        *([f"# Over {budget.input} tokens Codex only asks for a compaction, by its own count."] if over else []),
        f"model_context_window = {window.context}",
        *at,
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
