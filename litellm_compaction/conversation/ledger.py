"""What a history says by itself, exactly and without a model: requests, changed files, commands, error lines.

Facts are read first (`read_ledger`) and written second (`write_ledger`). Nothing is concluded: what no item says is
"not finished" or "outcome not shown". Shapes of calls: Codex 0.120 to 0.171, OpenAI's own tools, usual editor tools.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from litellm_compaction.conversation.expansion import is_record
from litellm_compaction.conversation.items import Item, Kind

_LINE, _ERROR_LINE, _ERROR_LINES = 200, 300, 40  # characters of an entry, of an error line; error lines shown
# What Codex puts into the user's mouth: context for the model, no request.
_MACHINE: Final = (
    *("<environment_context>", "<permissions", "<user_instructions>", "<skill", "# AGENTS.md"),
    *("<turn_aborted>", "<user_shell_command>", "<subagent_notification>"),
)
_SHELLS: Final = {"shell", "shell_command", "container.exec", "exec_command", "bash", "run_command", "local_shell"}
_OPERATIONS: Final = {"create_file": "added", "update_file": "updated", "delete_file": "deleted"}
_EDITS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("write_file", "create_file", "create"), "written"),  # whether it was there before is not said
    **dict.fromkeys(("edit_file", "str_replace", "insert"), "updated"),
    "undo_edit": "edit undone",
}
_PATCH_STATES: Final = {"Add": "added", "Update": "updated", "Delete": "deleted"}
_PATCH_LINE: Final = re.compile(r"^\*\*\* (?:(Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_PATCH_APPLIED: Final = "Success. Updated the following files"  # Codex; commands may follow that end otherwise
_REFUSED_LINE: Final = re.compile(
    r"^[ \t]*(?:apply_patch verification failed|patch rejected|invalid (?:patch|hunk)|failed to|error\b|fatal\b)",
    re.IGNORECASE | re.MULTILINE,
)
# Words of failure, where they are no part of a path such as src/error.py and no empty member of an answer in JSON.
_REFUSED: Final = re.compile(
    r"(?<![\w./\\-])(?:errors?|exception|failed|failure|rejected|denied|aborted|invalid|cannot|unable|not found"
    r"|no match|no such file|no replacement|could not|did not|timed out|traceback)"
    r'(?![\w/\\-]|\.\w|": ?(?:null|false|""|\[\]))|"success": ?false',
    re.IGNORECASE,
)
_CODE: Final = re.compile(
    r"\W*(?:(?:the )?(?:process|command) (?:exited|completed|failed) with (?:exit )?code|exit code|exit status)"
    r"[\s:=]{0,3}(-?[0-9]{1,9})\W*$",
    re.IGNORECASE,
)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ERROR: Final = re.compile(
    r"^\s*(?:E {2,}\S|(?:FAILED|ERROR|FAIL|FATAL)[\s:]|--- FAIL|not ok \d|npm (?:ERR!|error)|Exception in thread"
    r"|Caused by:|(?:Uncaught )?[\w.$]*(?:Error|Exception)(?::|\s*$)|(?:error|fatal|panic)(?:\[\w+\])?:"
    r"|thread '.*panicked)"
    r"|: (?:fatal )?error(?: \w+)?:|: (?:command not found|No such file or directory|Permission denied)"
    r"|: \*\*\* |\.\.\. FAILED|\b[1-9]\d* failed\b"
)
# A summary as `expansion.write_summary` restores it; only what is inside is carried on, or fences would pile up.
_FENCED: Final = re.compile(r"<conversation_summary id=[^>\n]*>\n(.*)\n</conversation_summary>\n[^\n]*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FileChange:
    """`state`: what was last done to the file at `path`."""

    path: str
    state: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command, how its last run ended, whether that is a failure, and how often it ran."""

    text: str
    ended: str
    failed: bool
    runs: int = 1


