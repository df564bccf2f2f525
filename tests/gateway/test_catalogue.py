"""LiteLLM's whole catalogue: every chat and responses entry gives a valid budget or is known to be unknown."""

from __future__ import annotations

from collections import Counter
from typing import Any

import litellm
import pytest

from litellm_compaction.budget.arithmetic import derive_output
from litellm_compaction.gateway.catalogue import converses, entry_of, model_of, provider_of
from litellm_compaction.gateway.limits import deployment_limits, read_tokens
from litellm_compaction.settings import Settings

# As LiteLLM brings it: routers of other tests write into it.
BUNDLED = {name: dict(entry) for name, entry in litellm.model_cost.items()}
ALL = sorted(name for name, entry in BUNDLED.items() if entry.get("mode") in {"chat", "responses"})
NONE = Settings.model_validate({})


def deployment(model: str, **info: Any) -> dict[str, Any]:
    return {"model_name": "m", "litellm_params": {"model": model}, "model_info": info}


def test_every_entry_has_a_valid_budget_or_none() -> None:
    """T within I, T and O within the window, the window never more than the catalogue's two numbers together."""
    kinds: Counter[str] = Counter()
    for name in ALL:
        limits = deployment_limits(deployment(name), NONE)
        entry = BUNDLED[name]
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
    # LiteLLM 1.108.7: of 3,217 no input limit in 206, an output limit that says nothing in 1,136, both said in 1,875.
    assert kinds["unknown"] <= 220
    assert 1_100 <= kinds["derived"] <= 1_170


KNOWN: dict[str, tuple[int, int | None, int | None]] = {  # C, O, cap of windows that their makers state
    "gpt-5": (400_000, 128_000, 272_000),
    "gpt-5-mini": (400_000, 128_000, 272_000),
    "gpt-5.1": (400_000, 128_000, 272_000),
    "gpt-5.2": (400_000, 128_000, 272_000),
    "gpt-5.3-codex": (400_000, 128_000, 272_000),
    "gpt-5.1-codex": (400_000, 128_000, None),
    "gpt-5-pro": (400_000, 272_000, None),
    "gpt-5.4": (1_050_000, 128_000, None),
    "azure/gpt-5.4": (1_050_000, 128_000, 922_000),
    "gpt-5.5": (1_050_000, 128_000, None),
    "gpt-5.6-sol": (1_050_000, 128_000, 922_000),
    "chatgpt/gpt-5.6-sol": (1_050_000, 128_000, None),
    "gpt-6.1-sol": (1_050_000, 128_000, 922_000),
    "azure/gpt-5.1-chat": (128_000, 16_384, 111_616),
    "gpt-4.1": (1_047_576, 32_768, None),
    "gpt-4o": (128_000, 16_384, None),
    "o3": (200_000, 100_000, None),
    "claude-sonnet-4-5": (200_000, 64_000, None),
    "claude-haiku-4-5": (200_000, 64_000, None),
    "claude-opus-4-6": (1_000_000, 128_000, None),
    # Its output is apart from its input; the input alone as the window is on the safe side.
    "gemini-2.5-pro": (1_048_576, 65_535, None),
    "dashscope/qwen3-max": (262_144, 65_536, 258_048),
    "dashscope/qwen-plus": (131_072, 16_384, 129_024),
    "dashscope/qwen3.5-plus": (1_000_000, 65_536, 991_808),
    "dashscope/qwen-flash": (1_000_000, 32_768, 997_952),
    "deepseek/deepseek-chat": (131_072, 8_192, None),
    "deepseek/deepseek-v4-pro": (1_000_000, 393_216, None),
    "mistral/mistral-large-latest": (262_144, None, None),
}


@pytest.mark.parametrize(("model", "numbers"), KNOWN.items(), ids=KNOWN)
def test_known_windows(model: str, numbers: tuple[int, int | None, int | None]) -> None:
    """One entry of each meaning, read as what it is."""
    limits = deployment_limits(deployment(model), NONE)
    assert (limits.context, limits.output, limits.max_input) == numbers


