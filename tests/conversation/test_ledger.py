"""What the ledger says of a history: only what stands there, and never more than its budget."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_compaction.budget.counting import estimate_tokens
from litellm_compaction.conversation.expansion import write_summary
from litellm_compaction.conversation.items import RawItem, classify_items
from litellm_compaction.conversation.ledger import Command, FileChange, Ledger, read_ledger, write_ledger
from tests.item_strategies import conversations
from tests.support.bodies import Json, assistant, call, output, user

PLENTY = 100_000
APPLIED = "Exit code: 0\nWall time: 0.1 seconds\nOutput:\nSuccess. Updated the following files:\nM a.py\n"
REFUSED = "apply_patch verification failed: Failed to find expected lines in a.py"


def read(*items: RawItem, summaries: frozenset[int] = frozenset()) -> Ledger:
    return read_ledger(classify_items(items), summaries)


def write(ledger: Ledger, budget: int = PLENTY) -> str:
    text = write_ledger(ledger, budget, estimate_tokens)
    assert estimate_tokens(text) <= budget
    return text


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def custom(text: str) -> Json:
    return {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": text}


def custom_output(text: str) -> Json:
    return {"type": "custom_tool_call_output", "call_id": "c", "output": text}


def shell(command: Any, name: str = "shell", member: str = "command") -> Json:
    return call("c", name, json.dumps({member: command}))


def hosted_patch(kind: str, path: str = "a.py") -> Json:
    return {"type": "apply_patch_call", "call_id": "c", "operation": {"type": kind, "path": path, "diff": "+x"}}


def hosted_shell(*commands: str) -> Json:
    return {"type": "shell_call", "call_id": "c", "action": {"commands": list(commands)}}


def hosted_outcomes(*outcomes: Json) -> Json:
    entries = [{"stdout": "out", "stderr": "", "outcome": outcome} for outcome in outcomes]
    return {"type": "shell_call_output", "call_id": "c", "output": entries}


HEREDOC = f"apply_patch <<'EOF'\n{patch('*** Update File: a.py', '@@', '-a', '+b')}\nEOF"

CHANGES: dict[str, tuple[Json, dict[str, str]]] = {  # call, state of each path once the call succeeded
    "custom": (custom(patch("*** Add File: a.py", "+x")), {"a.py": "added"}),
    "all-states": (
        custom(patch("*** Add File: a", "+x", "*** Update File: b", "@@", "*** Delete File: c d")),
        {"a": "added", "b": "updated", "c d": "deleted"},
    ),
    "moved": (
        custom(patch("*** Update File: a", "*** Move to: b", "@@")),
        {"a": "moved to b", "b": "moved from a"},
    ),
    "quoted-in-content": (
        custom(patch("*** Update File: a", "+*** Add File: b", " *** Delete File: c")),
        {"a": "updated"},
    ),
    "function-input": (call("c", "apply_patch", json.dumps({"input": patch("*** Delete File: a")})), {"a": "deleted"}),
    "function-patch": (call("c", "apply_patch", json.dumps({"patch": patch("*** Add File: a")})), {"a": "added"}),
    "hosted-create": (hosted_patch("create_file"), {"a.py": "added"}),
    "hosted-update": (hosted_patch("update_file"), {"a.py": "updated"}),
    "hosted-delete": (hosted_patch("delete_file"), {"a.py": "deleted"}),
    "hosted-unknown": (hosted_patch("look_at_file"), {}),
    "heredoc": (shell(["bash", "-lc", HEREDOC]), {"a.py": "updated"}),
    "heredoc-text": (shell(HEREDOC, "exec_command", "cmd"), {"a.py": "updated"}),
    "argv": (shell(["apply_patch", patch("*** Add File: a")]), {"a": "added"}),
    "local-shell": (
        {"type": "local_shell_call", "call_id": "c", "action": {"command": ["bash", "-lc", HEREDOC]}},
        {"a.py": "updated"},
    ),
    "without-an-end": (shell("apply_patch '*** Begin Patch\n*** Add File: a\n+x'"), {"a": "added"}),
    "only-searched-for": (shell("grep -r '*** Begin Patch\n*** Add File: a' ."), {}),
    "write_file": (call("c", "write_file", '{"path": "a", "content": "error"}'), {"a": "written"}),
    "create_file": (call("c", "create_file", '{"file_path": "a"}'), {"a": "written"}),
    "edit_file": (call("c", "edit_file", '{"path": "a"}'), {"a": "updated"}),
    "str_replace": (call("c", "str_replace", '{"path": "a"}'), {"a": "updated"}),
    "editor-create": (call("c", "str_replace_editor", '{"command": "create", "path": "a"}'), {"a": "written"}),
    "editor-insert": (call("c", "str_replace_based_edit_tool", '{"command": "insert", "path": "a"}'), {"a": "updated"}),
    "editor-undo": (call("c", "str_replace_editor", '{"command": "undo_edit", "path": "a"}'), {"a": "edit undone"}),
    "editor-view": (call("c", "str_replace_editor", '{"command": "view", "path": "a"}'), {}),
    "reader": (call("c", "read_file", '{"path": "a"}'), {}),
    "path-of-two-lines": (call("c", "write_file", '{"path": "a\\nCommands:"}'), {"a Commands:": "written"}),
    "no-json": (call("c", "write_file", "path: a"), {}),
    "no-object": (call("c", "apply_patch", "[1]"), {}),
    "number": (call("c", "write_file", '{"path": 7}'), {}),
}


def states(ledger: Ledger) -> dict[str, str]:
    return {change.path: change.state for change in ledger.files}


@pytest.mark.parametrize(("item", "expected"), CHANGES.values(), ids=CHANGES)
def test_changed_files(item: Json, expected: dict[str, str]) -> None:
    """Each way to write a file is told with what it did, and a call without output as not finished."""
    answer = {"type": item["type"] + "_output", "call_id": "c", "output": "Done"}
    assert states(read(item, answer)) == expected
    assert states(read(item)) == {path: f"{state} (not finished)" for path, state in expected.items()}


REFUSALS: dict[str, Json] = {
    "codex": custom_output(REFUSED),
    "codex-code": custom_output(f"Exit code: 1\nWall time: 0 seconds\nOutput:\n{REFUSED}"),
    "codex-json": custom_output(json.dumps({"output": "no", "metadata": {"exit_code": 1}})),
    "code-alone": custom_output("Exit code: 2"),
    "said-in-spite-of-code-0": custom_output(f"Exit code: 0\nOutput:\n{REFUSED}"),
    "one-of-two": custom_output(f"Success. Updated the following files:\nM b.py\n{REFUSED}"),
    "rejected": custom_output("patch rejected by user"),
    "aborted": custom_output("aborted"),
    "editor": custom_output("No replacement was performed, old_str did not appear verbatim in a.py."),
    "later-line": custom_output("Looking at a.py\nError: could not write"),
    "json-error": custom_output('{"error": "no such file"}'),
    "json-success": custom_output('{"success": false}'),
    "status": {**custom_output("a.py"), "status": "failed"},
    "member": {**custom_output("a.py"), "success": False},
    "parts": {**custom_output(""), "output": [{"type": "input_text", "text": REFUSED}]},
}


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS)
def test_refused_change_is_not_told(answer: Json) -> None:
    """A change whose output says in any way that it failed is no changed file."""
    assert read(custom(patch("*** Update File: a.py")), answer).files == ()


@pytest.mark.parametrize(
    "text",
    [
        APPLIED,
        "Wrote src/error.py",
        "The file failed/not-found.md has been edited.\n  1\terror",
        '{"success": true, "error": null}',
        "Exit code: 1\nOutput:\nSuccess. Updated the following files:\nM a.py\nFAILED tests/test_a.py",
        json.dumps({"output": "rebuilt without error", "metadata": {"exit_code": 0}}),
        "",
    ],
    ids=["codex", "path", "snippet", "json", "later-command-failed", "code-0", "silent"],
)
def test_change_that_does_not_look_failed_is_told(text: str) -> None:
    """Paths, shown content and what ran after the patch are no failure of the patch."""
    assert states(read(custom(patch("*** Update File: a.py")), custom_output(text))) == {"a.py": "updated"}


def test_last_state_of_a_file_counts() -> None:
    """One entry per path with its last state, where it came last; a failed change leaves the state before it."""
    steps = [
        ("1", "Add", "a", "ok"),
        ("2", "Add", "b", "ok"),
        ("3", "Update", "a", "ok"),
        ("4", "Delete", "a", REFUSED),
    ]
    items = [
        entry
        for number, verb, path, said in steps
        for entry in (
            custom(patch(f"*** {verb} File: {path}")) | {"call_id": number},
            custom_output(said) | {"call_id": number},
        )
    ]
    assert read(*items).files == (FileChange("b", "added"), FileChange("a", "updated"))


COMMANDS: dict[str, tuple[Json, list[str]]] = {
    "text": (shell("ls -l"), ["ls -l"]),
    "script": (shell(["bash", "-lc", "cd a && ls"]), ["cd a && ls"]),
    "argv": (shell(["rg", "a b"]), ["rg 'a b'"]),
    "argv-of-three": (shell(["git", "log", "-p"]), ["git log -p"]),
    "cmd": (shell("ls", "exec_command", "cmd"), ["ls"]),
    "bash": (shell("ls", "bash"), ["ls"]),
    "run_command": (shell("ls", "run_command"), ["ls"]),
    "local_shell": (shell(["ls"], "local_shell"), ["ls"]),
    "local_shell_call": ({"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls", "-a"]}}, ["ls -a"]),
    "shell_call": (hosted_shell("a", "b"), ["a", "b"]),
    "parsed-arguments": ({**call("c"), "arguments": {"command": "ls"}}, ["ls"]),
    "other-tool": (shell("ls", "ask_oracle"), []),
    "no-json": (call("c", arguments="ls"), []),
    "deep": (call("c", arguments='{"command": ' + "[" * 200_000), []),
    "number": (shell(5), []),
    "numbers": (shell(["sleep", 5]), []),
    "empty": (shell(""), []),
    "no-action": ({"type": "local_shell_call", "call_id": "c"}, []),
    "odd-action": ({"type": "shell_call", "call_id": "c", "action": {"commands": "ls"}}, []),
    "odd-name": ({**call("c"), "name": ["shell"]}, []),
}


@pytest.mark.parametrize(("item", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_commands(item: Json, expected: list[str]) -> None:
    """The command of each kind of shell call, the shell around a script taken off; not finished without an output."""
    assert read(item).commands == tuple(Command(text, "not finished", failed=False) for text in expected)


OUTCOMES: dict[str, tuple[str, str]] = {  # output, how it ended
    "json": (json.dumps({"output": "x", "metadata": {"exit_code": 3, "duration_seconds": 1.0}}), "exit 3"),
    "json-zero": (json.dumps({"output": "Exit code: 4", "metadata": {"exit_code": 0}}), "exit 0"),
    "json-of-the-command": (json.dumps({"error": "x", "exit_code": 7}), "outcome not shown"),
    "json-odd": (json.dumps({"output": "x", "metadata": {"exit_code": "3"}}), "outcome not shown"),
    "json-bool": (json.dumps({"output": "x", "metadata": {"exit_code": True}}), "outcome not shown"),
    "codex": ("Exit code: 1\nWall time: 0.1 seconds\nOutput:\nboom", "exit 1"),
    "codex-unified": (
        "Chunk ID: 1\nWall time: 1 seconds\nProcess exited with code 2\nOriginal token count: 3\nOutput:\nx",
        "exit 2",
    ),
    "running": ("Wall time: 1 seconds\nProcess running with session ID 9\nOutput:\nExit code: 5", "outcome not shown"),
    "negative": ("Exit code: -9", "exit -9"),
    "last-line": ("boom\nexit status 1\n", "exit 1"),
    "sentence": ("x\n[The command completed with exit code 0.]", "exit 0"),
    "shown-by-the-command": ("a\nExit code: 3\nb", "outcome not shown"),
    "spoken-of": ("the exit code 3 is wrong", "outcome not shown"),
    "nothing": ("", "outcome not shown"),
    "words": ("ok", "outcome not shown"),
}


@pytest.mark.parametrize(("text", "ended"), OUTCOMES.values(), ids=OUTCOMES)
def test_outcome(text: str, ended: str) -> None:
    """How a command ended is what its tool wrote around the output, never what the command printed."""
    failed = ended not in {"exit 0", "outcome not shown"}
    assert read(shell("x"), output("c", text)).commands == (Command("x", ended, failed),)


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        (hosted_outcomes({"type": "exit", "exit_code": 0}, {"type": "exit", "exit_code": 2}), ["exit 0", "exit 2"]),
        (hosted_outcomes({"exit_code": 10**5000}, {"exit_code": 1.5}), ["outcome not shown"] * 2),
        (hosted_outcomes({"type": "timeout"}, {}), ["timed out", "outcome not shown"]),
        (hosted_outcomes({"type": "exit", "exit_code": 1}), ["outcome not shown"] * 2),
        ({"type": "shell_call_output", "call_id": "c", "output": [1, None]}, ["outcome not shown"] * 2),
        ({"type": "shell_call_output", "call_id": "c", "output": "Exit code: 1"}, ["exit 1"] * 2),
    ],
    ids=["exit", "no-codes", "timeout", "fewer-than-commands", "odd", "text"],
)
def test_outcomes_of_a_hosted_shell(answer: Json, ended: list[str]) -> None:
    """Each command of one call has its own outcome, none where it is unclear which one is meant."""
    assert [command.ended for command in read(hosted_shell("a", "b"), answer).commands] == ended


def test_codex_answers_a_local_shell_call_with_a_function_output() -> None:
    """A call and its output are paired by their id, whatever kind the output has."""
    item = {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}}
    assert read(item, output("c", "Exit code: 0")).commands == (Command("ls", "exit 0", failed=False),)


def test_call_without_an_id_is_not_called_unfinished() -> None:
    """What nothing could answer has no outcome shown."""
    item = {"type": "local_shell_call", "action": {"command": ["ls"]}}
    assert read(item).commands == (Command("ls", "outcome not shown", failed=False),)


def test_same_commands_are_one() -> None:
    """The last outcome counts, with how often the command ran, at the place of its last run."""
    items = [
        *(shell("pytest"), output("c", "Exit code: 1")),
        *(shell("ls"), output("c", "Exit code: 0")),
        *(shell("pytest"), output("c", "Exit code: 0")),
    ]
    ledger = read(*items)
    assert ledger.commands == (Command("ls", "exit 0", failed=False), Command("pytest", "exit 0", failed=False, runs=2))
    assert write(ledger) == "Commands:\n- exit 0: ls\n- exit 0, last of 2 runs: pytest"


ERRORS = [
    "E   assert 1 == 2",
    "E       AssertionError: no",
    "FAILED tests/test_a.py::test_b - assert 0",
    "ERROR tests/test_a.py",
    "Error: Cannot find module 'x'",
    "error[E0308]: mismatched types",
    "error: could not compile `a`",
    "src/a.c:3:5: error: expected ';'",
    "a.ts(1,2): error TS2304: Cannot find name 'x'.",
    "ValueError: bad",
    "json.decoder.JSONDecodeError: Expecting value",
    "KeyboardException",
    "Uncaught TypeError: x is not a function",
    "panic: runtime error: index out of range",
    "thread 'main' panicked at src/main.rs:1:1:",
    "--- FAIL: TestA (0.00s)",
    "test a::b ... FAILED",
    "fatal: not a git repository",
    "bash: foo: command not found",
    "cat: a: No such file or directory",
    "make: *** [all] Error 2",
    "npm ERR! code ELIFECYCLE",
    "===== 2 failed, 3 passed in 0.1s =====",
]
NO_ERRORS = [
    "3 passed in 0.1s",
    "0 failed",
    "no errors found",
    "except ValueError:",
    "class ParseError(Exception):",
    "    raise ValueError(text)",
    "Traceback (most recent call last):",
    "errors.py",
    "a terrible thing",
]


@pytest.mark.parametrize("line", ERRORS)
def test_error_line(line: str) -> None:
    """A line that tells of an error is kept as it is, colours taken off."""
    assert read(call("c"), output("c", f"before\n\x1b[31m{line}\x1b[0m\nafter")).errors == (line,)


@pytest.mark.parametrize("line", NO_ERRORS)
def test_no_error_line(line: str) -> None:
    """Code that handles errors, and counts of none, are not errors."""
    assert read(call("c"), output("c", line)).errors == ()


def test_error_lines_come_once_the_newest_last_and_at_most_forty() -> None:
    """Repeated lines stand where they came last, long ones are cut, and what is over forty is counted."""
    old, long = "Error: again", "Error: " + "x" * 1_000_000
    lines = [old, *(f"Error: {number}" for number in range(50)), old, long]
    errors = read(call("c"), output("c", "\n".join(lines))).errors
    assert errors[-2:] == (old, long[:300])
    assert len(errors) == 52
    written = write(Ledger(errors=errors)).splitlines()
    assert written[0] == "Error lines (12 left out):"
    assert written[1:] == [f"- {line}" for line in errors[12:]]


def test_error_lines_come_from_every_kind_of_output() -> None:
    """Wrapped, structured and lone outputs are read alike; what is no output is not."""
    structured = {"type": "shell_call_output", "call_id": "s", "output": [{"stdout": "", "stderr": "Error: 2"}]}
    wrapped = output("c", json.dumps({"output": "x\nError: 1", "metadata": {"exit_code": 1}}))
    ledger = read(
        user("Error: 0"), call("c"), wrapped, structured, {"type": "function_call_output", "output": "Error: 3"}
    )
    assert ledger.errors == ("Error: 1", "Error: 2", "Error: 3")


@pytest.mark.parametrize("role", ["user", "developer", "tool"])
def test_earlier_summary_is_carried_word_for_word(role: Any) -> None:
    """A restored summary is neither request nor output: its words are carried on without the fence around them."""
    text = "## Task\nfix it\n\nError: old\n(/conversation_summary>\nquoted"
    restored = write_summary(text.replace("(/", "</"), role, "d" * 64)
    ledger = read(*restored, user("go on"), summaries=frozenset(range(len(restored))))
    assert ledger == Ledger(summaries=(text,), requests=("go on",))
    assert write(ledger) == f"Earlier summary:\n{text}\n\nThe user's latest request:\ngo on"


def test_summary_without_a_fence_is_carried_whole() -> None:
    """A note of the plugin stands as it is."""
    assert read(user(" note "), summaries=frozenset({0})).summaries == (" note ",)


@pytest.mark.parametrize(
    "text",
    [
        "<environment_context>\n<cwd>/w</cwd>",
        "<permissions instructions>x",
        "<user_instructions>x",
        "<skills_instructions>",
        "\n# AGENTS.md instructions for /w",
        "<turn_aborted>\nx",
    ],
)
def test_machine_context_is_no_request(text: str) -> None:
    """What the client writes in the user's name is skipped, as a message and as a part of one."""
    parts = [{"type": "input_text", "text": text}, {"type": "input_text", "text": "do it"}]
    assert read(user(text), {"role": "user", "content": parts}, user(text)).requests == ("do it",)


