"""A LiteLLM config file as the gateway would read it, without a proxy, a key or a network."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from litellm.proxy.common_utils.config_includes import resolve_include_file_path, resolve_includes
from litellm.router_utils.pattern_match_deployments import PatternMatchRouter

from litellm_compaction.budget.arithmetic import Budget, ImpossibleBudget
from litellm_compaction.budget.limits import ModelLimits, smallest
from litellm_compaction.errors import SettingsError
from litellm_compaction.gateway.catalogue import Deployment
from litellm_compaction.gateway.limits import deployment_limits, group_budget
from litellm_compaction.gateway.operator import SECTION, Operator
from litellm_compaction.settings import Settings

_ENVIRONMENT: Final = "os.environ/"


class ConfigError(Exception):
    """A config that cannot be read at all; the message says what is wrong with it."""


class Config:
    """The models of a config and the plugin's settings for them.

    Raises ConfigError, and SettingsError for global settings that cannot be used.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        models: Final = values.get("model_list")
        if not isinstance(models, list) or not all(isinstance(model, Mapping) for model in models):
            raise ConfigError("'model_list' is missing or no list of models")
        self._models: Final[Sequence[Deployment]] = models
        # The proxy rewrites a name by the first before its router looks it up in the second.
        self._rewrites: Final = _read_aliases(_member(values, "litellm_settings"), "model_alias_map")
        self._aliases: Final = _read_aliases(_member(values, "router_settings"), "model_group_alias")
        self._operator: Final = Operator(global_section(values), {})
        self._patterns: Final = PatternMatchRouter()
        for model in models:
            if "*" in str(model.get("model_name")):
                self._patterns.add_pattern(str(model["model_name"]), dict(model))

    @property
    def names(self) -> list[str]:
        """Every model group once, in the order of the file, then the aliases."""
        models: Final = (str(model.get("model_name")) for model in self._models)
        return list(dict.fromkeys([*models, *self._rewrites, *self._aliases]))

    @property
    def entries(self) -> Sequence[Deployment]:
        """The model list as it is written."""
        return self._models

    def deployments(self, name: str) -> list[Deployment]:
        """The deployments that would serve a name that a client sends; none where nobody does."""
        return self.routed(self._rewrites.get(name, name))

    def routed(self, name: str) -> list[Deployment]:
        """The deployments behind a name that LiteLLM's router is asked for, as for a summary."""
        group: Final = self._aliases.get(name, name)
        found: Final = [model for model in self._models if str(model.get("model_name")) == group]
        return found or [dict(model) for model in self._patterns.route(group) or ()]

    def faults(self, name: str) -> list[str]:
        """What keeps LiteLLM from taking the entries behind a name for deployments."""
        return [fault for deployment in self.deployments(name) for fault in faults_of(deployment)]

    def require(self, name: str) -> None:
        """Raises ConfigError for a name that nobody serves, or whose entries are malformed."""
        faults: Final = self.faults(name) if self.deployments(name) else [f"no model {name!r} is served"]
        if faults:
            raise ConfigError(faults[0])

    def settings(self, name: str) -> Settings:
        """The settings of a group: of the first deployment that has its own, else the global ones."""
        own: Final = (self.settings_of(entry) for entry in self.deployments(name))
        return next((settings for settings in own if settings != self._operator.settings), self._operator.settings)

    def settings_of(self, deployment: Deployment) -> Settings:
        """The settings of one deployment. Raises SettingsError."""
        return self._operator.settings_of(deployment)

    def limits(self, name: str) -> ModelLimits:
        """The limits of a group as the gateway holds it to them, without what refusals teach. Raises SettingsError."""
        return smallest([deployment_limits(entry, self.settings_of(entry)) for entry in self.deployments(name)])

    def budget(self, name: str) -> Budget | None:
        """C, O, I and T of a group; None where the window is unknown. Raises SettingsError."""
        settings: Final = self.settings(name)
        try:
            return group_budget(self.deployments(name), self.settings_of, self.limits(name), settings)
        except ImpossibleBudget as impossible:
            raise SettingsError(f"model {name!r} has no budget: {impossible}") from None


def read_config(path: Path) -> Config:
    """The config in a file, with what it includes. Raises ConfigError and SettingsError."""
    return Config(read_values(path))


def read_values(path: Path) -> Mapping[str, Any]:
    """What is written in a config file and in those it includes. Raises ConfigError."""
    location: Final = str(path.absolute())

    async def read(included: str) -> Mapping[str, object]:
        return _load(Path(included))

    def resolve(entry: str, declared_in: str) -> str:
        return resolve_include_file_path(entry, declared_in, location)

    try:
        return asyncio.run(resolve_includes(_load(path), location, resolve, read))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _load(path: Path) -> Mapping[str, object]:
    try:
        loaded: Final = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        # Without the parser's own text: it quotes the line, and the line may be a secret.
        raise ConfigError(f"{path} cannot be read as YAML ({type(error).__name__})") from None
    if not isinstance(loaded, Mapping):
        raise ConfigError(f"{path} is no mapping of settings")
    return loaded


def faults_of(deployment: Deployment) -> Iterator[str]:
    """What keeps LiteLLM from taking an entry for a deployment."""
    name: Final = deployment.get("model_name")
    if not isinstance(name, str):
        yield "an entry of 'model_list' has no 'model_name'" if name is None else f"model_name {name!r} is no text"
        return
    params: Final = deployment.get("litellm_params")
    if not isinstance(params, Mapping) or not isinstance(params.get("model"), str):
        yield f"model {name!r}: 'litellm_params' is no mapping with a 'model'"
    if not isinstance(deployment.get("model_info") or {}, Mapping):
        yield f"model {name!r}: 'model_info' is no mapping"


def _read_aliases(section: Mapping[str, Any], key: str) -> dict[str, str]:
    """Alias to group: a name, or an object with the name as `model`."""
    return {
        str(alias): str(target["model"] if isinstance(target, Mapping) else target)
        for alias, target in _member(section, key).items()
        if not isinstance(target, Mapping) or "model" in target
    }


def global_section(values: Mapping[str, Any]) -> object:
    """The plugin's global settings, with a stand-in for secrets that only the proxy's machine has."""
    own: Final = _member(values, "callback_settings").get(SECTION)
    keys: Final = own.get("keys") if isinstance(own, Mapping) else None
    if not isinstance(own, Mapping) or not isinstance(keys, list):
        return own
    return {**own, "keys": ["-" if _is_elsewhere(key) else key for key in keys]}


def _is_elsewhere(key: object) -> bool:
    """Whether a key comes from an environment variable that is not set here."""
    return isinstance(key, str) and key.startswith(_ENVIRONMENT) and key.removeprefix(_ENVIRONMENT) not in os.environ


def _member(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Final = values.get(name)
    return found if isinstance(found, Mapping) else {}
