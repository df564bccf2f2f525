"""What the operator wrote, read from where LiteLLM keeps it: settings, keys, who compacts for a model group."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import litellm
from litellm._logging import verbose_proxy_logger

from litellm_compaction.envelope.sealing import NO_SECRET, KeyRing
from litellm_compaction.gateway.catalogue import MODEL_SECTION, Deployment, info_of, list_deployments, params_of
from litellm_compaction.gateway.limits import check_limits
from litellm_compaction.settings import Settings, merge_settings, parse_settings

if TYPE_CHECKING:
    from litellm.router import Router

SECTION: Final = "litellm_compaction"
WHERE: Final = f"callback_settings.{SECTION}"
_OPENAI_HOST: Final = "api.openai.com"

Mode = Literal["own", "native"]


class Operator:
    """The settings of one proxy process. Raises SettingsError when built from settings that cannot be used."""

    def __init__(self, values: object, config: Mapping[str, Any]) -> None:
        self._values: Final = values
        self.settings: Final = parse_settings(values, WHERE)
        # By name and by what is written there: two deployments of one name may differ.
        self._merged: dict[tuple[str, str], Settings] = {}
        self._ring: KeyRing | None = None
        # LiteLLM has read the config file by the time it loads callbacks: a wrong value stops the proxy now.
        for model in config.get("model_list") or ():
            if isinstance(model, Mapping):
                check_limits(model, self.settings_of(model))

    @classmethod
    def from_litellm(cls) -> Operator:
        """From `litellm.callback_settings` and, inside a proxy, the config file it was started with."""
        values: Final = (litellm.callback_settings or {}).get(SECTION)
        proxy: Final = sys.modules.get("litellm.proxy.proxy_server")
        config: Final = getattr(proxy, "proxy_config", None)
        state: Final = config.get_config_state() if config is not None else {}
        operator: Final = cls(values, state)
        if operator.settings.seal and not _has_secret(operator.settings, state):
            verbose_proxy_logger.warning(
                "litellm_compaction: neither LITELLM_SALT_KEY nor a master key is set. Compaction items are protected "
                "against damage, not against reading. Set LITELLM_SALT_KEY, or %s.keys.",
                WHERE,
            )
        return operator

    def resolve(self, router: Router | None, group: str, team: str | None) -> tuple[Settings, Mode]:
        """The group's own settings over the global ones, and who compacts for it.

        The first of its deployments that has settings of its own speaks; a team's own deployments are found by team.
        """
        deployments: Final = list_deployments(router, group, team) if router else []
        first: Final = next((entry for entry in deployments if _model_values(entry) is not None), None)
        settings: Final = self.settings if first is None else self.settings_of(first)
        return settings, resolve_mode(settings, [params_of(entry) for entry in deployments])

    def settings_of(self, deployment: Deployment) -> Settings:
        """The settings of one deployment: its own over the global ones. Raises SettingsError."""
        own: Final = _model_values(deployment)
        if own is None:
            return self.settings
        name: Final = str(deployment.get("model_name"))
        known: Final = self._merged.get((name, repr(own)))
        if known is not None:
            return known
        merged: Final = merge_settings(self._values, own, name)
        self._merged[name, repr(own)] = merged
        return merged

    @property
    def allows_unsealed(self) -> bool:
        """Whether readable items are taken: once one group writes them, every group has to read them."""
        return not all(known.seal for known in (self.settings, *self._merged.values()))

    @property
    def ring(self) -> KeyRing:
        """Keys, derived at the first use: LiteLLM sets its master key after it has loaded callbacks."""
        if self._ring is None:
            self._ring = KeyRing(self.settings.keys or [_derived_secret()])
        return self._ring


def _model_values(deployment: Deployment) -> object:
    return info_of(deployment).get(MODEL_SECTION)


def _derived_secret() -> str:
    proxy: Final = sys.modules.get("litellm.proxy.proxy_server")
    secret: Final = os.environ.get("LITELLM_SALT_KEY") or getattr(proxy, "master_key", None)
    return secret if isinstance(secret, str) and secret else NO_SECRET


def _has_secret(settings: Settings, config: Mapping[str, Any]) -> bool:
    general: Final = config.get("general_settings") or {}
    named: Final = os.environ.get("LITELLM_SALT_KEY") or os.environ.get("LITELLM_MASTER_KEY")
    return bool(settings.keys or named or general.get("master_key"))


def resolve_mode(settings: Settings, params: Sequence[Mapping[str, Any]]) -> Mode:
    """Who compacts for a group with these `litellm_params`: `auto` is native only where all of it is api.openai.com
    with one and the same key."""
    if settings.mode != "auto":
        return settings.mode
    native: Final = bool(params) and all(_is_openai(entry) for entry in params)
    return "native" if native and len({entry.get("api_key") for entry in params}) == 1 else "own"


def _is_openai(params: Mapping[str, Any]) -> bool:
    model: Final = str(params.get("model", ""))
    provider: Final = params.get("custom_llm_provider") or (
        model.partition("/")[0] if "/" in model else "openai" if model in litellm.open_ai_chat_completion_models else ""
    )
    base: Final = (
        params.get("api_base")
        or params.get("base_url")
        or litellm.api_base
        or os.environ.get("OPENAI_BASE_URL")
        or os.environ.get("OPENAI_API_BASE")
        or f"https://{_OPENAI_HOST}"
    )
    bridged: Final = bool(params.get("use_chat_completions_api"))
    return provider == "openai" and not bridged and urlsplit(str(base)).hostname == _OPENAI_HOST
