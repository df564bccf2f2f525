"""`litellm-compaction codex-config`: TOML with which Codex compacts at the gateway's threshold.

That Codex does is tested with the real binary in tests/clients/test_codex_budget.py.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from litellm_compaction.budget.arithmetic import derive_budget
from litellm_compaction.cli.codex.lines import fit_window
from litellm_compaction.cli.main import main

MODELS = [
    {
        "model_name": "first",
        "litellm_params": {"model": "hosted_vllm/x"},
        "model_info": {"compaction": {"context": 500_000, "output": 128_000}},
    },
    {"model_name": "openai/*", "litellm_params": {"model": "openai/*"}},
    {"model_name": "unknown", "litellm_params": {"model": "hosted_vllm/x"}},
    {
        "model_name": "late",
        "litellm_params": {"model": "hosted_vllm/x"},
        "model_info": {"compaction": {"context": 100_000, "output": 1_000, "threshold": 95_000}},
    },
    {
        "model_name": "early",
        "litellm_params": {"model": "hosted_vllm/x"},
        "model_info": {"compaction": {"context": 500_000, "output": 128_000, "threshold": 100_000}},
    },
]


MALFORMED: dict[str, Any] = {"model_name": "malformed", "litellm_params": {"model": "x/y"}, "model_info": 5}


def run(folder: Path, *arguments: str) -> Result:
    file = folder / "config.yaml"
    aliases = {"model_group_alias": {"alias": "first"}}
    file.write_text(yaml.safe_dump({"model_list": [*MODELS, MALFORMED], "router_settings": aliases}))
    return CliRunner().invoke(main, ["codex-config", str(file), *arguments])


def lines(folder: Path, *arguments: str) -> dict[str, Any]:
    result = run(folder, *arguments)
    assert result.exit_code == 0, result.output
    return tomllib.loads(result.stdout)


def test_by_capabilities(tmp_path: Path) -> None:
    """What facts/codex.md asks for, with a limit just over T, and a window of which 90 % is not below that."""
    assert lines(tmp_path, "first", "--base-url", "http://127.0.0.1:4000") == {
        "model": "first",
        "model_provider": "litellm",
        "model_context_window": 413_335,
        "model_auto_compact_token_limit": 372_001,
        "model_providers": {
            "litellm": {
                "name": "LiteLLM",
                "base_url": "http://127.0.0.1:4000/v1",
                "env_key": "LITELLM_API_KEY",
                "wire_api": "responses",
                "stream_idle_timeout_ms": 900_000,
                "capabilities": {"remote_compaction": "v2"},
            }
        },
    }


def test_by_name(tmp_path: Path) -> None:
    """Older releases look at the provider's name, and know no capabilities."""
    told = lines(tmp_path, "first", "--base-url", "http://h/v1/", "--by", "name", "--env-key", "MY_KEY")
    provider = told["model_providers"]["litellm"]
    assert provider["name"] == "OpenAI"
    assert "capabilities" not in provider
    assert (provider["base_url"], provider["env_key"]) == ("http://h/v1", "MY_KEY")


@pytest.mark.parametrize(("name", "limit"), [("alias", 372_001), ("openai/gpt-5", 272_001)])
def test_aliases_and_wildcards(tmp_path: Path, name: str, limit: int) -> None:
    """Whatever name a client may use."""
    told = lines(tmp_path, name, "--base-url", "http://h")
    assert (told["model"], told["model_auto_compact_token_limit"]) == (name, limit)


def test_a_threshold_codex_cannot_reach(tmp_path: Path) -> None:
    """Above 90 % of the window: the highest that Codex takes, and a line that says so."""
    text = run(tmp_path, "late", "--base-url", "http://h").stdout
    assert tomllib.loads(text)["model_auto_compact_token_limit"] == 90_000
    assert "before the gateway's threshold of 95000" in text
    assert "90000 of 100000 tokens" in text


def test_more_than_the_input_is_said(tmp_path: Path) -> None:
    """Where the window Codex is told of is larger than the input, and only there."""
    words = "# Over 372000 tokens"
    assert words in run(tmp_path, "first", "--base-url", "http://h").stdout
    assert "# Over" not in run(tmp_path, "early", "--base-url", "http://h").stdout


def test_an_early_threshold_does_not_make_the_window_small(tmp_path: Path) -> None:
    """Codex shortens what is over its window: it is told of all the input that the model takes."""
    told = lines(tmp_path, "early", "--base-url", "http://h")
    assert (told["model_context_window"], told["model_auto_compact_token_limit"]) == (372_000, 100_001)


@pytest.mark.parametrize(
    ("context", "output", "cap", "window", "limit"),
    [
        (500_000, 128_000, None, 413_335, 372_001),
        (500_000, 64_000, None, 472_224, 425_001),
        (1_050_000, 128_000, 922_000, 991_668, 892_501),
        (8_192, 1_234, None, 7_733, 6_959),
    ],
)
def test_rows_of_the_contract(context: int, output: int, cap: int | None, window: int, limit: int) -> None:
    """The four budgets of section 6, as Codex is told of them."""
    found = fit_window(derive_budget(context, output, cap))
    assert (found.context, found.limit) == (window, limit)


REFUSED = {
    "unknown": "'unknown' is unknown",
    "gone": "no model 'gone' is served",
    "malformed": "'model_info' is no mapping",
}


@pytest.mark.parametrize(("name", "words"), REFUSED.items(), ids=REFUSED)
def test_refusals(tmp_path: Path, name: str, words: str) -> None:
    """Exit 1 and one sentence."""
    result = run(tmp_path, name, "--base-url", "http://h")
    assert result.exit_code == 1
    assert words in result.stderr


@given(st.integers(2, 3_000_000).flatmap(lambda c: st.tuples(st.just(c), st.integers(1, c - 1))), st.integers(1))
def test_codex_compacts_over_t_where_it_can(numbers: tuple[int, int], threshold: int) -> None:
    """The limit is over T unless 90 % of the whole window is not; the window holds the input, never more than C, and
    is no larger than that takes."""
    budget = derive_budget(*numbers).with_threshold(threshold)
    window = fit_window(budget)
    assert window.limit <= window.context * 9 // 10
    assert budget.input <= window.context <= budget.context
    assert window.limit == budget.threshold + 1 or window.context == budget.context
    assert window.context == budget.input or (window.context - 1) * 9 // 10 <= budget.threshold
