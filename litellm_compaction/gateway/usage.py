"""What a compaction has spent, in the usage of the answer that the client gets.

LiteLLM never sees it there: it has booked the inferences where they happened, and would count their tokens again, in
its spend rows and against the token limits of the key.
"""

from __future__ import annotations

from litellm.types.llms.openai import InputTokensDetails, OutputTokensDetails, ResponseAPIUsage

from litellm_compaction.compaction.answer import Usage


def add_usage(usage: ResponseAPIUsage, spent: Usage) -> ResponseAPIUsage:
    """The answer's tokens and the compaction's."""
    given, written = usage.input_tokens_details, usage.output_tokens_details
    return usage.model_copy(
        update={
            "input_tokens": usage.input_tokens + spent.input_tokens,
            "input_tokens_details": InputTokensDetails(
                **{
                    **(given.model_dump() if given else {}),
                    "cached_tokens": ((given.cached_tokens if given else 0) or 0) + spent.cached_tokens,
                }
            ),
            "output_tokens": usage.output_tokens + spent.output_tokens,
            "output_tokens_details": OutputTokensDetails(
                **{
                    **(written.model_dump() if written else {}),
                    "reasoning_tokens": ((written.reasoning_tokens if written else 0) or 0) + spent.reasoning_tokens,
                }
            ),
            "total_tokens": usage.total_tokens + spent.total_tokens,
        }
    )
