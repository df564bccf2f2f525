"""Sealed items: what opens them, what does not, and that all refusals look the same."""

from __future__ import annotations

import base64
import json
import os
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litellm_compaction.envelope import payload as payload_module
from litellm_compaction.envelope import sealing
from litellm_compaction.envelope.payload import Bind, Payload, compress
from litellm_compaction.envelope.sealing import (
    PREFIX,
    Caller,
    KeyRing,
    content_digest,
    is_own,
    open_item,
    seal_payload,
    unwrap_content,
    write_unsealed,
)
from litellm_compaction.errors import UnreadableItem

RING = KeyRing(["secret one"])
OWNER = Caller(key="key-1", team="team-1", user="user-1")
PAYLOAD = Payload(
    origin="trigger",
    summary="the parser is fixed, heron is the code word",
    kept=({"type": "message", "role": "user", "content": "verbatim words"},),
    system=({"type": "message", "role": "system", "content": "be brief"},),
    dropped=2,
    folded=("0" * 32,),
    model="local-model",
    created_at=1_700_000_000,
)


def seal(bind: Bind = "team", ring: KeyRing = RING, caller: Caller = OWNER, payload: Payload = PAYLOAD) -> str:
    return seal_payload(payload, ring, caller, bind, os.urandom)


def item(content: object, item_id: str | None = "cmp_1") -> dict[str, Any]:
    return {"type": "compaction", "id": item_id, "encrypted_content": content}


def opened(content: object, caller: Caller | None = OWNER, ring: KeyRing = RING, *, unsealed: bool = False) -> Payload:
    return open_item(item(content), ring, caller, allow_unsealed=unsealed)


def refuses(content: object, caller: Caller | None = OWNER, ring: KeyRing = RING, *, unsealed: bool = False) -> bool:
    """Whether opening fails, and with the one wording."""
    try:
        opened(content, caller, ring, unsealed=unsealed)
    except UnreadableItem as error:
        refused = error
    else:
        return False
    assert refused.body() == UnreadableItem("cmp_1", "").body()
    assert refused.__suppress_context__
    return True


SEALED = seal()


def reseal(plain: bytes, ring: KeyRing = RING) -> str:
    """Any bytes sealed as this plugin seals, by someone who holds the key."""
    key_id, cipher = ring.sealing
    nonce = bytes(12)
    sealed = cipher.encrypt(nonce, plain, PREFIX.encode() + key_id)
    return PREFIX + base64.urlsafe_b64encode(key_id + nonce + sealed).decode().rstrip("=")


def test_item_opens_as_it_was_sealed() -> None:
    """Everything comes back, with the tenant it was bound to."""
    assert opened(SEALED) == PAYLOAD.model_copy(update={"bind": "team", "bound_to": "team-1"})


def test_layout_is_the_documented_one() -> None:
    """Prefix, then base64url without padding of key id, nonce and ciphertext."""
    content = seal_payload(PAYLOAD, RING, OWNER, "team", lambda length: b"n" * length)
    assert re.fullmatch(r"lcmp1\.[A-Za-z0-9_-]+", content)
    text = content.removeprefix("lcmp1.")
    packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert packed[:8] == RING.sealing[0]
    assert packed[8:20] == b"n" * 12


def test_nothing_in_a_sealed_item_can_be_read() -> None:
    """No word of the payload, nor the tenant, stands in the content or in what its base64 decodes to."""
    text = SEALED.removeprefix(PREFIX)
    seen = SEALED.encode() + base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    words = [*re.findall(r"[A-Za-z_-]{4,}", json.dumps(PAYLOAD.model_dump())), "team-1", "user-1", "key-1"]
    assert len(words) > 20
    assert not [word for word in words if word.encode() in seen]


def test_same_payload_never_gives_the_same_content() -> None:
    """Each item has a nonce of its own."""
    assert len({seal() for _ in range(20)}) == 20


@settings(max_examples=300)
@given(st.integers(0, len(SEALED) - 1), st.characters(max_codepoint=0x2FF))
def test_any_changed_character_is_noticed(place: int, character: str) -> None:
    """Whatever stands in place of any one character, the item does not open."""
    changed = SEALED[:place] + character + SEALED[place + 1 :]
    assert changed == SEALED or refuses(changed)


