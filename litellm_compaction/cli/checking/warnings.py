"""What an operator should look at: numbers of the catalogue that look wrong, settings that cannot work."""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import litellm

from litellm_compaction.budget.arithmetic import Budget
from litellm_compaction.gateway.catalogue import Deployment, entry_of, info_of, model_of, provider_of
from litellm_compaction.gateway.limits import deployment_limits, read_tokens
from litellm_compaction.settings import Settings

_HUGE, _TINY = 2_200_000, 2_048
_ABOVE_MEDIAN: Final = 1.25
_NUMBERS: Final = ("max_input_tokens", "max_output_tokens")
_LOCAL: Final = frozenset({"ollama", "ollama_chat"})


def warn_of_deployment(deployment: Deployment, settings: Settings) -> Iterator[str]:
    """Warnings about the numbers of one deployment that are in use."""
    info: Final = info_of(deployment)
    for key in _NUMBERS:
        value = info.get(key)
        if value is not None and read_tokens(value) is None:
            yield f"model_info.{key} is {value!r}, which is no number of tokens: it counts as not said"
        elif isinstance(value, str):
            yield f"model_info.{key} is text ({value!r}): LiteLLM's own window check does not read it; write a number"
    if "*" in model_of(deployment):
        return
    if settings.context is None and read_tokens(info.get("max_input_tokens")) is None:
        yield from _warn_of_entry(deployment, entry_of(deployment) or {}, settings)
    yield from _warn_of_output(deployment, settings)


def _warn_of_entry(deployment: Deployment, entry: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    given, output = (read_tokens(entry.get(key)) for key in _NUMBERS)
    if given is None:
        return
    model: Final = model_of(deployment)
    if provider_of(deployment) in _LOCAL:
        yield (
            f"the catalogue's window of {given} is what the model was trained with; Ollama runs it with `num_ctx`: "
            "set 'context' to that"
        )
    if given > _HUGE:
        yield f"the catalogue gives {model} an input of {given} tokens, which is hardly true: set 'context'"
    if given < _TINY:
        yield f"the catalogue gives {model} an input of {given} tokens, too few to summarise anything: set 'context'"
    if output is not None and given // 2 < output < given and not _says_output(deployment, settings):
        yield f"the catalogue gives {model} an output of {output}, more than half of its input of {given}"
    usual: Final = _median_input(_normalised(model))
    if usual is not None and given > usual * _ABOVE_MEDIAN:
        yield f"the catalogue gives {model} an input of {given}, other hosts of the same model {usual}: which is yours?"


def _warn_of_output(deployment: Deployment, settings: Settings) -> Iterator[str]:
    limits: Final = deployment_limits(deployment, settings)
    if limits.context is None or limits.output is not None:
        return
    derived: Final = f"{limits.output_budget} derived from the window; set 'output'"
    listed: Final = read_tokens((entry_of(deployment) or {}).get(_NUMBERS[1]))
    if listed is None or listed < limits.context or _says_output(deployment, settings):
        yield f"output limit unknown: {derived}"
    else:
        yield (
            f"the catalogue gives {model_of(deployment)} an output of {listed}, not less than its window of "
            f"{limits.context}: not believed, {derived}"
        )


def _says_output(deployment: Deployment, settings: Settings) -> bool:
    """Whether the operator says an output limit, which the catalogue's then does not matter to."""
    return settings.output is not None or read_tokens(info_of(deployment).get(_NUMBERS[1])) is not None


@functools.cache
def _inputs_by_name() -> Mapping[str, list[int]]:
    found: Final[dict[str, list[int]]] = defaultdict(list)
    for name, entry in litellm.model_cost.items():
        given = read_tokens(entry.get("max_input_tokens"))
        if given is not None and entry.get("mode") in {"chat", "responses"}:
            found[_normalised(name)].append(given)
    return found


def _median_input(name: str) -> int | None:
    inputs: Final = _inputs_by_name().get(name, [])
    return int(statistics.median(inputs)) if len(inputs) > 1 else None


def _normalised(model: str) -> str:
    return model.rpartition("/")[2].lower()


def warn_of_group(name: str, settings: Settings, budget: Budget | None, serves: Callable[[str], bool]) -> Iterator[str]:
    """Warnings about a group's budget and settings. `serves`: whether a model of the config answers to a name."""
    if settings.summary_model is not None and not serves(settings.summary_model):
        yield f"summary_model {settings.summary_model!r} is no model of this config"
    if "*" in name:
        yield "a wildcard: numbers come per model, when one is asked for"
        return
    if budget is None:
        yield "limits unknown: no enforcement and no automatic threshold; explicit compaction still works"
        if settings.auto_compact:
            yield "auto_compact does nothing without a known window: set 'context'"
        return
    wanted: Final = settings.threshold
    # Decimal, as the gateway has it: 0.29 of 100 is 29.
    part: Final = None if isinstance(wanted, str | int) else int(Decimal(str(wanted)) * budget.context)
    tokens: Final = wanted if isinstance(wanted, int) else part
    if tokens is not None and tokens > budget.input:
        yield f"threshold {tokens} is over the input budget: {budget.threshold} counts"
    if budget.threshold * 2 < budget.context:
        yield f"compaction begins at {budget.threshold}, less than half of the window: {_reason(budget, tokens)}"


def _reason(budget: Budget, wanted: int | None) -> str:
    if budget.threshold == wanted:
        return "'threshold' says so"
    if budget.threshold == budget.input:
        left: Final = budget.context - budget.output
        return f"{budget.output} tokens of output are kept free" if budget.input == left else "no more input is taken"
    return "rule 'seed' reserves 16384 tokens; 'threshold_rule: smooth' fewer in small windows"