def by(provider: str, model: str) -> dict[str, Any]:
    return {"litellm_params": {"model": model, "custom_llm_provider": provider}}


FOUND: dict[str, tuple[dict[str, Any], str | None]] = {  # a deployment, the catalogue's key it is listed under
    "plain": (deployment("gpt-5"), "gpt-5"),
    "with-its-provider": (deployment("openai/gpt-5"), "gpt-5"),
    "listed-with-the-provider": (deployment("azure/gpt-5.4"), "azure/gpt-5.4"),
    "provider-by-param": (by("openai", "gpt-5"), "gpt-5"),
    "provider-by-param-has-its-own-entry": (by("azure", "gpt-5.4"), "azure/gpt-5.4"),
    "its-own-entry-before-the-bare-one": (by("azure_ai", "gpt-5.5"), "azure_ai/gpt-5.5"),
    "provider-of-a-family": (deployment("vertex_ai/gemini-2.5-pro"), "gemini-2.5-pro"),
    "provider-spelt-otherwise": (deployment("amazon-nova/nova-micro-v1"), "amazon-nova/nova-micro-v1"),
    "azure-ai-serves-openais": (deployment("azure_ai/gpt-5-nano"), "gpt-5-nano"),
    "way-between": (deployment("azure/responses/gpt-5.4"), "azure/gpt-5.4"),
    "way-between-openai": (deployment("openai/responses/gpt-5"), "gpt-5"),
    "base-model": (deployment("azure/my-deployment", base_model="gpt-5"), "gpt-5"),
    "base-model-with-provider": (deployment("azure/my-deployment", base_model="openai/gpt-5"), "gpt-5"),
    "base-model-of-another-host": (deployment("hosted_vllm/mine", base_model="gpt-5"), "gpt-5"),
    "unheard-of": (deployment("openai/unheard-of"), None),
    "name-on-an-own-server": (deployment("hosted_vllm/gpt-4"), None),
    "name-on-an-own-server-by-param": (by("hosted_vllm", "gpt-4"), None),
    "name-through-a-broker": (deployment("openrouter/someone/gpt-5"), None),
    "another-mode": (deployment("text-embedding-3-small"), None),
    "what-litellm-makes-by-a-pattern": (deployment("anthropic/claude-opus-9"), None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize(("found", "name"), FOUND.values(), ids=FOUND)
def test_how_a_deployment_is_listed(found: dict[str, Any], name: str | None) -> None:
    """Under its provider, or under its bare name where that is an entry of the same provider; else nowhere."""
    assert entry_of(found) == (None if name is None else BUNDLED[name])


MODES: dict[str, tuple[dict[str, Any], bool]] = {
    "chat": (deployment("gpt-5"), True),
    "responses": (deployment("gpt-5-pro"), True),
    "unknown": (deployment("hosted_vllm/mine"), True),
    "nothing": ({}, True),
    "embedding": (deployment("openai/text-embedding-3-small"), False),
    "embedding-in-words": (deployment("hosted_vllm/mine", mode="embedding"), False),
    "in-words-over-catalogue": (deployment("openai/text-embedding-3-small", mode="chat"), True),
}


@pytest.mark.parametrize(("found", "answer"), MODES.values(), ids=MODES)
def test_who_answers_conversations(found: dict[str, Any], answer: bool) -> None:
    """By the operator's word, else the catalogue's; what nobody knows may."""
    assert converses(found) is answer


def test_names_of_a_deployment() -> None:
    """The provider LiteLLM is told of comes before the one in the name; what is missing is empty."""
    assert provider_of(deployment("openai/x")) == "openai"
    assert provider_of(deployment("bedrock/converse/x")) == "bedrock"
    assert provider_of(deployment("gpt-5")) == ""
    told = {"litellm_params": {"model": "openai/x", "custom_llm_provider": "azure"}}
    assert provider_of(told) == "azure"
    assert (model_of({}), provider_of({})) == ("", "")
