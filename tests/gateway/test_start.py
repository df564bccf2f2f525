"""Which LiteLLM the plugin starts under, and that every place that says so says the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from litellm_compaction.errors import SettingsError
from litellm_compaction.gateway.start import SUPPORTED_LITELLM, check_litellm

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("version", ["1.103.0", "1.106.12", "1.108.7", "1.109.0.dev1", "1.110.2", "2.0", "2.0.0"])
def test_supported_version(version: str) -> None:
    """The lowest supported version and everything newer."""
    check_litellm(version)


@pytest.mark.parametrize("version", ["1.102.4", "1.103.0rc1", "1.107.0", "1.99.0", "0.9", "1.102", "1.9.10", "main"])
def test_other_version_is_refused(version: str) -> None:
    """Anything older, and the compromised release, with what to do about it."""
    with pytest.raises(SettingsError) as caught:
        check_litellm(version)
    assert f"this proxy runs {version}." in caught.value.message
    assert f"pip install 'litellm[proxy]{SUPPORTED_LITELLM}'" in caught.value.message


def test_the_package_declares_the_range_it_checks() -> None:
    """What pip may choose is what the plugin starts under, with the extra and without."""
    extras = PROJECT["optional-dependencies"]
    declared = [Requirement(line) for line in (*PROJECT["dependencies"], *extras["proxy"])]
    ranges = [one.specifier for one in declared if one.name == "litellm"]
    assert ranges == [SpecifierSet(SUPPORTED_LITELLM)] * 2


def test_the_lowest_version_is_the_one_that_is_tested() -> None:
    """constraints-lowest.txt pins the very lower end of the range; constraints.txt a release within it."""
    supported = SpecifierSet(SUPPORTED_LITELLM)
    lowest = [bound.version for bound in supported if bound.operator == ">="]
    assert [pins("constraints-lowest.txt")["litellm"]] == lowest
    assert pins("constraints.txt")["litellm"] in supported


def test_constraints_differ_only_where_the_lowest_version_needs_it() -> None:
    """Each line of constraints-lowest.txt is another version of a package, or one the newer LiteLLM does not need."""
    usual = pins("constraints.txt")
    assert [name for name, version in pins("constraints-lowest.txt").items() if usual.get(name) == version] == []


def pins(name: str) -> dict[str, str]:
    """Package and version of each line, by canonical name; every line is a plain pin."""
    lines = (ROOT / name).read_text().split()
    pairs = [line.partition("==") for line in lines]
    assert all(separator and SpecifierSet(f"=={version}") for _, separator, version in pairs)
    return {canonicalize_name(package): version for package, _, version in pairs}
