"""A span request inside the engine core: its metadata, layout and hashes, kept on vLLM's own ``Request``."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minipic_sdk.layout import Layout, Segment
from minipic_sdk.protocol import XARGS_KEY, RequestMeta
from minipic_server.config import SpanConfig

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

_ATTRIBUTE = "_minipic_state"
_LAYOUT = "_minipic_layout"  # on the sampling parameters, for a worker in the same process


@dataclass(slots=True)
class SpanState:
    """What the hasher and the scheduler know of one span request."""

    meta: RequestMeta
    layout: Layout
    hashes: list[bytes] = field(default_factory=list[bytes])  # of the prompt's full blocks, in physical order
    statuses: list[dict[str, object]] = field(default_factory=list[dict[str, object]])  # one per span, see status.py
    arranged: bool = False  # arrange.py had its say, whether or not anything moved
    waited: int = 0  # steps it was held back for a span that another request is computing
    _keys: tuple[bytes, ...] | None = None  # the same in every arrangement
    _spans: tuple[Layout, list[bytes], list[tuple[Segment, list[bytes]]]] | None = None  # see span_hashes

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Content keys of its spans: the hash of each one's last block."""
        if self._keys is None:
            self._keys = tuple(hashes[-1] for _, hashes in self.span_hashes() if hashes)
        return self._keys

    @property
    def blocks(self) -> list[bytes]:
        """Hashes of all blocks of its spans; the same ones in every arrangement."""
        return [block for _, hashes in self.span_hashes() for block in hashes]

    def span_hashes(self) -> list[tuple[Segment, list[bytes]]]:
        """Every span segment with the hashes of its blocks, in physical order."""
        layout, hashes, size = self.layout, self.hashes, self.layout.block_size
        known = self._spans
        if known is None or known[0] is not layout or known[1] is not hashes:
            spans = [(s, hashes[s.start // size : s.stop // size]) for s in layout.segments if s.kind == "span"]
            self._spans = known = layout, hashes, spans
        return known[2]


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
            layout = meta.parse(
                request.prompt_token_ids, control=config.control, block_size=config.block_size, checked=True
            )
            # Without control tokens the prompt is plain: stock hashing and attention serve it.
            state = SpanState(meta, layout) if layout.has_control else None
            pass_layout(request.sampling_params, layout)
        setattr(request, _ATTRIBUTE, state)
    return state


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
