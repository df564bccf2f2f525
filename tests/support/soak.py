"""Mixed traffic on a live proxy, and the account of it: every answer right, every inference booked once, no slot kept.

Each request has a fact of its own. The backend answers a turn with all facts it was sent, and a summary with those of
the transcript, so that an answer tells by itself whether anything was lost on the way. Each inference reports a number
of prompt tokens that no other has: by it its spend row is known.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from litellm_compaction.envelope.sealing import KeyRing, open_item
from tests.support.backend import (
    Failure,
    Gated,
    Hangup,
    ScriptedBackend,
    Step,
    Summary,
    Text,
    is_summary_request,
    request_text,
)
from tests.support.bodies import TRIGGER, Json, assistant, call, output, user
from tests.support.proxy import LiveProxy, base_config, read_event

SECRET: Final = "soak-secret-0123456789"
MODEL: Final = "deepseek"
# Keys are sk-<team>-<user>, and each may run one request at a time.
AUTH: Final = """
from litellm.proxy._types import UserAPIKeyAuth

async def auth(request, api_key):
    name = api_key.removeprefix("sk-")
    team, _, person = name.partition("-")
    return UserAPIKeyAuth(api_key=f"hash-{name}", team_id=team, user_id=person, max_parallel_requests=1)
"""
# What LiteLLM books, a line each.
ROWS: Final = """
import json, os
from litellm.integrations.custom_logger import CustomLogger

class Rows(CustomLogger):
    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        row = kwargs["standard_logging_object"]
        told = {"model": row["model"], "prompt": row["prompt_tokens"], "tags": row["request_tags"],
                "key": row["metadata"]["user_api_key_hash"]}
        with open(os.environ["SOAK_ROWS"], "a") as file:
            file.write(json.dumps(told) + chr(10))

