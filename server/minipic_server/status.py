"""Why a span was a hit or had to be computed: what a response tells the user about every span.

Decided when the request arrives, before any of its spans is filled. Names and keys are remembered per salt, so that a
status never tells one tenant what another one has cached (I5).
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from minipic_sdk.layout import Segment
from minipic_server.state import SpanState

if TYPE_CHECKING:
    from vllm.v1.request import Request

_K = TypeVar("_K")
_V = TypeVar("_V")
_Name = tuple[str | None, tuple[int, ...], str]  # salt, anchor, name

KEY_DIGITS = 32  # of a span key shown to people: 128 bits
FIRST = "first seen"
_EVICTED = ("evicted", "partly evicted")
NAME_CHARS = 256  # of a span's name that are kept
REMEMBERED = 1 << 16  # spans and names; the oldest are forgotten


class SpanHistory:
    """What this engine has seen, bounded."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._keys: OrderedDict[tuple[str | None, bytes], None] = OrderedDict()
        # By anchor too: the same text behind another one is another span, but not another text.
        self._names: OrderedDict[_Name, bytes] = OrderedDict()

    def describe(
        self,
        request: "Request",
        state: SpanState,
        resident: Callable[[list[bytes]], int],
        awaited: Callable[[bytes], bool],
        unsalted: Callable[[Segment], bytes],
    ) -> list[dict[str, object]]:
        """One status per span in physical order: name, key, status, reason, tokens, blocks; then remembers them.

        Args:
            request: as it arrived.
            state: the request's, before it is arranged.
            resident: leading blocks of a span that are in the cache.
            awaited: whether an unfinished request before this one has the span too, and so computes it.
            unsalted: key that a span would have if it were public.
        """
        public = frozenset(state.meta.public)
        out: list[dict[str, object]] = []
        seen: list[tuple[str | None, _Name | None, bytes]] = []
        for ordinal, (segment, hashes) in enumerate(state.span_hashes()):
            scope = None if ordinal in public else request.cache_salt
            name = state.meta.names[ordinal][:NAME_CHARS] if state.meta.names else f"span {ordinal}"
            key = hashes[-1] if hashes else b""
            have = resident(hashes)
            hit = bool(hashes) and have == len(hashes)
            named = (scope, state.meta.anchor, name)
            reason = None if hit else self._reason(named, key, have, awaited)
            if reason == FIRST and scope is not None and (None, unsalted(segment)) in self._keys:
                reason = "salt differs"
            out.append(
                {
                    "name": name,
                    "key": key.hex()[:KEY_DIGITS],
                    "status": "hit" if hit else "computed",
                    "reason": reason,
                    "tokens": segment.num_visible,
                    "blocks": len(hashes),
                }
            )
            seen.append((scope, named if state.meta.names else None, key))
        for entry in seen:  # only now: a span that stands twice in a new prompt is first seen, not evicted
            self._remember(*entry)
        return out

    @staticmethod
    def evicted(state: SpanState) -> frozenset[bytes]:
        """Keys of the spans that were evicted, as of their status; before the request is arranged."""
        spans = zip(state.span_hashes(), state.statuses, strict=True)
        return frozenset(hashes[-1] for (_, hashes), status in spans if status["reason"] in _EVICTED)

    @staticmethod
    def fetched(state: SpanState, start: int, stop: int) -> None:
        """Spans that end in these tokens of the arranged prompt come from a KV connector: correct their status."""
        keys = {h[-1].hex()[:KEY_DIGITS] for s, h in state.span_hashes() if h and start < s.stop <= stop}
        for status in state.statuses:
            if status["status"] != "hit" and status["key"] in keys:
                status.update(status="hit", reason="loaded from host memory")

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
        return FIRST

    def _remember(self, scope: str | None, named: _Name | None, key: bytes) -> None:
        _put(self._keys, (scope, key), None, self._limit)
        if named is not None:
            _put(self._names, named, key, self._limit)


def _put(table: "OrderedDict[_K, _V]", key: _K, value: _V, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > limit:
        table.popitem(last=False)
