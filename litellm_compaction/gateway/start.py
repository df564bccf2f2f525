"""Starting up: the host's version, the operator's settings, then the handler."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from litellm_compaction.errors import SettingsError

if TYPE_CHECKING:
    from litellm_compaction.gateway.hook import CompactionHandler

LOWEST_LITELLM: Final = (1, 108, 7)


def build_handler() -> CompactionHandler:
    """The handler of this process. Raises SettingsError on a LiteLLM that is too old and on unusable settings."""
    check_litellm(version("litellm"))
    from litellm_compaction.gateway.bodies import unpack_bodies
    from litellm_compaction.gateway.hook import CompactionHandler

    built: Final = CompactionHandler()
    unpack_bodies()
    return built


def check_litellm(installed: str) -> None:
    """Raises SettingsError if `installed` is older than the lowest supported LiteLLM, or the compromised release."""
    numbers: Final = tuple(int(part) for part in installed.split(".")[:3] if part.isdigit())
    lowest: Final = ".".join(map(str, LOWEST_LITELLM))
    if numbers < LOWEST_LITELLM or numbers == (1, 107, 0):
        raise SettingsError(
            f"litellm-compaction needs litellm {lowest} or newer, and this proxy runs {installed}. "
            f"Upgrade it: pip install 'litellm[proxy]>={lowest}'"
        )
