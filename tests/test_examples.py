"""The example configs load, and what the README and the packaging say is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import litellm_compaction
from litellm_compaction.gateway.operator import Operator
from litellm_compaction.settings import NOT_SUPPORTED_YET, Settings

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "config_examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_example_config_is_accepted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example config switches the plugin on with settings it accepts."""
    for name in re.findall(r"os\.environ/(\w+)", file.read_text()):
        monkeypatch.setenv(name, f"value-of-{name}")
    config = yaml.safe_load(file.read_text())
    assert config["litellm_settings"]["callbacks"] == ["litellm_compaction.handler"]
    section = (config.get("callback_settings") or {}).get("litellm_compaction") or {}
    settings = Operator(section, config).settings
    assert {key: getattr(settings, key) for key in section if key != "keys"} == {
        key: value for key, value in section.items() if key != "keys"
    }


def test_there_are_the_examples() -> None:
    """Minimal, team gateway, local models and budgets are there."""
    assert [file.stem for file in EXAMPLES] == ["budgets", "local_models", "minimal", "team_gateway"]


def test_readme_names_every_setting() -> None:
    """Each setting stands in the README, those without an effect among the ones not supported yet."""
    text = (ROOT / "README.md").read_text()
    table, _, later = text.partition('refused with "not supported yet"')
    for key in Settings.model_fields:
        where = later if key in NOT_SUPPORTED_YET else table
        assert f"`{key}`" in where, key


def test_changelog_knows_this_version() -> None:
    """The newest entry of the changelog is the version of the package."""
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first.group(1) == litellm_compaction.__version__