@settings(max_examples=300)
@given(st.integers(0, 8 * len(base64.urlsafe_b64decode(SEALED[6:] + "=" * (-len(SEALED[6:]) % 4))) - 1))
def test_any_flipped_bit_is_noticed(bit: int) -> None:
    """One flipped bit anywhere, key id and nonce included, and the item does not open."""
    packed = bytearray(base64.urlsafe_b64decode(SEALED[6:] + "=" * (-len(SEALED[6:]) % 4)))
    packed[bit // 8] ^= 1 << bit % 8
    assert refuses(PREFIX + base64.urlsafe_b64encode(bytes(packed)).decode().rstrip("="))


def test_every_cut_is_noticed() -> None:
    """No proper prefix and no proper suffix of an item opens."""
    assert all(refuses(SEALED[:length]) and refuses(SEALED[length + 1 :]) for length in range(len(SEALED)))


@pytest.mark.parametrize("spelling", ["padded", "spare-bits", "newline", "standard-alphabet", "twice"])
def test_only_the_canonical_spelling_opens(spelling: str) -> None:
    """An item that decodes to the same bytes but is written otherwise is not the item."""
    # Two characters over a multiple of four: the last one has four spare bits.
    variants = (seal(payload=PAYLOAD.model_copy(update={"created_at": number})) for number in range(10_000))
    content = next(variant for variant in variants if len(variant.removeprefix(PREFIX)) % 4 == 2)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spare = content[:-1] + alphabet[alphabet.index(content[-1]) | 1]
    written = {
        "padded": content + "==",
        "spare-bits": spare,
        "newline": content + "\n",
        "standard-alphabet": content.replace("-", "+").replace("_", "/") + "+",
        "twice": content + content,
    }[spelling]
    assert not refuses(content)
    assert written != content
    assert refuses(written)


@pytest.mark.parametrize(
    "content",
    [
        None,
        7,
        [],
        "",
        "lcmp1.",
        "lcmp2." + SEALED[6:],
        "gAAAAABforeign",
        "{}",
        "litellm_enc:",
        "\ud800",
        "lcmp1.\ud800",
    ],
    ids=["none", "number", "list", "empty", "prefix", "version", "foreign", "json", "wrap", "surrogate", "inner"],
)
def test_what_is_no_item_is_refused(content: object) -> None:
    """Missing, foreign and senseless contents are refused in the same words as a tampered one."""
    assert refuses(content)


def test_item_without_content_is_refused() -> None:
    """An item that lacks the member altogether, or carries a strange id, is refused too."""
    with pytest.raises(UnreadableItem):
        open_item({"type": "compaction", "id": ["x"]}, RING, OWNER)


def test_content_over_openais_limit_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on the length counts before anything is decoded."""
    monkeypatch.setattr(sealing, "MAX_CONTENT_CHARS", len(SEALED))
    assert not refuses(SEALED)
    monkeypatch.setattr(sealing, "MAX_CONTENT_CHARS", len(SEALED) - 1)
    assert refuses(SEALED)


@pytest.mark.parametrize(
    "plain",
    [
        b"not compressed",
        compress(b"no json"),
        compress(b"{}"),
        compress(b'{"version":2,"origin":"auto","summary":"s"}'),
    ],
    ids=["raw", "text", "empty", "version"],
)
def test_what_holds_no_payload_is_refused(plain: bytes) -> None:
    """Content that decrypts but is no payload is refused in the same words."""
    assert refuses(reseal(plain), caller=None)


def test_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sealed bomb does not inflate past the limit."""
    plain = json.dumps({"origin": "auto", "summary": "s" * 1000}).encode()
    assert not refuses(reseal(compress(plain)), caller=None)
    monkeypatch.setattr(payload_module, "MAX_PLAIN_BYTES", len(plain) - 1)
    assert refuses(reseal(compress(plain)), caller=None)


def test_other_key_does_not_open() -> None:
    """Another operator's key is as good as none, also for the operator's own commands."""
    other = KeyRing(["secret two"])
    assert refuses(SEALED, ring=other)
    assert refuses(SEALED, None, other)


def test_rotated_keys() -> None:
    """The first key seals and all open; a key that was taken out opens nothing any more."""
    rotated = KeyRing(["secret two", "secret one"])
    fresh = seal(ring=rotated)
    assert opened(SEALED, ring=rotated).summary == opened(fresh, ring=rotated).summary == PAYLOAD.summary
    assert opened(fresh, ring=KeyRing(["secret two"])).summary == PAYLOAD.summary
    assert refuses(fresh)
    assert rotated.sealing[0] == KeyRing(["secret two"]).sealing[0]


def test_secret_named_twice_is_one_key() -> None:
    """The same secret twice still seals and opens."""
    ring = KeyRing(["secret one", "secret one"])
    assert opened(seal(ring=ring)).summary == PAYLOAD.summary


def test_key_ring_needs_a_secret() -> None:
    """An empty ring is a programming error."""
    with pytest.raises(ValueError, match="at least one secret"):
        KeyRing([])


NOBODY = Caller()
NO_TEAM = Caller(key="key-1", user="user-1")
SAME_TEAM = Caller(key="key-2", team="team-1", user="user-2")
OTHER_TEAM = Caller(key="key-2", team="team-2", user="user-1")
SAME_USER = Caller(key="key-2", team="team-2", user="user-1")
OTHER_USER = Caller(key="key-1", team="team-1", user="user-2")
# Names that are another scope's: a user called like the team.
IMPOSTOR = Caller(key="team-1", team="user-1", user="team-1")


@pytest.mark.parametrize(
    ("bind", "sealer", "opener", "opens"),
    [
        ("team", OWNER, OWNER, True),
        ("team", OWNER, SAME_TEAM, True),
        ("team", OWNER, OTHER_TEAM, False),
        ("team", OWNER, NO_TEAM, False),
        ("team", OWNER, NOBODY, False),
        ("team", OWNER, IMPOSTOR, False),
        ("team", NO_TEAM, SAME_USER, True),
        ("team", NO_TEAM, OTHER_USER, False),
        ("team", NO_TEAM, NOBODY, False),
        ("team", NOBODY, OWNER, True),
        ("team", NOBODY, NOBODY, True),
        ("team", Caller(team=""), OTHER_TEAM, True),
        ("user", OWNER, SAME_USER, True),
        ("user", OWNER, OTHER_USER, False),
        ("user", OWNER, NOBODY, False),
        ("user", NOBODY, OWNER, True),
        ("key", OWNER, OTHER_USER, True),
        ("key", OWNER, SAME_TEAM, False),
        ("key", OWNER, NOBODY, False),
        ("key", Caller(team="team-1"), OTHER_TEAM, True),
        ("none", OWNER, OTHER_TEAM, True),
        ("none", OWNER, NOBODY, True),
    ],
)
def test_who_may_open(bind: Bind, sealer: Caller, opener: Caller, opens: bool) -> None:
    """The caller's team, user or key decides, with the setting's fallbacks where the sealer had none."""
    content = seal(bind, caller=sealer)
    assert refuses(content, opener) is not opens
    assert opened(content, None).summary == PAYLOAD.summary, "the operator opens everything"


@pytest.mark.parametrize(
    ("bind", "caller", "bound"),
    [
        ("team", OWNER, ("team", "team-1")),
        ("team", NO_TEAM, ("user", "user-1")),
        ("team", Caller(key="k"), ("none", "")),
        ("user", OWNER, ("user", "user-1")),
        ("user", Caller(key="k", team="t"), ("none", "")),
        ("key", OWNER, ("key", "key-1")),
        ("key", NOBODY, ("none", "")),
        ("none", OWNER, ("none", "")),
    ],
)
def test_binding_falls_back(bind: Bind, caller: Caller, bound: tuple[str, str]) -> None:
    """Team falls back to the user, user and key to everybody."""
    assert caller.binding(bind) == bound


@pytest.mark.parametrize("wrap", ["litellm_enc:bW9kZWw=;", "litellm_enc:;"], ids=["affinity", "blank"])
def test_litellms_wrapping_is_taken_off(wrap: str) -> None:
    """LiteLLM writes the deployment before the content; the item under it is the same item."""
    assert unwrap_content(wrap + SEALED) == SEALED
    assert opened(wrap + SEALED).summary == PAYLOAD.summary
    assert is_own(wrap + SEALED)
    assert content_digest(wrap + SEALED) == content_digest(SEALED)


def test_digest_names_one_content() -> None:
    """32 hex characters, others for another content; any text has one."""
    digests = {content_digest(content) for content in (SEALED, seal(), "", "\ud800")}
    assert len(digests) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in digests)