def test_requests_are_the_users_own() -> None:
    """Only user messages are requests; a picture is told of."""
    picture = {
        "role": "user",
        "content": [{"type": "input_image", "file_id": "f"}, {"type": "input_text", "text": "see"}],
    }
    agent = {"type": "agent_message", "author": "a", "recipient": "b", "content": "hi"}
    system = {"role": "system", "content": "obey"}
    assert read(user(""), assistant("no"), agent, system, picture).requests == ("[input_image, not shown]\nsee",)


def test_everything_in_its_order() -> None:
    """The whole ledger of a small session, where the budget is large enough for all of it."""
    items = [
        *(user("sum"), user("first\nwith details"), user("y" * 300), user("last\nrequest")),
        *(custom(patch("*** Add File: a")), custom_output(APPLIED)),
        *(shell("make"), output("c", "Exit code: 2\nOutput:\nmake: *** [all] Error 2")),
        shell("ls\n-l " + "z" * 300),
    ]
    assert write(read(*items, summaries=frozenset({0}))) == (
        "Earlier summary:\nsum\n\n"
        "The user's latest request:\nlast\nrequest\n\n"
        f"Earlier requests of the user:\n- first ...\n- {'y' * 196} ...\n\n"
        "Files changed:\n- a: added\n\n"
        f"Commands:\n- exit 2: make\n- not finished: ls -l {'z' * 190} ...\n\n"
        "Error lines:\n- make: *** [all] Error 2"
    )


