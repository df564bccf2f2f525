"""`inspect`: finds items wherever they are saved, opens them with the operator's keys, and shows no secret."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from litellm_compaction.cli.inspection.find import find_items
from litellm_compaction.cli.inspection.keys import NoKeysError, find_secrets
from litellm_compaction.cli.main import main
from litellm_compaction.envelope.payload import Payload
from litellm_compaction.envelope.sealing import Caller, KeyRing, seal_payload, write_unsealed

SECRET = "a-secret-of-the-operator"
PAYLOAD = Payload(
    origin="trigger",
    summary="The limit is 7 because 6 is too short.",
    kept=(
        {"type": "function_call", "call_id": "call_9", "name": "shell", "arguments": '{"command": ["ls"]}'},
        {"type": "function_call_output", "call_id": "call_9", "output": "README.md"},
    ),
    system=({"type": "message", "role": "developer", "content": "Answer briefly."},),
    dropped=3,
    model="demo-model",
    created_at=1_772_452_800,
)
Inspect = Callable[..., Result]


def sealed(payload: Payload = PAYLOAD, secret: str = SECRET) -> dict[str, Any]:
    content = seal_payload(payload, KeyRing([secret]), Caller(team="harbour"), "team", bytes)
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": content}


@pytest.fixture
def inspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inspect:
    """Runs `inspect` on a text, with no key in the environment."""
    for name in ("LITELLM_SALT_KEY", "LITELLM_MASTER_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(text: str, *options: str) -> Result:
        file = tmp_path / "saved"
        file.write_text(text)
        return CliRunner().invoke(main, ["inspect", str(file), *options])

    return run


def test_item_is_shown_with_all_it_holds(inspect: Inspect) -> None:
    """Origin, time, model, binding, summary, kept items and system messages are on the screen."""
    result = inspect(json.dumps(sealed()), "--key", SECRET)
    assert result.exit_code == 0
    for text in (
        "cmp_1",
        "trigger",
        "2026-03-02 12:00:00 UTC",
        "demo-model",
        "team harbour",
        "3 items",
        "The limit is 7 because 6 is too short.",
        "function_call_output",
        "call_9",
        "README.md",
        "developer message",
        "Answer briefly.",
    ):
        assert text in result.output
    assert SECRET not in result.output


def test_json_gives_the_payload(inspect: Inspect) -> None:
    """`--json` prints what a program can read back."""
    result = inspect(json.dumps(sealed()), "--key", SECRET, "--json")
    payload = Payload.model_validate_json(result.output)
    assert (payload.summary, payload.kept, payload.bound_to) == (PAYLOAD.summary, PAYLOAD.kept, "harbour")


def test_another_key_is_one_clear_error(inspect: Inspect) -> None:
    """Exit code 1, one line, and the wrong key not in it."""
    result = inspect(json.dumps(sealed()), "--key", "another-secret")
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert "cmp_1 cannot be opened" in result.output
    assert "another-secret" not in result.output


def test_first_of_several_keys_need_not_fit(inspect: Inspect) -> None:
    """Rotated keys: any that fits opens."""
    assert inspect(json.dumps(sealed()), "--key", "newer", "--key", SECRET).exit_code == 0


def test_no_key_and_no_item_are_errors(inspect: Inspect) -> None:
    """Both are said in one line."""
    without_key = inspect(json.dumps(sealed()))
    without_item = inspect('{"output": []}', "--key", SECRET)
    assert (without_key.exit_code, without_item.exit_code) == (1, 1)
    assert "LITELLM_SALT_KEY" in without_key.output
    assert "holds no compaction item" in without_item.output


def test_unsealed_item_is_shown_as_such(inspect: Inspect) -> None:
    """`seal: false` items need no key that fits, and say that they are readable."""
    item = {"type": "compaction", "id": "cmp_2", "encrypted_content": write_unsealed(PAYLOAD)}
    result = inspect(json.dumps(item), "--key", SECRET)
    assert result.exit_code == 0
    assert "unsealed" in result.output


def test_keys_of_the_config_are_used(inspect: Inspect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`callback_settings.litellm_compaction.keys`, with environment names resolved."""
    monkeypatch.setenv("COMPACTION_KEY", SECRET)
    config = tmp_path / "config.yaml"
    config.write_text("callback_settings:\n  litellm_compaction:\n    keys: [newest, os.environ/COMPACTION_KEY]\n")
    assert inspect(json.dumps(sealed()), "--config", str(config)).exit_code == 0


def test_secrets_come_in_the_proxy_s_own_order(tmp_path: Path) -> None:
    """Given ones alone; else the config's list; else the salt key, then the master keys."""
    config = tmp_path / "config.yaml"
    config.write_text("general_settings:\n  master_key: os.environ/MASTER\n")
    environment = {"MASTER": "m1", "LITELLM_MASTER_KEY": "m2", "LITELLM_SALT_KEY": "s"}
    assert find_secrets(["given"], config, environment) == ["given"]
    assert find_secrets([], config, environment) == ["s", "m1", "m2"]
    assert find_secrets([], None, {"LITELLM_MASTER_KEY": "m2"}) == ["m2"]


def test_broken_config_does_not_quote_its_secrets(tmp_path: Path) -> None:
    """A parser would show the line; the line may be the key."""
    config = tmp_path / "config.yaml"
    config.write_text(f"general_settings: [{SECRET}")
    with pytest.raises(NoKeysError) as caught:
        find_secrets([], config, {})
    assert SECRET not in str(caught.value)


def test_unset_variable_is_named() -> None:
    """A config that points at nothing says at what."""
    with pytest.raises(NoKeysError, match="no key"):
        find_secrets([], None, {})


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "context_compaction"])
def test_items_are_found_in_requests_and_responses(kind: str) -> None:
    """In `input`, in `output`, and in a list, under each of the three names."""
    item = {**sealed(), "type": kind}
    for value in (
        item,
        [item],
        {"input": [{"role": "user"}, item]},
        {"output": [item]},
        {"response": {"output": [item]}},
    ):
        assert find_items(json.dumps(value)) == [item]


def test_stream_shows_its_item_once() -> None:
    """Added, done and completed carry one item."""
    item = sealed()
    events = [
        {"type": "response.output_item.added", "item": item},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": {"output": [item]}},
    ]
    text = "".join(f"event: x\ndata: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n"
    assert find_items(text) == [item]


def test_bare_content_is_an_item() -> None:
    """An `encrypted_content` alone, sealed, as a JSON string, or unsealed."""
    content = sealed()["encrypted_content"]
    for text in (content + "\n", json.dumps(content)):
        assert find_items(text) == [{"type": "compaction", "encrypted_content": content}]
    assert len(find_items(write_unsealed(PAYLOAD))) == 1


def test_lookalike_in_tool_output_is_no_item() -> None:
    """Text that a tool printed is not searched."""
    output = {"type": "function_call_output", "call_id": "c", "output": json.dumps(sealed())}
    nested = {"type": "function_call_output", "call_id": "c", "output": [sealed()]}
    assert find_items(json.dumps({"input": [output]})) == []
    assert find_items(json.dumps({"input": [nested]})) == []
