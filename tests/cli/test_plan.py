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
    "delegates": {"context": 8_192, "output": 1_234, "summary_model": "claude"},
    "claude": {"context": 200_000, "output": 8_000},
    "developer": {"context": 8_192, "output": 1_234, "summary_role": "developer"},
    "notes": {"context": 8_192, "output": 1_234, "foreign_items": "note"},
    "native": {"context": 8_192, "output": 1_234, "mode": "native"},
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
        {"model_name": name, "litellm_params": {"model": f"hosted_vllm/{name}"}, "model_info": {"compaction": own}}
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
    found = facts(tmp_path, {"model": "small", "input": [sealed(), user("go on"), assistant("done"), user("more")]})
    assert [entry["type"] for entry in found["items"]] == ["message"] * 5


def sealed() -> dict[str, Any]:
    payload = Payload(origin="trigger", summary="what was", kept=(user("kept word"),))
    content = seal_payload(payload, KeyRing([SECRET]), Caller("someone", "a-team", None), "team", bytes)
    return {"type": "compaction", "encrypted_content": content}


def fates(found: dict[str, Any]) -> list[str]:
    return [item["fate"] for item in found["items"]]


def test_an_earlier_summary_is_summarised_whatever_its_role(tmp_path: Path) -> None:
    """Restored as the operator chose, it is folded into the next one; the client's own system text is carried."""
    found = facts(tmp_path, {"model": "developer", "input": [system("be brief"), sealed(), user("go on")]})
    assert [item["role"] for item in found["items"]] == ["system", "developer", "user", "user"]
    assert fates(found)[:2] == ["carried", "summarised"]


def test_a_foreign_item_is_a_note_where_the_operator_says_so(tmp_path: Path) -> None:
    """As the gateway has it: a user message in its place."""
    foreign = {"type": "compaction", "encrypted_content": "gAAA"}
    found = facts(tmp_path, {"model": "notes", "input": [foreign, user("go on")]})
    assert [(item["type"], item["role"]) for item in found["items"]] == [("message", "user")] * 2


def test_summaries_take_room_in_later_windows(tmp_path: Path) -> None:
    """Nobody writes one here, but what a model would write is carried along: some 600 of the 5,508 tokens of a window.
    Six windows would do if it took none."""
    found = facts(tmp_path, {"model": "small", "input": SESSION})
    assert found["windows"] == 7
    assert found["totals"]["shortened"]["items"] == 0


def test_too_many_windows_shorten_items(tmp_path: Path) -> None:
    """What does not go into eight windows is summarised from a part of it, longest first."""
    session = [user("go"), *(call_and_output for number in range(80) for call_and_output in pair(number)), user("x")]
    found = facts(tmp_path, {"model": "small", "input": session})
    assert found["windows"] == 8
    assert found["totals"]["shortened"]["items"] > 10
    assert "shortened" not in {item["fate"] for item in found["items"] if item["type"] != "function_call_output"}


def pair(number: int) -> list[dict[str, Any]]:
    return [call(f"c{number}"), output(f"c{number}", f"line {number}\n" * 150)]


def test_a_long_request_is_kept_in_part(tmp_path: Path) -> None:
    """It has to stay, and there is no room for all of it: not word for word, then."""
    found = facts(tmp_path, {"model": "small", "input": [user("first"), assistant("done"), user("word " * 5_000)]})
    assert fates(found)[-1] == "kept in part"
    assert found["totals"]["kept"]["items"] == fates(found).count("kept")
    short = facts(tmp_path, {"model": "small", "input": [user("first"), assistant("done"), user("word " * 500)]})
    assert fates(short)[-1] == "kept"


def test_what_a_reference_points_to_is_left_out(tmp_path: Path) -> None:
    """The summariser sees no content of it; the gateway counts it as dropped."""
    reference = {"type": "item_reference", "id": "msg_1"}
    found = facts(tmp_path, {"model": "small", "input": [reference, *SESSION]})
    assert fates(found)[0] == "left out"