def test_nothing_is_written_for_nothing() -> None:
    """No facts, no text."""
    assert write(read()) == ""


def test_oldest_entries_leave_first_and_are_counted() -> None:
    """Under a small budget every section keeps its newest entries and says how many it lost."""
    numbers = [f"{number:03}" for number in range(100)]
    ledger = Ledger(
        requests=(*numbers, "now"),
        files=tuple(FileChange(number, "updated") for number in numbers),
        commands=tuple(Command(number, "exit 0", failed=False) for number in numbers),
        errors=tuple(f"Error: {number}" for number in numbers),
    )
    text = write(ledger, 200)
    assert text.startswith("The user's latest request:\nnow\n\n")
    for block in text.split("\n\n")[1:]:
        title, *lines = block.splitlines()
        assert len(lines) > 3
        assert title.endswith(f" ({100 - len(lines)} left out):")
        assert all(number in line for number, line in zip(numbers[-len(lines) :], lines, strict=True))


def test_failed_commands_stay_longest() -> None:
    """An old failure outlives newer successes."""
    good = [Command(f"good {number}", "exit 0", failed=False) for number in range(200)]
    ledger = Ledger(commands=(Command("bad", "exit 1", failed=True), *good))
    assert write(ledger, 30).splitlines()[:2] == ["Commands (196 left out):", "- exit 1: bad"]


