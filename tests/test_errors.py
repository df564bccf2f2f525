"""Every error's HTTP status and body are those of the contract's table."""

from __future__ import annotations

import pytest

from litellm_compaction import errors
from litellm_compaction.errors import CompactionError

Row = tuple[CompactionError, int, str, str | None, str | None, str]

TABLE: list[Row] = [
    (
        errors.TriggerNotLast(),
        400,
        "invalid_request_error",
        None,
        "input",
        "The 'compaction_trigger' item must be the final input item.",
    ),
    (
        errors.TooManyTriggers(),
        400,
        "invalid_request_error",
        None,
        "input",
        "Only one 'compaction_trigger' item may be provided.",
    ),
    (errors.TriggerOnCompact(), 400, "invalid_request_error", None, "input", "/v1/responses"),
    (errors.CompactionNotSupportedHere(), 400, "invalid_request_error", None, "input", "HTTP POST"),
    (errors.SyncCallNotSupported(), 400, "invalid_request_error", None, "input", "synchronous"),
    (errors.NothingToCompact(), 400, "invalid_request_error", "missing_required_parameter", "input", "nothing"),
    (errors.InvalidInput("no list"), 400, "invalid_request_error", "invalid_type", "input", "no list"),
    (
        errors.UnreadableItem("cmp_1", "abc"),
        400,
        "invalid_request_error",
        "invalid_encrypted_content",
        None,
        "for item cmp_1 could not be verified",
    ),
    (errors.UnsupportedImage(3, "Bad."), 400, "invalid_request_error", "unsupported_image", "input", "input[3]: Bad."),
    (
        errors.InvalidToolPairing(4, "Lone."),
        400,
        "invalid_request_error",
        "invalid_tool_pairing",
        "input",
        "input[4]: Lone.",
    ),
    (
        errors.ContextLengthExceeded("Numbers."),
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "input",
        "Your input exceeds the context window of this model. Numbers.",
    ),
    (
        errors.InvalidContextManagement("Words.", "empty_array", "context_management"),
        400,
        "invalid_request_error",
        "empty_array",
        "context_management",
        "Words.",
    ),
    (
        errors.PreviousResponseNotFound("resp_9"),
        400,
        "invalid_request_error",
        "previous_response_not_found",
        "previous_response_id",
        "'resp_9'",
    ),
    (errors.OutputLimitTooSmall(), 400, "invalid_request_error", None, "max_output_tokens", "20000"),
    (errors.CompactionFailed("why.", 400), 400, "api_error", "compaction_failed", None, "why. The conversation is"),
    (errors.CompactionFailed("why.", 500), 500, "api_error", "compaction_failed", None, "unchanged"),
    (errors.CompactionTimeout(0.5), 504, "api_error", "compaction_timeout", None, "within 0.5 seconds"),
]


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "param", "words"),
    TABLE,
    ids=[f"{type(row[0]).__name__}-{row[1]}" for row in TABLE],
)
def test_error_body(
    error: CompactionError, status: int, kind: str, code: str | None, param: str | None, words: str
) -> None:
    """Status, type, code, param and wording of one error, in a body of exactly four members."""
    assert error.status == status
    assert error.body() == {"message": error.message, "type": kind, "param": param, "code": code}
    assert words in error.message
    assert str(error) == error.message


def test_table_covers_every_error() -> None:
    """No class of the tree is missing from the table above, operator errors aside."""

    def leaves(kind: type[CompactionError]) -> set[type[CompactionError]]:
        below = kind.__subclasses__()
        return {leaf for sub in below for leaf in leaves(sub)} if below else {kind}

    own = {kind for kind in leaves(CompactionError) if kind.__module__ == errors.__name__}
    assert {type(row[0]) for row in TABLE} == own - {errors.SettingsError}


def test_settings_error_is_no_answer_to_a_client() -> None:
    """A wrong setting is an internal error if it ever reached a client, and keeps its words."""
    assert (errors.SettingsError("x").status, errors.SettingsError("x").message) == (500, "x")


@pytest.mark.parametrize(
    ("item_id", "content", "subject"),
    [
        (None, "abcdefgh", "abcd...efgh"),
        ("", "abcdefgh", "abcd...efgh"),
        (None, None, "content ... could"),
        (None, 7, "content ... could"),
        ("cmp_1", "abcdefgh", "for item cmp_1"),
    ],
    ids=["no-id", "blank-id", "no-content", "number", "id"],
)
def test_unreadable_item_is_named_by_id_or_by_the_ends_of_its_content(
    item_id: str | None, content: object, subject: str
) -> None:
    """The message names the item as OpenAI does, and never shows more than eight characters of the content."""
    message = errors.UnreadableItem(item_id, content).message
    assert subject in message
    assert "abcdefgh" not in message
    assert message.endswith("Reason: Encrypted content could not be decrypted or parsed.")
