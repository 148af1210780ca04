"""Why a span was a hit or had to be computed: what a response tells the user about every span.

Decided when the request arrives, before any of its spans is filled, and written down when there is time. Names and keys
are remembered per salt, so that a status never tells one tenant what another one has cached (I5).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import repeat
from typing import TYPE_CHECKING, TypeVar, cast

from minipic_sdk.layout import Layout, Segment
from minipic_sdk.protocol import RequestMeta
from minipic_sdk.wire import FIRST_SEEN
from minipic_server.cut import pack
from minipic_server.state import SpanState

if TYPE_CHECKING:
    from vllm.v1.request import Request

_K = TypeVar("_K")
_V = TypeVar("_V")
_Name = tuple[bytes | None, bytes, str]  # scope, digest of the anchor, name

KEY_DIGITS = 32  # of a span key shown to people: 128 bits
UNREAD = "the request reads no cache"
_EVICTED = ("evicted", "partly evicted")
NAME_CHARS = 256  # of a span's name that are kept
REMEMBERED = 1 << 16  # spans and names; the oldest are forgotten


@dataclass(slots=True)
class Arrival:
    """A request as it came, with what was decided about its spans."""

    meta: RequestMeta
    layout: Layout
    chains: Sequence[Sequence[bytes]]  # hashes of each span's blocks
    salt: str | None
    reasons: list[str | None]  # why each span must be computed; None: a hit

    @property
    def scopes(self) -> list[bytes | None]:
        """Digest of each span's salt, which may be long; ``None`` for public spans and without a salt."""
        public, salt = frozenset(self.meta.public), self.salt
        own = None if salt is None else sha256(salt.encode(errors="surrogatepass")).digest()
        return [None if i in public else own for i in range(len(self.chains))]

    @property
    def names(self) -> list[str]:
        """Of the spans; those without one are numbered."""
        if self.meta.names:
            return [name[:NAME_CHARS] for name in self.meta.names]
        return [f"span {i}" for i in range(len(self.chains))]

    @property
    def texts(self) -> list[_Name]:
        """Under which each span's latest version is remembered."""
        anchor = sha256(pack(self.meta.anchor)).digest()  # not its ids: there may be a hundred thousand
        return [(scope, anchor, name) for scope, name in zip(self.scopes, self.names, strict=True)]

    @property
    def keys(self) -> list[bytes]:
        """Of the spans; empty for those shorter than a block."""
        return [hashes[-1] if hashes else b"" for hashes in self.chains]

    def statuses(self) -> list[dict[str, object]]:
        """One per span in physical order: name, key, status, reason, tokens, blocks."""
        spans = [s for s in self.layout.segments if s.kind == "span"]
        return [
            {
                "name": name,
                "key": key.hex()[:KEY_DIGITS],
                "status": "computed" if reason else "hit",
                "reason": reason,
                "tokens": span.visible_stop - span.visible_start,
                "blocks": len(hashes),
            }
            for name, key, reason, span, hashes in zip(
                self.names, self.keys, self.reasons, spans, self.chains, strict=True
            )
        ]


class SpanHistory:
    """What this engine has seen, bounded."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._new: list[Arrival] = []  # to be remembered
        self._keys: OrderedDict[tuple[bytes | None, bytes], None] = OrderedDict()
        # By anchor too: the same text behind another one is another span, but not another text.
        self._names: OrderedDict[_Name, bytes] = OrderedDict()

    def arrive(
        self,
        request: "Request",
        state: SpanState,
        leads: int,
        resident: Callable[[list[bytes]], int],
        awaited: Callable[[bytes], bool],
        unsalted: Callable[[Segment], bytes],
    ) -> Arrival:
        """Decide the status of every span of a request.

        Args:
            request: as it arrived.
            state: the request's, before it is arranged.
            leads: leading blocks of the prompt that are in the cache.
            resident: leading blocks of a span that are in the cache.
            awaited: whether an unfinished request before this one has the span too, and so computes it.
            unsalted: key that a span would have if it were public.
        """
        chains = state.chains
        there = leads >= state.spans_stop // state.layout.block_size  # all spans are, for sure
        arrival = Arrival(state.meta, state.layout, chains, request.cache_salt, [None] * len(chains))
        if request.skip_reading_prefix_cache:
            arrival.reasons = [UNREAD] * len(chains)
        elif not (there or resident(state.blocks) == len(state.blocks)) or not all(chains):
            self.remember()
            for i, (span, scope, text, key) in enumerate(
                zip(state.spans, arrival.scopes, arrival.texts, arrival.keys, strict=True)
            ):
                have = resident(chains[i])
                if key and have == len(chains[i]):
                    continue
                reason = self._reason(text, key, have, awaited)
                if reason == FIRST_SEEN and scope is not None and (None, unsalted(span)) in self._keys:
                    reason = "salt differs"
                arrival.reasons[i] = reason
        self._new.append(arrival)  # a span that stands twice in a new prompt is first seen, not evicted
        return arrival

    def remember(self) -> None:
        """Catch up with the latest arrivals; whatever looks at what is remembered does it first."""
        for arrival in self._new:
            _put(self._keys, zip(arrival.scopes, arrival.keys, strict=True), repeat(None), self._limit)
            if arrival.meta.names:
                _put(self._names, arrival.texts, arrival.keys, self._limit)
        self._new.clear()

    @staticmethod
    def evicted(state: SpanState) -> frozenset[bytes]:
        """Keys of the spans that were evicted, as of their status; before the request is arranged."""
        spans = zip(state.span_hashes(), state.statuses, strict=True)
        return frozenset(hashes[-1] for (_, hashes), status in spans if status["reason"] in _EVICTED)

    @staticmethod
    def fetched(state: SpanState, start: int, stop: int) -> list[int]:
        """Spans that end in these tokens of the arranged prompt come from a KV connector: correct their status.

        Returns:
            Visible tokens of each.
        """
        tokens: list[int] = []
        keys = {h[-1].hex()[:KEY_DIGITS] for s, h in state.span_hashes() if h and start < s.stop <= stop}
        for status in state.statuses:
            if status["status"] != "hit" and status["key"] in keys:
                status.update(status="hit", reason="loaded from host memory")
                tokens.append(cast("int", status["tokens"]))
        return tokens

    def _reason(self, named: _Name, key: bytes, have: int, awaited: Callable[[bytes], bool]) -> str:
        if not key:
            return "shorter than a block"
        if awaited(key):
            return "prefetch still running"
        if (named[0], key) in self._keys:
            return _EVICTED[bool(have)]
        known = self._names.get(named)
        if known is not None and known != key:
            return f"text changed: another version of {named[2]!r} was seen"
        return FIRST_SEEN


def _put(table: "OrderedDict[_K, _V]", keys: Iterable[_K], values: Iterable[_V], limit: int) -> None:
    for key, value in zip(keys, values, strict=False):
        table[key] = value
        table.move_to_end(key)
    while len(table) > limit:
        table.popitem(last=False)
