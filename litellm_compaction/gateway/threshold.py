"""Compaction without a trigger: an ordinary request over its threshold goes on from an item made on the way.

| the request                                             | what happens                                              |
|---------------------------------------------------------|-----------------------------------------------------------|
| at its threshold or below, or no threshold is known     | passes as it is                                           |
| what cannot be summarised is most of it, or alone over  | said once; passes as it is                                |
| was no smaller after a compaction, has not grown since  | passes as it is                                           |
| begins with a prefix that a summary stands for, fits    | that summary and the rest as it is: nothing is paid       |
| the same, does not fit, and was compacted in vain       | the same                                                  |
| the same, and does not fit                              | the summary and the rest are compacted                    |
| else                                                    | compacted                                                 |
| and the result is not clearly smaller                   | said once; passes as it is                                |
| and the compaction fails                                | passes as it is, if it fits the window; else the error    |

Runs before LiteLLM picks a deployment: all pre-call hooks have passed the request, and no deployment's slot is held
that the summary's own call may need.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from litellm._logging import verbose_proxy_logger

from litellm_compaction.budget.counting import estimate_tokens
from litellm_compaction.budget.limits import min_known
from litellm_compaction.compaction.answer import Usage
from litellm_compaction.compaction.extend import extend_payload
from litellm_compaction.compaction.plan import Limits, plan_compaction
from litellm_compaction.compaction.threads import run_heavy
from litellm_compaction.conversation.expansion import Expansion
from litellm_compaction.conversation.items import Kind, RawItem, classify_items, normalize_input
from litellm_compaction.conversation.measure import Measured
from litellm_compaction.envelope.sealing import open_item
from litellm_compaction.errors import CompactionError
from litellm_compaction.gateway.access import Writers
from litellm_compaction.gateway.budgets import Budgets, GroupBudget
from litellm_compaction.gateway.counting import RequestCounter
from litellm_compaction.gateway.flights import Flights, Result
from litellm_compaction.gateway.operator import Operator
from litellm_compaction.gateway.pending import Pending, new_frame
from litellm_compaction.gateway.prefixes import Prefixes, digest_prefixes
from litellm_compaction.gateway.router import current_router
from litellm_compaction.gateway.runner import seal
from litellm_compaction.gateway.service import expand_input, take_off
from litellm_compaction.gateway.sight import tell_reuse, tell_skipped
from litellm_compaction.gateway.told import Told
from litellm_compaction.gateway.turn import Turn
from litellm_compaction.settings import Settings

# A result above this share of what was there is no gain that is worth an item.
_CLEARLY_SMALLER: Final = 0.9


@dataclass(frozen=True, slots=True)
class _Case:
    """One request over its threshold: its input and the places of restored summaries in it, the tokens counted, what
    the result has to stay under, the room the window has for it beside instructions and tools (None: unknown), and
    whether the request fits the window as it is."""

    turn: Turn
    held: GroupBudget
    pending: Pending
    body: Mapping[str, Any]
    items: list[RawItem]
    summaries: frozenset[int]
    tokens: int
    limit: int
    room: int | None
    fits: bool


@dataclass(frozen=True, slots=True)
class _Compacted:
    """What goes on in place of the input, and the item that stands for it."""

    items: list[RawItem]
    result: Result


class Thresholds:
    """Compacts requests that are over their threshold."""

    def __init__(
        self,
        operator: Operator,
        budgets: Budgets,
        flights: Flights,
        prefixes: Prefixes,
        counter: RequestCounter,
        writers: Writers,
    ) -> None:
        self._operator: Final = operator
        self._budgets: Final = budgets
        self._flights: Final = flights
        self._prefixes: Final = prefixes
        self._counter: Final = counter
        self._writers: Final = writers
        self._told: Final = Told()

    async def apply(self, turn: Turn, group: str, body: dict[str, Any], metadata: Mapping[str, Any]) -> None:
        """Put the compacted input into `body` and the result into the turn, if the request is over its threshold.

        Never raises: why a compaction that was wanted is missing stands in the turn.
        """
        # A retry, or a fallback to another group: what held for the one before does not.
        turn.result, turn.failure, turn.origin, turn.replaced = None, None, None, None
        try:
            case: Final = await self._case(turn, group, body, metadata)
            compacted: Final = None if case is None else await self._compact(case, metadata)
        except Exception as error:  # noqa: BLE001  # whatever went wrong: a request that fits is served all the same
            turn.failure = error
            self._tell(group, "failed", f"failed={getattr(error, 'code', None) or type(error).__name__}")
            return
        if case is None or compacted is None:
            return
        turn.replaced = body.get("input"), compacted.items
        body["input"] = compacted.items
        turn.was_measured(await self._counter.measure(body), body)
        turn.result, turn.origin = compacted.result, _origin(turn)
        turn.writer = case.pending.shown_writer

    async def _case(self, turn: Turn, group: str, body: Mapping[str, Any], metadata: Mapping[str, Any]) -> _Case | None:
        """The request with what is needed to compact it; None if it is not over, or cannot be compacted."""
        router: Final = current_router()
        # With a stored chain the input is only the end of the conversation.
        if router is None or turn.native or body.get("previous_response_id"):
            return None
        held: Final = self._budgets.of(router, group, turn.caller.team)
        limit: Final = _limit(turn, held)
        if limit is None:
            return None
        measured: Final = await self._counter.measure(body)
        turn.was_measured(measured, body)
        enough: Final = limit if held.budget is None else min(limit, held.budget.input)
        count: Final = await self._counter.count(measured, group, held.count_error, enough)
        asked: Final = body.get("max_output_tokens")
        fits: Final = held.budget is None or held.budget.fits(count.high, asked if type(asked) is int else None)
        if count.tokens <= limit and (fits or not held.settings.enforce_budget):
            return None
        items: Final = normalize_input(body.get("input"))
        # In a thread: of a hundred thousand items each is looked at.
        fixed: Final = await self._own_count(await run_heavy(_fixed, measured, items), held)
        room: Final = None if held.budget is None else held.budget.input - fixed
        if fixed >= limit:
            tell_skipped(group, turn.caller.team, "fixed")
            self._tell(group, "fixed", f"instructions, tools and system messages alone take {fixed} of {limit} tokens")
            return None
        # Over the window, and not over a threshold beyond it: the result has to fit the window.
        target: Final = limit if held.budget is None else min(limit, held.budget.input)
        writer: Final = await self._writers.choose(router, group, held.settings, metadata.get("user_api_key_auth"))
        pending: Final = self._pending(turn, group, held, items, target, writer)
        return _Case(turn, held, pending, body, items, pending.expansion.summaries, count.tokens, target, room, fits)

    def _pending(
        self,
        turn: Turn,
        group: str,
        held: GroupBudget,
        items: list[RawItem],
        limit: int,
        writer: tuple[str, Settings],
    ) -> Pending:
        pending: Final = Pending(
            origin=_origin(turn),
            stream=False,
            model=group,
            settings=held.settings,
            writer_model=writer[0],
            writer_settings=writer[1],
            ring=self._operator.ring,
            caller=turn.caller,
            expansion=turn.expansion or Expansion(items, ()),
            frame=new_frame(turn.shown_model if group == turn.group else group),
            extra=turn.extra,
            target=limit,
            call_id=turn.call_id,
        )
        pending.take_final_input(items)
        return pending

    async def _compact(self, case: _Case, metadata: Mapping[str, Any]) -> _Compacted | None:
        digests: Final = await run_heavy(digest_prefixes, case.pending, case.items)
        mark: Final = await self._prefixes.find_mark(digests, case.tokens)
        known: Final = await self._prefixes.find(digests)
        if known is None:
            if mark is None:
                return await self._run(case, digests, metadata)
            case.turn.failure = mark.failure
            if mark.failure is None:
                tell_skipped(case.pending.model, case.turn.caller.team, "stuck")
            else:
                tell_reuse(case.pending, metadata, "remembered", mark.failure)
            return None
        covered, earlier = known
        rest: Final = case.items[covered:]
        expansion: Final = await self._restore(case, covered, earlier.content)
        if not rest:  # the very same request: the same answer
            tell_reuse(case.pending, metadata, "remembered", earlier)
            return _Compacted(expansion.items, earlier)
        tokens: Final = await self._own_count(await self._measured(case, expansion.items), case.held)
        shorter: Final = await run_heavy(digest_prefixes, case.pending, expansion.items)
        if tokens > case.limit and mark is None and await self._prefixes.find_mark(shorter, tokens) is None:
            case.pending.expansion = expansion
            again: Final = await self._run(case, digests, metadata)
            if again is not None:
                return again
        extended: Final = await self._extend(case, earlier, rest, tokens)
        tell_reuse(case.pending, metadata, "extended", extended)
        return _Compacted(expansion.items, extended)

    async def _run(self, case: _Case, digests: Sequence[str], metadata: Mapping[str, Any]) -> _Compacted | None:
        """The compaction itself; None where there is nothing to gain."""
        pending: Final = case.pending
        if await run_heavy(_must_stay, pending.expansion, case.room, fits=case.fits):
            tell_skipped(pending.model, pending.caller.team, "forced")
            self._tell(pending.model, "forced", "too much of the conversation has to stay word for word")
            return None
        before: Final = await self._own_count(await self._measured(case, pending.expansion.items), case.held)
        try:
            result: Final = await self._fly(pending, metadata)
        except CompactionError as failure:
            # The next turn is another transcript: without a mark it would pay for the same failure at once.
            await self._prefixes.mark(digests[-1], case.tokens, failure)
            raise
        expansion: Final = await self._restore(case, len(case.items), result.content)
        after: Final = await self._own_count(await self._measured(case, expansion.items), case.held)
        if after > before * _CLEARLY_SMALLER:
            await self._prefixes.mark(digests[-1], case.tokens)
            tell_skipped(pending.model, pending.caller.team, "stuck")
            self._tell(pending.model, "stuck", f"a compaction made {after} of {before} tokens: it is not used")
            return None
        told: Final = result.model_copy(update={"tokens_before": case.tokens, "tokens_after": after})
        await self._prefixes.remember(digests[-1], told)
        if after > case.limit:
            shorter: Final = await run_heavy(digest_prefixes, pending, expansion.items)
            await self._prefixes.mark(shorter[-1], after)
            self._tell(pending.model, "long", f"{after} tokens are left after a compaction, over {case.limit}")
        return _Compacted(expansion.items, told)

    async def _fly(self, pending: Pending, metadata: Mapping[str, Any]) -> Result:
        key, flight = await take_off(pending, metadata, self._flights, self._budgets)
        try:
            # Its own task: whoever waits may go away, and others may wait for the same.
            return await asyncio.shield(flight.task)
        finally:
            self._flights.leave(key, flight)

    async def _extend(self, case: _Case, earlier: Result, rest: Sequence[RawItem], tokens: int) -> Result:
        """The summary of a prefix and what came after it, in an item of their own: everything before an item is
        superseded by it, so the earlier one would take the rest away."""
        pending: Final = case.pending
        raw: Final = {"type": "compaction", "encrypted_content": earlier.content}
        payload: Final = await run_heavy(open_item, raw, pending.ring, pending.caller, allow_unsealed=True)
        extended: Final = extend_payload(payload, rest, pending.origin, int(time.time()))
        return Result(
            item_id=f"cmp_{secrets.token_hex(25)}",
            content=await seal(extended, pending.settings, pending.ring, pending.caller),
            usage=Usage(),
            attempts=0,
            dropped=extended.dropped,
            tokens_before=case.tokens,
            tokens_after=tokens,
            message_tokens=0,
        )

    async def _restore(self, case: _Case, covered: int, content: str) -> Expansion:
        """The input as the client's next one will be read: the item stands for the first `covered` items."""
        item: Final[RawItem] = {"type": "compaction", "encrypted_content": content}
        pending: Final = case.pending
        # What earlier items were restored to is folded into the new one. In the role of a developer it would be taken
        # for a message of the client's, and stay.
        prefix: Final = [raw for place, raw in enumerate(case.items[:covered]) if place not in case.summaries]
        return await run_heavy(
            expand_input,
            [*prefix, item, *case.items[covered:]],
            pending.settings,
            pending.ring,
            pending.caller,
            case.held.mode,
            allow_unsealed=True,
        )

    async def _measured(self, case: _Case, items: Sequence[RawItem]) -> Measured:
        return await self._counter.measure({**case.body, "input": items})

    async def _own_count(self, measured: Measured, held: GroupBudget) -> int:
        """Counted by the plugin alone, so that two counts can be compared."""
        return (await self._counter.count(measured, "", held.count_error, None)).tokens

    def _tell(self, group: str, what: str, words: str) -> None:
        """A warning once an hour: a conversation that cannot be compacted comes again with every turn."""
        if self._told.is_new(group, what):
            verbose_proxy_logger.warning(
                "litellm_compaction: model=%s over its threshold, not compacted: %s", group, words
            )


