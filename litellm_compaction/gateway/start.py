"""Starting up: the host's version, the operator's settings, then the handler."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from packaging.specifiers import SpecifierSet

from litellm_compaction.errors import SettingsError

if TYPE_CHECKING:
    from litellm_compaction.gateway.hook import CompactionHandler

# As pyproject.toml declares it; whoever has the package on a path only, without its metadata, is protected, too.
SUPPORTED_LITELLM: Final = ">=1.103.0,!=1.107.0"


def build_handler() -> CompactionHandler:
    """The handler of this process. Raises SettingsError on a LiteLLM that is too old and on unusable settings."""
    check_litellm(version("litellm"))
    from litellm_compaction.gateway.bodies import unpack_bodies
    from litellm_compaction.gateway.hook import CompactionHandler

    built: Final = CompactionHandler()
    unpack_bodies()
    return built


def check_litellm(installed: str) -> None:
    """Raises SettingsError if `installed` is none of the supported releases: too old, or the compromised one."""
    if not SpecifierSet(SUPPORTED_LITELLM).contains(installed, prereleases=True):
        raise SettingsError(
            f"litellm-compaction needs litellm{SUPPORTED_LITELLM}, and this proxy runs {installed}. "
            f"Change it: pip install 'litellm[proxy]{SUPPORTED_LITELLM}'"
        )
