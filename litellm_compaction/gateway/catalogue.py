"""LiteLLM's catalogue of models, and how a deployment is found in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import litellm

if TYPE_CHECKING:
    from litellm.router import Router

Deployment = Mapping[str, Any]
# LiteLLM's router writes deployments into the same table later, and what those leave out is nobody's statement.
_CATALOGUE: Final = frozenset(litellm.model_cost)
_MODES: Final = frozenset({"chat", "responses"})


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
    params: Final = params_of(deployment)
    return str(params.get("custom_llm_provider") or str(params.get("model") or "").partition("/")[0])


def entry_of(deployment: Deployment) -> Mapping[str, Any] | None:
    """What LiteLLM's catalogue says of the deployment's model, None where it does not know it."""
    model: Final = model_of(deployment)
    name: Final = next((name for name in (model, model.partition("/")[2]) if name in _CATALOGUE), None)
    known: Final = None if name is None else litellm.model_cost.get(name)
    return known if known is not None and known.get("mode") in _MODES else None