rows = Rows()
"""
FILES: Final = {"soak_auth.py": AUTH, "soak_rows.py": ROWS}
# Under these names LiteLLM's limiter keeps in Redis the slots that are taken.
SLOT_KEYS: Final = "*:max_parallel_requests"
_FACT: Final = re.compile(r"FACT-\d{6}")
_THRESHOLD: Final = 1_000
_COMPACTIONS: Final = ("trigger", "trigger-streamed", "compact", "threshold", "threshold-streamed")
_BROKEN: Final = (
    "damaged item",
    "misplaced trigger",
    "backend 500",
    "backend 429",
    "backend hangs up",
    "summary 500",
    "summary 429",
    "summary invalid",
    "deep",
)
_GONE: Final = ("turn-streamed", "turn", "trigger-streamed", "trigger", "compact")
_ORDINARY: Final = ("turn", "turn-streamed")
_DOWN: Final = Failure(500, {"message": "down", "type": "server_error"})
_LIMITED: Final = Failure(429, {"message": "slow down", "type": "rate_limit_error"})
_PATIENCE_SECONDS: Final = 60.0
_DEPTH: Final = 5_000
# More prompt tokens than any request here has: fewer would look as if the backend had cut it.
_FIRST_NUMBER: Final = 10_000
# What LiteLLM logs of the requests that are meant to fail, and of those that come before a slot is free.
_EXPECTED_ERRORS: Final = ("_handle_llm_api_exception", "Unexpected error reading request body")
_NEVER: Final = ("never retrieved", "never awaited", "Exception in ASGI", "Exception in callback", "Fatal Python error")


def soak_config(backend: ScriptedBackend, redis_port: int, *, plugin: bool = True) -> Json:
    """A proxy of teams whose keys run one request at a time, with Redis for its limiter and for the plugin."""
    config = base_config(backend.url, {"keys": [SECRET]}, plugin=plugin)
    config["litellm_settings"]["callbacks"].append("soak_rows.rows")
    config["litellm_settings"] |= {
        "cache": True,
        "cache_params": {"type": "redis", "host": "127.0.0.1", "port": redis_port, "mode": "default_off"},
        "enable_post_custom_auth_checks": True,
    }
    config["general_settings"].update(custom_auth="soak_auth.auth", custom_auth_run_common_checks=True)
    config["router_settings"] = {"num_retries": 0, "disable_cooldowns": True}
    return config


@dataclass
class _Order:
    """What the backend does when it is asked about a fact: for a turn, for a summary, and behind which gate."""

    turn: Step | None = None
    summary: Step | None = None
    gate: threading.Event | None = None


@dataclass
class Account:
    """What happened: requests by kind, seconds until a slot was free again at most, by what had taken it, and what went
    wrong in words.

    `inferences`: the fact and kind of each inference that was answered well, by the prompt tokens it reported.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    slots: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    inferences: dict[int, tuple[str, str]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def check(self, right: bool, what: str) -> None:  # reads as an assertion
        if not right:
            self.problems.append(what)


class Soak:
    """Traffic of so many requests from some clients, a tenth compactions, a twentieth broken, another of clients that
    go away. `plugin` False: ordinary turns only, for a comparison."""

    def __init__(self, proxy: LiveProxy, backend: ScriptedBackend, requests: int, clients: int, *, plugin: bool = True):
        self.account: Final = Account()
        self._proxy: Final = proxy
        self._numbers: Final = itertools.count(_FIRST_NUMBER)
        self._facts: Final = itertools.count(1)
        self._orders: Final[dict[str, _Order]] = {}
        self._lock: Final = threading.Lock()
        self._kinds: Final = _mix(requests) if plugin else [("ordinary", _ORDINARY[n % 2]) for n in range(requests)]
        self.keys: Final = [f"sk-team{number % 3}-user{number}" for number in range(clients)]
        backend.answer_with(self._answer)

    def _answer(self, body: Json) -> Step:
        """The backend: what is ordered for the last fact it is asked about, else what it should say."""
        facts: Final = _FACT.findall(request_text(body))
        order: Final = self._orders.get(facts[-1], _Order())
        summary: Final = is_summary_request(body) or "create_summary" in request_text(body)
        ordered: Final = order.summary if summary else order.turn
        with self._lock:
            number: Final = next(self._numbers)
        words: Final = " ".join(sorted(set(facts)))
        if ordered is None or isinstance(ordered, Text):
            self.account.inferences[number] = (facts[-1], "summary" if summary else "turn")
        step: Step = ordered or (Summary(words, usage=(number, 7)) if summary else Text(words, usage=(number, 7)))
        if isinstance(ordered, Text):
            step = Text(ordered.text, usage=(number, 7))
        if order.gate is None or not isinstance(step, Text | Summary | Failure | Hangup):
            return step
        return Gated(step, order.gate)

    async def run(self) -> Account:
        """All of it; ends by itself."""
        queue: Final[asyncio.Queue[tuple[str, str]]] = asyncio.Queue()
        for kind in self._kinds:
            queue.put_nowait(kind)
        limits: Final = httpx.Limits(max_keepalive_connections=0)  # a connection each: both workers are asked
        async with httpx.AsyncClient(base_url=self._proxy.url, timeout=120, trust_env=False, limits=limits) as http:
            await asyncio.gather(*[_Client(self, http, key, seed).work(queue) for seed, key in enumerate(self.keys)])
        return self.account

    @property
    def finished(self) -> int:
        return self.account.kinds.total()

    def new_fact(self, order: _Order | None = None) -> str:
        fact: Final = f"FACT-{next(self._facts):06d}"
        if order is not None:
            self._orders[fact] = order
        return fact

    def settle(self, rows_file: Path) -> None:
        """Wait for the last rows, then hold them against the inferences: none missing, none twice."""
        expected: Final = {
            number
            for number, (fact, kind) in self.account.inferences.items()
            if kind == "summary" or fact not in self.account.gone  # what became of a lost turn is LiteLLM's to book
        }
        give_up_at: Final = time.monotonic() + _PATIENCE_SECONDS
        while expected - set(rows := _read_rows(rows_file)) and time.monotonic() < give_up_at:
            time.sleep(0.2)
        check: Final = self.account.check
        missing: Final = sorted(expected - set(rows))
        check(not missing, f"{len(missing)} inferences without a spend row: {self._name(missing)}")
        twice: Final = sorted(number for number, times in Counter(rows).items() if times > 1)
        check(not twice, f"{len(twice)} inferences booked twice: {self._name(twice)}")
        unknown: Final = sorted(set(rows) - set(self.account.inferences))
        check(not unknown, f"{len(unknown)} rows of no inference: {unknown[:5]}")
        summaries: Final = Counter(fact for fact, kind in self.account.inferences.values() if kind == "summary")
        repeated: Final = [
            fact
            for fact, times in summaries.items()
            if times > 1 and getattr(self._orders.get(fact), "summary", None) is None
        ]
        check(not repeated, f"compactions paid twice: {repeated[:5]}")

    def _name(self, numbers: Sequence[int]) -> list[object]:
        return [self.account.inferences[number] for number in numbers[:5]]


def unexpected_errors(log: str) -> list[str]:
    """Lines of a proxy's log that a soak should not leave in it."""
    return [
        line
        for line in log.splitlines()
        if any(words in line for words in _NEVER)
        or ("ERROR:" in line and not any(words in line for words in _EXPECTED_ERRORS))
    ]


def _read_rows(file: Path) -> list[int]:
    """The prompt tokens of every row but those of deliveries, which cost nothing."""
    rows: Final = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row["prompt"] for row in rows if "litellm-compaction-delivery" not in row["model"]]


