"""Responses API compaction for every model behind a LiteLLM proxy.

`litellm_settings.callbacks: ["litellm_compaction.handler"]` switches it on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from litellm_compaction._version import __version__

if TYPE_CHECKING:
    from litellm_compaction.gateway.hook import CompactionHandler

    handler: CompactionHandler

__all__ = ["__version__", "handler"]


def __getattr__(name: str) -> object:
    # Built when LiteLLM asks for it: the command line and the pure rooms need neither LiteLLM nor its settings.
    if name != "handler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from litellm_compaction.gateway.start import build_handler

    globals()["handler"] = built = build_handler()
    return built
