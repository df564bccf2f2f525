"""`litellm-compaction plan`: what a compaction would make of a saved request, and no model called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from litellm_compaction.cli.main import main
from litellm_compaction.envelope.payload import Payload
from litellm_compaction.envelope.sealing import Caller, KeyRing, seal_payload
from tests.support.bodies import TRIGGER, assistant, call, output, system, user

SECRET = "a-secret-of-the-operator"
SETTINGS = {
    "small": {"context": 8_192, "output": 1_234},
    "trims": {"context": 8_192, "oversize": "trim"},
    "unknown": {},
}
SESSION = [
    system("be brief"),
    user("build it"),
    *(item for number in range(40) for item in (call(f"c{number}"), output(f"c{number}", f"line {number}\n" * 150))),
    assistant("it is built"),
    user("now test it"),
]


def plan(folder: Path, body: object, *options: str) -> Result:
    config, file = folder / "config.yaml", folder / "request.json"
    models = [
        {"model_name": name, "litellm_params": {"model": "hosted_vllm/x"}, "model_info": {"compaction": own}}
        for name, own in SETTINGS.items()
    ]
    own = {"litellm_compaction": {"keys": [SECRET]}}
    config.write_text(yaml.safe_dump({"model_list": models, "callback_settings": own}))
    file.write_text(body if isinstance(body, str) else json.dumps(body))
    return CliRunner().invoke(main, ["plan", str(file), "--config", str(config), *options])


def facts(folder: Path, body: object, *options: str) -> dict[str, Any]:
    result = plan(folder, body, "--json", *options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_a_long_session_is_folded(tmp_path: Path) -> None:
    """More than the window holds: several windows, the budget, and what becomes of each item."""
    found = facts(tmp_path, {"model": "small", "input": [*SESSION, TRIGGER], "instructions": "you are an agent"})
    assert found["budget"] == {
        "context": 8_192,
        "output": 1_234,
        "max_input": None,
        "input": 6_958,
        "threshold": 6_958,
    }
    assert found["over_threshold"] is True
    assert 2 <= found["windows"] <= 8
    fates = [item["fate"] for item in found["items"]]
    assert len(fates) == len(SESSION)
    assert fates[0] == "carried"
    assert fates[-1] == "kept"
    assert fates[1] == "summarised"
    assert sum(part["items"] for part in found["totals"].values()) == len(SESSION)
    # All that is counted but the framing of the request itself, its instructions and tools.
    assert found["counted"] - 20 <= sum(part["tokens"] for part in found["totals"].values()) <= found["counted"]


def test_trimmed_where_the_operator_says_so(tmp_path: Path) -> None:
    """One window, and the oldest finished calls left out, counted."""
    found = facts(tmp_path, {"model": "trims", "input": SESSION})
    assert found["windows"] == 1
    assert found["totals"]["left out"]["items"] > 10
    assert found["items"][2]["fate"] == "left out"


def test_unknown_windows_are_one(tmp_path: Path) -> None:
    """Nothing is guessed: the whole transcript in one request, over no threshold."""
    found = facts(tmp_path, SESSION, "--model", "unknown")
    assert (found["budget"], found["over_threshold"], found["windows"]) == (None, None, 1)
    assert found["totals"]["left out"]["items"] == 0


def test_items_of_the_plugin_are_opened(tmp_path: Path) -> None:
    """With the operator's keys, whoever they are bound to."""
    payload = Payload(origin="trigger", summary="what was", kept=(user("kept word"),))
    caller = Caller("someone", "a-team", None)
    content = seal_payload(payload, KeyRing([SECRET]), caller, "team", lambda size: b"\1" * size)
    item = {"type": "compaction", "encrypted_content": content}
    found = facts(tmp_path, {"model": "small", "input": [item, user("go on"), assistant("done"), user("more")]})
    assert [entry["type"] for entry in found["items"]] == ["message"] * 5


def test_for_people(tmp_path: Path) -> None:
    """The same in tables; of a long session the beginning and the end."""
    shown = plan(tmp_path, {"model": "small", "input": SESSION}).stdout
    for words in ("over the threshold", "small would write the summary", "summarised", "kept", "carried", "44 more"):
        assert words in shown, words
    short = plan(tmp_path, [user("a"), assistant("b")], "--model", "unknown").stdout
    assert "window of unknown is unknown" in short
    assert "in one window" in short


REFUSED: dict[str, tuple[object, tuple[str, ...], str]] = {
    "no-json": ("{", (), "no JSON"),
    "no-request": ({"a": 1}, (), "neither a request"),
    "no-model": (SESSION, (), "names no model"),
    "model-not-served": (SESSION, ("--model", "gone"), "serves no model 'gone'"),
    "nothing-to-compact": ({"model": "small", "input": []}, (), "nothing to compact"),
    "lone-output": ({"model": "small", "input": [output("c", "x")]}, (), "input[0]"),
    "foreign-item": (
        {"model": "small", "input": [{"type": "compaction", "encrypted_content": "gAAA"}, user("x")]},
        (),
        "could not be verified",
    ),
}


@pytest.mark.parametrize(("body", "options", "words"), REFUSED.values(), ids=REFUSED)
def test_refusals(tmp_path: Path, body: object, options: tuple[str, ...], words: str) -> None:
    """One sentence on stderr, exit 1, nothing on stdout."""
    result = plan(tmp_path, body, *options)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stdout == ""
