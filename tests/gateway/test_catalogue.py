"""LiteLLM's whole catalogue: every chat and responses entry gives a valid budget or is known to be unknown."""

from __future__ import annotations

from collections import Counter
from typing import Any

import litellm
import pytest

from litellm_compaction.budget.arithmetic import derive_output
from litellm_compaction.gateway.catalogue import entry_of, model_of, provider_of
from litellm_compaction.gateway.limits import deployment_limits, read_tokens
from litellm_compaction.settings import Settings

ALL = sorted(name for name, entry in litellm.model_cost.items() if entry.get("mode") in {"chat", "responses"})
NONE = Settings.model_validate({})


def deployment(model: str, **info: Any) -> dict[str, Any]:
    return {"model_name": "m", "litellm_params": {"model": model}, "model_info": info}


def test_every_entry_has_a_valid_budget_or_none() -> None:
    """T within I, T and O within the window, the window never more than the catalogue's two numbers together."""
    kinds: Counter[str] = Counter()
    for name in ALL:
        limits = deployment_limits(deployment(name), NONE)
        entry = litellm.model_cost[name]
        given, output = (read_tokens(entry.get(key)) for key in ("max_input_tokens", "max_output_tokens"))
        for rule in ("seed", "smooth"):
            budget = limits.budget(rule)
            if budget is None:
                assert given is None, name
                continue
            assert given is not None, name
            assert 1 <= budget.threshold <= budget.input, name
            assert budget.threshold + budget.output <= budget.context, name
            assert budget.input <= given, name
            assert limits.context is not None
            # More than both numbers together only where the first is an input limit inside a larger window.
            assert given <= limits.context <= given + (output or 0) or limits.max_input == given, name
            assert limits.source == "catalogue", name
            assert budget.output in {output, derive_output(budget.context)}, name
        kinds["unknown" if limits.context is None else "derived" if limits.output is None else "said"] += 1
    assert sum(kinds.values()) == len(ALL) > 3_000
    # As counted by hand: no input limit in 206, an output limit that says nothing in 1,136.
    assert kinds["unknown"] <= 220
    assert 1_100 <= kinds["derived"] <= 1_170


KNOWN: dict[str, tuple[int, int | None, int | None]] = {  # C, O, cap of windows that their makers state
    "gpt-5": (400_000, 128_000, 272_000),
    "gpt-5-mini": (400_000, 128_000, 272_000),
    "gpt-5.1": (400_000, 128_000, 272_000),
    "gpt-5.1-codex": (400_000, 128_000, None),
    "gpt-5-pro": (400_000, 272_000, None),
    "gpt-5.4": (1_050_000, 128_000, None),
    "azure/gpt-5.4": (1_050_000, 128_000, 922_000),
    "gpt-6.1-sol": (1_050_000, 128_000, 922_000),
    "azure/gpt-5.1-chat": (128_000, 16_384, 111_616),
    "gpt-4.1": (1_047_576, 32_768, None),
    "gpt-4o": (128_000, 16_384, None),
    "o3": (200_000, 100_000, None),
    "claude-sonnet-4-5": (200_000, 64_000, None),
    "gemini-2.5-pro": (1_048_576, 65_535, None),
    "dashscope/qwen3-max": (262_144, 65_536, 258_048),
    "dashscope/qwen-plus": (131_072, 16_384, 129_024),
    "dashscope/qwen3.5-plus": (1_000_000, 65_536, 991_808),
    "dashscope/qwen-flash": (1_000_000, 32_768, 997_952),
    "mistral/mistral-large-latest": (262_144, None, None),
}


@pytest.mark.parametrize(("model", "numbers"), KNOWN.items(), ids=KNOWN)
def test_known_windows(model: str, numbers: tuple[int, int | None, int | None]) -> None:
    """One entry of each meaning, read as what it is."""
    limits = deployment_limits(deployment(model), NONE)
    assert (limits.context, limits.output, limits.max_input) == numbers


def test_entries_are_found_as_litellm_names_them() -> None:
    """With and without the provider, by the operator's `base_model`, and not for another mode."""
    plain = entry_of(deployment("gpt-5"))
    assert plain is not None
    assert entry_of(deployment("openai/gpt-5")) == plain
    assert entry_of(deployment("azure/my-deployment", base_model="gpt-5")) == plain
    assert entry_of(deployment("openai/unheard-of")) is None
    assert entry_of(deployment("text-embedding-3-small")) is None


def test_names_of_a_deployment() -> None:
    """The provider LiteLLM is told of comes before the one in the name; what is missing is empty."""
    assert provider_of(deployment("openai/x")) == "openai"
    told = {"litellm_params": {"model": "openai/x", "custom_llm_provider": "azure"}}
    assert provider_of(told) == "azure"
    assert (model_of({}), provider_of({})) == ("", "")
