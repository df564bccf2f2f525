"""A model's limits, number by number from the first that says it: the operator's settings, `model_info`, LiteLLM's
catalogue read with its meaning, what a backend named in a refusal. What nobody says stays unknown.

The catalogue's `max_input_tokens` is mostly the whole window, for some models the window without the output, for some
an input limit inside a larger window; its `max_output_tokens` is a limit, or a copy of the window that says nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from litellm_compaction.budget.arithmetic import Budget, ImpossibleBudget
from litellm_compaction.budget.limits import ModelLimits, smallest
from litellm_compaction.errors import SettingsError
from litellm_compaction.gateway.catalogue import (
    MODEL_SECTION,
    Deployment,
    converses,
    entry_of,
    info_of,
    list_deployments,
    model_of,
    provider_of,
)
from litellm_compaction.settings import Settings

if TYPE_CHECKING:
    from litellm.router import Router

SETTINGS: Final = "settings"
MODEL_INFO: Final = "model_info"
CATALOGUE: Final = "catalogue"
LEARNED: Final = "learned"
# Pairs whose first number is the window without the output (stated by several hosts of these models).
_NET_PAIRS: Final = frozenset({(272_000, 128_000), (922_000, 128_000), (111_616, 16_384)})
# Alibaba's input limits, and the window each of them lies in.
_SPLIT_PROVIDERS: Final = frozenset({"dashscope", "qwencloud", "qwen_ai_platform"})
_SPLIT_WINDOWS: Final[Mapping[int, int]] = {
    30_720: 32_768,
    98_304: 131_072,
    129_024: 131_072,
    258_048: 262_144,
    260_096: 262_144,
    991_808: 1_000_000,
    997_952: 1_000_000,
}
_NO_SETTINGS: Final = Settings.model_validate({})
# An output limit below this is a mistake of the catalogue's.
_LEAST_OUTPUT: Final = 256


@dataclass(frozen=True, slots=True)
class _Known:
    """Numbers of one source; None: it does not say."""

    context: int | None = None
    output: int | None = None
    max_input: int | None = None


def read_limits(
    router: Router, group: str, team: str | None, settings_of: Callable[[Deployment], Settings]
) -> ModelLimits:
    """The limits that hold for all of a group: the smallest of its deployments, each under its own settings."""
    # A name that LiteLLM serves without a deployment of its own has the global settings.
    deployments: Final = list_deployments(router, group, team) or ({},)
    return smallest([deployment_limits(entry, settings_of(entry)) for entry in deployments])


def group_budget(
    deployments: Sequence[Deployment], settings_of: Callable[[Deployment], Settings], limits: ModelLimits, own: Settings
) -> Budget | None:
    """The budget of a group with these limits under its settings `own`; None where the window is unknown.

    I and T are the smallest of its deployments', each by its own settings: a large window with a large output may leave
    less than a small one with a small, and with rule `seed` have a smaller T. Raises ImpossibleBudget.
    """
    budget: Final = limits.budget(own.threshold_rule, own.threshold)
    if budget is None or len(deployments) < 2:  # noqa: PLR2004  # of one it is its own
        return budget
    each: Final = [budget]
    for entry in deployments:
        settings = settings_of(entry)
        with contextlib.suppress(ImpossibleBudget):
            theirs = deployment_limits(entry, settings).budget(settings.threshold_rule, settings.threshold)
            if theirs is not None:
                each.append(theirs)
    room: Final = min(one.input for one in each)
    return replace(budget, input=room).with_threshold(min(one.threshold for one in each))


def deployment_limits(deployment: Deployment, settings: Settings) -> ModelLimits:
    """The limits of one deployment, with where they come from."""
    operator: Final = _Known(settings.context, settings.output, settings.max_input)
    listed: Final = _read_catalogue(deployment)
    info: Final = _read_info(deployment, listed)
    context, context_source = _first(
        (operator.context, SETTINGS), (info.context, MODEL_INFO), (listed.context, CATALOGUE)
    )
    # As much as the window, or more, is a copy of the window that says nothing of the output.
    output, output_source = _first(
        (operator.output, SETTINGS),
        *(
            (value, source)
            for value, source in ((info.output, MODEL_INFO), (listed.output, CATALOGUE))
            if value is not None and (context is None or value < context)
        ),
    )
    # A provider refuses a prompt over its input limit whatever window the operator has in mind.
    cap, cap_source = _first(
        (operator.max_input, SETTINGS),
        # Who says the window in LiteLLM's terms says by the same number whether it is the input limit.
        (info.max_input, MODEL_INFO) if info.context is not None else (listed.max_input, CATALOGUE),
    )
    return ModelLimits(
        context,
        output,
        cap,
        _describe({"context": context_source, "output": output_source, "max_input": cap_source}),
    )


def reported_limits(deployment: Deployment) -> ModelLimits:
    """What the deployment has without the plugin's settings: the bounds an operator's numbers have to keep to."""
    return deployment_limits(deployment, _NO_SETTINGS)


def check_limits(deployment: Deployment, settings: Settings) -> None:
    """Raises SettingsError for an operator's numbers that the model cannot have: over its own limits as far as
    `model_info` or the catalogue say them, or leaving no room for a prompt."""
    if not converses(deployment):
        return
    found: Final = reported_limits(deployment)
    name: Final = str(deployment.get("model_name"))
    limits: Final = deployment_limits(deployment, settings)
    for key, value, bound, what in (
        ("context", settings.context, found.context, "the window"),
        ("output", settings.output, found.output, "the output limit"),
        ("max_input", settings.max_input, found.context, "the window"),
    ):
        if value is not None and bound is not None and value > bound:
            raise _refused(name, key, value, f"at most {bound}, {what} of {model_of(deployment)} ({found.source})")
    if limits.context is None:
        return
    # A threshold for all models is a bound that smaller ones keep to by themselves; one written for a model is not.
    written: Final = info_of(deployment).get(MODEL_SECTION) or {}
    threshold: Final = settings.threshold if "threshold" in written else None
    for key, part in (("output", settings.output), ("threshold", threshold)):
        if isinstance(part, int) and part >= limits.context:
            raise _refused(name, key, part, f"less than the window, {limits.context} ({limits.source})")
    try:
        limits.budget(settings.threshold_rule, settings.threshold)
    except ImpossibleBudget as impossible:
        # A catalogue that leaves no room for a prompt is no fault of the operator's: that model has no budget.
        if settings.context is not None:
            raise SettingsError(f"context of model {name!r}: {impossible}") from None


def _refused(model: str, key: str, value: int, allowed: str) -> SettingsError:
    return SettingsError(
        f"{key} of model {model!r}: {value} is not allowed: allowed is {allowed}. Where that number is wrong, "
        "'model_info.max_input_tokens' and 'max_output_tokens' of the deployment correct it"
    )


def _first(*known: tuple[int | None, str]) -> tuple[int | None, str]:
    return next(((value, source) for value, source in known if value is not None), (None, ""))


def _describe(sources: Mapping[str, str]) -> str:
    """One word where one source says all, else each number with its own."""
    said: Final = {number: source for number, source in sources.items() if source}
    if len(set(said.values())) <= 1:
        return next(iter(said.values()), "")
    return ", ".join(f"{number} from {source}" for number, source in said.items())


def _read_info(deployment: Deployment, listed: _Known) -> _Known:
    """What the operator wrote among LiteLLM's own keys; copied from the catalogue it means the same as there."""
    info: Final = info_of(deployment)
    given, output = read_tokens(info.get("max_input_tokens")), read_tokens(info.get("max_output_tokens"))
    if given is not None and given == read_tokens((entry_of(deployment) or {}).get("max_input_tokens")):
        return replace(listed, output=output)
    return _with_meaning(deployment, given, output)


def _read_catalogue(deployment: Deployment) -> _Known:
    entry: Final = entry_of(deployment) or {}
    given, output = read_tokens(entry.get("max_input_tokens")), read_tokens(entry.get("max_output_tokens"))
    believed: Final = output if output is not None and output >= _LEAST_OUTPUT else None
    return _with_meaning(deployment, given, believed)


def _with_meaning(deployment: Deployment, given: int | None, output: int | None) -> _Known:
    model: Final = model_of(deployment).lower()
    if given is None:
        return _Known(output=output)
    if output is not None and (given, output) in _NET_PAIRS and "gpt-" in model:
        return _Known(given + output, output, given)
    split: Final = not _SPLIT_PROVIDERS.isdisjoint({provider_of(deployment), model.partition("/")[0]})
    window: Final = _SPLIT_WINDOWS.get(given) if split else None
    if window is not None:
        return _Known(window, output, given)
    return _Known(given, output if output is None or output < given else None)


def read_tokens(value: object) -> int | None:
    """A number of tokens as operators and catalogues write it; None for what is none: zeros, fractions, words."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 1 <= value < math.inf and value == int(value) else None