def test_long_request_is_cut_to_a_third() -> None:
    """Head and tail of an oversized request stay, with a mark of how many characters went between them."""
    request = "head " + "x" * 10_000 + " tail"
    text = write(Ledger(requests=(request,)), 300)
    assert 80 < estimate_tokens(text) <= 100 + estimate_tokens("The user's latest request:\n")
    assert text.startswith("The user's latest request:\nhead xxx")
    assert text.endswith("xxx tail")
    kept = sum(len(line) for line in text.splitlines()[1:] if "left out" not in line)
    assert f"\n[... {len(request) - kept} characters left out ...]\n" in text


def test_earlier_summary_is_cut_last() -> None:
    """Entries leave before the summary does; then its head and tail stay, in all that is left of the budget."""
    commands = tuple(Command(f"{number}", "exit 0", failed=False) for number in range(50))
    whole = write(Ledger(("s" * 1000,), ("go",), commands=commands), 290)
    assert "s" * 1000 in whole
    assert "characters left out" not in whole
    cut = write(Ledger(("head" + "s" * 2000 + "tail",), ("go",), commands=commands), 290)
    assert cut.startswith("Earlier summary:\nheadsss")
    assert "ssstail\n\nThe user's latest request:\ngo\n\nCommands (50 left out):" in cut
    assert estimate_tokens(cut) > 285


