"""Block hashes of span requests: where the chain restarts, and what a dependent block depends on.

Stock vLLM chains every block's hash from the prompt's first token (v1/core/kv_cache_utils.py). Here (paper section
3.1, DESIGN invariants I1, I4-I6):

* head blocks hash exactly as stock does, so that a long system prompt is cached once for all; a head block with
  padding has another domain, since a plain request with those ids would see them,
* a span's chain starts from a root over the domain, the anchor's ids, the salt (unless the span is public): never
  from what stands before it,
* a dependent segment's chain starts from a root over every segment it sees, in logical order, with their places;
  the salt always, so it can't outlive what it depends on.

LoRA keys go into every block, as stock does. Hashes don't depend on physical order, so arranging a prompt
(docs/adr/0002) never changes them.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vllm.lora.request import LoRARequest
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    _gen_lora_extra_hash_keys,  # pyright: ignore[reportPrivateUsage]
    generate_block_hash_extra_keys,
    hash_block_tokens,
)

from minipic_sdk.layout import Layout, Segment
from minipic_sdk.protocol import LAYOUT_VERSION
from minipic_server.config import SpanConfig
from minipic_server.cut import ID_BYTES, pack
from minipic_server.state import SpanState, span_state

if TYPE_CHECKING:
    from vllm.v1.request import Request

HashFn = Callable[[Any], bytes]
BlockHasher = Callable[["Request"], list[BlockHash]]

MEMO_BYTES = 64 << 20  # of recent spans that are remembered
_ENTRY_BYTES, _HASH_BYTES = 400, 80  # of a remembered span besides its ids and hashes; of a hash in a list


class _Folds:
    """What the dependent segments of a prompt see: hashed along logical order, once for all of them.

    Cut before every dependent segment among what is seen, so that it doesn't matter who asks; a prompt may have thousands.
    """

    def __init__(self, layout: Layout, hash_fn: HashFn) -> None:
        shown = [
            (logical + hidden, kind, stop // layout.block_size - 1, logical, hidden)
            for kind, _, stop, first, last, logical, hidden in layout.segments
            if first + hidden < last
        ]
        shown.sort(key=itemgetter(0))
        self._starts = [s[0] for s in shown]
        self._shown = shown
        self._cuts = [i for i, s in enumerate(shown) if s[1] == "dependent"]
        self._folds: list[bytes] = []  # of everything before each cut
        self._hash = hash_fn

    def before(self, logical: int, known: Sequence[bytes]) -> tuple[Any, ...]:
        """All that is shown before this logical position; ``known``: hashes of the prompt's blocks so far."""
        stop = bisect_left(self._starts, logical)
        cuts = bisect_left(self._cuts, stop)
        for n in range(len(self._folds), cuts):
            start = self._cuts[n - 1] if n else 0
            self._folds.append(self._hash((self._last(n), self._items(start, self._cuts[n], known))))
        return self._last(cuts), self._items(self._cuts[cuts - 1] if cuts else 0, stop, known)

    def _last(self, cuts: int) -> bytes:
        return self._folds[cuts - 1] if cuts else b""

    def _items(self, start: int, stop: int, known: Sequence[bytes]) -> tuple[Any, ...]:
        seen = self._shown[start:stop]
        return tuple([(kind, known[block], logical, hidden) for _, kind, block, logical, hidden in seen])


def _memo_bytes(packed: bytes, hashes: Sequence[BlockHash]) -> int:
    """What a remembered span takes."""
    return _ENTRY_BYTES + len(packed) + _HASH_BYTES * len(hashes)


