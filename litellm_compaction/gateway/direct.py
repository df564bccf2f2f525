"""Compactions that come without the proxy's pre-call hook: a program that uses LiteLLM's router as a library.

The deployment hook sees the final call of `litellm.aresponses` or `acompact_responses`, and may change all of it: it is
turned into a call of the delivery (see `delivery`). A synchronous call passes no hook that could do so, or refuse it:
there the router's own method is wrapped, and what the plugin would have to handle is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
import litellm
from litellm.router import Router

from litellm_compaction.errors import SyncCallNotSupported
from litellm_compaction.gateway.context_management import FIELD
from litellm_compaction.gateway.delivery import DELIVERY_MODEL, delivery_call, delivery_params
from litellm_compaction.gateway.door import RESPONSES_CALLS, concerns_plugin
from litellm_compaction.gateway.errors import CompactionProxyException
from litellm_compaction.gateway.router import serve_with

# What of a call is LiteLLM's own book-keeping; all else is meant for the deployment that would have answered.
_KEPT: Final = ("litellm_logging_obj", "litellm_call_id", "litellm_trace_id", "metadata", "stream", "timeout")
# The one way of all the router's synchronous calls, as LiteLLM wrote it.
_SYNC_CALL: Final = Router._generic_api_call_with_fallbacks  # noqa: SLF001  # no hook, public or not, comes before it


def use_library_router(metadata: Mapping[str, Any]) -> None:
    """Let the router that makes this call be the one that the plugin asks, where the process is no proxy."""
    deployment: Final = str((metadata.get("model_info") or {}).get("id") or "")
    serve_with(next((router for router in _live_routers() if deployment and router.has_model_id(deployment)), None))


def _live_routers() -> list[Router]:
    """Every router puts methods of its own among LiteLLM's callbacks, and takes them out when it is discarded."""
    owners: Final = [getattr(callback, "__self__", None) for callback in litellm.success_callback]
    return [owner for owner in owners if isinstance(owner, Router)]


def delivered_call(
    kwargs: Mapping[str, Any], metadata: Mapping[str, Any], transport: httpx.AsyncBaseTransport
) -> dict[str, Any]:
    """The call as it reaches the delivery. It costs nothing: the inferences are booked where they happen."""
    kept: Final = {name: kwargs[name] for name in _KEPT if name in kwargs}
    own: Final = {**metadata, "model_info": {"id": DELIVERY_MODEL}}
    way: Final = {**delivery_params("openai"), "custom_llm_provider": "openai", "litellm_metadata": own}
    return {**kept, **way, **delivery_call(transport)}


def refuse_sync_calls(is_own: Callable[[Router, str], bool]) -> None:
    """Make `Router.responses` refuse what only `Router.aresponses` can serve. `is_own`: whether the plugin, and not
    the backend, compacts for a group. Raises SyncCallNotSupported out of the call."""

    @functools.wraps(_SYNC_CALL)
    def call(self: Router, model: str, original_function: Callable[..., Any], **kwargs: Any) -> Any:
        name: Final = getattr(original_function, "__name__", "")
        if (concerns_plugin(name, kwargs) or (name in RESPONSES_CALLS and kwargs.get(FIELD))) and is_own(self, model):
            raise CompactionProxyException(SyncCallNotSupported())
        return _SYNC_CALL(self, model, original_function, **kwargs)

    Router._generic_api_call_with_fallbacks = call  # type: ignore[method-assign]  # noqa: SLF001  # see above
