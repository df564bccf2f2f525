"""LiteLLM's catalogue of models, and how a deployment is found in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import litellm

if TYPE_CHECKING:
    from litellm.router import Router

Deployment = Mapping[str, Any]
# Where in `model_info` the plugin's settings for a deployment stand.
MODEL_SECTION: Final = "compaction"
# As it was before LiteLLM's router writes what deployments say of themselves into the same entries: that is no
# statement about another deployment of the same model.
_CATALOGUE: Final[Mapping[str, Mapping[str, Any]]] = {name: dict(entry) for name, entry in litellm.model_cost.items()}
_MODES: Final = frozenset({"chat", "responses"})
# Modes of models that a budget means nothing to are all others; without one it is a conversation.
_CONVERSING: Final = frozenset({None, "completion", *_MODES})


def list_deployments(router: Router, group: str, team: str | None) -> Sequence[Deployment]:
    """A group's deployments, aliases and wildcards resolved; none where LiteLLM does not know the name."""
    return [dict(entry) for entry in router.get_model_list(model_name=group, team_id=team) or ()]


def params_of(deployment: Deployment) -> Mapping[str, Any]:
    return deployment.get("litellm_params") or {}


def info_of(deployment: Deployment) -> Mapping[str, Any]:
    return deployment.get("model_info") or {}


def model_of(deployment: Deployment) -> str:
    """The model's name at its provider, the operator's `base_model` first."""
    return str(info_of(deployment).get("base_model") or params_of(deployment).get("model") or "")


def provider_of(deployment: Deployment) -> str:
    """The provider LiteLLM is told of, before the one in the name; empty where neither says one."""
    params: Final = params_of(deployment)
    return str(params.get("custom_llm_provider") or str(params.get("model") or "").rpartition("/")[0].partition("/")[0])


def entry_of(deployment: Deployment) -> Mapping[str, Any] | None:
    """What LiteLLM's catalogue says of the deployment's model, None where it does not know it."""
    known: Final = _listed(deployment)
    return known if known is not None and known.get("mode") in _MODES else None


def converses(deployment: Deployment) -> bool:
    """Whether the model answers conversations, as far as anybody says: an embedding has a window and no budget."""
    said: Final = info_of(deployment).get("mode")
    return (said or (_listed(deployment) or {}).get("mode")) in _CONVERSING


def _listed(deployment: Deployment) -> Mapping[str, Any] | None:
    model: Final = model_of(deployment)
    rest: Final = model.partition("/")[2]
    if info_of(deployment).get("base_model"):
        return _CATALOGUE.get(model) or _CATALOGUE.get(rest)
    provider: Final = provider_of(deployment)
    if not provider or (model in _CATALOGUE and not params_of(deployment).get("custom_llm_provider")):
        return _CATALOGUE.get(model)
    bare: Final = model.removeprefix(f"{provider}/")
    # bedrock/converse/NAME, azure/responses/NAME: what stands between chooses a way, not a model.
    for name in dict.fromkeys((bare, bare.rpartition("/")[2])):
        for entry in (_CATALOGUE.get(f"{provider}/{name}"), _CATALOGUE.get(name)):
            if entry is not None and _is_of(entry, provider):
                return entry
    return None


def _is_of(entry: Mapping[str, Any], provider: str) -> bool:
    """Whether an entry is of the provider's own model: any server may call its model `gpt-4`."""
    listed: Final = str(entry.get("litellm_provider") or provider)
    return listed.startswith(provider) or (provider == "azure_ai" and listed in {"azure", "openai"})