class SpanHasher:
    """Drop-in for vLLM's request block hasher; plain requests go straight to the stock one."""

    def __init__(self, config: SpanConfig, hash_fn: HashFn, stock: BlockHasher | None) -> None:
        self._config = config
        self._hash = hash_fn
        self._stock = stock
        self._domain = ("minipic", LAYOUT_VERSION, config.model, tuple(config.control), config.block_size)
        self._memo: OrderedDict[tuple[Any, ...], list[BlockHash]] = OrderedDict()
        self._memo_bytes = 0
        self._span_root = lru_cache(maxsize=16)(self._new_span_root)  # two a prompt; an anchor may be as long as it

    def __call__(self, request: "Request") -> list[BlockHash]:
        """Hashes of the request's full blocks that have none yet."""
        state = span_state(request, self._config)
        if state is None:
            assert self._stock is not None, "only the engine's own hasher hashes plain requests"
            return self._stock(request)
        size, last = self._config.block_size, state.layout.segments[-1]
        total, done = request.num_tokens // size, len(request.block_hashes)
        if state.packed is not None:
            known = self._prompt(request, state, state.packed)
            state.packed, state.hashes = None, [*known]
            return known
        if total <= done:
            return []
        if last.kind == "span" and done == last.start // size:
            return []  # what is generated behind a span shorter than a block is nobody's
        if done > last.start // size:
            parent = request.block_hashes[-1]
        else:  # the last segment's first block is full only now
            parent = self._root(request, last, request.block_hashes, _Folds(state.layout, self._hash))
        return self._chain(request, state, last, done, total, parent, _extra_keys(request))

    def _prompt(self, request: "Request", state: SpanState, packed: bytes) -> list[BlockHash]:
        """Hashes of the prompt's full blocks; notes those of each span."""
        size = self._config.block_size
        public, extra = frozenset(state.meta.public), _extra_keys(request)
        salted, unsalted = (self._span_root(state.meta.anchor, salt) for salt in (request.cache_salt, None))
        folds = _Folds(state.layout, self._hash)
        known: list[BlockHash] = []
        state.chains = chains = []
        for segment in state.layout.segments:  # a prompt may have a thousand
            stop = segment.stop // size
            if segment.kind == "span":
                root = unsalted if len(chains) in public else salted
                chain = self._remembered(root, packed[segment.start * ID_BYTES : stop * size * ID_BYTES], extra)
                chains.append(chain)
                known += chain
            else:
                parent = self._root(request, segment, known, folds) if stop > len(known) else None
                known += self._chain(request, state, segment, len(known), stop, parent, extra)
        return known

    def _chain(
        self,
        request: "Request",
        state: SpanState,
        segment: Segment,
        done: int,
        stop: int,
        parent: BlockHash | None,
        extra: tuple[Any, ...] | None,
    ) -> list[BlockHash]:
        """Hashes of the request's blocks [done, stop), all of this segment, behind ``parent``."""
        size, layout = self._config.block_size, state.layout
        ids = request.all_token_ids[done * size : stop * size]
        out: list[BlockHash] = []
        for i in range(len(ids) // size):
            keys = extra
            if segment.kind == "head":
                begin = (done + i) * size - segment.start
                # A head moved by the engine still hashes as the prompt's beginning: salt in its first block.
                if not begin:
                    keys = generate_block_hash_extra_keys(request, 0, size, 0)[0]
                if segment is not layout.segments[-1] and segment.start + begin + size > segment.visible_stop:
                    keys = (*(keys or ()), (self._domain, "head padding"))
            parent = hash_block_tokens(self._hash, parent, ids[i * size : (i + 1) * size], keys)
            out.append(parent)
        return out

    def _remembered(self, root: BlockHash, packed: bytes, extra: tuple[Any, ...] | None) -> list[BlockHash]:
        """A span's chain; spans come back by the thousand, so it is hashed once and looked up after that. Not to change.

        ``packed``: see ``cut.pack``; bytes are compared at once, ids one by one.
        """
        if len(packed) < self._config.block_size * ID_BYTES:
            return []  # nothing to remember
        key = (root, extra, packed)
        hashes = self._memo.get(key)
        if hashes is None:
            size, hashes, parent, ids = self._config.block_size, [], root, memoryview(packed).cast("q").tolist()
            for at in range(0, len(ids) - size + 1, size):
                parent = hash_block_tokens(self._hash, parent, ids[at : at + size], extra)
                hashes.append(parent)
            self._memo[key] = hashes
            self._memo_bytes += _memo_bytes(packed, hashes)
            while self._memo_bytes > MEMO_BYTES and len(self._memo) > 1:
                (_, _, forgotten), gone = self._memo.popitem(last=False)
                self._memo_bytes -= _memo_bytes(forgotten, gone)
        else:
            self._memo.move_to_end(key)
        return hashes

    def span_chain(
        self, ids: list[int], anchor: tuple[int, ...], salt: str | None, lora: tuple[str, str] | None = None
    ) -> list[BlockHash]:
        """Hashes of a padded span on its own, as any request would have them.

        Args:
            ids: the span's physical tokens, SSEP first, a multiple of the block size.
            anchor: ids of the anchor it is computed behind.
            salt: ``None`` for public spans and requests without a salt.
            lora: name and path of the adapter, if any.
        """
        keys = None
        if lora is not None:
            adapter: Any = SimpleNamespace(lora_request=LoRARequest(lora[0], 1, lora[1]))
            keys = tuple(_gen_lora_extra_hash_keys(adapter))
        return self._remembered(self._span_root(anchor, salt), pack(ids), keys)

    def unsalted_key(self, request: "Request", anchor: tuple[int, ...], segment: Segment) -> BlockHash:
        """Hash of the last block of a request's span, if the span were public."""
        packed = pack(request.all_token_ids[segment.start : segment.stop])
        return self._remembered(self._span_root(anchor, None), packed, _extra_keys(request))[-1]

    def _new_span_root(self, anchor: tuple[int, ...], salt: str | None) -> BlockHash:
        return BlockHash(self._hash((self._domain, "span", anchor, salt)))

    def _root(
        self, request: "Request", segment: Segment, known: Sequence[BlockHash], folds: _Folds
    ) -> BlockHash | None:
        if segment.kind == "head":
            return None
        fold = folds.before(segment.logical, known)
        return BlockHash(self._hash((self._domain, "dependent", request.cache_salt, segment.logical, *fold)))


def _extra_keys(request: "Request") -> tuple[Any, ...] | None:
    """LoRA keys of a block that isn't the prompt's first, hence without the salt stock adds there."""
    if request.lora_request is None:
        return None  # asked for every segment; nothing else than LoRA may add keys to a span request
    return generate_block_hash_extra_keys(request, 1, 2, 0)[0]
