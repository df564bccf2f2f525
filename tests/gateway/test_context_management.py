"""`context_management` as OpenAI reads it; its refusals are tested to the letter in tests/wire/test_budget.py."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_compaction.errors import InvalidContextManagement
from litellm_compaction.gateway.context_management import CompactAt, read_context_management

READ: dict[str, tuple[Any, CompactAt | None]] = {
    "null": (None, None),
    "number": ([{"type": "compaction", "compact_threshold": 1_000}], CompactAt(1_000)),
    "large": ([{"type": "compaction", "compact_threshold": 10**12}], CompactAt(10**12)),
    "no-number": ([{"type": "compaction"}], CompactAt(None)),
    "null-number": ([{"type": "compaction", "compact_threshold": None}], CompactAt(None)),
    "lowest-of-two": (
        [{"type": "compaction", "compact_threshold": 5_000}, {"type": "compaction", "compact_threshold": 2_000}],
        CompactAt(2_000),
    ),
    "number-beside-none": (
        [{"type": "compaction"}, {"type": "compaction", "compact_threshold": 2_000}],
        CompactAt(2_000),
    ),
}


@pytest.mark.parametrize(("value", "wish"), READ.values(), ids=READ)
def test_read(value: Any, wish: CompactAt | None) -> None:
    """An integer of at least 1,000, or none; of several the lowest."""
    assert read_context_management(value) == wish


REFUSED: dict[str, tuple[Any, str]] = {
    "negative": ([{"type": "compaction", "compact_threshold": -1}], "integer below minimum value"),
    "half": ([{"type": "compaction", "compact_threshold": 1000.5}], "got a decimal number instead"),
    "object-threshold": ([{"type": "compaction", "compact_threshold": {}}], "got an object instead"),
    "integer-for-array": (5, "got an integer instead"),
    "null-entry": ([None], "'context_management[0]': expected an object, but got null instead"),
    "type-is-no-string": ([{"type": 3}], "'context_management[0].type': expected a string, but got an integer instead"),
    "second-entry": (
        [{"type": "compaction"}, {"type": "compaction", "compact_threshold": 3}],
        "'context_management[1].compact_threshold'",
    ),
}


@pytest.mark.parametrize(("value", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(value: Any, words: str) -> None:
    """Each with the place and what stands there."""
    with pytest.raises(InvalidContextManagement) as refused:
        read_context_management(value)
    assert words in refused.value.message
    assert refused.value.status == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_nothing_else_happens(value: Any) -> None:
    """Whatever JSON stands there is read or refused, and what is read asks for 1,000 tokens at least."""
    places: list[str | None] = []
    wish = None
    try:
        wish = read_context_management(value)
    except InvalidContextManagement as refused:
        places.append(refused.param)
    assert all(place is not None and place.startswith("context_management") for place in places)
    assert wish is None or wish.tokens is None or wish.tokens >= 1_000
