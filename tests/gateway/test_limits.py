"""A model's limits, number by number: whose word holds, what the catalogue means, what an operator may set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import litellm
import pytest
from litellm.router import Router

from litellm_compaction.budget.limits import ModelLimits
from litellm_compaction.compaction.prompt import Style
from litellm_compaction.errors import SettingsError
from litellm_compaction.gateway import catalogue as module
from litellm_compaction.gateway.catalogue import Deployment
from litellm_compaction.gateway.limits import check_limits, group_budget, read_limits, read_tokens
from litellm_compaction.gateway.operator import Operator
from litellm_compaction.gateway.profiles import Profile, read_profile
from litellm_compaction.settings import Settings
from tests.support.router import Deployments, FakeRouter

NONE = Settings.model_validate({})


def without_settings(_: Deployment) -> Settings:
    return NONE


def limits_of(deployments: Deployments | None, **settings: Any) -> ModelLimits:
    own = Settings.model_validate(settings)
    return read_limits(cast("Any", FakeRouter(deployments)), "group", None, lambda _: own)


def entry(model: str = "openai/unheard-of", **info: Any) -> dict[str, Any]:
    return {"model_name": "group", "litellm_params": {"model": model}, "model_info": info}


UNKNOWN = ModelLimits()
MEANINGS: dict[str, tuple[str, ModelLimits]] = {
    "net-of-output": ("gpt-5", ModelLimits(400_000, 128_000, 272_000, "catalogue")),
    "net-by-provider": ("openai/gpt-5", ModelLimits(400_000, 128_000, 272_000, "catalogue")),
    "total": ("claude-sonnet-4-5", ModelLimits(200_000, 64_000, None, "catalogue")),
    "output-as-large-as-window": ("mistral/mistral-large-latest", ModelLimits(262_144, None, None, "catalogue")),
    "unknown": ("openai/unheard-of", UNKNOWN),
    "no-name": ("", UNKNOWN),
}


@pytest.mark.parametrize(("model", "limits"), MEANINGS.values(), ids=MEANINGS)
def test_meaning_of_the_catalogue(model: str, limits: ModelLimits) -> None:
    """LiteLLM's two numbers read as what they are, in the catalogue that LiteLLM brings."""
    assert limits_of([entry(model)]) == limits


MADE_UP: dict[str, tuple[str, dict[str, Any], ModelLimits]] = {
    "net": (
        "gpt-9",
        {"max_input_tokens": 922_000, "max_output_tokens": 128_000},
        ModelLimits(1_050_000, 128_000, 922_000, "catalogue"),
    ),
    "small-net": (
        "gpt-9",
        {"max_input_tokens": 111_616, "max_output_tokens": 16_384},
        ModelLimits(128_000, 16_384, 111_616, "catalogue"),
    ),
    "net-pair-of-another": (
        "qwen",
        {"max_input_tokens": 272_000, "max_output_tokens": 128_000},
        ModelLimits(272_000, 128_000, None, "catalogue"),
    ),
    "other-pair-of-gpt": (
        "gpt-9",
        {"max_input_tokens": 400_000, "max_output_tokens": 128_000},
        ModelLimits(400_000, 128_000, None, "catalogue"),
    ),
    "absurd-output": (
        "qwen",
        {"max_input_tokens": 8_192, "max_output_tokens": 255},
        ModelLimits(8_192, None, None, "catalogue"),
    ),
    "least-output": (
        "qwen",
        {"max_input_tokens": 8_192, "max_output_tokens": 256},
        ModelLimits(8_192, 256, None, "catalogue"),
    ),
    "output-over-window": (
        "qwen",
        {"max_input_tokens": 8_192, "max_output_tokens": 8_193},
        ModelLimits(8_192, None, None, "catalogue"),
    ),
    "strings": (
        "qwen",
        {"max_input_tokens": "8192", "max_output_tokens": "1024"},
        ModelLimits(8_192, 1_024, None, "catalogue"),
    ),
    "no-output": ("qwen", {"max_input_tokens": 8_192}, ModelLimits(8_192, None, None, "catalogue")),
    "no-input": ("qwen", {"max_output_tokens": 8_192}, ModelLimits(None, 8_192, None, "catalogue")),
    "zero": ("qwen", {"max_input_tokens": 0, "max_output_tokens": 0}, UNKNOWN),
    "of-another-mode": ("qwen", {"max_input_tokens": 8_192, "mode": "embedding"}, UNKNOWN),
    "responses": (
        "qwen",
        {"max_input_tokens": 8_192, "mode": "responses"},
        ModelLimits(8_192, None, None, "catalogue"),
    ),
}


