"""A config checked: what holds for each model, and everything that is wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from litellm_compaction.budget.limits import ModelLimits
from litellm_compaction.cli.checking.errors import entry_errors, global_errors
from litellm_compaction.cli.checking.warnings import warn_of_deployment, warn_of_group
from litellm_compaction.cli.config import Config, ConfigError, read_values
from litellm_compaction.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Row:
    """One model group, in tokens; None: unknown. `source`: where the numbers come from."""

    model: str
    context: int | None
    output: int | None
    max_input: int | None
    input: int | None
    threshold: int | None
    source: str | None
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Report:
    """What `check` found. An error is what stops a proxy, or keeps it from serving a model."""

    models: list[Row] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def check_config(path: Path) -> Report:
    """The report of a config file; what is wrong with the file is in it.

    Where the settings for all models are wrong, no model has numbers; errors of the models are told all the same.
    """
    try:
        values: Final = read_values(path)
    except ConfigError as error:
        return Report(errors=[str(error)])
    stopping: Final = global_errors(values)
    try:
        config: Final = Config({**values, "callback_settings": {}} if stopping else values)
    except ConfigError as error:
        return Report(errors=[*stopping, str(error)])
    found: Final = {name: _errors(config, name) for name in config.names}
    errors: Final = [
        *stopping,
        # Of all entries: an alias may stand before a model of the same name.
        *(error for entry in config.entries for error in entry_errors(config, entry)),
        *(error for errors in found.values() for error in errors),
    ]
    models: Final = [] if stopping else [_row(config, name) for name, errors in found.items() if not errors]
    return Report(models, list(dict.fromkeys(errors)))


def _errors(config: Config, name: str) -> list[str]:
    deployments: Final = config.deployments(name)
    if not deployments:
        return [f"model {name!r} is an alias of a model that is not in the list"]
    found: Final = [error for entry in deployments for error in entry_errors(config, entry)]
    if not found:
        try:
            config.budget(name)
        except SettingsError as error:
            found.append(str(error))
    return found


def _row(config: Config, name: str) -> Row:
    limits: Final = ModelLimits() if "*" in name else config.limits(name)
    budget: Final = None if "*" in name else config.budget(name)
    warnings: Final = [
        *(
            warning
            for deployment in config.deployments(name)
            for warning in warn_of_deployment(deployment, config.settings_of(deployment))
        ),
        *warn_of_group(name, config.settings(name), budget, lambda writer: bool(config.routed(writer))),
    ]
    unique: Final = list(dict.fromkeys(warnings))
    if budget is None:
        return Row(name, limits.context, limits.output, limits.max_input, None, None, limits.source or None, unique)
    return Row(
        name,
        budget.context,
        budget.output,
        budget.max_input,
        budget.input,
        budget.threshold,
        limits.source or None,
        unique,
    )
