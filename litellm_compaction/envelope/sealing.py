"""Sealing: AES-256-GCM over the compressed payload, a key ring, and binding to who may open an item.

Layout of `encrypted_content` (ASCII):

    lcmp1.<base64url of: key id (8 bytes) | nonce (12 bytes) | ciphertext and tag>

Prefix and key id are authenticated with the ciphertext; the tenant stands inside it, so that the operator can see it
and nobody else. A flipped bit, a cut, another key and another tenant all give the same error.
Unsealed items (`seal: false`) are readable JSON with the member `litellm_compaction`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from litellm_compaction.envelope.payload import (
    Bind,
    BrokenPayload,
    Payload,
    TooLarge,
    check_items,
    compress,
    decompress,
    dump_payload,
    load_payload,
    weigh,
)
from litellm_compaction.errors import Unreadable, UnreadableItem

PREFIX: Final = "lcmp1."
UNSEALED_MEMBER: Final = "litellm_compaction"
MAX_CONTENT_CHARS: Final = 20_971_520  # OpenAI's limit of `encrypted_content`
# With neither salt key nor master key a proxy has no secret and no tenants: items are sealed against damage only.
NO_SECRET: Final = "litellm-compaction without a secret"  # noqa: S105  # says that there is none
_KEY_ID_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_CIPHER_FROM: Final = _KEY_ID_BYTES + _NONCE_BYTES
_LITELLM_WRAP: Final = "litellm_enc:"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: the proxy's ids of key (its hash), team and user, None where there is none."""

    key: str | None = None
    team: str | None = None
    user: str | None = None

    def binding(self, bind: Bind) -> tuple[Bind, str]:
        """What an item of this caller is bound to: the first of the setting's fallbacks the caller has."""
        wanted: Final[Mapping[Bind, Sequence[Bind]]] = {"team": ("team", "user"), "user": ("user",), "key": ("key",)}
        for scope in wanted.get(bind, ()):
            name = self.name(scope)
            if name:
                return scope, name
        return "none", ""

    def name(self, scope: Bind) -> str:
        return {"team": self.team, "user": self.user, "key": self.key, "none": ""}[scope] or ""


class KeyRing:
    """Keys derived from the operator's secrets: the first seals, all open."""

    def __init__(self, secrets: Sequence[str]) -> None:
        if not secrets:
            raise ValueError("a key ring needs at least one secret")
        self._keys: Final = {key_id: AESGCM(key) for key_id, key in map(_derive, reversed(secrets))}
        self.sealing_id: Final = _derive(secrets[0])[0]

    def encrypt(self, data: bytes, name: bytes, random_bytes: Callable[[int], bytes]) -> bytes:
        """Bytes for a shared store, bound to the name they are kept under."""
        nonce: Final = random_bytes(_NONCE_BYTES)
        return self.sealing_id + nonce + self._keys[self.sealing_id].encrypt(nonce, data, b"store v1 " + name)

    def decrypt(self, sealed: bytes, name: bytes) -> bytes | None:
        """What was encrypted under a name with any of these keys; None for everything else."""
        cipher: Final = self.find(sealed[:_KEY_ID_BYTES])
        try:
            return (
                None
                if cipher is None
                else cipher.decrypt(sealed[_KEY_ID_BYTES:_CIPHER_FROM], sealed[_CIPHER_FROM:], b"store v1 " + name)
            )
        except (InvalidTag, ValueError):
            return None

    @property
    def sealing(self) -> tuple[bytes, AESGCM]:
        return self.sealing_id, self._keys[self.sealing_id]

    def find(self, key_id: bytes) -> AESGCM | None:
        return self._keys.get(key_id)


def _derive(secret: str) -> tuple[bytes, bytes]:
    def expand(info: bytes, length: int) -> bytes:
        return HKDF(hashes.SHA256(), length, salt=b"litellm-compaction", info=info).derive(secret.encode())

    return expand(b"key id v1", _KEY_ID_BYTES), expand(b"aes-256-gcm v1", 32)


