"""Composing a prompt: render, tokenise each piece on its own, lay out, check."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from minipic_sdk.documents import Document, Tool
from minipic_sdk.errors import InputError
from minipic_sdk.fingerprint import short_digest
from minipic_sdk.keys import span_key, text_key
from minipic_sdk.layout import Segment
from minipic_sdk.layouts import LAYOUTS, LayoutOptions, layout_named
from minipic_sdk.layouts.base import Arrangement, Piece, PromptLayout, Rules
from minipic_sdk.prompt import Prompt, PromptSpan, PromptStats
from minipic_sdk.protocol import RequestMeta
from minipic_sdk.rendering import Literally, Part, Sources, SpanText, render_parts

if TYPE_CHECKING:
    from minipic_sdk.profile import ModelProfile

DocumentLike = str | Document | Mapping[str, Any]
_LISTS: Final = (list, tuple)
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
    layout: str | PromptLayout,
    profile: "ModelProfile | None",
    template_options: Mapping[str, Any],
    layout_options: LayoutOptions,
) -> Prompt:
    """See ``Prompt.compose``."""
    if not isinstance(question, str) or not question.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError("the question is empty")
    if isinstance(history, (str, Mapping)):
        raise InputError(f"history must be a list of messages, got one {type(history).__name__}")
    opening = [] if system is None else [{"role": "system", "content": system}]
    return compose_messages(
        [*opening, *history, {"role": "user", "content": question}],
        documents=docs,
        tools=tools,
        memory=memory,
        layout=layout,
        profile=profile,
        template_options=template_options,
        layout_options=layout_options,
    )


def compose_messages(
    messages: Sequence[Message],
    *,
    documents: Sequence[DocumentLike],
    tools: Sequence[ToolLike],
    memory: Sequence[DocumentLike],
    inline: Sequence[DocumentLike] = (),
    layout: str | PromptLayout,
    profile: "ModelProfile | None",
    template_options: Mapping[str, Any],
    layout_options: LayoutOptions,
) -> Prompt:
    """See ``Prompt.from_messages``."""
    from minipic_sdk.profile import ModelProfile

    lists = {"messages": messages, "documents": documents, "memory": memory, "inline": inline, "tools": tools}
    for name, value in lists.items():
        if type(value) in _LISTS:
            continue  # nearly always, and ten times faster than to ask an abstract class
        if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"{name} must be a list, got one {type(value).__name__}")
    if not messages:
        raise InputError("there is no message")
    if profile is None:
        profile = ModelProfile.configured()
    elif not isinstance(profile, ModelProfile):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"profile must be a ModelProfile, got {type(profile).__name__}")
    sources = Sources(
        messages,
        [Tool.of(t) for t in tools],
        _filled(memory),
        _filled(documents),
        template_options,
        [Document.of(d) for d in inline],
    )
    arrange = layout_named(layout, layout_options)
    parts = render_parts(profile.template, sources, markup=profile.markup, spoken=profile.spoken_markup)
    pieces = _pieces(parts, sources, profile)
    rules = Rules(profile.control_tokens, profile.block_size, profile.anchor_token_ids, profile.gate, profile.encode)
    arrangement = arrange(pieces, rules)
    text = "".join(p if isinstance(p, str) else p.text for p in parts)
    # The profile's ``encode`` makes no control token, and our layouts put theirs in their places: none to look for then.
    checked = type(arrange) in LAYOUTS.values()
    return _prompt(arrangement, pieces, profile, arrange.name, text, sources, checked=checked)


def _filled(given: Sequence[DocumentLike]) -> list[Document]:
    """Those that have a text: an empty one would change nothing but cost a block."""
    return [d for d in map(Document.of, given) if d.content]


def _pieces(parts: Sequence[Part], sources: Sources, profile: "ModelProfile") -> list[Piece]:
    pieces: list[Piece] = []
    text: list[str | Literally] = []
    spans = any(isinstance(p, SpanText) for p in parts)
    for part in (*parts, None):
        if isinstance(part, (str, Literally)):
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
    given = part.inline or (sources.memory if part.source == "memory" else sources.documents)[part.number]
    kind = "memory" if part.source == "memory" else "document"
    name = given.name or f"{kind}-{short_digest(part.text)[:8]}"
    return Piece("span" if given.cache else "text", ids, name, given.public, given)


def _prompt(
    arrangement: Arrangement,
    pieces: Sequence[Piece],
    profile: "ModelProfile",
    layout: str,
    text: str,
    sources: Sources,
    *,
    checked: bool,
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
    parsed = meta.parse(ids, control=profile.control_tokens, block_size=profile.block_size, checked=checked)
    segments = parsed.segments
    order = sorted(range(len(segments)), key=[s.logical + s.hidden for s in segments].__getitem__)
    plain: list[int] = []
    for i in order:
        plain += ids[segments[i].shown_start : segments[i].visible_stop]
    control = sum([s.visible_start - s.start for s in segments])
    hidden = sum([s.hidden for s in segments])
    stats = PromptStats(len(plain), len(ids) - len(plain) - control - hidden, control, hidden)
    longest = max(len(ids), *[s.logical_stop for s in segments])
    if longest > profile.max_model_len:
        what = "tokens" if longest == len(ids) else "positions, gaps counted"
        raise InputError(
            f"the prompt has {longest} {what} ({stats.visible} tokens visible), the model takes {profile.max_model_len}"
        )
    return Prompt(
        token_ids=ids,
        plain_token_ids=plain,
        spans=_segments(ids, segments, order, meta, profile.fingerprint),
        stats=stats,
        text=text,
        layout=arrangement.layout or layout,
        meta=meta,
        profile=profile,
        sources=sources,
        layout_reason=arrangement.reason,
    )


def _segments(
    ids: list[int], segments: Sequence[Segment], order: Sequence[int], meta: RequestMeta, fingerprint: str
) -> tuple[PromptSpan, ...]:
    names = iter(meta.names)
    named = [next(names) if s.kind == "span" else s.kind for s in segments]
    keys: dict[int, str] = {}
    shown: dict[int, PromptSpan] = {}
    at = 0
    for i in order:
        kind, start, stop, first, last, position, hidden = segments[i]
        if kind == "span":
            key = span_key(fingerprint, meta.anchor, ids[first:last])
        else:
            before = list(keys.values()) if kind == "dependent" else []
            if meta.placements is not None and kind == "dependent":
                # Then positions don't follow from what comes before.
                seen = [segments[j] for j in keys]
                before = [f"{k}@{s.logical}+{s.hidden}" for k, s in zip(before, seen, strict=True)]
                before.append(f"@{position}")
            key = text_key(fingerprint, before, ids[first:last])
        keys[i] = key
        end = at + last - first - hidden
        shown[i] = PromptSpan(named[i], kind, range(start, stop), range(first, last), range(at, end), key)
        at = end
    return tuple([shown[i] for i in range(len(segments))])
