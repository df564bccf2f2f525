"""The keys of a proxy under test."""

from __future__ import annotations

from litellm_compaction.envelope.sealing import KeyRing

_RING = KeyRing(["a secret of the operator"])


def ring() -> KeyRing:
    """One ring for all that share a store."""
    return _RING