def test_the_request_is_counted_for_its_own_model(tmp_path: Path) -> None:
    """Whoever writes the summary: by how much a count may fall short is a matter of the tokenizer that reads it."""
    own, delegated, claude = (facts(tmp_path, SESSION, "--model", name) for name in ("small", "delegates", "claude"))
    assert delegated["summary_model"] == "claude"
    assert delegated["windows"] == 1
    assert delegated["counting_error"] == own["counting_error"] < claude["counting_error"]


def test_a_native_backend_is_said_to_compact_itself(tmp_path: Path) -> None:
    """The plan is not what will happen then."""
    body = {"model": "native", "input": SESSION}
    assert facts(tmp_path, body)["mode"] == "native"
    assert facts(tmp_path, SESSION, "--model", "small")["mode"] == "own"
    assert "backend compacts by itself" in plan(tmp_path, body).stdout


def test_for_people(tmp_path: Path) -> None:
    """The same in tables; of a long session the beginning and the end."""
    shown = plan(tmp_path, {"model": "small", "input": SESSION}).stdout
    for words in ("over the threshold", "small would write the summary", "summarised", "kept", "carried", "44 more"):
        assert words in shown, words
    short = plan(tmp_path, [user("a"), assistant("b")], "--model", "unknown").stdout
    assert "window of unknown is unknown" in short
    assert "in one window" in short


def test_what_a_client_wrote_is_shown_as_it_is(tmp_path: Path) -> None:
    """A role or a type in brackets is text, not markup; escape sequences do not reach the terminal."""
    odd = [{"type": "message", "role": "[/red]", "content": "a"}, {"type": "[bold]x\x1b[2J"}]
    shown = plan(tmp_path, [*odd, user("b")], "--model", "unknown").stdout
    assert "[/red]" in shown
    assert "[bold]x\ufffd[2J" in shown


def test_keys_are_needed_for_items_only(tmp_path: Path) -> None:
    """On a machine without the proxy's secrets a request without items has a plan; one with an item is refused."""
    config, file = tmp_path / "config.yaml", tmp_path / "request.json"
    own = {"litellm_compaction": {"keys": ["os.environ/SET_NOWHERE"]}}
    entry = {"model_name": "m", "litellm_params": {"model": "hosted_vllm/m"}}
    config.write_text(yaml.safe_dump({"model_list": [entry], "callback_settings": own}))
    told = []
    for body in ([user("a"), assistant("b")], [sealed(), user("go on")]):
        file.write_text(json.dumps(body))
        told.append(CliRunner().invoke(main, ["plan", str(file), "--config", str(config), "--model", "m"]))
    assert [result.exit_code for result in told] == [0, 1]
    assert "SET_NOWHERE, which is not set" in told[1].stderr


@pytest.mark.parametrize("name", ["gone.json", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    """One sentence and exit 1, as for a config."""
    result = CliRunner().invoke(main, ["plan", str(tmp_path / name), "--config", "c.yaml"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "cannot be read" in result.stderr


def test_standard_input(tmp_path: Path) -> None:
    """A dash is what is piped in."""
    config = tmp_path / "config.yaml"
    entry = {"model_name": "m", "litellm_params": {"model": "hosted_vllm/m"}}
    config.write_text(yaml.safe_dump({"model_list": [entry]}))
    body = json.dumps({"model": "m", "input": "hello"})
    result = CliRunner().invoke(main, ["plan", "-", "--config", str(config), "--json"], input=body)
    assert [line["role"] for line in json.loads(result.stdout)["items"]] == ["user"]


REFUSED: dict[str, tuple[object, tuple[str, ...], str]] = {
    "no-json": ("{", (), "no JSON"),
    "no-request": ({"a": 1}, (), "neither a request"),
    "no-model": (SESSION, (), "names no model"),
    "model-not-served": (SESSION, ("--model", "gone"), "no model 'gone' is served"),
    "nothing-to-compact": ({"model": "small", "input": []}, (), "nothing to compact"),
    "lone-output": ({"model": "small", "input": [output("c", "x")]}, (), "input[0]"),
    "too-deep": ("[" * 100_000, (), "nested too deeply"),
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
