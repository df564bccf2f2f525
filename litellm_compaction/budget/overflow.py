"""Telling "the prompt does not fit the context window" from every other error of a model provider.

There is no common form for this refusal: some send an error code, most only a sentence, and LiteLLM turns a part of
them into its own class. So three things are read, the strongest first: a sentence in the table below, an error code,
LiteLLM's class name. A rate limit is worded much alike but passes with time, so its words outrank all three.

Sources of the wordings: the servers' own code (vLLM, SGLang, TGI, llama.cpp, Ollama), LiteLLM's exception mapping
(1.108), and error texts quoted in public issue threads of their users.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Refusal:
    """A provider's refusal of a request that is too long for the model.

    `limit`: the window or input limit in tokens the provider names, None if it names none.
    `requested`: the size of the request it names in tokens, None if none. The total where it names one, else the input
    alone: then it can be smaller than `limit`, and the room asked for the answer is what did not fit.
    `words`: the sentence it was known by, blanks run together.
    """

    limit: int | None = None
    requested: int | None = None
    words: str = field(default="", compare=False)


CODES: Final = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure, Groq and most that speak their API
        "context_window_exceeded",
        "model_context_window_exceeded",  # z.ai; Anthropic's stop reason
        "model_max_prompt_tokens_exceeded",  # GitHub Copilot
        "max_prompt_tokens_exceeded",
        "exceed_context_size_error",  # llama.cpp, as `type`
    }
)
"""Error codes (and types) that mean overflow whatever the sentence beside them says."""

# One shape of number: thousands separators or none, and never a piece of a longer one. Twelve digits are more than any
# window and keep int() cheap.
_NUMBER: Final = r"(?:\d{1,3}(?:,\d{3})+|\d{1,12})(?!,?\d)"


def _row(family: str, wording: str) -> tuple[str, re.Pattern[str]]:
    """A row of the table; `<limit>`, `<requested>` and `<number>` in the wording stand for numbers."""
    for name in ("limit", "requested"):
        wording = wording.replace(f"<{name}>", f"(?P<{name}>{_NUMBER})")
    return family, re.compile(wording.replace("<number>", _NUMBER), re.IGNORECASE | re.ASCII)


# The first row that matches is read, so a wording with numbers stands before a shorter one it contains. Every row
# begins with literal words and its gaps are bounded: a message costs time in proportion to its length.
WORDINGS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    # OpenAI and Azure; the second also DeepSeek, older vLLM, llama-cpp-python and OpenRouter.
    _row(
        "openai-messages", r"context length is <limit> tokens\. however, your messages resulted in <requested> tokens"
    ),
    _row(
        "openai-requested",
        r"context length is <limit> tokens[.,] however,? you requested (?:about )?<requested> tokens",
    ),
    _row(
        "openai-configured",
        r"input tokens exceed the configured limit of <limit> tokens"
        r"(?:\. your messages resulted in <requested> tokens)?",
    ),
    _row(
        "openai-responses",
        r"(?:input|prompt|request|request size|messages) exceeds? (?:the |this )?(?:model(?:'s)? )?context window",
    ),
    _row("anthropic", r"prompt is too long: <requested> tokens > <limit> maximum"),
    _row(
        "anthropic-with-output",
        r"input length and `?max_tokens`? exceed context limit(?:: | \(i\.e\.? )<requested> \+ <number> > <limit>",
    ),
    _row("bedrock", r"input is too long for (?:the )?requested model"),
    _row("bedrock-titan", r"too many input tokens\. max input tokens: <limit>, request input token count: <requested>"),
    _row("bedrock-nova", r"number of input tokens exceeds maximum length"),
    _row("bedrock-mantle", r"prompt tokens \(<requested>\) exceed model maximum \(<limit>\)"),
    _row(
        "gemini",
        r"input token count(?: \(<requested>\))? exceeds the maximum number of tokens allowed(?: \(<limit>\))?",
    ),
    _row("vertex", r"input token count is <requested> but (?:the )?model only supports up to <limit>"),
    # vLLM, by age: 0.18, before it, 0.16, 0.11, the engine's own check. Characters are no tokens and are not read.
    _row(
        "vllm-total",
        r"context length is <limit> tokens\. however, you requested <number> output tokens and your prompt contains "
        r"(?:at least )?<number> input tokens, for a total of (?:at least )?<requested> tokens",
    ),
    _row(
        "vllm-input",
        r"context length is <limit> tokens\. however, (?:you requested <number> output tokens and )?"
        r"your (?:prompt contains|request has) (?:at least )?<requested> input tokens",
    ),
    _row(
        "vllm-passed",
        r"you passed (?:<requested> input tokens|<number> input characters) and requested <number> output tokens\. "
        r"however, the model's context length is only <limit> tokens",
    ),
    _row("vllm-max-tokens", r"context length is <limit> tokens and your request has <requested> input tokens"),
    _row("vllm-engine", r"prompt \((?:total )?length <requested>\) is longer than the maximum model length of <limit>"),
    _row(
        "sglang",
        r"requested token count exceeds the model's maximum context length of <limit> tokens"
        r"(?:\. you requested a total of <requested> tokens)?",
    ),
    _row("sglang-input", r"input \(<requested> tokens\) is longer than the model's context length \(<limit> tokens\)"),
    _row(
        "sglang-scheduler",
        r"input length \(?<requested>(?: tokens)?\)? exceeds the maximum allowed (?:input )?length "
        r"(?:of |\()<limit> tokens",
    ),
    _row("tgi", r"`?inputs`? tokens \+ `?max_new_tokens`? must be <= <limit>(?:\. given: <requested> `?inputs)?"),
    _row("tgi-input", r"`?inputs`? must have less than <limit> tokens\. given: <requested>"),
    # llama.cpp; its older sentence has no numbers, but its body has two fields.
    _row("llama.cpp", r"request \(<requested> tokens\) exceeds the available context size \(<limit> tokens\)"),
    _row("llama.cpp-unsplit", r"input \(<requested> tokens\) is larger than the max context size \(<limit> tokens\)"),
    _row("llama.cpp-fields", r"n_prompt_tokens\W{1,5}<requested>\W{1,5}n_ctx\W{1,5}<limit>"),
    _row("llama.cpp-old", r"request exceeds the available context size"),
    _row("llama-cpp-python", r"requested tokens \(<requested>\) exceed context window of <limit>"),
    _row(
        "lmstudio",
        r"tokens to keep from the initial prompt is greater than the context length"
        r"(?: \(n_keep: <requested> ?>= ?n_ctx: <limit>)?",
    ),
    _row(
        "lmstudio-old",
        r"trying to keep the first <requested> tokens when context the overflows\. "
        r"however, the model is loaded with context length of only <limit> tokens",
    ),
    _row("lmstudio-truncate", r"cannot truncate prompt with n_keep \(<requested>\) >= n_ctx \(<limit>\)"),
    _row("lmstudio-full", r"context size has been exceeded"),
    # Ollama's cloud, its local runner and its embeddings; the first also Fireworks.
    _row("ollama", r"prompt is too long: <requested>, model maximum context length: <limit>"),
    _row("ollama-by", r"prompt too long; exceeded (?:max )?context length"),
    _row("ollama-input", r"input length exceeds (?:the )?(?:maximum )?context length"),
    _row("ollama-available", r"prompt is longer than the context length currently available"),
    _row(
        "mistral", r"prompt contains <requested> tokens.{0,120}?too large for model with <limit> maximum context length"
    ),
    _row("cerebras", r"current length is <requested> while limit is <limit>"),
    _row("xai", r"maximum prompt length is <limit> but the request contains <requested> tokens"),
    _row("cohere", r"too many tokens: .{0,80}?cannot exceed <limit>[ ,-]{1,3}received <requested>"),
    _row(
        "cohere-by",
        r"too many tokens: [^.]{0,80}?size limit exceeded by <number> tokens(?:.{0,120}?model is <limit> tokens)?",
    ),
    _row("alibaba", r"range of input length should be \[\d{1,12}, ?<limit>\]"),
    _row("copilot", r"prompt token count of <requested> exceeds the limit of <limit>"),
    _row("moonshot", r"exceeded model token limit(?: ?: <limit>(?: \(requested: <requested>\))?)?"),
    _row("moonshot-bare", r"input token length too long"),
    _row("zai", r"request <requested> input tokens exceeds the model's maximum context length <limit>"),
    _row("zai-bare", r"prompt exceeds max length|prompt ?超长"),
    # The number MiniMax puts in parentheses, 2013, is its error code.
    _row("minimax", r"context window exceeds limit"),
    _row("deepinfra", r"requested input length <requested> exceeds maximum input length <limit>"),
    _row("watsonx", r"number of input tokens <requested> cannot exceed the total tokens limit <limit>"),
    _row("ds4", r"prompt has <requested> tokens?, but the configured context size is <limit> tokens?"),
    _row("ai21", r"prompt has too many tokens"),
    _row("aleph-alpha", r"longer than the model's (?:maximum )?context length"),
    _row("litellm-router", r"no models have context window large enough"),
    # Shorter forms that several servers share.
    _row(
        "input-and-maximum",
        r"input length \(?<requested>(?: tokens)?\)? exceeds model's maximum context length \(<limit>",
    ),
    _row("input-and-limit", r"input too long: <requested> input tokens, limit is <limit>"),
    _row("input-maximum", r"maximum input length is <limit> tokens"),
    _row("beyond-maximum", r"exceeds (?:the )?(?:model's )?maximum context length(?: of <limit> tokens)?"),
    _row("maximum", r"maximum context length is <limit> tokens"),
    _row("prompt-too-long", r"prompt is too long"),
    _row("groq", r"reduce the length of the messages or completion"),
)
"""Sentences that mean overflow: a name for the family and its pattern, searched anywhere in the text."""

# What passes with time: a shorter prompt is no cure, so nothing here may lead to a compaction.
_RATE_LIMIT: Final = re.compile(
    r"rate[ _-]?limit|too many requests|(?:tokens|requests) per (?:second|minute|hour|day)|\b[TR]P[MD]\b|quota|throttl",
    re.IGNORECASE | re.ASCII,
)

# Limits that are not the window: bytes, images, one string, the answer. They only outweigh a code or a class name in
# the text, as LiteLLM maps some of them to its overflow class; a sentence of the table is never one of them.
_OTHER_LIMIT: Final = re.compile(
    r"entity too large|(?:payload|content|body) too large|request_too_large|payload size|maximum (?:size|request body)"
    r"|\bbytes\b|\d ?[KMG]i?B\b|image exceeds|too many images|image dimensions"
    r"|string_above_max_length|array_above_max_length|string too long|array too long"
    r"|supports at most|maximum tokens you requested",
    re.IGNORECASE | re.ASCII,
)

_MARK: Final = re.compile(rf"\b(?:ContextWindowExceededError|{'|'.join(sorted(CODES))})\b", re.IGNORECASE | re.ASCII)

# Not signed in, not paid, not allowed, too fast: a sentence beside these is about something else.
_OTHER_STATUS: Final = frozenset({401, 402, 403, 429})
_TOO_LARGE: Final = 413
_EMPTY_WORDS: Final = frozenset(
    {"", "413", "b", "body", "code", "error", "http", "litellm", "no", "none", "null", "status"}
)

_END: Final = 4_000
_ESCAPE: Final = re.compile(r"(?<!\\)\\++(?:u(?P<code>00[0-9a-f]{2})|[nrt])", re.IGNORECASE)


def read_overflow(status: int | None, code: str | None, message: str) -> Refusal | None:
    """The refusal in a provider's error, None if the error is anything else.

    `status`: HTTP status, None where there was none; 200 for an error inside a stream. `code`: the error's `code` or
    `type`. `message`: its text as it came, however wrapped: LiteLLM's prefixes, a JSON body as text, escaped quotes.
    Never raises, and takes time in proportion to at most 8,000 characters of the message.
    """
    text: Final = _plain(message)
    known: Final = _plain(code or "").lower()
    if _RATE_LIMIT.search(f"{known} {text}") or (status in _OTHER_STATUS and known not in CODES):
        return None
    for _, wording in WORDINGS:
        if found := wording.search(text):
            return replace(_refusal(found), words=found.group())
    if known in CODES:
        return Refusal()
    if _OTHER_LIMIT.search(f"{known} {text}"):
        return None
    # Cerebras, and gateways that drop the body, answer with nothing but the status.
    return Refusal() if _MARK.search(text) or (status == _TOO_LARGE and _says_nothing(text)) else None


def _plain(message: str) -> str:
    """The two ends of a message in one line, as the provider wrote it: escapes of nested JSON undone.

    Only the ends, 4,000 characters each: the reason stands at the start, or at the end of a chain of wrappers, and what
    makes a message long is an echo of the request, in which any of the wordings may occur.
    """
    if len(message) > 2 * _END:
        message = f"{message[:_END]} {message[-_END:]}"
    unescaped: Final = _ESCAPE.sub(lambda found: chr(int(found["code"], 16)) if found["code"] else " ", message)
    return " ".join(unescaped.replace("\\", "").replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").split())


def _refusal(found: re.Match[str]) -> Refusal:
    numbers: Final = found.groupdict()
    return Refusal(limit=_number(numbers.get("limit")), requested=_number(numbers.get("requested")))


def _number(digits: str | None) -> int | None:
    """The number, None for one that is missing or zero."""
    return int(digits.replace(",", "")) or None if digits else None


def _says_nothing(text: str) -> bool:
    """Whether a text holds no more than the status, names of exception classes and words around them."""
    return all(word in _EMPTY_WORDS or word.endswith(("error", "exception")) for word in re.split(r"\W+", text.lower()))
