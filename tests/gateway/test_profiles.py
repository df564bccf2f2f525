"""Backends as data: what a model group can do, how its tokens are counted."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import litellm.litellm_core_utils.default_encoding  # noqa: F401  # points tiktoken at LiteLLM's encodings, once
import pytest
import tiktoken

from litellm_compaction.budget.counting import (
    CLAUDE_TOKENIZER_ERROR,
    OTHER_TOKENIZER_ERROR,
    OWN_TOKENIZER_ERROR,
    estimate_tokens,
)
from litellm_compaction.compaction.prompt import Style
from litellm_compaction.gateway import catalogue
from litellm_compaction.gateway import profiles as module
from litellm_compaction.gateway.profiles import Profile, load_counter, read_profile
from tests.support.router import Deployments, FakeRouter


def profile_of(deployments: Deployments | None) -> Profile:
    return read_profile(cast("Any", FakeRouter(deployments)), "group", None)


def entry(model: str = "openai/unheard-of", **info: Any) -> dict[str, Any]:
    return {"litellm_params": {"model": model}, "model_info": info}


CATALOGUE = {
    "blind": {"mode": "chat", "supports_function_calling": True, "supports_response_schema": True},
    "plain": {"mode": "chat"},
    "embedder": {"mode": "embedding"},
}
PROFILES: dict[str, tuple[Deployments | None, Profile]] = {
    "unknown-group": (None, Profile(Style.TOOL, images=True)),
    "unknown-model": ([entry()], Profile(Style.TOOL, images=True)),
    "own-words": (
        [entry(supports_function_calling=False, supports_vision=False)],
        Profile(Style.SCHEMA, images=False),
    ),
    "nothing-but-text": (
        [entry(supports_function_calling=False, supports_response_schema=False)],
        Profile(Style.TEXT, images=True),
    ),
    "tools-win-over-schema": ([entry(supports_response_schema=False)], Profile(Style.TOOL, images=True)),
    "null-says-nothing": ([entry(supports_function_calling=None)], Profile(Style.TOOL, images=True)),
    "catalogue": ([entry("blind")], Profile(Style.TOOL, images=False)),
    "catalogue-by-provider": ([entry("openai/blind")], Profile(Style.TOOL, images=False)),
    "catalogue-base-model": ([entry("azure/mine", base_model="blind")], Profile(Style.TOOL, images=False)),
    "catalogue-silent": ([entry("plain")], Profile(Style.TEXT, images=False)),
    "catalogue-of-another-mode": ([entry("embedder")], Profile(Style.TOOL, images=True)),
    "operator-over-catalogue": ([entry("plain", supports_vision=True)], Profile(Style.TEXT, images=True)),
    "weakest-counts": ([entry(), entry("blind")], Profile(Style.TOOL, images=False)),
    "no-model-info": ([{"litellm_params": {"model": "x/y"}, "model_info": None}], Profile(Style.TOOL, images=True)),
}


@pytest.mark.parametrize(("deployments", "profile"), PROFILES.values(), ids=PROFILES)
def test_profile(deployments: Deployments | None, profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    """What any deployment of the group lacks, the group lacks; what nobody says, it can."""
    monkeypatch.setattr(catalogue, "_CATALOGUE", CATALOGUE)
    assert profile_of(deployments) == profile


# The share by which a count may fall short, and who cuts prompts silently.

OWN, OTHER, CLAUDE = OWN_TOKENIZER_ERROR, OTHER_TOKENIZER_ERROR, CLAUDE_TOKENIZER_ERROR
FAMILIES = {
    "openai/gpt-5": OWN,
    "gpt-5-mini": OWN,
    "azure/gpt-4o": OWN,
    "gpt-4.1-nano": OWN,
    "openrouter/openai/gpt-6.1-sol": OWN,
    "groq/openai/gpt-oss-120b": OWN,
    "chatgpt-4o-latest": OWN,
    "o3": OWN,
    "azure/o4-mini": OWN,
    "o1": OWN,
    "OpenAI/GPT-5": OWN,
    "gpt-4": OTHER,
    "gpt-4-turbo": OTHER,
    "gpt-3.5-turbo": OTHER,
    "vertex_ai/gemini-2.5-pro": OTHER,
    "deepseek/deepseek-chat": OTHER,
    "hosted_vllm/qwen3-coder": OTHER,
    "solo3": OTHER,
    "openai/o30": OTHER,
    "": OTHER,
    "anthropic/claude-sonnet-4-5": CLAUDE,
    "bedrock/us.anthropic.claude-3-5-haiku-20241022-v1:0": CLAUDE,
    "openrouter/anthropic/Claude-Opus-4.1": CLAUDE,
}


@pytest.mark.parametrize(("model", "error"), FAMILIES.items(), ids=[name or "no-name" for name in FAMILIES])
def test_count_error_of_a_family(model: str, error: float) -> None:
    """Models of OpenAI's own encoding are counted almost exactly, Claude least of all."""
    assert profile_of([entry(model)]).count_error == error