@pytest.mark.parametrize(("model", "known", "limits"), MADE_UP.values(), ids=MADE_UP)
def test_meaning_of_an_entry(
    model: str, known: dict[str, Any], limits: ModelLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window without the output is known by its pair and name; an output limit that says nothing is none."""
    monkeypatch.setattr(module, "_CATALOGUE", {model: {"mode": "chat", **known}})
    assert limits_of([entry(f"openai/{model}")]) == limits


PRECEDENCE: dict[str, tuple[Deployments, dict[str, Any], ModelLimits]] = {
    "catalogue": ([entry("gpt-5")], {}, ModelLimits(400_000, 128_000, 272_000, "catalogue")),
    "model-info": (
        [entry("mistral/mistral-large-latest", max_input_tokens=32_768, max_output_tokens="4096")],
        {},
        ModelLimits(32_768, 4_096, None, "model_info"),
    ),
    "window-of-model-info": (
        [entry("mistral/mistral-large-latest", max_input_tokens="32768")],
        {},
        ModelLimits(32_768, source="model_info"),
    ),
    "output-of-model-info": (
        [entry("gpt-5", max_output_tokens=4_096)],
        {},
        ModelLimits(
            400_000, 4_096, 272_000, "context from catalogue, output from model_info, max_input from catalogue"
        ),
    ),
    "pair-of-model-info-means-the-same": (
        [entry("gpt-9", max_input_tokens=922_000, max_output_tokens=128_000)],
        {},
        ModelLimits(1_050_000, 128_000, 922_000, "model_info"),
    ),
    "output-of-an-unknown-model": ([entry(max_output_tokens=4_096)], {}, ModelLimits(None, 4_096, None, "model_info")),
    "strange-model-info": (
        [entry("gpt-5", max_input_tokens="many", max_output_tokens=None)],
        {},
        ModelLimits(400_000, 128_000, 272_000, "catalogue"),
    ),
    "copied-window-means-the-same": (
        [entry("gpt-5", max_input_tokens=272_000)],
        {},
        ModelLimits(
            400_000, 128_000, 272_000, "context from model_info, output from catalogue, max_input from model_info"
        ),
    ),
    "copied-window-beside-another-output": (
        [entry("gpt-5", max_input_tokens="272000", max_output_tokens=64_000)],
        {},
        ModelLimits(400_000, 64_000, 272_000, "model_info"),
    ),
    "window-of-model-info-over-the-catalogues-input-limit": (
        [entry("gpt-5", max_input_tokens=600_000)],
        {},
        ModelLimits(600_000, 128_000, None, "context from model_info, output from catalogue"),
    ),
    "output-like-the-window-of-the-catalogue": (
        [entry("gpt-4o", max_output_tokens=128_000)],
        {},
        ModelLimits(128_000, 16_384, None, "catalogue"),
    ),
    "output-over-the-window-of-settings": (
        [entry("gpt-4o")],
        {"context": 16_384},
        ModelLimits(16_384, None, None, "settings"),
    ),
    "split-by-base-model": (
        [entry("openai/mine", base_model="dashscope/qwen3-max")],
        {},
        ModelLimits(262_144, 65_536, 258_048, "catalogue"),
    ),
    "capitals": (
        [entry("openai/GPT-9", max_input_tokens=272_000, max_output_tokens=128_000)],
        {},
        ModelLimits(400_000, 128_000, 272_000, "model_info"),
    ),
    "base-model": (
        [entry("azure/mine", base_model="gpt-5")],
        {},
        ModelLimits(400_000, 128_000, 272_000, "catalogue"),
    ),
    "settings-window-keeps-the-models-own-input-limit": (
        [entry("gpt-5")],
        {"context": 300_000},
        ModelLimits(
            300_000, 128_000, 272_000, "context from settings, output from catalogue, max_input from catalogue"
        ),
    ),
    "settings-output": (
        [entry(max_input_tokens=32_768)],
        {"output": 1_000},
        ModelLimits(32_768, 1_000, None, "context from model_info, output from settings"),
    ),
    "settings-input": (
        [entry("claude-sonnet-4-5")],
        {"max_input": 9_000},
        ModelLimits(200_000, 64_000, 9_000, "context from catalogue, output from catalogue, max_input from settings"),
    ),
    "all-settings": (
        [entry("gpt-5", max_input_tokens=32_768)],
        {"context": 3_000, "output": 2_000, "max_input": 1_000},
        ModelLimits(3_000, 2_000, 1_000, "settings"),
    ),
    "settings-without-deployment": ([], {"context": 3_000}, ModelLimits(3_000, None, None, "settings")),
    "smallest-of-a-group": (
        [entry("gpt-5"), entry("claude-sonnet-4-5"), entry(max_input_tokens=300_000, max_output_tokens=9_000)],
        {},
        ModelLimits(200_000, 9_000, 272_000, "catalogue, model_info"),
    ),
    "unknown-beside-known": (
        [entry(), entry("claude-sonnet-4-5")],
        {},
        ModelLimits(200_000, 64_000, None, "catalogue"),
    ),
    "no-deployment": ([], {}, UNKNOWN),
    "no-model-info": ([{"litellm_params": {"model": "x/y"}, "model_info": None}], {}, UNKNOWN),
    "no-params": ([{}], {}, UNKNOWN),
}


@pytest.mark.parametrize(("deployments", "settings", "limits"), PRECEDENCE.values(), ids=PRECEDENCE)
def test_whose_limits_hold(deployments: Deployments, settings: dict[str, Any], limits: ModelLimits) -> None:
    """The operator's settings before the deployment's own words before the catalogue; the smallest of a group."""
    assert limits_of(deployments, **settings) == limits


def test_limits_of_a_teams_own_deployment() -> None:
    """A team's group is the team's."""
    router = FakeRouter([entry("gpt-5")], [entry(max_input_tokens=8_192)])
    assert read_limits(cast("Any", router), "group", "red", without_settings).context == 8_192
    assert read_profile(cast("Any", router), "group", "red").count_error == 0.10
    assert read_limits(cast("Any", FakeRouter(None)), "group", None, without_settings) == UNKNOWN


@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict:UserWarning")  # LiteLLM's own, at a late import
def test_limits_and_profile_from_a_real_router() -> None:
    """LiteLLM's router gives its deployments as they are read here, a wildcard's under the name asked for."""
    router = Router(
        model_list=[
            {"model_name": "plain", "litellm_params": {"model": "anthropic/claude-sonnet-4-5", "api_key": "k"}},
            {"model_name": "wild/*", "litellm_params": {"model": "openai/*", "api_key": "k"}},
            {
                "model_name": "own",
                "litellm_params": {"model": "ollama/mine", "api_base": "http://127.0.0.1:1"},
                "model_info": {"max_input_tokens": "32768", "supports_function_calling": False},
            },
        ]
    )
    limits = {
        group: read_limits(router, group, None, without_settings) for group in ("plain", "wild/gpt-5", "own", "none")
    }
    assert limits == {
        "plain": ModelLimits(200_000, 64_000, None, "catalogue"),
        "wild/gpt-5": ModelLimits(400_000, 128_000, 272_000, "catalogue"),
        "own": ModelLimits(32_768, None, None, "model_info"),
        "none": UNKNOWN,
    }
    assert read_profile(router, "plain", None) == Profile(Style.TOOL, images=True, count_error=0.25)
    assert read_profile(router, "own", None).truncates


@pytest.fixture
def aliasing_router() -> Iterator[Router]:
    """A group under two names, one of them with a shorter window of its own; a wildcard with settings."""
    bundled = {name: dict(entry) for name, entry in litellm.model_cost.items()}
    yield Router(
        model_list=[
            {
                "model_name": "group",
                "litellm_params": {"model": "azure/gpt-5.4", "api_key": "k", "api_base": "http://127.0.0.1:1"},
                "model_info": {"max_input_tokens": 50_000, "max_output_tokens": "64k"},
            },
            {
                "model_name": "untouched",
                "litellm_params": {"model": "azure/gpt-5.4", "api_key": "k", "api_base": "http://127.0.0.1:2"},
            },
            {
                "model_name": "wild/*",
                "litellm_params": {"model": "openai/*", "api_key": "k"},
                "model_info": {"compaction": {"context": 30_000}},
            },
        ],
        model_group_alias={"nickname": "group"},
    )
    # LiteLLM's router has written into the catalogue that the whole process shares.
    litellm.model_cost.clear()
    litellm.model_cost.update(bundled)


@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict:UserWarning")  # LiteLLM's own, at a late import
def test_what_one_deployment_says_is_not_said_of_another(aliasing_router: Router) -> None:
    """LiteLLM's router writes a deployment's `model_info` into its catalogue, under the name that all share."""
    router = aliasing_router
    short = ModelLimits(50_000, None, None, "model_info")
    assert read_limits(router, "group", None, without_settings) == short
    whole = ModelLimits(1_050_000, 128_000, 922_000, "catalogue")
    assert read_limits(router, "untouched", None, without_settings) == whole


@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict:UserWarning")
def test_aliases_and_wildcards_have_the_settings_of_their_deployment(aliasing_router: Router) -> None:
    """By whatever name it is asked for."""
    router, operator = aliasing_router, Operator({"output": 1_000}, {})
    nickname = read_limits(router, "nickname", None, operator.settings_of)
    assert nickname == ModelLimits(50_000, 1_000, None, "context from model_info, output from settings")
    wild = read_limits(router, "wild/gpt-5", None, operator.settings_of)
    assert (wild.context, wild.output, wild.max_input) == (30_000, 1_000, 272_000)
    nobody = read_limits(router, "nobody", None, operator.settings_of)
    assert nobody == ModelLimits(None, 1_000, None, "settings")


def test_each_deployment_has_its_own_settings() -> None:
    """Two deployments of one group, each with a window of its own: the smallest numbers of both."""
    own = {"a": {"context": 100_000, "output": 1_000}, "b": {"context": 50_000, "output": 8_000}}
    deployments = [entry(f"openai/{name}") for name in own]
    found = read_limits(
        cast("Any", FakeRouter(deployments)),
        "group",
        None,
        lambda one: Settings.model_validate(own[one["litellm_params"]["model"][-1]]),
    )
    assert found == ModelLimits(50_000, 1_000, None, "settings")


SPLIT = {"dashscope/qwen3-max": (262_144, 258_048), "dashscope/qwen-plus": (131_072, 129_024)}


@pytest.mark.parametrize(("model", "numbers"), SPLIT.items(), ids=SPLIT)
def test_input_limit_inside_a_larger_window(model: str, numbers: tuple[int, int]) -> None:
    """Alibaba lists what goes in; the window around it is the next nominal one."""
    found = limits_of([entry(model)])
    assert (found.context, found.max_input) == numbers


GROUPS: dict[str, tuple[list[dict[str, Any]], int]] = {  # settings of two deployments, the group's T
    "larger-window-with-smaller-t": (
        [{"context": 19_275, "output": 1_024}, {"context": 19_276, "output": 1_024}],
        2_892,
    ),
    "smaller-threshold-last": ([{"context": 90_000}, {"context": 90_000, "threshold": 5_000}], 5_000),
    "smaller-threshold-first": ([{"context": 90_000, "threshold": 5_000}, {"context": 90_000}], 5_000),
    "one-of-them-unknown": ([{"context": 8_192, "output": 1_234}, {}], 6_958),
    "nobody-knows": ([{}, {}], 0),
}


@pytest.mark.parametrize(("settings", "threshold"), GROUPS.values(), ids=GROUPS)
def test_threshold_of_a_group(settings: list[dict[str, Any]], threshold: int) -> None:
    """The smallest of its deployments', each by its own settings."""
    own = [Settings.model_validate(values) for values in settings]
    deployments = [entry(f"hosted_vllm/{number}") for number in range(len(own))]

    def settings_of(deployment: Deployment) -> Settings:
        return own[int(deployment["litellm_params"]["model"][-1])]

    limits = read_limits(cast("Any", FakeRouter(deployments)), "group", None, settings_of)
    budget = group_budget(deployments, settings_of, limits, own[0])
    assert (0 if budget is None else budget.threshold) == threshold


def test_input_of_a_group_is_no_limit_of_its_models() -> None:
    """A larger deployment beside a small one: I is the smaller one's, and what fits the small one alone still fits."""
    own = [Settings.model_validate({"context": 8_000, "output": 1_000}), Settings.model_validate({"context": 16_000})]
    deployments = [entry(f"hosted_vllm/{number}") for number in range(len(own))]

    def settings_of(deployment: Deployment) -> Settings:
        return own[int(deployment["litellm_params"]["model"][-1])]

    limits = read_limits(cast("Any", FakeRouter(deployments)), "group", None, settings_of)
    budget = group_budget(deployments, settings_of, limits, own[0])
    assert budget is not None
    assert (budget.context, budget.output, budget.max_input, budget.input) == (8_000, 1_000, None, 7_000)
    assert budget.fits(7_500)


ALLOWED: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("gpt-5", {}),
    "the-window-itself": ("gpt-5", {"context": 400_000, "output": 128_000, "max_input": 272_000}),
    "less": ("gpt-5", {"context": 100_000, "output": 1_000, "max_input": 90_000, "threshold": 80_000}),
    "unknown-model": ("hosted_vllm/mine", {"context": 10**7, "output": 10**6}),
    "no-real-output-limit": ("mistral/mistral-large-latest", {"output": 200_000}),
    "an-embedding": ("text-embedding-3-small", {"context": 10**6, "output": 10**5}),
    "a-share-of-the-window": ("gpt-4o", {"threshold": 0.999}),
    "a-threshold-for-all-models": ("gpt-4o", {"threshold": 500_000}),
    "a-threshold-of-its-own": ("hosted_vllm/mine", {"threshold": 10**6}),
}