def _mix(requests: int) -> list[tuple[str, str]]:
    """What is asked, in an order that is the same each time."""
    many, few = requests // 10, requests // 20
    shares: Final = (
        ("compaction", _COMPACTIONS, many),
        ("broken", _BROKEN, few),
        ("gone", _GONE, few),
        ("ordinary", _ORDINARY, requests - many - 2 * few),
    )
    mixed: Final = [(what, kinds[number % len(kinds)]) for what, kinds, share in shares for number in range(share)]
    random.Random(1).shuffle(mixed)  # noqa: S311  # no secret
    return mixed


class _Client:
    """One client: a key that may run one request at a time, and the item it got last."""

    def __init__(self, soak: Soak, http: httpx.AsyncClient, key: str, seed: int) -> None:
        self._soak: Final = soak
        self._account: Final = soak.account
        self._http: Final = http
        self._headers: Final = {"authorization": f"Bearer {key}"}
        self._chance: Final = random.Random(seed)  # noqa: S311  # no secret
        self._item: tuple[Json, frozenset[str]] | None = None
        self._last = ""

    async def work(self, queue: asyncio.Queue[tuple[str, str]]) -> None:
        while not queue.empty():
            what, kind = queue.get_nowait()
            try:
                await getattr(self, f"_{what}")(kind)
            except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError) as error:
                self._account.problems.append(f"{what} {kind}: {error!r}")
            self._account.kinds[what] += 1

    def _transcript(self, fact: str, steps: int) -> list[Json]:
        items = [user(f"Remember {fact}, and fix the parser.")]
        for number in range(steps):
            words = " ".join(self._chance.choices(_WORDS, k=60))
            items += [
                call(f"c{number}", arguments=json.dumps({"cmd": f"grep -n {number} src"})),
                output(f"c{number}", f"{number}: {words}"),
                assistant(f"Step {number} is done."),
            ]
        return [*items, user(f"Go on with {fact}.")]

    async def _post(self, door: str, items: list[Json]) -> tuple[int, Json, list[Json]]:
        """Status, body (of a stream: the finished response), and the events of a stream.

        LiteLLM frees a slot a moment after the last byte of an answer: then the request is sent again.
        """
        started: Final = time.monotonic()
        while True:
            status, body, events = await self._send(door, items)
            waited = time.monotonic() - started
            if not (status == 429 and "max_parallel_requests" in str(body)) or waited > _PATIENCE_SECONDS:
                break
            self._account.slots[self._last] = max(waited, self._account.slots.get(self._last, 0.0))
            await asyncio.sleep(0.05)
        self._last = door
        return status, body, events

    async def _send(self, door: str, items: list[Json]) -> tuple[int, Json, list[Json]]:
        path, body = self._request(door, items)
        if not body.get("stream"):
            answer: Final = await self._http.post(path, json=body, headers=self._headers)
            return answer.status_code, answer.json(), []
        async with self._http.stream("POST", path, json=body, headers=self._headers) as stream:
            if stream.status_code != 200:
                return stream.status_code, json.loads(await stream.aread()), []
            events: Final = [event async for line in stream.aiter_lines() if (event := read_event(line)) is not None]
        return stream.status_code, events[-1].get("response") or events[-1], events

    def _request(self, door: str, items: list[Json]) -> tuple[str, Json]:
        body: dict[str, Any] = {"model": MODEL, "input": items, "tools": _TOOLS}
        if door == "compact":
            return "/v1/responses/compact", body
        if door.startswith("trigger"):
            body["input"] = [*items, TRIGGER]
        if door.startswith("threshold"):
            body["context_management"] = [{"type": "compaction", "compact_threshold": _THRESHOLD}]
        return "/v1/responses", {**body, "stream": door.endswith("streamed")}

    async def _ordinary(self, kind: str, order: _Order | None = None) -> None:
        """A turn, now and then after an item: its answer names every fact there is in the conversation."""
        fact: Final = self._soak.new_fact(order)
        known: frozenset[str] = frozenset()
        items = self._transcript(fact, self._chance.randrange(4))
        if self._item is not None and self._chance.random() < 0.5:
            items, known = [self._item[0], *items], self._item[1]
        status, body, _ = await self._post(kind, items)
        self._account.check(status == 200, f"{kind}: {status} {str(body)[:200]}")
        if status == 200:
            said = _texts(body)
            self._account.check(
                said == [_words({fact, *known})], f"{kind}: {said} instead of {fact} with {sorted(known)}"
            )

    async def _compaction(self, kind: str) -> None:
        """Through a door, and then the turn after it."""
        fact: Final = self._soak.new_fact()
        self._item = None
        items: Final = self._transcript(fact, 12)
        status, body, events = await self._post(kind, items)
        self._take(kind, fact, status, body)
        done: Final = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        self._account.check(not events or done[0] == body["output"][0], f"{kind}: another item in the events")
        await self._ordinary("turn")

    def _take(self, kind: str, fact: str, status: int, body: Json) -> None:
        """The item of an answer: it opens, and holds the fact."""
        self._account.check(status == 200, f"{kind}: {status} {str(body)[:200]}")
        if status != 200:
            return
        found: Final = [entry for entry in body["output"] if entry["type"] == "compaction"]
        self._account.check(len(found) == 1, f"{kind}: {len(found)} items")
        payload: Final = open_item(found[0], KeyRing([SECRET]), None)
        self._account.check(fact in payload.summary, f"{kind}: {fact} is not in the item")
        if kind.startswith("threshold"):
            self._account.check(_texts(body) == [fact], f"{kind}: {_texts(body)} instead of {fact}")
        self._item = (found[0], frozenset({fact}))

    async def _gone(self, kind: str) -> None:
        """A client that goes away in the middle. Its slot is free again soon; a compaction is there when it asks anew,
        and was paid once."""
        gate: Final = threading.Event()
        fact: Final = self._soak.new_fact(_Order(gate=gate))
        self._account.gone.add(fact)
        items: Final = self._transcript(fact, 12)
        path, body = self._request(kind, items)
        try:
            async with asyncio.timeout(30 if body.get("stream") else 1):
                if body.get("stream"):
                    if kind.startswith("turn"):
                        gate.set()  # a turn has no event before its backend answers
                    async with self._http.stream("POST", path, json=body, headers=self._headers) as stream:
                        await anext(stream.aiter_lines())
                else:
                    await self._http.post(path, json=body, headers=self._headers)
        except TimeoutError:
            self._account.check(not body.get("stream"), f"{kind}: no first event")
        gate.set()
        self._last = f"gone: {kind}"
        if kind.startswith("turn"):
            await self._ordinary("turn")
        else:
            status, answer, _ = await self._post(kind.removesuffix("-streamed"), items)
            self._take(kind, fact, status, answer)

    async def _broken(self, kind: str) -> None:
        status, code = await self._break(kind)
        expected: Final = _EXPECTED[kind]
        self._account.check((status, code) == expected, f"{kind}: {status} {code} instead of {expected}")

    async def _break(self, kind: str) -> tuple[int, object]:
        orders: Final = {
            "backend 500": _Order(turn=_DOWN),
            "backend 429": _Order(turn=_LIMITED),
            "backend hangs up": _Order(turn=Hangup()),
            "summary 500": _Order(summary=_DOWN),
            "summary 429": _Order(summary=_LIMITED),
            "summary invalid": _Order(summary=Text("prose")),
        }
        fact: Final = self._soak.new_fact(orders.get(kind))
        items = self._transcript(fact, 3)
        door: Final = "trigger" if kind.startswith("summary") else "turn"
        if kind == "damaged item":
            items = [{"type": "compaction", "id": "cmp_1", "encrypted_content": "lcmp1.AAAA"}, *items]
        elif kind == "misplaced trigger":
            items = [TRIGGER, *items]
        elif kind == "deep":
            nested = f"{'[' * _DEPTH}{']' * _DEPTH}"
            text = json.dumps({"model": MODEL, "input": items}).removesuffix("]}") + f", {nested}]}}"
            headers = {**self._headers, "content-type": "application/json"}
            answer = await self._http.post("/v1/responses", content=text, headers=headers)
            return answer.status_code, None
        status, body, _ = await self._post(door, items)
        return status, (body.get("error") or {}).get("code")


_EXPECTED: Final[dict[str, tuple[int, object]]] = {
    "damaged item": (400, "invalid_encrypted_content"),
    "misplaced trigger": (400, None),
    "backend 500": (500, "500"),
    "backend 429": (429, "429"),
    "backend hangs up": (500, "500"),
    "summary 500": (400, "compaction_failed"),
    "summary 429": (429, "429"),
    "summary invalid": (400, "compaction_failed"),
    "deep": (400, None),
}
_TOOLS: Final = [{"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}]
_WORDS: Final = [
    "parser",
    "value",
    "module",
    "error",
    "line",
    "file",
    "test",
    "branch",
    "commit",
    "token",
    "index",
    "buffer",
    "handle",
    "result",
    "state",
]


def _words(facts: set[str]) -> str:
    return " ".join(sorted(facts))


def _texts(body: Json) -> list[str]:
    messages: Final = [entry for entry in body["output"] if entry["type"] == "message"]
    return [part["text"] for message in messages for part in message["content"]]