@given(st.integers(0, 64))
def test_budget_holds_even_where_nothing_fits(budget: int) -> None:
    """A budget below all sense gives a cut text or none, never a larger one."""
    items = [user("a"), user("b" * 999), shell("ls"), output("c", "Error: 1"), custom(patch("*** Add File: a"))]
    write(read(*items, summaries=frozenset({0})), budget)


odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["text", "type", "command", "commands", "path", "outcome", "exit_code", "output", "metadata"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
odd_items = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            [
                *("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
                *("local_shell_call", "shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
            ]
        )
    },
    optional={
        "call_id": st.sampled_from(["a", "b", 3]),
        "name": st.sampled_from(["shell", "apply_patch", "write_file", "str_replace_editor"]) | odd,
        "arguments": odd | odd.map(json.dumps) | st.just(json.dumps({"command": HEREDOC})),
        **dict.fromkeys(("role", "content", "action", "operation", "input", "output", "status"), odd),
    },
)


@given(conversations() | st.lists(odd_items, max_size=8), st.sets(st.integers(0, 20)), st.integers(64, 400))
def test_any_history_gives_a_ledger_within_its_budget(items: list[Json], summaries: set[int], budget: int) -> None:
    """No item is too odd: nothing is raised, nothing mutated, the budget holds, and the same comes out again."""
    before = copy.deepcopy(items)
    ledger = read_ledger(classify_items(items), summaries)
    text = write_ledger(ledger, budget, estimate_tokens)
    assert estimate_tokens(text) <= budget
    assert repr(items) == repr(before)
    assert read_ledger(classify_items(before), summaries) == ledger
    assert write_ledger(ledger, budget, estimate_tokens) == text


def test_deep_nesting_is_read_over() -> None:
    """Nesting beyond any stack is no text and no reason to fail."""
    deep: Any = []
    for _ in range(20_000):
        deep = [deep]
    item = {**call("c"), "arguments": deep}
    assert read({"role": "user", "content": deep}, item, {**output("c", ""), "output": deep}) == Ledger()
    assert read(call("c"), output("c", '{"a":' * 200_000)).errors == ()
