"""A span request inside the engine core: its metadata, layout and hashes, kept on vLLM's own ``Request``."""

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from minipic_sdk.layout import Cut, Layout, Segment
from minipic_sdk.protocol import XARGS_KEY, RequestMeta
from minipic_server.config import SpanConfig
from minipic_server.cut import pack

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

CHECKED_KEY = "minipic_checked"  # of the extra arguments: the front end's packed ids and cut of the prompt
_ATTRIBUTE = "_minipic_state"
_LAYOUT = "_minipic_layout"  # on the sampling parameters, for a worker in the same process


@dataclass(slots=True)
class SpanState:
    """What the hasher and the scheduler know of one span request."""

    meta: RequestMeta
    layout: Layout
    packed: bytes | None = None  # its prompt's ids (cut.pack), until they are hashed
    hashes: list[bytes] = field(default_factory=list[bytes])  # of the prompt's full blocks, in physical order
    chains: list[list[bytes]] = field(default_factory=list[list[bytes]])  # the same of each span; not to change
    statuses: list[dict[str, object]] = field(default_factory=list[dict[str, object]])  # one per span, see status.py
    arranged: bool = False  # once and for all, for the sake of a KV connector
    waited: int = 0  # steps it was held back for a span that another request is computing
    _keys: tuple[bytes, ...] | None = None  # the same in every arrangement

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Content keys of its spans: the hash of each one's last block."""
        if self._keys is None:
            self._keys = tuple([hashes[-1] for hashes in self.chains if hashes])
        return self._keys

    @property
    def spans_stop(self) -> int:
        """Where the last span ends; 0 without one."""
        return next((s.stop for s in reversed(self.layout.segments) if s.kind == "span"), 0)

    @property
    def blocks(self) -> list[bytes]:
        """Hashes of all blocks of its spans; the same ones in every arrangement."""
        return [*chain.from_iterable(self.chains)]

    @property
    def spans(self) -> list[Segment]:
        """Every span segment, in physical order."""
        return [s for s in self.layout.segments if s.kind == "span"]

    def span_hashes(self) -> list[tuple[Segment, list[bytes]]]:
        """Every span segment with the hashes of its blocks, in physical order."""
        return [*zip(self.spans, self.chains, strict=True)]


def opted_in(params: "SamplingParams | None") -> str | None:
    """The request's metadata string, or ``None`` for a plain request (I6)."""
    extra = params.extra_args if params is not None else None
    return extra.get(XARGS_KEY) if extra else None


def span_state(request: "Request", config: SpanConfig) -> SpanState | None:
    """The state of a span request, built at its first use; ``None`` for a plain request."""
    state: Any = getattr(request, _ATTRIBUTE, False)
    if state is False:
        text = opted_in(request.sampling_params)
        state = None
        if text is not None and request.prompt_token_ids is not None:
            meta = RequestMeta.from_json(text)
            # The front end has checked every request (validation.py).
            packed, cut = _taken(request.sampling_params, CHECKED_KEY) or (pack(request.prompt_token_ids), None)
            cut = cut and Cut(*cut)  # a list, if it came from another process
            layout = meta.parse(
                request.prompt_token_ids, control=config.control, block_size=config.block_size, checked=True, cut=cut
            )
            # Without control tokens the prompt is plain: stock hashing and attention serve it.
            state = SpanState(meta, layout, packed) if layout.has_control else None
            pass_layout(request.sampling_params, layout)
        setattr(request, _ATTRIBUTE, state)
    return state


def _taken(params: "SamplingParams | None", key: str) -> Any:
    """An extra argument that workers and logs should not see."""
    return params.extra_args.pop(key, None) if params is not None and params.extra_args else None


def pass_layout(params: "SamplingParams | None", layout: Layout) -> None:
    """Spare a worker in this process the parsing: milliseconds for a prompt of a thousand spans."""
    setattr(params, _LAYOUT, (opted_in(params), layout))


def passed_layout(params: "SamplingParams | None") -> Layout | None:
    """What ``pass_layout`` left for these very metadata."""
    text, layout = getattr(params, _LAYOUT, (None, None))
    return layout if text is not None and text is opted_in(params) else None


def known_state(request: "Request") -> SpanState | None:
    """The state that ``span_state`` left on the request; ``None`` for a plain one."""
    return getattr(request, _ATTRIBUTE, None)