@pytest.mark.parametrize(("model", "settings"), ALLOWED.values(), ids=ALLOWED)
def test_numbers_an_operator_may_set(model: str, settings: dict[str, Any]) -> None:
    """Up to the model's own, and whatever they are where nobody knows the model."""
    check_limits(entry(model), Settings.model_validate(settings))


def test_windows_of_other_models_bound_nothing() -> None:
    """An embedding's window, whoever says that it is one, is no bound of settings that hold for all models."""
    check_limits(
        entry("hosted_vllm/mine", mode="embedding", max_input_tokens=8_191),
        Settings.model_validate({"context": 128_000}),
    )
    check_limits(
        entry("openai/text-embedding-3-small", max_input_tokens=8_191), Settings.model_validate({"context": 128_000})
    )


def test_a_strange_number_elsewhere_stops_no_proxy() -> None:
    """A `model_info` that leaves no room for a prompt, written for LiteLLM long ago: that model has no budget."""
    check_limits(entry(max_input_tokens=100), NONE)


FORBIDDEN: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "context": (entry("gpt-5"), {"context": 400_001}, ("context", "400001", "400000", "gpt-5", "catalogue")),
    "context-over-model-info": (entry(max_input_tokens=8_000), {"context": 8_001}, ("8001", "8000", "model_info")),
    "output": (entry("gpt-5"), {"output": 128_001}, ("output", "128001", "128000")),
    "max-input": (entry(max_input_tokens=8_000), {"max_input": 9_000}, ("max_input", "9000", "8000")),
    "output-over-model-info": (
        entry("gpt-5", max_output_tokens=4_096),
        {"output": 4_097},
        ("output", "4097", "4096", "output from model_info"),
    ),
    "mode-of-model-info": (entry(mode="chat", max_input_tokens=8_000), {"context": 8_001}, ("8001", "8000")),
    "output-over-a-known-window": (
        entry(max_input_tokens=8_000),
        {"output": 8_000},
        ("output", "8000", "less than the window"),
    ),
    "threshold": (
        entry(max_input_tokens=8_000, compaction={"threshold": 8_000}),
        {"threshold": 8_000},
        ("threshold", "8000", "less than"),
    ),
    "no-room-at-all": (entry(), {"context": 100}, ("context", "100", "256")),
}


