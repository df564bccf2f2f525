"""The demo's proxy config, its options, and the demo itself as a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from litellm_compaction.cli.demo.proxy import DemoError, Model, running_proxy, write_config
from litellm_compaction.cli.main import main


def test_config_enables_the_plugin_with_one_line() -> None:
    """What the demo runs is what the README tells an operator to write."""
    config = yaml.safe_load(write_config(Model("openai/x", "http://127.0.0.1:1/v1", None, 1000), "sk-key"))
    assert config["litellm_settings"] == {"callbacks": ["litellm_compaction.handler"]}
    assert config["general_settings"]["master_key"] == "sk-key"
    assert config["model_list"][0]["model_info"] == {"compaction": {"context": 1000}}


def test_key_of_a_real_model_is_not_written_down() -> None:
    """The config names a variable; the key itself stays in the process's environment."""
    text = write_config(Model("openai/x", "http://127.0.0.1:1/v1", "a-real-key"), "sk-key")
    assert "a-real-key" not in text
    assert "os.environ/" in text


@pytest.mark.parametrize(
    ("model", "chat"),
    [
        (Model("openai/qwen", "http://127.0.0.1:1/v1"), True),
        (Model("hosted_vllm/qwen", "http://127.0.0.1:1/v1"), True),
        (Model("openai/gpt-x", "https://api.openai.com/v1"), False),
        (Model("openai/gpt-x"), False),
        (Model("ollama_chat/qwen3", "http://127.0.0.1:11434"), False),
    ],
)
def test_self_hosted_servers_are_spoken_to_in_chat_completions(model: Model, chat: bool) -> None:
    """Few of them have a Responses API; OpenAI itself has, and other providers are LiteLLM's own business."""
    assert model.speaks_chat is chat


def test_missing_proxy_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the `litellm` script the demo names the extra."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with (
        pytest.raises(DemoError, match=r"pip install 'litellm-compaction\[proxy\]'"),
        running_proxy(Model("m"), tmp_path),
    ):
        pass


def test_proxy_that_dies_shows_the_end_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead process is noticed at once, and its last words are passed on without the master key."""
    script = tmp_path / "litellm"
    script.write_text("#!/bin/sh\ngrep master_key config.yaml\necho 'no good'\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(DemoError) as caught, running_proxy(Model("m"), tmp_path):
        pass
    assert "exit code 3" in str(caught.value)
    assert "no good" in str(caught.value)
    assert "sk-demo-" not in str(caught.value)


def test_config_file_is_the_user_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds a key, if only a short-lived one."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(DemoError), running_proxy(Model("m"), tmp_path):
        pass
    assert (tmp_path / "config.yaml").stat().st_mode & 0o077 == 0


def test_options_of_a_model_need_a_model() -> None:
    """`--api-base` alone is a mistake, not the embedded model."""
    result = CliRunner().invoke(main, ["demo", "--api-base", "http://127.0.0.1:1/v1"])
    assert result.exit_code == 2
    assert "go with --model" in result.output


def test_version_and_commands() -> None:
    """The commands there are today, and no others."""
    assert CliRunner().invoke(main, ["--version"]).output.startswith("litellm-compaction, version ")
    assert sorted(main.commands) == ["check", "codex-config", "demo", "inspect", "plan"]


@pytest.mark.wire
def test_demo_compacts_through_both_doors(tmp_path: Path) -> None:
    """A first user's run: a real proxy, two compactions, two turns that know what was said before."""
    command = [str(Path(sys.executable).with_name("litellm-compaction")), "demo", "--keep-files", str(tmp_path)]
    environment = {**os.environ, "LITELLM_SALT_KEY": "must-not-reach-the-demo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    printed = " ".join(done.stdout.split())  # lines are broken at 100 columns
    assert printed.count("response.output_item.done") == 1
    assert printed.count("nothing: no word of the conversation") == 2
    assert printed.count("add up to 127 seconds") == 3  # in the summary shown, and in both answers
    assert "Every step gave what the contract says" in printed
    inspected = CliRunner().invoke(
        main, ["inspect", str(tmp_path / "compact.json"), "--config", str(tmp_path / "config.yaml"), "--json"],
        env={"LITELLM_SALT_KEY": "", "LITELLM_MASTER_KEY": ""},
    )  # fmt: skip
    assert inspected.exit_code == 0, inspected.output
    assert "127 seconds" in inspected.output
