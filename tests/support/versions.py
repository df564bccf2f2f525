"""What only newer LiteLLMs do: such tests skip on the lowest supported one."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version


def needs_litellm(lowest: str, why: str) -> pytest.MarkDecorator:
    """Skips a test on a LiteLLM older than `lowest`; `why` says what that one cannot do."""
    return pytest.mark.skipif(Version(version("litellm")) < Version(lowest), reason=f"LiteLLM {lowest}: {why}")
