"""A config checked: what holds for each model, and everything that is wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from litellm_compaction.budget.limits import ModelLimits
from litellm_compaction.cli.checking.warnings import warn_of_deployment, warn_of_group
from litellm_compaction.cli.config import Config, ConfigError, read_config
from litellm_compaction.errors import SettingsError
from litellm_compaction.gateway.limits import check_limits


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
    """The report of a config file; what is wrong with the file is in it."""
    try:
        config: Final = read_config(path)
    except (ConfigError, SettingsError) as error:
        return Report(errors=[str(error)])
    report: Final = Report()
    for name in config.names:
        errors = _errors(config, name)
        report.errors.extend(error for error in errors if error not in report.errors)
        if not errors:
            report.models.append(_row(config, name))
    return report


def _errors(config: Config, name: str) -> list[str]:
    deployments: Final = config.deployments(name)
    if not deployments:
        return [f"model {name!r} is an alias of a model that is not in the list"]
    found: Final = config.faults(name)
    if found:
        return found
    for deployment in deployments:
        try:
            check_limits(deployment, config.settings_of(deployment))
        except SettingsError as error:
            found.append(str(error))
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
        *warn_of_group(name, config.settings(name), budget, lambda writer: bool(config.deployments(writer))),
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