def _origin(turn: Turn) -> Literal["threshold", "auto"]:
    return "auto" if turn.compact_at is None else "threshold"


def _limit(turn: Turn, held: GroupBudget) -> int | None:
    """Tokens over which the request is compacted, the lower of the client's and the operator's; None: no threshold."""
    own: Final = None if held.budget is None else held.budget.threshold
    if turn.compact_at is None:
        return own if held.settings.auto_compact else None
    if turn.compact_at.tokens is None:
        return own
    return min_known(turn.compact_at.tokens, own if held.settings.auto_compact else None)


def _must_stay(expansion: Expansion, room: int | None, *, fits: bool) -> bool:
    """Whether there is next to nothing to summarise: one long request without an answer is not history yet, nor is a
    result the model has not seen, unless the window cannot hold it. Or the user's words leave no room for the rest.

    Raises what the plan of a compaction raises.
    """
    plan: Final = plan_compaction(
        classify_items(expansion.items), expansion.summaries, estimate_tokens, lambda _: Limits(recent=0, kept=None)
    )
    words: Final = sum(plan.sizes[place] for place in plan.forced if plan.units[place].spoken)
    stays: Final = sum(plan.sizes[place] for place in plan.forced) if fits else words
    return stays > plan.tokens * _CLEARLY_SMALLER or (room is not None and words >= room)


def _fixed(measured: Measured, items: Sequence[RawItem]) -> Measured:
    """The part of a request that no compaction makes shorter."""
    # Tools that travel among the items are in the fixed part already.
    counted: Final = [item for item in classify_items(items) if item.kind is not Kind.TOOLS]
    return replace(
        measured,
        items=[
            piece for piece, item in zip(measured.items, counted, strict=True) if item.is_system or not item.is_history
        ],
    )
