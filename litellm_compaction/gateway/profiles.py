"""Backends as data: what a model group can do, how its tokens are counted, what its window is."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import litellm

from litellm_compaction.budget.counting import (
    CLAUDE_TOKENIZER_ERROR,
    OTHER_TOKENIZER_ERROR,
    OWN_TOKENIZER_ERROR,
    Counter,
    careful_counter,
)
from litellm_compaction.budget.limits import ModelLimits, smallest
from litellm_compaction.compaction.prompt import Style
from litellm_compaction.settings import Settings

if TYPE_CHECKING:
    from litellm.router import Router

# (names of models, the share by which a count in o200k_base may fall short); the first that matches, else the last.
_COUNT_ERRORS: Final[tuple[tuple[re.Pattern[str], float], ...]] = (
    (re.compile(r"gpt-(4o|4\.|5|6|oss)|chatgpt|(^|/)o[134](-|$)"), OWN_TOKENIZER_ERROR),
    (re.compile(r"claude"), CLAUDE_TOKENIZER_ERROR),
    (re.compile(r""), OTHER_TOKENIZER_ERROR),
)
# Servers that cut a prompt which is too long, without an error.
_TRUNCATING_PROVIDERS: Final = frozenset({"ollama", "ollama_chat"})
# Pairs of the catalogue whose first number is the window without the output (facts: stated by several hosts).
_NET_PAIRS: Final = frozenset({(272_000, 128_000), (922_000, 128_000), (111_616, 16_384)})
_LEAST_OUTPUT: Final = 256
_ENCODING: Final = "o200k_base"
# The name tiktoken gives the encoding's file: a digest of where it comes from.
_ENCODING_FILE: Final = "fb374d419588a4632f3f557e76b4b70aebbca790"


# LiteLLM's router writes deployments into the same table later, and what those leave out is nobody's statement.
_CATALOGUE: Final = frozenset(litellm.model_cost)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a model group can do, as far as LiteLLM's catalogue or the operator says.

    `count_error`: the share by which a count may fall short of the model's own. `truncates`: it cuts prompts silently.
    """

    first_style: Style = Style.TOOL
    images: bool = True
    count_error: float = OTHER_TOKENIZER_ERROR
    truncates: bool = False


def read_profile(router: Router, group: str, team: str | None) -> Profile:
    """The profile of a group: what any of its deployments lacks, the group lacks. What nobody says, it can."""
    deployments: Final = _deployments(router, group, team)
    infos: Final = [_abilities(deployment) for deployment in deployments]
    tools: Final = all(info.get("supports_function_calling") is not False for info in infos)
    schema: Final = all(info.get("supports_response_schema") is not False for info in infos)
    return Profile(
        first_style=Style.TOOL if tools else Style.SCHEMA if schema else Style.TEXT,
        images=all(info.get("supports_vision") is not False for info in infos),
        count_error=max(
            (_count_error(_model_of(deployment)) for deployment in deployments), default=OTHER_TOKENIZER_ERROR
        ),
        truncates=any(_provider_of(deployment) in _TRUNCATING_PROVIDERS for deployment in deployments),
    )


def read_limits(router: Router, group: str, team: str | None, settings: Settings) -> ModelLimits:
    """The limits that hold for all of a group: the operator's settings, then `model_info` of the deployments, then
    LiteLLM's catalogue read with its meaning. What nobody says stays unknown."""
    found: Final = smallest([_deployment_limits(entry) for entry in _deployments(router, group, team)])
    if settings.context is None:
        context, max_input = found.context, settings.max_input or found.max_input
    else:
        # A window the operator wrote is not second-guessed by a catalogue that knows the model by its name only.
        context, max_input = settings.context, settings.max_input
    own: Final = (settings.context, settings.output, settings.max_input)
    source: Final = "settings" if any(own) else found.source
    return ModelLimits(context, settings.output or found.output, max_input, source)


