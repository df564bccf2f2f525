"""Overflow or not: every wording of the table, how it may be wrapped, and the errors that look like it."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_compaction.budget.overflow import CODES, WORDINGS, Refusal, read_overflow

_ANTHROPIC = "prompt is too long: 213462 tokens > 200000 maximum"

# Family, message, limit, requested: at least one for each row of the table.
CASES: tuple[tuple[str, str, int | None, int | None], ...] = (
    (
        "openai-messages",
        (
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens. "
            "Please reduce the length of the messages."
        ),
        8192,
        8545,
    ),
    (
        "openai-requested",
        (
            "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the "
            "messages, 8192 in the completion). Please reduce the length of the messages or completion."
        ),
        131072,
        131134,
    ),
    (
        "openai-configured",
        (
            "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300020 tokens. "
            "Please reduce the length of the messages."
        ),
        272000,
        300020,
    ),
    (
        "openai-responses",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        None,
        None,
    ),
    ("anthropic", _ANTHROPIC, 200000, 213462),
    (
        "anthropic-with-output",
        (
            "input length and `max_tokens` exceed context limit: 174167 + 64000 > 200000, decrease input length or "
            "`max_tokens` and try again"
        ),
        200000,
        174167,
    ),
    ("bedrock", "ValidationException: Input is too long for requested model.", None, None),
    (
        "bedrock-titan",
        (
            "ValidationException: 400 Bad Request: Too many input tokens. Max input tokens: 8192, "
            "request input token count: 9279"
        ),
        8192,
        9279,
    ),
    (
        "bedrock-nova",
        (
            "The model returned the following errors: Input Tokens Exceeded: Number of input tokens exceeds maximum "
            "length. Please update the input to try again."
        ),
        None,
        None,
    ),
    ("bedrock-mantle", "prompt tokens (210000) exceed model maximum (200000)", 200000, 210000),
    (
        "gemini",
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        1048575,
        1196265,
    ),
    (
        "vertex",
        (
            "Unable to submit request because the input token count is 32825 but model only supports up to 32768. "
            "Reduce the input token count and try again."
        ),
        32768,
        32825,
    ),
    (
        "vllm-total",
        (
            "This model's maximum context length is 100000 tokens. However, you requested 32000 output tokens and your "
            "prompt contains at least 68001 input tokens, for a total of at least 100001 tokens."
        ),
        100000,
        100001,
    ),
    (
        "vllm-input",
        (
            "This model's maximum context length is 40960 tokens. However, your request has 91714 input tokens. "
            "Please reduce the length of the input messages."
        ),
        40960,
        91714,
    ),
    (
        "vllm-passed",
        (
            "You passed 68001 input tokens and requested 32000 output tokens. However, the model's context length is "
            "only 100000 tokens, resulting in a maximum input length of 68000 tokens."
        ),
        100000,
        68001,
    ),
    (
        "vllm-max-tokens",
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is "
            "100000 tokens and your request has 95000 input tokens (32000 > 100000 - 95000)."
        ),
        100000,
        95000,
    ),
    (
        "vllm-engine",
        (
            "The decoder prompt (length 163840) is longer than the maximum model length of 131072. Make sure that "
            "`max_model_len` is no smaller than the number of text tokens plus multimodal tokens."
        ),
        131072,
        163840,
    ),
    (
        "sglang",
        (
            "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total "
            "of 140000 tokens: 132000 tokens from the input messages and 8000 tokens for the completion."
        ),
        131072,
        140000,
    ),
    (
        "sglang-input",
        "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
        40960,
        61709,
    ),
    (
        "sglang-scheduler",
        "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens). Use a shorter input.",
        59862,
        160062,
    ),
    (
        "tgi",
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4500 `inputs` tokens "
            "and 512 `max_new_tokens`"
        ),
        4096,
        4500,
    ),
    ("tgi-input", "Input validation error: `inputs` must have less than 1024 tokens. Given: 1100", 1024, 1100),
    (
        "llama.cpp",
        "request (8391 tokens) exceeds the available context size (2048 tokens), try increasing it",
        2048,
        8391,
    ),
    (
        "llama.cpp-unsplit",
        "input (100500 tokens) is larger than the max context size (100000 tokens). skipping",
        100000,
        100500,
    ),
    (
        "llama.cpp-fields",
        (
            '{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it",'
            '"n_prompt_tokens":8391,"n_ctx":2048}}'
        ),
        2048,
        8391,
    ),
    ("llama.cpp-old", "the request exceeds the available context size, try increasing it", None, None),
    ("llama-cpp-python", "Requested tokens (2662) exceed context window of 512", 512, 2662),
    (
        "lmstudio",
        (
            "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 13055>= "
            "n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter input."
        ),
        4096,
        13055,
    ),
    (
        "lmstudio-old",
        (
            "Trying to keep the first 50785 tokens when context the overflows. However, the model is loaded with "
            "context length of only 45217 tokens, which is not enough."
        ),
        45217,
        50785,
    ),
    ("lmstudio-truncate", "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)", 7424, 15028),
    ("lmstudio-full", "Context size has been exceeded.", None, None),
    ("ollama", "The prompt is too long: 262960, model maximum context length: 262144", 262144, 262960),
    ("ollama-by", "prompt too long; exceeded max context length by 100918 tokens", None, None),
    ("ollama-input", "input length exceeds maximum context length", None, None),
    (
        "ollama-available",
        "the prompt is longer than the context length currently available to the model; shorten the prompt",
        None,
        None,
    ),
    (
        "mistral",
        "Prompt contains 40687 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        32768,
        40687,
    ),
    (
        "cerebras",
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
        8192,
        9000,
    ),
    (
        "xai",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        131072,
        537812,
    ),
    (
        "cohere",
        (
            "too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - received 6354. "
            "Try using a shorter prompt or a smaller max_tokens value."
        ),
        2048,
        6354,
    ),
    (
        "cohere-by",
        (
            "too many tokens: size limit exceeded by 713295 tokens. Try using shorter or fewer inputs. The limit for "
            "this model is 288000 tokens."
        ),
        288000,
        None,
    ),
    ("alibaba", "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]", 98304, None),
    ("copilot", "prompt token count of 135355 exceeds the limit of 128000", 128000, 135355),
    (
        "moonshot",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
        262144,
        291351,
    ),
    ("moonshot-bare", "Input token length too long", None, None),
    (
        "zai",
        "Request 182387 input tokens exceeds the model's maximum context length 202750",
        202750,
        182387,
    ),
    ("zai-bare", '{"error":{"code":"1261","message":"Prompt exceeds max length"}}', None, None),
    ("minimax", "invalid params, context window exceeds limit (2013)", None, None),
    (
        "deepinfra",
        "Requested input length 39818 exceeds maximum input length 32767",
        32767,
        39818,
    ),
    (
        "watsonx",
        (
            "Invalid input argument for Model 'm': the number of input tokens 4098 cannot exceed the total tokens "
            "limit 4096 for this model"
        ),
        4096,
        4098,
    ),
    ("ds4", "Prompt has 5,958,968 tokens, but the configured context size is 256,000 tokens", 256000, 5958968),
    ("ai21", "Prompt has too many tokens", None, None),
    ("aleph-alpha", "This is longer than the model's maximum context length", None, None),
    (
        "litellm-router",
        "Context Window exceeded for given call. No models have context window large enough for this call.",
        None,
        None,
    ),
    ("input-and-maximum", "Input length (265330) exceeds model's maximum context length (262144).", 262144, 265330),
    ("input-and-limit", "Input too long: 9000 input tokens, limit is 8192", 8192, 9000),
    ("input-maximum", "The maximum input length is 8192 tokens", 8192, None),
    ("beyond-maximum", "This request exceeds the model's maximum context length of 8,192 tokens", 8192, None),
    ("maximum", "This endpoint's maximum context length is 524288 tokens.", 524288, None),
    ("prompt-too-long", "Prompt is too long", None, None),
    ("groq", "Please reduce the length of the messages or completion.", None, None),
)

# Other servers and releases that use a row of another family.
SHARED: tuple[tuple[str, str, str, int | None, int | None], ...] = (
    (
        "azure",
        "openai-messages",
        (
            "litellm.BadRequestError: AzureException BadRequestError - This model's maximum context length is 128000 "
            "tokens. However, your messages resulted in 130000 tokens (129000 in the messages, 1000 in the functions)."
        ),
        128000,
        130000,
    ),
    (
        "openai-legacy",
        "openai-requested",
        (
            "This model's maximum context length is 4097 tokens, however you requested 4231 tokens (3975 in your "
            "prompt; 256 for the completion). Please reduce your prompt; or completion length."
        ),
        4097,
        4231,
    ),
    (
        "openrouter",
        "openai-requested",
        (
            "This endpoint's maximum context length is 200000 tokens. However, you requested about 312345 tokens "
            "(311345 of text input, 1000 in the output). Please reduce the length of either one."
        ),
        200000,
        312345,
    ),
    (
        "vllm-legacy",
        "openai-requested",
        (
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens in the messages, "
            "Please reduce the length of the messages."
        ),
        8192,
        9000,
    ),
    (
        "vllm-characters",
        "vllm-passed",
        (
            "You passed 74655 input characters and requested 32000 output tokens. However, the model's context length "
            "is only 32000 tokens, resulting in a maximum input length of 0 tokens (at most 0 characters)."
        ),
        32000,
        None,
    ),
    (
        "vllm-total-characters",
        "maximum",
        (
            "This model's maximum context length is 100000 tokens. However, you requested 32000 output tokens and your "
            "prompt contains 99999999 characters (more than 12345678 characters)."
        ),
        100000,
        None,
    ),
    ("fireworks", "ollama", "The prompt is too long: 221782, model maximum context length: 202752", 202752, 221782),
    (
        "together",
        "sglang-input",
        "The input (300 tokens) is longer than the model's context length (200 tokens).",
        200,
        300,
    ),
    (
        "openrouter-poolside",
        "sglang-scheduler",
        "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
        131040,
        131393,
    ),
    (
        "lmstudio-bare",
        "lmstudio",
        "tokens to keep from the initial prompt is greater than the context length",
        None,
        None,
    ),
    ("bedrock-llama", "maximum", "This model's maximum context length is 8192 tokens. Please reduce it.", 8192, None),
    ("zhipu", "zai-bare", "Prompt 超长", None, None),
    ("moonshot-documented", "moonshot", "Your request exceeded model token limit : 8192", 8192, None),
    (
        "cohere-context",
        "cohere-by",
        "too many tokens: minimal context could not be added to prompt (size limit exceeded by 280 tokens)",
        None,
        None,
    ),
    (
        "gemini-without-count",
        "gemini",
        "The input token count exceeds the maximum number of tokens allowed",
        None,
        None,
    ),
)

OTHER_ERRORS: tuple[tuple[str, int | None, str | None, str], ...] = (
    ("429", 429, None, "Too Many Requests"),
    ("429-overflow-words", 429, None, _ANTHROPIC),
    ("429-code", 429, "rate_limit_exceeded", ""),
    (
        "groq-tpm",
        413,
        "rate_limit_exceeded",
        (
            "Request too large for model `llama-3.3-70b-versatile` in organization `org_x` service tier `on_demand` on "
            "tokens per minute (TPM): Limit 6000, Requested 9000, please reduce your message size and try again."
        ),
    ),
    ("rate-code-alone", 413, "rate_limit_exceeded", "Please reduce the length of the messages or completion."),
    ("rate-words-with-code", 400, "context_length_exceeded", "Rate limit reached: tokens per min (TPM)"),
    ("litellm-rate-limit", None, None, f"litellm.RateLimitError: AnthropicException - {_ANTHROPIC}"),
    ("bedrock-throttling", 400, None, "ThrottlingException: Too many tokens, please wait before trying again."),
    ("quota", 400, "insufficient_quota", "You exceeded your current quota, please check your plan"),
    ("nginx", 413, None, "<html><head><title>413 Request Entity Too Large</title></head><body>nginx</body></html>"),
    ("payload", 413, None, "Payload Too Large"),
    ("anthropic-bytes", 413, "request_too_large", "Request exceeds the maximum size"),
    ("body-limit", 413, None, "Maximum request body size 10485760 exceeded, actual body size 20000000"),
    ("gemini-bytes", 400, None, "Request payload size exceeds the limit: 20971520 bytes."),
    (
        "litellm-maps-bytes",
        400,
        None,
        "litellm.ContextWindowExceededError: VertexAIException - 400 Request payload size exceeds the limit: 4 bytes",
    ),
    ("image-size", 400, None, "messages.0.content.1.image: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"),
    ("images", 400, None, "messages: too many images: 101 > 100"),
    ("image-dimensions", 400, None, "At least one of the image dimensions exceed max allowed size: 8000 pixels"),
    ("output", 400, None, "max_tokens is too large: 32000. This model supports at most 16384 completion tokens"),
    ("bedrock-output", 400, None, "The maximum tokens you requested exceeds the model limit of 4096. Try again."),
    ("vllm-output", 400, None, "max_tokens=200000 cannot be greater than max_model_len=100000."),
    ("cohere-output", 400, None, "too many tokens: max tokens must be less than or equal to 4096 - received 8192."),
    ("copilot-output", 400, None, "completion token count exceeds the limit"),
    (
        "string",
        400,
        "string_above_max_length",
        "Invalid 'user': string too long. Expected a string with maximum length 64, but got a string with length 90.",
    ),
    (
        "litellm-maps-string",
        400,
        "string_above_max_length",
        "litellm.ContextWindowExceededError: Invalid 'input': string too long. Expected at most 10485760.",
    ),
    ("tool-name", 400, "string_above_max_length", "Invalid 'tools[0].function.name': string too long."),
    ("tools", 400, "array_above_max_length", "Invalid 'tools': array too long. Expected at most 128, got 130."),
    ("auth", 401, None, "Incorrect API key provided. Your input exceeds the context window of this model."),
    ("credits", 402, None, "This request requires more credits, or fewer max_tokens."),
    ("forbidden", 403, None, f"Blocked: {_ANTHROPIC}"),
    ("text", 400, None, "The context of this question is a window, and its length is maximum."),
    ("parameter", 400, None, "Unknown parameter: 'context_length_exceeded_behavior'."),
    ("empty-400", 400, None, ""),
    ("empty-none", None, None, ""),
    ("500", 500, None, "Internal Server Error"),
    ("413-with-a-reason", 413, None, "The uploaded file was rejected"),
)


def _family(message: str) -> str | None:
    """The row a message is read by, tried in the order of the table."""
    return next((family for family, wording in WORDINGS if wording.search(message)), None)


@pytest.mark.parametrize(("family", "message", "limit", "requested"), CASES, ids=[case[0] for case in CASES])
def test_wording(family: str, message: str, limit: int | None, requested: int | None) -> None:
    """A sentence of each row is overflow, is read by its own row, and gives the numbers it names."""
    assert _family(message) == family
    assert read_overflow(400, None, message) == Refusal(limit=limit, requested=requested)


def test_every_row_has_a_message() -> None:
    """No row of the table is unreachable, and each has a name of its own."""
    families = [family for family, _ in WORDINGS]
    assert sorted(families) == sorted(family for family, *_ in CASES)
    assert len(set(families)) == len(families)


@pytest.mark.parametrize(
    ("family", "message", "limit", "requested"), [case[1:] for case in SHARED], ids=[c[0] for c in SHARED]
)
def test_shared_wording(family: str, message: str, limit: int | None, requested: int | None) -> None:
    """Servers and releases that word it like another are read by that one's row."""
    assert _family(message) == family
    assert read_overflow(400, None, message) == Refusal(limit=limit, requested=requested)