@pytest.mark.parametrize(
    ("content", "own"),
    [
        (SEALED, True),
        ("lcmp1.broken", True),
        (write_unsealed(PAYLOAD), True),
        ("litellm_enc:bQ==;" + write_unsealed(PAYLOAD), True),
        ("gAAAAABforeign", False),
        ('{"summary": "foreign JSON"}', False),
        ("", False),
        (None, False),
        (7, False),
    ],
    ids=["sealed", "broken", "unsealed", "wrapped", "foreign", "json", "empty", "none", "number"],
)
def test_own_contents_are_told_from_foreign_ones(content: object, own: bool) -> None:
    """What claims to be of this plugin, whether or not it can be opened."""
    assert is_own(content) is own


def test_unsealed_item_is_readable_and_opens_only_where_allowed() -> None:
    """With `seal: false` an item is JSON that anyone reads; a proxy that seals does not take one."""
    content = write_unsealed(PAYLOAD)
    assert json.loads(content)["litellm_compaction"] == 1
    assert json.loads(content)["summary"] == PAYLOAD.summary
    assert opened(content, unsealed=True) == PAYLOAD
    assert opened(content, NOBODY, unsealed=True) == PAYLOAD
    assert refuses(content)
    assert refuses(content, None)


def test_sealed_item_opens_also_where_unsealed_ones_are_allowed() -> None:
    """Turning sealing off does not lose the items that were sealed before, nor their tenant."""
    assert opened(SEALED, unsealed=True).summary == PAYLOAD.summary
    assert refuses(SEALED, OTHER_TEAM, unsealed=True)


