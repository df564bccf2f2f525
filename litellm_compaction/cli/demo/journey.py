"""The demo from end to end: two doors, and the next turn behind each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from litellm_compaction.cli.demo.account import Account, as_json
from litellm_compaction.cli.demo.backend import MODEL_NAME, EmbeddedBackend, Received
from litellm_compaction.cli.demo.checks import (
    check_answer,
    check_compact,
    check_item,
    check_stream,
    compaction_items,
    output_text,
    readable_words,
)
from litellm_compaction.cli.demo.client import AgentClient, Reply
from litellm_compaction.cli.demo.proxy import PUBLIC_NAME, DemoError, Model, running_proxy
from litellm_compaction.cli.demo.session import Session, ask, compact_request, load_session, size_of, turn_request

JsonObject = dict[str, Any]

# Window of the embedded model, in tokens: room for the whole session, so that one inference summarises it.
_EMBEDDED_CONTEXT: Final = 65_536


def run_demo(account: Account, model: Model | None, keep_files: Path | None) -> list[str]:
    """Runs everything and prints it; gives what was wrong. `model` None: the embedded one.

    Raises DemoError where there is no proxy to talk to.
    """
    started: Final = time.monotonic()
    with ExitStack() as stack:
        backend: Final = None if model else stack.enter_context(EmbeddedBackend())
        chosen: Final = model or Model(
            f"openai/{MODEL_NAME}", backend.url if backend else None, None, _EMBEDDED_CONTEXT
        )
        folder: Final = keep_files or Path(stack.enter_context(TemporaryDirectory(prefix="litellm-compaction-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        account.heading("A LiteLLM proxy with the plugin")
        account.line(f"model: {chosen.name}" + (", embedded: it quotes what it was sent" if backend else ""))
        proxy: Final = stack.enter_context(running_proxy(chosen, folder))
        account.line("callbacks: [litellm_compaction.handler]")
        account.line(f"up after {time.monotonic() - started:.1f} s on {proxy.url}")
        journey: Final = Journey(account, stack.enter_context(AgentClient(proxy)), backend, folder)
        problems: Final = journey.run()
        account.verdict(problems, time.monotonic() - started)
        if problems and not keep_files:
            account.line("Run it again with --keep-files DIR to keep the proxy's log.")
        if keep_files:
            account.line(f"Files are in {folder}. Look into an item:")
            account.command(f"litellm-compaction inspect {folder / 'compact.json'} --config {folder / 'config.yaml'}")
    return problems


class Journey:
    """One run against a running proxy."""

    def __init__(self, account: Account, client: AgentClient, backend: EmbeddedBackend | None, folder: Path) -> None:
        self._account: Final = account
        self._client: Final = client
        self._backend: Final = backend
        self._folder: Final = folder
        self._session: Final[Session] = load_session()

    def run(self) -> list[str]:
        """Both doors; gives what was wrong, prefixed with the step."""
        self._account.heading("The conversation to compact")
        self._account.session(self._session)
        self._account.line(
            "LiteLLM alone would drop a compaction_trigger without a word and let the model answer; it would drop a "
            "returned item the same way, and with it the whole history. /v1/responses/compact would be a 404 or 500."
        )
        problems: list[str] = []
        for door, walk in (("trigger", self._through_trigger), ("/responses/compact", self._through_compact)):
            try:
                found = walk()
            except DemoError as error:
                found = [str(error)]
            problems += [f"{door}: {problem}" for problem in found]
        return problems

    def _through_trigger(self) -> list[str]:
        items: Final = [*self._session.items, {"type": "compaction_trigger"}]
        request: Final = turn_request(PUBLIC_NAME, items, stream=True)
        self._account.heading("Door 1: POST /v1/responses, streamed, the last item is a compaction_trigger")
        self._account.line(f"sent: {len(items)} items, {size_of(request):,} bytes")
        reply: Final = self._client.stream("/v1/responses", request, self._account.event)
        self._save("trigger", reply.body)
        self._account.reply(reply)
        return [*check_stream(reply), *self._go_on(reply, stream=True)]

    def _through_compact(self) -> list[str]:
        request: Final = compact_request(PUBLIC_NAME, self._session.items)
        self._account.heading("Door 2: POST /v1/responses/compact")
        self._account.line(f"sent: {len(self._session.items)} items, {size_of(request):,} bytes")
        reply: Final = self._client.post("/v1/responses/compact", request)
        self._save("compact", reply.body)
        output: Final = list(reply.body.get("output") or [])
        self._account.line(f"output: {len(output)} items, the user's messages and the compaction item")
        self._account.reply(reply)
        return [*check_compact(reply, self._session), *self._go_on(reply, stream=False)]

    def _go_on(self, reply: Reply, *, stream: bool) -> list[str]:
        """The item that came back, and the next turn with it; without an item there is nothing to go on from."""
        output: Final = list(reply.body.get("output") or [])
        items: Final = compaction_items(output)
        if not items:
            return ["no compaction item came back"]
        self._account.item(items[0], readable_words(str(items[0].get("encrypted_content")), self._session))
        self._account.saving(reply, self._session.items, output)
        return [*check_item(items[0], self._session), *self._next_turn(output, stream=stream)]

    def _next_turn(self, history: Sequence[JsonObject], *, stream: bool) -> list[str]:
        """The returned items and a new question, as an agent sends them."""
        request: Final = turn_request(PUBLIC_NAME, [*history, ask(self._session.question)], stream=stream)
        self._account.heading("The next turn: what came back, and a new question")
        self._account.line(f"sent: {len(history) + 1} items, {size_of(request):,} bytes")
        seen: Final = len(self._backend.received) if self._backend else 0
        try:
            if stream:
                reply = self._client.stream("/v1/responses", request, self._ignore)
            else:
                reply = self._client.post("/v1/responses", request)
        except DemoError as error:
            return [f"the next turn failed: {error}"]
        if self._backend:
            self._show_received(self._backend.received[seen:], in_full=stream)
        text: Final = output_text(reply.body)
        self._account.answer(self._session.question, text)
        return list(check_answer(text, self._session.facts))

    def _show_received(self, received: Sequence[Received], *, in_full: bool) -> None:
        self._account.line(f"received by the model behind the proxy, {sum(r.bytes for r in received):,} bytes:")
        for request in received:
            self._account.received(request)
        if in_full:
            self._account.line("the message that holds the summary, whole:")
            self._account.summary(received)

    def _save(self, name: str, body: JsonObject) -> None:
        (self._folder / f"{name}.json").write_text(as_json(body), encoding="utf-8")

    @staticmethod
    def _ignore(_event: object) -> None:
        """The next turn is judged by its answer, not by its events."""
