"""Backends as data: what a model group can do, and how its tokens are counted."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from litellm_compaction.budget.counting import (
    CLAUDE_TOKENIZER_ERROR,
    OTHER_TOKENIZER_ERROR,
    OWN_TOKENIZER_ERROR,
    Counter,
    Encoding,
    careful_counter,
)
from litellm_compaction.compaction.prompt import Style
from litellm_compaction.gateway.catalogue import Deployment, entry_of, list_deployments, model_of, provider_of

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
_ENCODING: Final = "o200k_base"
# The name tiktoken gives the encoding's file: a digest of where it comes from.
_ENCODING_FILE: Final = "fb374d419588a4632f3f557e76b4b70aebbca790"


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
    deployments: Final = list_deployments(router, group, team)
    infos: Final = [_abilities(deployment) for deployment in deployments]
    tools: Final = all(info.get("supports_function_calling") is not False for info in infos)
    schema: Final = all(info.get("supports_response_schema") is not False for info in infos)
    return Profile(
        first_style=Style.TOOL if tools else Style.SCHEMA if schema else Style.TEXT,
        images=all(info.get("supports_vision") is not False for info in infos),
        count_error=max((count_error_of(deployment) for deployment in deployments), default=OTHER_TOKENIZER_ERROR),
        truncates=any(provider_of(deployment) in _TRUNCATING_PROVIDERS for deployment in deployments),
    )


def _abilities(deployment: Mapping[str, Any]) -> dict[str, Any]:
    own: Final = {key: value for key, value in (deployment.get("model_info") or {}).items() if value is not None}
    known: Final = entry_of(deployment)
    if known is None:
        return own
    # The catalogue writes only what a model can do; an entry that is there and silent on tools has none.
    said: Final = ("supports_function_calling", "supports_response_schema", "supports_vision")
    return {**{key: bool(known.get(key)) for key in said}, **own}


def count_error_of(deployment: Deployment) -> float:
    """The share by which a count may fall short of what the deployment's own tokenizer makes of the text."""
    model: Final = model_of(deployment).lower()
    return next(error for names, error in _COUNT_ERRORS if names.search(model))


@functools.cache
def load_counter() -> Counter:
    """The counter all transcripts are measured with; loading it takes a quarter of a second, once."""
    return careful_counter(_load_encoding())


@functools.cache
def load_encoding() -> Encoding:
    """The encoding everything is counted in, o200k_base; None where the machine does not have it. A quarter of a
    second, once."""
    return _load_encoding()


def _load_encoding() -> Encoding:
    # Importing LiteLLM's module points tiktoken at the encodings LiteLLM brings along. Where an operator has set
    # another folder the file may be missing, and tiktoken would fetch it from the internet.
    import litellm.litellm_core_utils.default_encoding  # noqa: F401

    folder: Final = Path(os.environ.get("TIKTOKEN_CACHE_DIR", ""))
    if not (folder / _ENCODING_FILE).is_file():
        return None
    import tiktoken

    return tiktoken.get_encoding(_ENCODING).encode_ordinary
