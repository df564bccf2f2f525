"""Everything that is wrong with settings, where the gateway stops at the first it meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from litellm_compaction.cli.config import Config, faults_of, global_section
from litellm_compaction.errors import SettingsError
from litellm_compaction.gateway.catalogue import MODEL_SECTION, Deployment, info_of
from litellm_compaction.gateway.limits import check_limits
from litellm_compaction.gateway.operator import WHERE
from litellm_compaction.settings import Settings, merge_settings, parse_settings

# Each has a bound of its own in the model.
_BOUNDED: Final = ("context", "output", "max_input")


def global_errors(values: Mapping[str, Any]) -> list[str]:
    """Errors of the settings for all models in a config's values."""
    return _section_errors(global_section(values), lambda section: parse_settings(section, WHERE))


def entry_errors(config: Config, entry: Deployment) -> list[str]:
    """Errors of one entry of the model list: its form, its own settings, numbers that its model cannot have."""
    faults: Final = list(faults_of(entry))
    if faults:
        return faults
    own: Final = info_of(entry).get(MODEL_SECTION)
    found: Final = _section_errors(own, lambda section: merge_settings({}, section, str(entry["model_name"])))
    if found:
        return found
    try:
        settings: Final = config.settings_of(entry)
    except SettingsError as error:
        return [str(error)]
    return _limit_errors(entry, settings)


def _section_errors(section: object, read: Callable[[object], Settings]) -> list[str]:
    """Each key is read by itself; what only keys together make wrong is found where none is wrong alone."""
    keys: Final = section if isinstance(section, Mapping) else {}
    alone: Final = [error for key, value in keys.items() for error in _refusal(lambda: read({key: value}))]  # noqa: B023  called at once
    return alone or _refusal(lambda: read(section))


def _limit_errors(entry: Deployment, settings: Settings) -> list[str]:
    found: Final = _refusal(lambda: check_limits(entry, settings))
    if not found:
        return []
    for key in _BOUNDED:
        others = dict.fromkeys(name for name in _BOUNDED if name != key)
        alone = settings.model_copy(update={**others, "threshold": "auto"})
        found.extend(error for error in _refusal(lambda: check_limits(entry, alone)) if error not in found)  # noqa: B023
    return found


def _refusal(attempt: Callable[[], object]) -> list[str]:
    try:
        attempt()
    except SettingsError as error:
        return [str(error)]
    return []