@dataclass(frozen=True, slots=True)
class Ledger:
    """Facts of a history, oldest first: summaries and requests whole; files, commands and error lines once each, where
    they came last."""

    summaries: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    files: tuple[FileChange, ...] = ()
    commands: tuple[Command, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Result:
    """What an output says of its call; `word` says how it ended where no exit code does."""

    text: str
    code: int | None = None
    word: str = ""

    @property
    def failed(self) -> bool:
        return self.word in {"failed", "timed out"} or self.code not in {None, 0}

    @property
    def ended(self) -> str:
        return f"exit {self.code}" if self.code is not None else self.word or "outcome not shown"


def read_ledger(items: Sequence[Item], summaries: Collection[int]) -> Ledger:
    """What the history says by itself. `summaries`: indexes of items that are earlier summaries."""
    own: Final = [item for item in items if item.index not in summaries]
    outputs: Final = _match_outputs(own)
    files: dict[str, str] = {}
    commands: dict[str, Command] = {}
    for call in own:
        output = outputs.get(call.index)
        for path, state in _changes(call, output):
            files.pop(path, None)
            files[path] = state
        for text, result in _runs(call, output):
            before = commands.pop(text, None)
            commands[text] = Command(text, result.ended, result.failed, before.runs + 1 if before else 1)
    return Ledger(
        tuple(
            text for item in items if item.index in summaries and not is_record(item.raw) and (text := _summary(item))
        ),
        tuple(text for item in own if item.is_user and item.type == "message" and (text := _request(item))),
        tuple(FileChange(path, state) for path, state in files.items()),
        tuple(commands.values()),
        _errors(_result(item).text for item in own if item.kind is Kind.OUTPUT),
    )


def write_ledger(ledger: Ledger, budget: int, count: Callable[[str], int]) -> str:
    """The ledger as text of at most `budget` tokens as `count` counts them, "" if there is nothing to say.

    Oldest entries leave first, failed commands last; each section says how many it lost. The latest request is cut only
    where it is larger than a third of the budget, earlier summaries only where no entry is left.
    """
    summary: Final = "\n\n".join(ledger.summaries)
    latest: Final = ledger.requests[-1] if ledger.requests else ""
    request: Final = _cut(latest, _most(len(latest), lambda kept: count(_cut(latest, kept)) <= budget // 3))
    sections: Final = _sections(ledger)
    # By rank over all sections, so that no section starves another.
    order: Final = sorted(
        (rank, place, entry) for place, (*_, ranked) in enumerate(sections) for rank, entry in enumerate(ranked)
    )

    def render(entries: int, kept: int) -> str:
        chosen = {(place, entry) for _, place, entry in order[:entries]}
        fixed = (("Earlier summary", _cut(summary, kept)), ("The user's latest request", request))
        blocks = [f"{title}:\n{text}" for title, text in fixed if text]
        for place, (title, lines, _) in enumerate(sections):
            shown = [f"\n- {line}" for entry, line in enumerate(lines) if (place, entry) in chosen]
            left_out = f" ({len(lines) - len(shown)} left out)" if len(shown) < len(lines) else ""
            blocks.append(f"{title}{left_out}:{''.join(shown)}")
        return "\n\n".join(blocks)

    entries: Final = _most(len(order), lambda entries: count(render(entries, len(summary))) <= budget)
    kept: Final = len(summary) if entries else _most(len(summary), lambda kept: count(render(0, kept)) <= budget)
    text: Final = render(entries, kept)
    # The last resort, for a budget smaller than the headings.
    cut: Final = _cut(text, _most(len(text), lambda kept: count(_cut(text, kept)) <= budget))
    return cut if count(cut) <= budget else ""


def _sections(ledger: Ledger) -> list[tuple[str, Sequence[str], Sequence[int]]]:
    """Title, entries, and places of the entries in the order in which they are to stay."""
    requests: Final = [_line(text) for text in ledger.requests[:-1]]
    files: Final = [f"{_line(change.path)}: {_line(change.state)}" for change in ledger.files]
    commands: Final = [_command_line(command) for command in ledger.commands]

    def newest(entries: Sequence[str]) -> Sequence[int]:
        return range(len(entries) - 1, -1, -1)

    sections: Final = (
        ("Earlier requests of the user", requests, newest(requests)),
        ("Files changed", files, newest(files)),
        ("Commands", commands, sorted(newest(commands), key=lambda place: not ledger.commands[place].failed)),
        ("Error lines", ledger.errors, newest(ledger.errors)[:_ERROR_LINES]),
    )
    return [section for section in sections if section[1]]


def _command_line(command: Command) -> str:
    runs: Final = f", last of {command.runs} runs" if command.runs > 1 else ""
    return f"{command.ended}{runs}: {_line(' '.join(command.text.split()))}"


def _most(top: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `top` that fits, 0 if none does; what fits is taken to fit with less as well."""
    if fits(top):
        return top
    low, high = 0, top - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _cut(text: str, kept: int) -> str:
    """Head and tail of `text`, together `kept` characters, with a mark of how many went."""
    if kept >= len(text):
        return text
    tail: Final = kept // 2
    mark: Final = f"[... {len(text) - kept} characters left out ...]"
    return f"{text[: kept - tail]}\n{mark}\n{text[len(text) - tail :]}"


def _line(text: str) -> str:
    """The first line of a text, told to be one where more follows."""
    lines: Final = text.strip().splitlines() or [""]
    return lines[0] if len(lines) == 1 and len(lines[0]) <= _LINE else f"{lines[0][: _LINE - 4]} ..."


def _match_outputs(items: Iterable[Item]) -> dict[int, Item]:
    """call index -> its output. By id alone: Codex answers a local_shell_call with a function_call_output."""
    waiting: dict[str, list[int]] = {}
    matched: dict[int, Item] = {}
    for item in items:
        if item.call_id and item.kind is Kind.CALL:
            waiting.setdefault(item.call_id, []).append(item.index)
        elif item.call_id and item.kind is Kind.OUTPUT and waiting.get(item.call_id):
            matched[waiting[item.call_id].pop(0)] = item
    return matched


def _summary(item: Item) -> str:
    content: Final = item.raw.get("output" if item.kind is Kind.OUTPUT else "content")
    text: Final = "\n".join(_texts(content))
    fenced: Final = _FENCED.fullmatch(text)
    return fenced.group(1) if fenced else text


def _request(item: Item) -> str:
    parts: Final = [part for part in _texts(item.raw.get("content")) if not part.lstrip().startswith(_MACHINE)]
    return "\n".join(parts).strip()


def _errors(outputs: Iterable[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in outputs:
        for line in text.splitlines():
            # Cut first: a line may be megabytes long.
            shown = _COLOUR.sub("", line[: 2 * _ERROR_LINE])[:_ERROR_LINE].rstrip()
            if _ERROR.search(shown):
                found.pop(shown, None)
                found[shown] = None
    return tuple(found)


def _changes(call: Item, output: Item | None) -> Iterator[tuple[str, str]]:
    """Path and state of each file that the call changed, none if its output says that it failed."""
    asked: Final = list(_asked_changes(call))
    if asked and not (output and _looks_failed(_result(output))):
        for path, state in asked:
            yield " ".join(path.split()), state if output else f"{state} (not finished)"


def _asked_changes(call: Item) -> Iterator[tuple[str, str]]:
    raw: Final = call.raw
    name, arguments = _word(raw, "name"), _object(raw.get("arguments"))
    if call.type == "apply_patch_call":
        operation: Final = _object(raw.get("operation"))
        yield from _named(_word(operation, "path"), _OPERATIONS.get(_word(operation, "type")))
    elif call.type in {"function_call", "custom_tool_call"} and name == "apply_patch":
        yield from _patched(_word(raw, "input") or _word(arguments, "input", "patch", "patchText"))
    elif call.type == "function_call":
        edit: Final = _word(arguments, "command") if name.startswith("str_replace_") else name
        yield from _named(_word(arguments, "path", "file_path"), _EDITS.get(edit))
    for command in _commands(call):
        before, begin, patch = command.partition("*** Begin Patch")
        if begin and re.search("apply_?patch", before):
            yield from _patched(patch.rpartition("*** End Patch")[0] or patch)


def _named(path: str, state: str | None) -> Iterator[tuple[str, str]]:
    if path and state:
        yield path, state


def _patched(patch: str) -> Iterator[tuple[str, str]]:
    source = ""
    for verb, name in _PATCH_LINE.findall(patch):
        path = name.strip()
        if verb:
            source = path
            yield path, _PATCH_STATES[verb]
        elif source:
            yield source, f"moved to {path}"
            yield path, f"moved from {source}"


def _looks_failed(result: _Result) -> bool:
    if _PATCH_APPLIED in result.text and "verification failed" not in result.text:
        return False
    first: Final = result.text.strip().partition("\n")[0]
    told: Final = _REFUSED_LINE.search(result.text) or (result.code is None and _REFUSED.search(first))
    return result.failed or bool(told)


def _commands(call: Item) -> list[str]:
    raw: Final = call.raw
    if call.type == "shell_call":
        given = _object(raw.get("action")).get("commands")
        return [entry for entry in given if isinstance(entry, str)] if isinstance(given, list | tuple) else []
    if call.type == "local_shell_call":
        given = _object(raw.get("action")).get("command")
    elif call.type == "function_call" and _word(raw, "name") in _SHELLS:
        arguments: Final = _object(raw.get("arguments"))
        given = arguments.get("command") or arguments.get("cmd")
    else:
        return []
    if isinstance(given, list | tuple) and all(isinstance(word, str) for word in given):
        # ["bash", "-lc", script]: the script is the command.
        is_script: Final = len(given) == 3 and given[1] in {"-c", "-lc"}  # noqa: PLR2004
        given = given[2] if is_script else shlex.join(given)
    return [given] if isinstance(given, str) and given.strip() else []


def _runs(call: Item, output: Item | None) -> Iterator[tuple[str, _Result]]:
    """Each command of a call with its result."""
    commands: Final = _commands(call)
    each: Final = output.raw.get("output") if output else None
    if output is None:
        # What has no id cannot be answered, so nothing says that it is not finished.
        results = [_Result("", word="not finished" if call.call_id else "")] * len(commands)
    elif output.type != "shell_call_output" or not isinstance(each, list | tuple):
        results = [_result(output)] * len(commands)
    elif len(each) == len(commands):
        results = [_shell_result(_object(entry)) for entry in each]
    else:  # which command an outcome is for is not said
        results = [_Result("")] * len(commands)
    yield from zip(commands, results, strict=True)


def _shell_result(entry: Mapping[str, Any]) -> _Result:
    outcome: Final = _object(entry.get("outcome"))
    return _Result("", _code(outcome.get("exit_code")), "timed out" if outcome.get("type") == "timeout" else "")


def _result(output: Item) -> _Result:
    """What an output says; the JSON that older Codex wraps around it, output and metadata, is taken off."""
    raw: Final = output.raw
    text = "\n".join(_texts(raw.get("output")))
    wrapping: Final = _object(text)
    metadata: Final = _object(wrapping.get("metadata"))
    if metadata:
        text = _word(wrapping, "output")
    code: Final = _code(metadata.get("exit_code"))
    failed: Final = raw.get("status") == "failed" or raw.get("success") is False
    return _Result(text, _told_code(text) if code is None else code, "failed" if failed else "")


def _told_code(text: str) -> int | None:
    """The exit code that a tool wrote around what the command printed, and not what looks like one within."""
    lines: Final = [line[:_LINE] for line in text.splitlines() if line.strip()]
    around: Final = lines[: lines.index("Output:")] if "Output:" in lines[:8] else [*lines[:1], *lines[-1:]]
    return next((int(told.group(1)) for line in around if (told := _CODE.match(line))), None)


def _code(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 32 else None


def _texts(content: object) -> Iterator[str]:
    """Texts of a content or an output. Not `read_parts`: that refuses broken images, here nothing may be refused."""
    for part in content if isinstance(content, list | tuple) else (content,):
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            members = ("text", "refusal", "stdout", "stderr", "output", "content")
            texts = [part[member] for member in members if isinstance(part.get(member), str)]
            yield from texts or [f"[{_word(part, 'type') or 'part'}, not shown]"]


def _object(value: object) -> Mapping[str, Any]:
    """A JSON object, given as one or as text; an empty one for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}


def _word(given: Mapping[str, Any], *members: str) -> str:
    """The first of the members that is a text, else ""."""
    return next((value for member in members if isinstance(value := given.get(member), str) and value), "")
