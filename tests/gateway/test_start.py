"""Which LiteLLM the plugin starts under."""

from __future__ import annotations

import pytest

from litellm_compaction.errors import SettingsError
from litellm_compaction.gateway.start import check_litellm


@pytest.mark.parametrize("version", ["1.108.7", "1.108.8", "1.109.0", "1.109.0.dev1", "2.0", "2.0.0"])
def test_supported_version(version: str) -> None:
    """The lowest supported version and everything newer."""
    check_litellm(version)


@pytest.mark.parametrize("version", ["1.108.6", "1.107.0", "1.107.9", "1.99.0", "0.9", "1.108", "1.9.10"])
def test_older_version_is_refused(version: str) -> None:
    """Anything older, the compromised release among it, with what to do about it."""
    with pytest.raises(SettingsError) as caught:
        check_litellm(version)
    assert f"this proxy runs {version}." in caught.value.message
    assert "pip install 'litellm[proxy]>=1.108.7'" in caught.value.message
