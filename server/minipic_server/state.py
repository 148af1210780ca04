"""A span request inside the engine core: its metadata, layout and hashes, kept on vLLM's own ``Request``."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minipic_sdk.layout import Layout, Segment
from minipic_sdk.protocol import XARGS_KEY, RequestMeta
from minipic_server.config import SpanConfig

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

_ATTRIBUTE = "_minipic_state"


@dataclass(slots=True)
class SpanState:
    """What the hasher and the scheduler know of one span request."""

    meta: RequestMeta
    layout: Layout
    hashes: list[bytes] = field(default_factory=list[bytes])  # of the prompt's full blocks, in physical order
    statuses: list[dict[str, object]] = field(default_factory=list[dict[str, object]])  # one per span, see status.py
    waited: int = 0  # steps it was held back for a span that another request is computing

    def span_hashes(self) -> list[tuple[Segment, list[bytes]]]:
        """Every span segment with the hashes of its blocks, in physical order."""
        size = self.layout.block_size
        return [
            (s, self.hashes[s.start // size : s.stop // size]) for s in self.layout.segments if s.kind == "span"
        ]


def opted_in(params: "SamplingParams | None") -> str | None:
    """The request's metadata string, or ``None`` for a plain request (I6)."""
    extra = params.extra_args if params is not None else None
    return extra.get(XARGS_KEY) if extra else None


def span_state(request: "Request", config: SpanConfig) -> SpanState | None:
    """The state of a span request, built at its first use; ``None`` for a plain request."""
    state = getattr(request, _ATTRIBUTE, False)
    if state is False:
        text = opted_in(request.sampling_params)
        state = None
        if text is not None and request.prompt_token_ids is not None:
            meta = RequestMeta.from_json(text)
            layout = meta.parse(request.prompt_token_ids, control=config.control, block_size=config.block_size)
            # Without control tokens the prompt is plain: stock hashing and attention serve it.
            state = SpanState(meta, layout) if layout.has_control else None
        setattr(request, _ATTRIBUTE, state)
    return state


def known_state(request: "Request") -> SpanState | None:
    """The state that ``span_state`` left on the request; ``None`` for a plain one."""
    return getattr(request, _ATTRIBUTE, None)