@pytest.mark.parametrize(
    ("status", "code", "message"), [case[1:] for case in OTHER_ERRORS], ids=[c[0] for c in OTHER_ERRORS]
)
def test_other_errors(status: int | None, code: str | None, message: str) -> None:
    """Limits of rate, payload, images, output and strings, and all other errors, are no overflow."""
    assert read_overflow(status, code, message) is None


@pytest.mark.parametrize("status", [400, 413, 422, 500, 503, 200, None])
def test_status_of_a_known_wording(status: int | None) -> None:
    """A known sentence counts under each status providers send it with, in a stream as well."""
    assert read_overflow(status, None, _ANTHROPIC) == Refusal(limit=200000, requested=213462)


@pytest.mark.parametrize("status", [400, 401, 413, 429, 500, 200, None])
@pytest.mark.parametrize("code", sorted(CODES))
def test_code(code: str, status: int | None) -> None:
    """A known code is overflow whatever the status and wording."""
    assert read_overflow(status, code, "Il testo è troppo lungo.") == Refusal()
    assert read_overflow(status, code.upper(), _ANTHROPIC) == Refusal(limit=200000, requested=213462)


def test_code_in_the_text() -> None:
    """A known code inside a body given as text is overflow too."""
    assert read_overflow(400, None, '{"error":{"code":"context_length_exceeded","message":"No."}}') == Refusal()


