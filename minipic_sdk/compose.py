"""Composing a prompt: render, tokenise each piece on its own, lay out, check."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minipic_sdk.documents import Document, Tool
from minipic_sdk.errors import InputError
from minipic_sdk.fingerprint import short_digest
from minipic_sdk.keys import span_key, text_key
from minipic_sdk.layout import Layout
from minipic_sdk.layouts import layout_named
from minipic_sdk.layouts.base import Arrangement, Piece, Rules
from minipic_sdk.prompt import Prompt, PromptSpan, PromptStats
from minipic_sdk.protocol import RequestMeta
from minipic_sdk.rendering import Literally, Part, Sources, SpanText, plain_messages, render_parts

if TYPE_CHECKING:
    from minipic_sdk.profile import ModelProfile

DocumentLike = str | Document | Mapping[str, Any]
ToolLike = Tool | Mapping[str, Any]
Message = Mapping[str, Any]


def compose(
    docs: Sequence[DocumentLike],
    question: str,
    *,
    system: str | None,
    tools: Sequence[ToolLike],
    history: Sequence[Message],
    memory: Sequence[DocumentLike],
    layout: str,
    profile: "ModelProfile | None",
    template_options: Mapping[str, Any],
) -> Prompt:
    """See ``Prompt.compose``."""
    if not isinstance(question, str) or not question.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError("the question is empty")
    opening = [] if system is None else [{"role": "system", "content": system}]
    return compose_messages(
        [*opening, *history, {"role": "user", "content": question}],
        documents=docs,
        tools=tools,
        memory=memory,
        layout=layout,
        profile=profile,
        template_options=template_options,
    )


def compose_messages(
    messages: Sequence[Message],
    *,
    documents: Sequence[DocumentLike],
    tools: Sequence[ToolLike],
    memory: Sequence[DocumentLike],
    layout: str,
    profile: "ModelProfile | None",
    template_options: Mapping[str, Any],
) -> Prompt:
    """See ``Prompt.from_messages``."""
    for name, value in (("documents", documents), ("memory", memory), ("tools", tools)):
        if isinstance(value, str | Mapping):
            raise InputError(f"{name} must be a list, got one {type(value).__name__}")
    if not messages:
        raise InputError("there is no message")
    if profile is None:
        from minipic_sdk.profile import ModelProfile

        profile = ModelProfile.configured()
    sources = Sources(
        messages,
        [Tool.of(t) for t in tools],
        [Document.of(m) for m in memory],
        [Document.of(d) for d in documents],
        template_options,
    )
    arrange = layout_named(layout)
    parts = render_parts(profile.template, sources, markup=profile.markup, spoken=profile.spoken_markup)
    pieces = _pieces(parts, sources, profile)
    arrangement = arrange(pieces, Rules(profile.control_tokens, profile.block_size, profile.anchor_token_ids))
    text = "".join(p if isinstance(p, str) else p.text for p in parts)
    return _prompt(arrangement, pieces, profile, layout, text, sources)


def _pieces(parts: Sequence[Part], sources: Sources, profile: "ModelProfile") -> list[Piece]:
    pieces: list[Piece] = []
    text: list[str | Literally] = []
    spans = any(isinstance(p, SpanText) for p in parts)
    for part in (*parts, None):
        if isinstance(part, str | Literally):
            text.append(part)
            continue
        if text:
            opening = not pieces
            ids = profile.encode_parts(text, opening=opening, anchored=opening and spans)
            pieces.append(Piece("text", ids))
            text = []
        if part is not None:
            pieces.append(_span_piece(part, sources, profile))
    return pieces


def _span_piece(part: SpanText, sources: Sources, profile: "ModelProfile") -> Piece:
    ids = profile.encode(part.text)
    if part.source == "tool":
        tool = sources.tools[part.number]
        return Piece("span", ids, f"tool:{tool.name}", tool.public)
    given = (sources.memory if part.source == "memory" else sources.documents)[part.number]
    return Piece("span", ids, given.name or f"{part.source}-{short_digest(part.text)[:8]}", given.public)


def _prompt(
    arrangement: Arrangement,
    pieces: Sequence[Piece],
    profile: "ModelProfile",
    layout: str,
    text: str,
    sources: Sources,
) -> Prompt:
    spans = [pieces[i] for i in arrangement.spans]
    meta = RequestMeta(
        anchor=arrangement.anchor,
        fingerprint=profile.fingerprint,
        public=tuple(i for i, s in enumerate(spans) if s.public),
        placements=arrangement.placements,
        head_at=arrangement.head_at,
        names=tuple(s.name for s in spans),
    )
    ids = arrangement.token_ids
    parsed = meta.parse(ids, control=profile.control_tokens, block_size=profile.block_size)
    control = sum(s.visible_start - s.start for s in parsed.segments)
    stats = PromptStats(parsed.num_visible, len(ids) - parsed.num_visible - control, control)
    if stats.physical > profile.max_model_len:
        raise InputError(
            f"the prompt has {stats.physical} tokens ({stats.visible} visible), the model takes {profile.max_model_len}"
        )
    order = sorted(range(len(parsed.segments)), key=lambda i: parsed.segments[i].logical_shown)
    plain: list[int] = []
    for segment in (parsed.segments[i] for i in order):
        plain += ids[segment.shown_start : segment.visible_stop]
    return Prompt(
        token_ids=ids,
        plain_token_ids=plain,
        spans=_segments(ids, parsed, order, meta, profile.fingerprint),
        stats=stats,
        text=text,
        messages=plain_messages(sources),
        tools=[t.definition for t in sources.tools],
        template_options=sources.options,
        layout=layout,
        meta=meta,
        profile=profile,
    )


def _segments(
    ids: list[int], parsed: Layout, order: Sequence[int], meta: RequestMeta, fingerprint: str
) -> tuple[PromptSpan, ...]:
    keys: dict[int, str] = {}
    logical: dict[int, range] = {}
    at = 0
    for i in order:
        segment = parsed.segments[i]
        visible = ids[segment.visible_start : segment.visible_stop]
        if segment.kind == "span":
            keys[i] = span_key(fingerprint, meta.anchor, visible)
        else:
            keys[i] = text_key(fingerprint, keys.values() if segment.kind == "dependent" else (), visible)
        logical[i] = range(at, at + segment.num_visible - segment.hidden)
        at = logical[i].stop
    names = iter(meta.names)
    return tuple(
        PromptSpan(
            name=next(names) if s.kind == "span" else s.kind,
            kind=s.kind,
            physical=range(s.start, s.stop),
            visible=range(s.visible_start, s.visible_stop),
            logical=logical[i],
            key=keys[i],
        )
        for i, s in enumerate(parsed.segments)
    )
