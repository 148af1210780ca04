"""The JSON of the ``/v1/minipic`` routes, for client and server alike. Plain classes: both ends stay light.

    GET  /v1/minipic/profile                -> ModelProfile.to_json()
    POST /v1/minipic/spans         SpansRequest -> {"spans": [SpanStatus, ...]}   hit | computed | rejected
    POST /v1/minipic/spans/lookup  SpansRequest -> {"spans": [SpanStatus, ...]}   resident | partial | absent | rejected
    POST /v1/minipic/spans/unpin   SpansRequest -> as the look-up, afterwards
    GET  /v1/minipic/requests/{id}          -> {"spans": [SpanStatus, ...]}       hit | computed; id: the response's
    GET  /v1/minipic/stats                  -> counters by name

One status per span asked about, in the order asked. A completion's per-span statuses come back in its
``kv_transfer_params["minipic"]["spans"]``, in the physical order of the prompt that was sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

from minipic_sdk.errors import InputError

PROFILE_PATH: Final = "/v1/minipic/profile"
SPANS_PATH: Final = "/v1/minipic/spans"
LOOKUP_PATH: Final = "/v1/minipic/spans/lookup"
UNPIN_PATH: Final = "/v1/minipic/spans/unpin"
REQUESTS_PATH: Final = "/v1/minipic/requests/"
STATS_PATH: Final = "/v1/minipic/stats"
MAX_SPANS: Final = 4096  # in one SpansRequest
FIRST_SEEN: Final = "first seen"  # reason of a span that the server knows nothing of

Status = Literal["hit", "computed", "rejected", "resident", "partial", "absent"]
_STATUSES: Final = frozenset(("hit", "computed", "rejected", "resident", "partial", "absent"))
# For isinstance, of which every answer needs some for every span: a union made on the spot takes nine times as long.
_NONE: Final = type(None)
_TEXT: Final = (str, _NONE)
_COUNT: Final = (int, _NONE)
_FLAG: Final = (bool, _NONE)
_SECONDS: Final = (int, float, _NONE)


class SpanQuery(NamedTuple):
    """A span to prefill or look up: its visible token ids, or a text that the server makes a span of."""

    token_ids: Sequence[int] | None = None
    text: str | None = None
    name: str | None = None
    public: bool = False  # shared across cache salts

    def to_json(self) -> dict[str, Any]:
        """Its JSON; defaults are left out."""
        body: dict[str, Any] = {}
        if self.token_ids is not None:
            body["token_ids"] = list(self.token_ids)
        if self.text is not None:
            body["text"] = self.text
        if self.name is not None:
            body["name"] = self.name
        if self.public:
            body["public"] = True
        return body


@dataclass(frozen=True, slots=True)
class SpansRequest:
    """Body of the span routes."""

    spans: Sequence[SpanQuery]
    anchor_token_ids: Sequence[int] | None = None  # what the spans see; None: the profile's anchor
    cache_salt: str | None = None
    fingerprint: str | None = None  # of the profile the ids were made with; 409 if it isn't the server's
    model: str | None = None  # a served LoRA adapter's name; None: the base model
    pin: bool = False  # prefilled spans are kept until they are unpinned
    ttl: float | None = None  # seconds; prefilled spans are kept so long

    def to_json(self) -> dict[str, Any]:
        """Its JSON; defaults are left out."""
        body: dict[str, Any] = {"spans": [s.to_json() for s in self.spans]}
        if self.anchor_token_ids is not None:
            body["anchor_token_ids"] = list(self.anchor_token_ids)
        for key in ("cache_salt", "fingerprint", "model", "ttl"):
            if getattr(self, key) is not None:
                body[key] = getattr(self, key)
        if self.pin:
            body["pin"] = True
        return body

    @classmethod
    def from_json(cls, body: object) -> "SpansRequest":
        """Parse and check a body.

        Raises:
            InputError: what is wrong with which field.
        """
        known = {"spans", "anchor_token_ids", "cache_salt", "fingerprint", "model", "pin", "ttl"}
        fields = _object(body, "the body", known)
        spans = fields.get("spans")
        if not isinstance(spans, list) or len(cast("list[object]", spans)) > MAX_SPANS:
            raise InputError(f"spans must be a list of at most {MAX_SPANS}")
        anchor, pin, ttl = fields.get("anchor_token_ids"), fields.get("pin", False), fields.get("ttl")
        if not isinstance(pin, bool):
            raise InputError("pin must be true or false")
        if ttl is not None and not (isinstance(ttl, int | float) and 0 < ttl < float("inf")):
            raise InputError("ttl must be a number of seconds above 0")
        return cls(
            spans=[_query(i, s) for i, s in enumerate(cast("list[object]", spans))],
            anchor_token_ids=None if anchor is None else _ids(anchor, "anchor_token_ids"),
            cache_salt=_text(fields, "cache_salt"),
            fingerprint=_text(fields, "fingerprint"),
            model=_text(fields, "model"),
            pin=pin,
            ttl=ttl,
        )


class SpanStatus(NamedTuple):
    """What the server says about one span."""

    name: str
    status: Status
    reason: str | None  # why it was computed or rejected
    tokens: int  # visible
    blocks: int  # KV blocks it takes
    key: str | None = None  # the server's: the hash of its last block, hex
    resident_blocks: int | None = None  # look-ups only
    pinned: bool | None = None  # whether eviction can't take it; None: not told
    expires_in: float | None = None  # seconds that it is pinned for; None: until it is unpinned, or it isn't

    def to_json(self) -> dict[str, Any]:
        """Its JSON."""
        body = {k: getattr(self, k) for k in ("name", "key", "status", "reason", "tokens", "blocks")}
        if self.resident_blocks is not None:
            body["resident_blocks"] = self.resident_blocks
        if self.pinned is not None:
            body |= {"pinned": self.pinned, "expires_in": self.expires_in}
        return body

    @classmethod
    def from_json(cls, body: object) -> "SpanStatus":
        """Parse one; unknown keys are ignored. Raises ``InputError``."""
        if not isinstance(body, dict):
            raise InputError("a span's status must be a JSON object")
        fields = cast("dict[str, Any]", body)
        status, reason, key = fields.get("status"), fields.get("reason"), fields.get("key")
        tokens, blocks, resident = fields.get("tokens") or 0, fields.get("blocks") or 0, fields.get("resident_blocks")
        pinned, left = fields.get("pinned"), fields.get("expires_in")
        if status not in _STATUSES:
            raise InputError(f"unknown span status {status!r}")
        if not isinstance(reason, _TEXT) or not isinstance(key, _TEXT):
            raise InputError("a span's reason and key must be strings")
        if not (isinstance(tokens, int) and isinstance(blocks, int) and isinstance(resident, _COUNT)):
            raise InputError("a span's tokens and blocks must be integers")
        if not isinstance(pinned, _FLAG) or not isinstance(left, _SECONDS):
            raise InputError("a span's pinned must be true or false, its expires_in a number")
        return cls(str(fields.get("name") or ""), status, reason, tokens, blocks, key, resident, pinned, left)


def parse_statuses(body: object) -> tuple[SpanStatus, ...]:
    """The statuses of ``{"spans": [...]}``; raises ``InputError``."""
    spans = _object(body, "the body", None).get("spans")
    if not isinstance(spans, list):
        raise InputError("the answer has no list of spans")
    return tuple(map(SpanStatus.from_json, cast("list[object]", spans)))


def _object(value: object, what: str, known: set[str] | None) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InputError(f"{what} must be a JSON object")
    fields = cast("Mapping[str, object]", value)
    if known is not None and (unknown := fields.keys() - known):
        raise InputError(f"{what} has an unknown field {min(unknown)!r}")
    return fields


def _query(number: int, value: object) -> SpanQuery:
    what = f"spans[{number}]"
    fields = _object(value, what, {"token_ids", "text", "name", "public"})
    ids, text = fields.get("token_ids"), _text(fields, "text")
    if (ids is None) == (text is None):
        raise InputError(f"{what}: give either text or token_ids")
    public = fields.get("public", False)
    if not isinstance(public, bool):
        raise InputError(f"{what}.public must be true or false")
    return SpanQuery(None if ids is None else _ids(ids, f"{what}.token_ids"), text, _text(fields, "name"), public)


def _ids(value: object, what: str) -> list[int]:
    if not isinstance(value, list) or not all(type(v) is int and v >= 0 for v in cast("list[object]", value)):
        raise InputError(f"{what} must be a list of token ids")
    return cast("list[int]", value)


def _text(fields: Mapping[str, object], key: str) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{key} must be a string")
    return value