@pytest.mark.parametrize(
    "message",
    [
        f"litellm.BadRequestError: AnthropicException - {_ANTHROPIC}",
        f"litellm.ContextWindowExceededError: litellm.BadRequestError: AnthropicError - {_ANTHROPIC} LiteLLM Retried",
        f"""litellm.BadRequestError: AnthropicException - b'{{"error":{{"message":"{_ANTHROPIC}"}}}}'""",
        json.dumps({"error": {"message": json.dumps({"error": {"message": _ANTHROPIC}})}}),
        json.dumps({"message": _ANTHROPIC}).replace(">", "\\u003e"),
        _ANTHROPIC.replace(": ", ":\n  ").upper(),
        "x" * 100_000 + _ANTHROPIC,
        _ANTHROPIC + "x" * 100_000,
    ],
    ids=["litellm", "litellm-class", "bytes", "nested-json", "go-json", "lines-and-case", "at-the-end", "at-the-start"],
)
def test_wrapped(message: str) -> None:
    """Prefixes, bodies given as text, escapes, line breaks and long echoes do not hide the sentence."""
    assert read_overflow(400, None, message) == Refusal(limit=200000, requested=213462)


def test_escaped_quotes() -> None:
    """Backquotes and apostrophes escaped in a body are read as the provider wrote them."""
    tgi = "\\`inputs\\` tokens + \\`max_new_tokens\\` must be <= 4096. Given: 4500 \\`inputs\\` tokens"
    assert read_overflow(422, None, tgi) == Refusal(limit=4096, requested=4500)
    xai = "This model\\'s maximum prompt length is 10 but the request contains 20 tokens"
    assert read_overflow(400, None, xai) == Refusal(limit=10, requested=20)
    assert read_overflow(400, None, "longer than the model’s context length") == Refusal()  # noqa: RUF001