@pytest.mark.parametrize(("deployment", "settings", "words"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_numbers_no_operator_may_set(
    deployment: dict[str, Any], settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    """Refused by key, value, model and bound, with the way to correct the catalogue."""
    with pytest.raises(SettingsError) as refused:
        check_limits(deployment, Settings.model_validate(settings))
    message = refused.value.message
    assert all(word in message for word in (*words, "'group'"))
    assert "model_info.max_input_tokens" in message or "context of model" in message


TOKENS: dict[str, tuple[object, int | None]] = {
    "number": (32_768, 32_768),
    "one": (1, 1),
    "digits": ("32768", 32_768),
    "digits-with-spaces": (" 32768 ", 32_768),
    "whole-float": (32_768.0, 32_768),
    "scientific": (1e6, 1_000_000),
    "fraction": (0.8, None),
    "number-and-fraction": (32_768.5, None),
    "fraction-in-words": ("32768.0", None),
    "zero": (0, None),
    "zero-in-digits": ("0", None),
    "negative": (-1, None),
    "negative-in-digits": ("-1", None),
    "true": (True, None),
    "false": (False, None),
    "none": (None, None),
    "word": ("many", None),
    "unit": ("128k", None),
    "empty": ("", None),
    "superscript": ("²", None),
    "infinite": (float("inf"), None),
    "negative-infinite": (float("-inf"), None),
    "not-a-number": (float("nan"), None),
    "list": ([32_768], None),
    "mapping": ({}, None),
}


@pytest.mark.parametrize(("value", "tokens"), TOKENS.values(), ids=TOKENS)
def test_tokens_as_they_are_written(value: object, tokens: int | None) -> None:
    """Whole positive numbers, also as strings from an environment; the rest says nothing and breaks nothing."""
    read = read_tokens(value)
    assert read == tokens
    assert read is None or type(read) is int