def test_count_error_of_the_model_behind_a_name() -> None:
    """A deployment's name says nothing where the operator names its base model; the worst of a group counts."""
    assert profile_of([entry("azure/mine", base_model="gpt-5")]).count_error == OWN
    assert profile_of([entry("gpt-5"), entry("anthropic/claude-sonnet-4-5"), entry("x/y")]).count_error == CLAUDE
    assert profile_of([]).count_error == OTHER
    assert profile_of(None).count_error == OTHER


def by_provider(model: str, provider: str) -> dict[str, Any]:
    return {"litellm_params": {"model": model, "custom_llm_provider": provider}}


SILENT: dict[str, tuple[Deployments, bool]] = {
    "ollama": ([entry("ollama/qwen3")], True),
    "ollama-chat": ([entry("ollama_chat/qwen3")], True),
    "by-provider": ([by_provider("qwen3", "ollama_chat")], True),
    "provider-over-name": ([by_provider("ollama/qwen3", "openai")], False),
    "one-of-two": ([entry("gpt-5"), entry("ollama/qwen3")], True),
    "others": ([entry("hosted_vllm/qwen3"), entry("qwen3")], False),
    "name-only": ([entry("openai/ollama")], False),
    "nobody": ([], False),
}


@pytest.mark.parametrize(("deployments", "truncates"), SILENT.values(), ids=SILENT)
def test_servers_that_cut_prompts(deployments: Deployments, truncates: bool) -> None:
    """Ollama cuts a prompt that is too long and says nothing; one such deployment is enough."""
    assert profile_of(deployments).truncates is truncates


# Counting.


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Nothing may leave the machine: whoever tries is noted and fails."""
    tried: list[object] = []

    def refuse(*args: object, **_: object) -> None:
        tried.append(args)
        raise OSError("offline")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load_counter.cache_clear()
    yield tried
    load_counter.cache_clear()


TEXTS = {
    "nothing": "",
    "prose": "The quick brown fox jumps over the lazy dog. " * 20,
    "words": "antidisestablishmentarianism " * 20,
    "digits": "0123456789" * 50,
    "code": "def f(x: int) -> int:\n    return x ** 2  # why\n" * 20,
    "han": "漢字仮名交じり文" * 20,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 20,
    "special": "<|endoftext|><|im_start|>",
    "surrogate": "a\ud800b",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_count_is_the_larger_of_two(text: str, offline: list[object]) -> None:
    """The counter needs no network and never counts less than the encoding or a quarter of the bytes."""
    encoded = tiktoken.get_encoding("o200k_base").encode_ordinary(text)
    quarter = -(-len(text.encode("utf-8", "surrogatepass")) // 4)
    assert load_counter()(text) == max(len(encoded), quarter)
    assert offline == []


def test_both_counts_are_needed() -> None:
    """Digits have more tokens than the quarter of their bytes, long words fewer."""
    encode = tiktoken.get_encoding("o200k_base").encode_ordinary
    assert len(encode(TEXTS["digits"])) > estimate_tokens(TEXTS["digits"])
    assert len(encode(TEXTS["prose"])) < estimate_tokens(TEXTS["prose"])


def test_counter_is_loaded_once() -> None:
    """Loading the encoding takes a quarter of a second."""
    assert load_counter() is load_counter()


def test_missing_encoding_is_not_downloaded(
    tmp_path: Path, offline: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of the operator's own the file may be missing: then a quarter of the bytes has to do."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    # Whoever has loaded it before has it in memory.
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    assert module._load_encoding() is None  # noqa: SLF001  # whether there is one shows in no count for certain
    assert load_counter()(TEXTS["digits"]) == estimate_tokens(TEXTS["digits"])
    assert offline == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", [" " * 1_200_000, "\t" * 1_200_000, "x" + " " * 1_100_000 + "y"], ids=["blank", "tab", "in"]
)
def test_a_million_blanks_can_be_counted(text: str) -> None:
    """The tokenizer dies of such a run in one piece."""
    assert load_counter()(text) >= len(text) // 4


def test_long_texts_are_counted_in_pieces() -> None:
    """Pieces make a few tokens more than the whole, never fewer."""
    count = load_counter()  # from here on tiktoken finds the encodings that LiteLLM brings
    encode = tiktoken.get_encoding("o200k_base").encode_ordinary
    text = "def parse(token): return token  # checked\n" * 8_000
    whole = max(-(-len(text) // 4), len(encode(text)))
    assert whole <= count(text) <= whole + 8