def test_class_name() -> None:
    """LiteLLM's own class is believed where its wording is unknown."""
    assert read_overflow(400, None, "litellm.ContextWindowExceededError: FooException - zu lang") == Refusal()


@pytest.mark.parametrize(
    "message",
    [
        "",
        "  ",
        "Error code: 413",
        "413 status code (no body)",
        "None",
        "litellm.APIError: CerebrasException - ",
        "b''",
        "{}",
    ],
)
def test_413_without_a_reason(message: str) -> None:
    """A 413 that says nothing more is overflow without numbers."""
    assert read_overflow(413, None, message) == Refusal()


def test_numbers_that_are_none() -> None:
    """Zero and figures longer than any window are no numbers of tokens, the refusal stays one."""
    assert read_overflow(400, None, "prompt is too long: 5 tokens > 0 maximum") == Refusal(limit=None, requested=5)
    assert read_overflow(400, None, f"prompt is too long: {'9' * 5000} tokens > 1 maximum") == Refusal()


# Templates of the main families: {0} the limit, {1} the size.
_TEMPLATES = (
    "This model's maximum context length is {0} tokens. However, your messages resulted in {1} tokens.",
    "Input tokens exceed the configured limit of {0} tokens. Your messages resulted in {1} tokens.",
    "prompt is too long: {1} tokens > {0} maximum",
    "Too many input tokens. Max input tokens: {0}, request input token count: {1} ",
    "The input token count ({1}) exceeds the maximum number of tokens allowed ({0}).",
    "the input token count is {1} but model only supports up to {0}",
    "This model's maximum context length is {0} tokens. However, you requested {1} tokens (1 in the messages, 2 in the",
    "This model's maximum context length is {0} tokens. However, your request has {1} input tokens.",
    "The decoder prompt (length {1}) is longer than the maximum model length of {0}.",
    "`inputs` tokens + `max_new_tokens` must be <= {0}. Given: {1} `inputs` tokens and 512 `max_new_tokens`",
    "request ({1} tokens) exceeds the available context size ({0} tokens), try increasing it",
    "The prompt is too long: {1}, model maximum context length: {0}",
    "Prompt contains {1} tokens and 0 draft tokens, too large for model with {0} maximum context length",
    "Current length is {1} while limit is {0}",
    "This model's maximum prompt length is {0} but the request contains {1} tokens.",
    "prompt token count of {1} exceeds the limit of {0}",
    "Your request exceeded model token limit: {0} (requested: {1})",
)
_SIZES = st.integers(min_value=1, max_value=10**9)


