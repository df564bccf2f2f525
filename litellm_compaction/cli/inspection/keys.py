"""The operator's secrets, from where the proxy itself takes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from litellm_compaction.envelope.sealing import NO_SECRET

_ENVIRONMENT: Final = "os.environ/"
SALT_KEY: Final = "LITELLM_SALT_KEY"
MASTER_KEY: Final = "LITELLM_MASTER_KEY"


class NoKeysError(Exception):
    """No secret could be found; the message says where one was looked for."""


def find_secrets(given: Sequence[str], config: Path | None, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Secrets that may open an item, newest first.

    Those given; else `callback_settings.litellm_compaction.keys` of the config; else what the plugin derives its key
    from: the salt key, then the master key. Both are tried, because an item may be older than the salt key.
    Raises NoKeysError.
    """
    loaded: Final = _load(config) if config else {}
    settings: Final = _member(_member(loaded, "callback_settings"), "litellm_compaction")
    general: Final = _member(loaded, "general_settings")
    listed: Final = settings.get("keys")
    if given:
        secrets = list(given)
    elif isinstance(listed, list) and listed:
        secrets = [_resolve(value, environment) for value in listed]
    else:
        configured: Final = general.get("master_key")
        secrets = [
            environment.get(SALT_KEY, ""),
            _resolve(configured, environment) if configured else "",
            environment.get(MASTER_KEY, ""),
        ]
    usable: Final = list(dict.fromkeys(filter(None, secrets)))
    if not usable and config is None:
        raise NoKeysError(f"no key: give --key, a --config that has one, or set {SALT_KEY} or {MASTER_KEY}")
    # A proxy that has no secret at all seals with this one, which protects against damage only.
    return usable or [NO_SECRET]


def _load(config: Path) -> Mapping[str, Any]:
    try:
        loaded: Final = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        # Without the parser's own text: it quotes the line, and the line may be a secret.
        raise NoKeysError(f"{config} cannot be read as YAML ({type(error).__name__})") from None
    return loaded if isinstance(loaded, Mapping) else {}


def _member(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Final = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _resolve(value: object, environment: Mapping[str, str]) -> str:
    text: Final = str(value)
    if not text.startswith(_ENVIRONMENT):
        return text
    name: Final = text.removeprefix(_ENVIRONMENT)
    if name not in environment:
        raise NoKeysError(f"the config takes a key from the environment variable {name}, which is not set")
    return environment[name]