@pytest.mark.parametrize(
    "content", ["{", "{}", '{"origin":"auto","summary":"\ud800'], ids=["cut", "empty", "surrogate"]
)
def test_broken_unsealed_item_is_refused(content: str) -> None:
    """JSON that is no payload is refused in the same words."""
    assert refuses(content, unsealed=True)


STORED = KeyRing(["new", "old"])


@pytest.mark.parametrize("ring", [KeyRing(["old"]), KeyRing(["new", "old"]), KeyRing(["newest", "old"])])
def test_stored_bytes_open_with_any_key_of_the_ring(ring: KeyRing) -> None:
    """What one worker encrypts another opens, before and after a rotation; each time it looks different."""
    written = [KeyRing(["old"]).encrypt(b"words", b"name", os.urandom) for _ in range(2)]
    assert [ring.decrypt(entry, b"name") for entry in written] == [b"words", b"words"]
    assert written[0] != written[1]
    assert b"words" not in written[0]


@pytest.mark.parametrize(
    ("ring", "name", "cut"),
    [(KeyRing(["other"]), b"name", 0), (STORED, b"another name", 0), (STORED, b"name", 1), (STORED, b"name", 30)],
    ids=["other-keys", "other-name", "cut", "nearly-nothing"],
)
def test_stored_bytes_open_for_nobody_else(ring: KeyRing, name: bytes, cut: int) -> None:
    """Other keys, another name, or a byte less: nothing."""
    written = STORED.encrypt(b"words", b"name", os.urandom)
    assert ring.decrypt(written[: len(written) - cut], name) is None


@pytest.mark.parametrize("garbage", [b"", b"x", b"x" * 7, b"{}" * 50])
def test_garbage_in_the_store_is_nothing(garbage: bytes) -> None:
    """What this plugin did not write is not read, and does no harm."""
    assert STORED.decrypt(garbage, b"name") is None


def test_every_changed_bit_of_stored_bytes_shows() -> None:
    """No bit can be changed unnoticed."""
    written = STORED.encrypt(b"words", b"name", os.urandom)
    for place in range(len(written)):
        changed = bytearray(written)
        changed[place] ^= 1
        assert STORED.decrypt(bytes(changed), b"name") is None