def _deployments(router: Router, group: str, team: str | None) -> Sequence[dict[str, Any]]:
    return [dict(entry) for entry in router.get_model_list(model_name=group, team_id=team) or ()]


def _model_of(deployment: Mapping[str, Any]) -> str:
    own: Final = (deployment.get("model_info") or {}).get("base_model")
    return str(own or (deployment.get("litellm_params") or {}).get("model") or "")


def _provider_of(deployment: Mapping[str, Any]) -> str:
    params: Final = deployment.get("litellm_params") or {}
    return str(params.get("custom_llm_provider") or str(params.get("model") or "").partition("/")[0])


def _entry_of(deployment: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What LiteLLM's catalogue says of the deployment's model, None where it does not know it."""
    model: Final = _model_of(deployment)
    name: Final = next((name for name in (model, model.partition("/")[2]) if name in _CATALOGUE), None)
    known: Final = None if name is None else litellm.model_cost.get(name)
    return known if known is not None and known.get("mode") in {"chat", "responses"} else None


def _abilities(deployment: Mapping[str, Any]) -> dict[str, Any]:
    own: Final = {key: value for key, value in (deployment.get("model_info") or {}).items() if value is not None}
    known: Final = _entry_of(deployment)
    if known is None:
        return own
    # The catalogue writes only what a model can do; an entry that is there and silent on tools has none.
    said: Final = ("supports_function_calling", "supports_response_schema", "supports_vision")
    return {**{key: bool(known.get(key)) for key in said}, **own}


def _deployment_limits(deployment: Mapping[str, Any]) -> ModelLimits:
    own: Final = deployment.get("model_info") or {}
    window, output = read_tokens(own.get("max_input_tokens")), read_tokens(own.get("max_output_tokens"))
    if window is not None:
        return ModelLimits(context=window, output=output, source="model_info")
    known: Final = _entry_of(deployment) or {}
    found: Final = _catalogue_limits(
        _model_of(deployment), read_tokens(known.get("max_input_tokens")), read_tokens(known.get("max_output_tokens"))
    )
    if output is None:
        return found
    # An output limit alone says nothing against the window of the catalogue.
    return replace(found, output=output, source=f"model_info, {found.source}".rstrip(", "))


def _catalogue_limits(model: str, given: int | None, output: int | None) -> ModelLimits:
    """The catalogue's two numbers with what they mean: mostly the whole window, for some models the window without the
    output; an output limit as large as the window, or absurdly small, says nothing."""
    if given is None:
        return ModelLimits()
    if output is not None and (given, output) in _NET_PAIRS and "gpt-" in model:
        return ModelLimits(given + output, output, given, "catalogue")
    believed: Final = output if output is not None and _LEAST_OUTPUT <= output < given else None
    return ModelLimits(given, believed, source="catalogue")


def read_tokens(value: object) -> int | None:
    """A number of tokens as operators and catalogues write it; None for what is none: zeros, fractions, words."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 1 <= value < math.inf and value == int(value) else None


def _count_error(model: str) -> float:
    return next(error for names, error in _COUNT_ERRORS if names.search(model.lower()))


@functools.cache
def load_counter() -> Counter:
    """The counter all transcripts are measured with; loading it takes a quarter of a second, once."""
    return careful_counter(_load_encoding())


def _load_encoding() -> Callable[[str], Sequence[int]] | None:
    # Importing LiteLLM's module points tiktoken at the encodings LiteLLM brings along. Where an operator has set
    # another folder the file may be missing, and tiktoken would fetch it from the internet.
    import litellm.litellm_core_utils.default_encoding  # noqa: F401

    folder: Final = Path(os.environ.get("TIKTOKEN_CACHE_DIR", ""))
    if not (folder / _ENCODING_FILE).is_file():
        return None
    import tiktoken

    return tiktoken.get_encoding(_ENCODING).encode_ordinary
