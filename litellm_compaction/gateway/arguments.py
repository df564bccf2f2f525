"""What the arguments of one of LiteLLM's calls say: who asks, of which group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litellm_compaction.envelope.sealing import Caller


def metadata_of(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The proxy's metadata, under the name of the call type."""
    return arguments.get("litellm_metadata") or arguments.get("metadata") or {}


def client_body(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request as the client sent it; empty where there was no proxy."""
    return (data.get("proxy_server_request") or {}).get("body") or {}


def group_of(arguments: Mapping[str, Any]) -> str:
    """The group that answers, after a fallback the one fallen back to."""
    return str(metadata_of(arguments).get("model_group") or arguments.get("model") or "")


def caller_of(metadata: Mapping[str, Any]) -> Caller:
    """Who asks, as far as LiteLLM knows."""
    return Caller(
        metadata.get("user_api_key_hash") or metadata.get("user_api_key"),
        metadata.get("user_api_key_team_id"),
        metadata.get("user_api_key_user_id"),
    )
