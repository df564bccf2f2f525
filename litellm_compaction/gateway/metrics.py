"""What Prometheus is told, in the registry that LiteLLM's `/metrics` serves with its `prometheus` callback.

Labels have few values: `door` (trigger, compact, threshold, auto), `model` (a group as the operator named it) and
`outcome` (completed, ledger, cancelled, or the code of an error). Compactions that ran are counted apart from answers
made of them, so that nothing is counted twice. With several workers the values are summed in PROMETHEUS_MULTIPROC_DIR,
as LiteLLM's own. All metrics have labels: without a compaction there is nothing to store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Histogram

from litellm_compaction.errors import CompactionError, Unreadable
from litellm_compaction.gateway.record import Record, outcome_of

if TYPE_CHECKING:
    from litellm.router import Router

# Names that only a client gave: whatever the operator lets through without naming it.
UNNAMED: Final = "other"
_SECONDS: Final = (0.5, 1, 2.5, 5, 10, 20, 30, 45, 60, 90, 120, 180, 240, 300, 600)
_TOKENS: Final = tuple(1_000 * 2**power for power in range(11))  # 1,000 to 1,024,000

RUNS: Final = Counter(
    "litellm_compaction_runs_total",
    "Compactions that ran, each once however many requests wait for it",
    ("door", "model", "outcome"),
)
REUSED: Final = Counter(
    "litellm_compaction_reused_total",
    "Answers made of a compaction that ran for another request: joined, remembered or extended",
    ("door", "model", "source", "outcome"),
)
ATTEMPTS: Final = Counter("litellm_compaction_attempts_total", "Inferences of compactions", ("door", "model"))
SPENT: Final = Counter(
    "litellm_compaction_spent_tokens_total",
    "Tokens that the inferences of compactions took, input with what of it was cached",
    ("door", "model", "kind"),
)
ITEMS: Final = Counter("litellm_compaction_items_total", "Items of the transcripts compacted", ("door", "model"))
DROPPED: Final = Counter(
    "litellm_compaction_dropped_items_total",
    "Items that neither the summary nor the kept items cover",
    ("door", "model"),
)
SHORTENED: Final = Counter(
    "litellm_compaction_shortened_items_total",
    "Items of which the summary's writer saw a part only",
    ("door", "model"),
)
BEFORE: Final = Histogram(
    "litellm_compaction_before_tokens",
    "Tokens of a transcript before its compaction",
    ("door", "model"),
    buckets=_TOKENS,
)
AFTER: Final = Histogram(
    "litellm_compaction_after_tokens",
    "Tokens of what a compaction made of a transcript",
    ("door", "model"),
    buckets=(250, 500, *_TOKENS[:-2]),
)
SECONDS: Final = Histogram(
    "litellm_compaction_duration_seconds",
    "Seconds a compaction took, all its inferences and failed ones too",
    ("door", "model"),
    buckets=_SECONDS,
)
REFUSED_ITEMS: Final = Counter(
    "litellm_compaction_refused_items_total",
    "Compaction items that could not be opened, by reason; handling: reject (400) or note (told to the model)",
    ("reason", "handling"),
)
REFUSED_REQUESTS: Final = Counter(
    "litellm_compaction_refused_requests_total",
    "Requests refused as they were, by the code of the error; context_length_exceeded also where a backend refused",
    ("code",),
)
SKIPPED: Final = Counter(
    "litellm_compaction_skipped_total",
    "Requests over their threshold that were not compacted, or to no use, by reason",
    ("model", "reason"),
)


def count_record(record: Record, model: str) -> None:
    """Count one compaction, or one answer made of it. `model`: its label."""
    door: Final = record.asked.door
    if record.source != "run":
        REUSED.labels(door, model, record.source, record.outcome).inc()
        return
    if record.refused:
        REFUSED_REQUESTS.labels(record.outcome).inc()
        return
    RUNS.labels(door, model, record.outcome).inc()
    SECONDS.labels(door, model).observe(record.seconds)
    ATTEMPTS.labels(door, model).inc(record.attempts)
    SPENT.labels(door, model, "input").inc(record.usage.input_tokens)
    SPENT.labels(door, model, "cached").inc(record.usage.cached_tokens)
    SPENT.labels(door, model, "output").inc(record.usage.output_tokens)
    if record.tokens_before is None or record.tokens_after is None:
        return
    ITEMS.labels(door, model).inc(record.items)
    DROPPED.labels(door, model).inc(record.dropped or 0)
    SHORTENED.labels(door, model).inc(record.shortened or 0)
    BEFORE.labels(door, model).observe(record.tokens_before)
    AFTER.labels(door, model).observe(record.tokens_after)


def count_refused_item(reason: Unreadable, handling: str) -> None:
    REFUSED_ITEMS.labels(reason, handling).inc()


def count_refused_request(error: CompactionError) -> None:
    REFUSED_REQUESTS.labels(outcome_of(error)).inc()


def count_skipped(model: str, reason: str) -> None:
    SKIPPED.labels(model, reason).inc()


def label_model(router: Router | None, group: str, team: str | None) -> str:
    """A group as the operator named it, so that a client cannot make labels: its own name, the group behind a
    deployment's id, the pattern it matches; else UNNAMED."""
    if router is None:
        return UNNAMED
    if (
        group in router.model_names
        or group in router.team_public_model_names
        or group in (router.model_group_alias or ())
        or router.get_routing_group(group) is not None
    ):
        return group
    if router.has_model_id(group):
        deployment: Final = router.get_deployment(group)
        return UNNAMED if deployment is None else deployment.model_name
    matched: Final = router.pattern_router.get_pattern(group)
    if not matched and team is not None and team in router.team_pattern_routers:
        of_team: Final = router.team_pattern_routers[team].get_pattern(group)
        return str(of_team[0]["model_name"]) if of_team else UNNAMED
    return str(matched[0]["model_name"]) if matched else UNNAMED