@given(st.sampled_from(_TEMPLATES), _SIZES, _SIZES, st.sampled_from(["{:d}", "{:,}"]))
def test_numbers_come_back(template: str, limit: int, requested: int, form: str) -> None:
    """Any two numbers a main family names are read, with thousands separators and without."""
    message = template.format(form.format(limit), form.format(requested))
    assert read_overflow(400, None, message) == Refusal(limit=limit, requested=requested)


_PIECES = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=20),
    st.sampled_from([case[1] for case in CASES] + [case[3] for case in OTHER_ERRORS]),
    st.integers().map(str),
)


@given(
    st.one_of(st.none(), st.integers()),
    st.one_of(st.none(), st.text(st.characters(exclude_categories=()), max_size=20), st.sampled_from(sorted(CODES))),
    st.lists(_PIECES, max_size=8).map("".join),
)
def test_any_error_can_be_read(status: int | None, code: str | None, message: str) -> None:
    """Nothing raises, whatever the parts of the error, and the numbers are above zero."""
    refusal = read_overflow(status, code, message)
    for number in (refusal.limit, refusal.requested) if refusal else ():
        assert number is None or number > 0


@pytest.mark.parametrize(
    "unit",
    [
        "\\",
        "\\u00",
        "1",
        "1,",
        "1,000,",
        " ",
        "(",
        "prompt contains 1 tokens ",
        "too many tokens: ",
        "too many tokens: size limit exceeded by 1 tokens ",
        "context length is 1 tokens. however, ",
        "context length is ",
        "error",
        "request ",
    ],
)
def test_time_is_bounded(unit: str) -> None:
    """A long text made to go wrong costs no more than a short one."""
    message = unit * (200_000 // len(unit))
    start = time.perf_counter()
    read_overflow(413, message, message)
    assert time.perf_counter() - start < 1
