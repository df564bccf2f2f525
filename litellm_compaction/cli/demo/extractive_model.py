"""The demo's own model: it quotes. No weights, no knowledge, only what it was sent.

It writes a summary by picking sentences and lines out of the transcript, and answers a question with the sentence that
has most of the question's words. So an answer proves that the words reached it: had the summary been lost, it would
have nothing to quote and say "I don't know".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from litellm_compaction.cli.demo.transcript_reader import Entry

UNKNOWN: Final = "I don't know"
_SENTENCE_END: Final = re.compile(r"(?<=[.!?:])\s+(?=[A-Z#*`\d-])|\n+")
_REASONS: Final = re.compile(r"\b(because|so that|decided|instead|must|never|stays|leave)\b", re.IGNORECASE)
_BANS: Final = re.compile(r"\b(do not|don't|never|must not)\b", re.IGNORECASE)
_COMMAND: Final = re.compile(r'"command":\s*\[(?:"(?:bash|sh)",\s*"-l?c",\s*)?"((?:[^"\\]|\\.)+)"((?:,\s*"[^"]*")*)')
_FILE: Final = re.compile(r"\b(?:[\w.-]+/)+[\w.-]+\.(?:py|sql|md|toml|log|json|ya?ml)\b")
_RESULT: Final = re.compile(r"^\d+ (?:passed|failed)\b.*$", re.MULTILINE)
_FAILED: Final = re.compile(r"^FAILED (\S+)", re.MULTILINE)
_WORD: Final = re.compile(r"[a-z0-9]+")
_IDENTIFIER: Final = re.compile(r"\b\w+_\w+\b")
_SMALL_WORDS: Final = """
a an and are at be by did do does for from had has how i in is it me of on or that the then this to was we were
what when where which who why will with you
"""
_STOP_WORDS: Final = frozenset(_SMALL_WORDS.split())
_ENOUGH: Final = 0.7  # share of a question's words that a sentence must have to count as an answer
_MAX_LINES: Final = 10


@dataclass(frozen=True, slots=True)
class Summary:
    """The arguments of the forced `create_summary` call."""

    text: str
    retain: tuple[str, ...]


def summarise(entries: Sequence[Entry]) -> Summary:
    """An extractive summary: the user's words, decisions and their reasons, commands, files, test results."""
    users: Final = [entry for entry in entries if entry.speaker == "user"]
    said: Final = [sentence for entry in _of(entries, "assistant") for sentence in split_sentences(entry.text)]
    outputs: Final = [entry.text for entry in _of(entries, "output")]
    sections: Final = (
        ("Goal", [_shorten(entry.text, 600) for entry in users[:1]]),
        ("What the user said later", [_shorten(entry.text, 400) for entry in users[1:]]),
        ("Decisions and reasons", [sentence for sentence in said if _REASONS.search(sentence)]),
        ("State", _state(outputs, said)),
        ("Last commands", _commands(entries)),
        ("Files seen or changed", _files(entries)),
    )
    text: Final = "\n\n".join(
        f"## {title}\n" + "\n".join(f"- {line}" for line in lines[:_MAX_LINES]) for title, lines in sections if lines
    )
    bans: Final = tuple(entry.ref for entry in users if _BANS.search(entry.text))
    return Summary(text or "## State\n- Nothing was said yet.", bans)


def _of(entries: Sequence[Entry], speaker: str) -> list[Entry]:
    return [entry for entry in entries if entry.speaker == speaker]


def _state(outputs: Sequence[str], said: Sequence[str]) -> list[str]:
    runs: Final = [text for text in outputs if _RESULT.search(text)]
    lines: Final = [f"Last thing said: {said[-1]}"] if said else []
    if not runs:
        return lines
    failed: Final = list(dict.fromkeys(_FAILED.findall(runs[-1])))
    results: Final = _RESULT.findall(runs[-1])
    return [
        f"Last test run: {results[-1]}.",
        *(f"This test is still failing: {name}." for name in failed),
        *lines,
    ]


def _commands(entries: Sequence[Entry]) -> list[str]:
    found: Final = (match for entry in _of(entries, "call") for match in _COMMAND.finditer(entry.text))
    counted: Final = Counter(_shorten(match[1] + re.sub('[",]', "", match[2]), 120) for match in found)
    return [
        f"`{command}`" + (f" ({times} times)" if times > 1 else "")
        for command, times in list(counted.items())[-_MAX_LINES:]
    ]


def _files(entries: Sequence[Entry]) -> list[str]:
    # Tool output often is JSON text: its line ends are no part of a name.
    texts: Final = (entry.text.replace("\\n", "\n") for entry in entries)
    counted: Final = Counter(name for text in texts for name in _FILE.findall(text))
    return [name for name, _ in counted.most_common(_MAX_LINES)]


def answer(question: str, known: Iterable[str]) -> str:
    """Quotes from `known` what the question asks for, part by part; `I don't know` where nothing fits."""
    sentences: Final = [sentence for text in known for sentence in split_sentences(text)]
    parts: Final = [part for part in re.split(r"\?|,? and (?=wh|how)", question, flags=re.IGNORECASE) if part.strip()]
    return " ".join(_answer_part(part, sentences) for part in parts) or UNKNOWN + "."


def _answer_part(part: str, sentences: Sequence[str]) -> str:
    wanted: Final = _stems(part)
    wants_reason: Final = "why" in part.lower()
    ranked: Final = sorted(
        (
            (_score(sentence, wanted, wants_reason=wants_reason), place, sentence)
            for place, sentence in enumerate(sentences)
            if "?" not in sentence
        ),
        reverse=True,
    )
    if not wanted or not ranked or ranked[0][0] < _ENOUGH:
        return f"{UNKNOWN}: nothing I was given says {part.strip()!r}."
    return ranked[0][2].lstrip("-*# ")


def _score(sentence: str, wanted: frozenset[str], *, wants_reason: bool) -> float:
    share: Final = len(wanted & _stems(sentence)) / max(1, len(wanted))
    if wants_reason:
        return share if _REASONS.search(sentence) else 0.0
    # "Which …" asks for a name.
    return share + (0.1 if _IDENTIFIER.search(sentence) else 0.0)


def split_sentences(text: str) -> list[str]:
    """Sentences and lines, without empty ones."""
    return [sentence.strip() for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def _stems(text: str) -> frozenset[str]:
    words: Final = _WORD.findall(text.lower().replace("_", " "))
    return frozenset(_stem(word) for word in words if word not in _STOP_WORDS)


def _stem(word: str) -> str:
    """`setting`, `set` and `sets` are one word; a rough cut is enough to compare by."""
    bare: Final = re.sub(r"(?<=\w{3})(?:ing|ed|s)$", "", word)
    return re.sub(r"(\w)\1$", r"\1", bare)


def _shorten(text: str, length: int) -> str:
    flat: Final = " ".join(text.split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"
