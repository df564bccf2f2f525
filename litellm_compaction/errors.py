"""Everything this plugin can refuse or fail with, as one tree.

CompactionError                     base: knows status, type, code, param
├── InvalidRequest                  400 invalid_request_error
│   ├── TriggerNotLast              param input
│   ├── TooManyTriggers             param input
│   ├── TriggerOnCompact            param input
│   ├── CompactionNotSupportedHere  param input: a wish that can't be served without the proxy
│   ├── SyncCallNotSupported        param input: LiteLLM's router, called synchronously as a library
│   ├── NothingToCompact            missing_required_parameter
│   ├── InvalidInput                param input: input that is no list of items
│   ├── UnreadableItem              invalid_encrypted_content
│   ├── UnsupportedImage            unsupported_image
│   ├── InvalidToolPairing          invalid_tool_pairing
│   ├── ContextLengthExceeded       context_length_exceeded: the numbers are in the message
│   ├── InvalidContextManagement    code and param of what is wrong in `context_management`
│   ├── PreviousResponseNotFound    previous_response_not_found
│   └── OutputLimitTooSmall         param max_output_tokens
├── CompactionFailed                compaction_failed, status from `failure_status`
├── CompactionTimeout               504 compaction_timeout
└── SettingsError                   never sent to a client: the proxy does not start

Source of codes and texts: the contract, section 5, after OpenAI's Responses API.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

INVALID_REQUEST: Final = "invalid_request_error"
UNCHANGED: Final = "The conversation is unchanged."
# What a client or a backend wrote stands in some messages: never more of it than this.
_MOST_CHARACTERS: Final = 2_000
_MOST_NAMED: Final = 100


class CompactionError(Exception):
    """An error with the parts of OpenAI's error body: HTTP status, `type`, `code` and `param`."""

    status: int = 500
    type: ClassVar[str] = "api_error"
    code: str | None = None
    param: str | None = None

    def __init__(self, message: str) -> None:
        self.message: Final = _told(message, _MOST_CHARACTERS)
        super().__init__(self.message)

    def body(self) -> dict[str, str | None]:
        """The value of `error` in the response body."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


def _told(text: str, most: int) -> str:
    """A text as an answer can hold it: not endless, and without the lone surrogates that cannot be encoded."""
    cut: Final = text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"
    return cut.encode("utf-8", "replace").decode()


class InvalidRequest(CompactionError):
    """The client's request cannot be served as it is. Nothing was called and nothing was paid."""

    status = 400
    type = INVALID_REQUEST
    param: str | None = "input"


class TriggerNotLast(InvalidRequest):
    def __init__(self) -> None:
        super().__init__("The 'compaction_trigger' item must be the final input item.")


class TooManyTriggers(InvalidRequest):
    def __init__(self) -> None:
        super().__init__("Only one 'compaction_trigger' item may be provided.")


class TriggerOnCompact(InvalidRequest):
    def __init__(self) -> None:
        super().__init__("The 'compaction_trigger' item is only valid on POST /v1/responses.")


class CompactionNotSupportedHere(InvalidRequest):
    """`context_management` where LiteLLM's router is used as a library, or a trigger where there is no router either:
    refused rather than dropped by LiteLLM."""

    def __init__(self) -> None:
        super().__init__(
            "This way in cannot compact so: send 'context_management' with an HTTP POST to /v1/responses of the proxy, "
            "and a 'compaction_trigger' item there or with `aresponses` of LiteLLM's Router."
        )


class SyncCallNotSupported(InvalidRequest):
    """LiteLLM shows the plugin no synchronous call."""

    def __init__(self) -> None:
        super().__init__(
            "A synchronous call of LiteLLM's router cannot compact, nor read compaction items: use `aresponses` or "
            "`acompact_responses`."
        )


class NothingToCompact(InvalidRequest):
    code = "missing_required_parameter"

    def __init__(self) -> None:
        super().__init__("There is nothing to compact: 'input' holds no conversation items.")


class InvalidInput(InvalidRequest):
    code = "invalid_type"


# Why an item cannot be opened. For the operator alone: a client is told the same whatever it is.
Unreadable = Literal[
    "foreign",  # another server's
    "malformed",  # cut, or no item at all
    "too_large",  # as it is, or once inflated
    "unsealed_not_allowed",  # readable JSON, where only sealed items are taken
    "unknown_key",  # sealed with a key that is not, or no more, in the ring
    "tampered",  # a key of the ring, and contents that are not what it sealed
    "unknown_version",  # written by another version of this plugin
    "bound_elsewhere",  # another team's, user's or key's
]


class UnreadableItem(InvalidRequest):
    """A compaction item that is foreign, cut, tampered with or bound to someone else: one wording for all four.

    `reason` is for metrics and the log and never leaves the process with the answer.
    """

    code = "invalid_encrypted_content"
    param = None

    def __init__(self, item_id: object, content: object, reason: Unreadable = "malformed") -> None:
        self.reason: Final = reason
        # Subject as OpenAI words it: the id, else the ends of the content.
        text: Final = content if isinstance(content, str) else ""
        named: Final = isinstance(item_id, str) and item_id
        subject: Final = f"for item {_told(named, _MOST_NAMED)}" if named else f"{text[:4]}...{text[-4:]}"
        super().__init__(
            f"The encrypted content {subject} could not be verified. "
            "Reason: Encrypted content could not be decrypted or parsed."
        )


class UnsupportedImage(InvalidRequest):
    code = "unsupported_image"

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"input[{index}]: {reason} Send the image as a base64 data URL (JPEG, PNG, WebP or GIF).")


class InvalidToolPairing(InvalidRequest):
    code = "invalid_tool_pairing"

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"input[{index}]: {reason}")


class ContextLengthExceeded(InvalidRequest):
    """An input that leaves no room for an answer, or that a backend refused as too long."""

    code = "context_length_exceeded"

    def __init__(self, reason: str) -> None:
        # The first sentence is OpenAI's: clients look for it where they do not look at the code.
        super().__init__(f"Your input exceeds the context window of this model. {reason}")


class InvalidContextManagement(InvalidRequest):
    """`context_management` that OpenAI would refuse, with its words, `code` and `param`."""

    def __init__(self, message: str, code: str | None, param: str) -> None:
        super().__init__(message)
        self.code = code
        self.param = _told(param, _MOST_NAMED)


class PreviousResponseNotFound(InvalidRequest):
    code = "previous_response_not_found"
    param = "previous_response_id"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.")


class OutputLimitTooSmall(InvalidRequest):
    param = "max_output_tokens"

    def __init__(self) -> None:
        super().__init__("'compaction_trigger' requires 'max_output_tokens' to be at least 20000 when specified.")


class CompactionFailed(CompactionError):
    """No valid summary after all attempts."""

    code = "compaction_failed"

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(f"Compaction failed: {reason} {UNCHANGED}")
        self.status = status


class CompactionTimeout(CompactionError):
    status = 504
    code = "compaction_timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Compaction did not finish within {seconds:g} seconds. {UNCHANGED}")


class SettingsError(CompactionError):
    """An operator's setting that cannot be used; the message names the key, the value and what is allowed."""
