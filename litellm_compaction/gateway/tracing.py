"""Spans of compactions, where LiteLLM's own OpenTelemetry callback is on: `litellm_compaction` under the request's
span, LiteLLM's spans of the summary's inferences under it. Without that callback nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from litellm_compaction.gateway.record import COMPLETED, LEDGER, Record

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

# Where LiteLLM looks for the span that a call belongs to. The request's own must never stand in an inner call's
# metadata: LiteLLM ends it together with the call.
PARENT_KEY: Final = "litellm_parent_otel_span"
# Where the plugin keeps the span of a compaction until an inner call is made.
SPAN_KEY: Final = "litellm_compaction_span"
_NAME: Final = "litellm_compaction"


@contextmanager
def open_span(metadata: Mapping[str, Any]) -> Iterator[Span | None]:
    """The span of a compaction that runs in this task, current in it; None where nobody traces. Ends with the block."""
    tracer: Final = _tracer()
    if tracer is None:
        yield None
        return
    from opentelemetry import trace

    span: Final = tracer.start_span(_NAME, context=_parent(metadata))
    _anchor(span)
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        yield span


def describe(span: Span, record: Record) -> None:
    """Write a record into a span: what the log line has, and whether it failed, by its code alone."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attributes({f"{_NAME}.{name}": value for name, value in record.fields()})
    if record.outcome in {COMPLETED, LEDGER}:
        span.set_status(Status(StatusCode.OK))
    else:
        span.set_status(Status(StatusCode.ERROR, record.outcome))


def add_span(metadata: Mapping[str, Any], record: Record) -> None:
    """A span for an answer that no inference was needed for, as long as the client waited for it."""
    tracer: Final = _tracer()
    if tracer is None:
        return
    started: Final = time.time_ns() - int(record.seconds * 1e9)
    span: Final = tracer.start_span(_NAME, context=_parent(metadata), start_time=started)
    describe(span, record)
    span.end()


def under(metadata: Mapping[str, Any], span: Span | None) -> Mapping[str, Any]:
    """Metadata whose inner calls belong to a span."""
    return metadata if span is None else {**metadata, SPAN_KEY: span}


def inner_parent(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What an inner call's metadata says of its parent."""
    span: Final = metadata.get(SPAN_KEY)
    return {} if span is None else {PARENT_KEY: span}


def _tracer() -> Tracer | None:
    # Where there is no proxy there is no callback of its own.
    proxy_server: Final = sys.modules.get("litellm.proxy.proxy_server")
    tracer: Final[Tracer | None] = getattr(getattr(proxy_server, "open_telemetry_logger", None), "tracer", None)
    return tracer


def _parent(metadata: Mapping[str, Any]) -> Context | None:
    """The request's own span; without one, whatever is current."""
    from opentelemetry import trace

    parent: Final = metadata.get(PARENT_KEY)
    return trace.set_span_in_context(parent) if isinstance(parent, trace.Span) else None


def _anchor(span: Span) -> None:
    """LiteLLM's second OpenTelemetry callback (LITELLM_OTEL_V2) puts the spans of all inferences under one anchor of
    the task. A compaction has a task of its own, so the request's anchor stays what it is."""
    try:
        from litellm.integrations.otel.plumbing.context import set_request_root_span
    except ImportError:
        return
    set_request_root_span(span)