def seal_payload(
    payload: Payload, ring: KeyRing, caller: Caller, bind: Bind, random_bytes: Callable[[int], bytes]
) -> str:
    """`encrypted_content` of an item that only `bind`'s tenant of `caller` can open. Raises TooLarge."""
    key_id, cipher = ring.sealing
    scope, name = caller.binding(bind)
    bound: Final = payload.model_copy(update={"bind": scope, "bound_to": name})
    nonce: Final = random_bytes(_NONCE_BYTES)
    sealed: Final = cipher.encrypt(nonce, compress(dump_payload(bound)), PREFIX.encode() + key_id)
    return _sized(PREFIX + base64.urlsafe_b64encode(key_id + nonce + sealed).decode().rstrip("="))


def write_unsealed(payload: Payload) -> str:
    """`encrypted_content` of an item with `seal: false`: readable JSON, bound to nobody. Raises TooLarge."""
    check_items(payload)
    return _sized(json.dumps({UNSEALED_MEMBER: payload.version, **payload.model_dump()}, ensure_ascii=True))


def _sized(content: str) -> str:
    if len(content) > MAX_CONTENT_CHARS:
        raise TooLarge
    return content


def unwrap_content(content: str) -> str:
    """Without LiteLLM's affinity wrapping `litellm_enc:<base64 model id>;<original>`."""
    if not content.startswith(_LITELLM_WRAP):
        return content
    return content.partition(";")[2]


def is_own(content: object) -> bool:
    """Whether an `encrypted_content` claims to be of this plugin; says nothing of whether it can be opened."""
    if not isinstance(content, str):
        return False
    inner: Final = unwrap_content(content)
    return inner.startswith(PREFIX) or (inner.startswith("{") and UNSEALED_MEMBER in inner[:64])


def open_item(
    item: Mapping[str, Any], ring: KeyRing, caller: Caller | None, *, allow_unsealed: bool = False
) -> Payload:
    """The payload of a compaction item. `caller` None: the operator, whom no binding stops (`inspect`).

    Raises UnreadableItem, worded the same for every cause.
    """
    return open_weighed(item, ring, caller, allow_unsealed=allow_unsealed)[0]


def open_weighed(
    item: Mapping[str, Any], ring: KeyRing, caller: Caller | None, *, allow_unsealed: bool = False
) -> tuple[Payload, int]:
    """The same, with about the bytes of memory that it takes."""
    content: Final = item.get("encrypted_content")
    try:
        return _open(content, ring, caller, allow_unsealed=allow_unsealed)
    except (BrokenPayload, InvalidTag, binascii.Error, ValueError) as error:
        raise UnreadableItem(item.get("id"), content, _reason(error)) from None


def _reason(error: Exception) -> Unreadable:
    if isinstance(error, BrokenPayload):
        return error.reason
    return "tampered" if isinstance(error, InvalidTag) else "malformed"


def _open(content: object, ring: KeyRing, caller: Caller | None, *, allow_unsealed: bool) -> tuple[Payload, int]:
    if not isinstance(content, str) or not content:
        raise BrokenPayload
    if len(content) > MAX_CONTENT_CHARS:
        raise BrokenPayload("too_large")
    inner: Final = unwrap_content(content)
    if inner.startswith("{") and allow_unsealed:
        readable: Final = inner.encode()
        return load_payload(readable), weigh(readable)
    if not inner.startswith(PREFIX):
        raise BrokenPayload("unsealed_not_allowed" if is_own(content) else "foreign")
    text: Final = inner.removeprefix(PREFIX)
    packed: Final = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    # Base64 without padding has spare bits in its last character: only the canonical spelling counts.
    if base64.urlsafe_b64encode(packed).decode().rstrip("=") != text:
        raise BrokenPayload
    key_id, nonce, sealed = packed[:_KEY_ID_BYTES], packed[_KEY_ID_BYTES:_CIPHER_FROM], packed[_CIPHER_FROM:]
    if not sealed:
        raise BrokenPayload
    cipher: Final = ring.find(key_id)
    if cipher is None:
        raise BrokenPayload("unknown_key")
    plain: Final = decompress(cipher.decrypt(nonce, sealed, PREFIX.encode() + key_id))
    payload: Final = load_payload(plain)
    if caller is not None and not hmac.compare_digest(caller.name(payload.bind).encode(), payload.bound_to.encode()):
        raise BrokenPayload("bound_elsewhere")
    return payload, weigh(plain)


def content_digest(content: str) -> str:
    """Names an item in `folded`, without LiteLLM's wrapping: 32 hex characters."""
    return hashlib.sha256(unwrap_content(content).encode("utf-8", "surrogatepass")).hexdigest()[:32]
