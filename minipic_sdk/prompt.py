"""A composed prompt: what is sent, and what it is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from minipic_sdk.documents import Document, Tool
from minipic_sdk.layout import SegmentKind
from minipic_sdk.protocol import XARGS_KEY, RequestMeta

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from minipic_sdk.layouts import LayoutOptions, PromptLayout
    from minipic_sdk.profile import ModelProfile
    from minipic_sdk.rendering import Sources


class PromptSpan(NamedTuple):
    """One segment of a prompt. The ranges cut the lists: ``prompt.token_ids[r.start : r.stop]``."""

    name: str
    kind: SegmentKind  # head, span or dependent
    physical: range  # into token_ids: the whole segment, control token and padding included
    visible: range  # into token_ids: without control token and padding
    logical: range  # into plain_token_ids
    key: str  # the same for the same content, anchor and profile, wherever it stands; see keys.py


@dataclass(frozen=True, slots=True)
class PromptStats:
    """Tokens of a prompt by use; their sum is ``len(prompt.token_ids)``, which ``max_model_len`` bounds."""

    visible: int  # what the model reads: len(prompt.plain_token_ids)
    pad: int
    control: int
    hidden: int = 0  # cached copies of what is computed anew in context (layout "epic")

    @property
    def physical(self) -> int:
        """All tokens."""
        return self.visible + self.pad + self.control + self.hidden


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready to send. Made by ``Prompt.compose`` or ``Prompt.from_messages``."""

    token_ids: list[int] = field(repr=False)  # physical: with control tokens and padding
    plain_token_ids: list[int] = field(repr=False)  # what the model reads, and an ordinary server is sent
    spans: tuple[PromptSpan, ...]  # every segment, in physical order
    stats: PromptStats
    text: str = field(repr=False)  # the same as text
    layout: str  # the one that was used: of "auto", what it came to
    meta: RequestMeta = field(repr=False)
    profile: "ModelProfile" = field(repr=False, compare=False)
    sources: "Sources" = field(repr=False)  # what it was composed of
    layout_reason: str = field(default="", repr=False)  # why "auto" took this one

    @property
    def has_spans(self) -> bool:
        """Whether it uses control tokens at all; if not, it is an ordinary prompt."""
        return self.stats.control > 0

    @property
    def vllm_xargs(self) -> dict[str, str]:
        """What its request must carry as ``vllm_xargs``; empty without spans."""
        return {XARGS_KEY: self.meta.to_json()} if self.has_spans else {}

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The same as chat messages, with the documents written in: for servers that render templates themselves."""
        from minipic_sdk.rendering import plain_messages

        return plain_messages(self.sources)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The definitions of its tools, in the OpenAI form: they go with ``messages``."""
        return [t.definition for t in self.sources.tools]

    @property
    def extra_body(self) -> dict[str, Any]:
        """For the plain OpenAI client: ``completions.create(prompt=p.token_ids, extra_body=p.extra_body, ...)``."""
        return {"vllm_xargs": self.vllm_xargs} if self.has_spans else {}

    @classmethod
    def compose(
        cls,
        docs: Sequence[str | Document | Mapping[str, Any]],
        question: str,
        *,
        system: str | None = None,
        tools: Sequence[Tool | Mapping[str, Any]] = (),
        history: Sequence[Mapping[str, Any]] = (),
        memory: Sequence[str | Document | Mapping[str, Any]] = (),
        layout: "str | PromptLayout" = "anchored",
        profile: "ModelProfile | None" = None,
        template_options: Mapping[str, Any] | None = None,
        **layout_options: "Unpack[LayoutOptions]",
    ) -> "Prompt":
        """Compose a prompt of which every document, tool and memory state is a span that is cached on its own.

        Args:
            docs: documents, in the order in which the model shall read them; they stand before the first user text.
                Empty ones are left out, here as in ``memory``.
            question: what the user asks last; not blank.
            system: the system prompt; ``None`` leaves it to the chat template.
            tools: functions the model may call.
            history: earlier messages (OpenAI form) between the system prompt and the question.
            memory: memory states; they stand before the documents.
            layout: ``anchored``, ``auto``, ``block``, ``epic``, ``prefix``, ``prompt-cache``, or an object like
                ``Epic(k=16)``; docs/layouts.md says what each costs and when to use it.
            profile: of the model; by default that of the server at ``MINIPIC_BASE_URL``, else the bundled model's.
            template_options: further variables of the chat template, such as ``{"enable_thinking": False}``.
            layout_options: of the layout: ``anchor``, ``base``, ``k`` (see ``LayoutOptions``).

        Raises:
            InputError: a blank question, or an argument of the wrong shape.
            TemplateError: the model's chat template refuses the messages.
            LayoutError: never for valid arguments; it would mean a bug.
        """
        from minipic_sdk.compose import compose

        return compose(
            docs,
            question,
            system=system,
            tools=tools,
            history=history,
            memory=memory,
            layout=layout,
            profile=profile,
            template_options=template_options or {},
            layout_options=layout_options,
        )

    @classmethod
    def from_messages(
        cls,
        messages: Sequence[Mapping[str, Any]],
        *,
        documents: Sequence[str | Document | Mapping[str, Any]] = (),
        tools: Sequence[Tool | Mapping[str, Any]] = (),
        memory: Sequence[str | Document | Mapping[str, Any]] = (),
        inline: Sequence[str | Document | Mapping[str, Any]] = (),
        layout: "str | PromptLayout" = "anchored",
        profile: "ModelProfile | None" = None,
        template_options: Mapping[str, Any] | None = None,
        **layout_options: "Unpack[LayoutOptions]",
    ) -> "Prompt":
        """As ``compose``, from a whole conversation in the OpenAI form.

        ``inline``: documents that the messages quote word for word; each place is a span, and the text stays as it is.
        """
        from minipic_sdk.compose import compose_messages

        return compose_messages(
            messages,
            documents=documents,
            tools=tools,
            memory=memory,
            inline=inline,
            layout=layout,
            profile=profile,
            template_options=template_options or {},
            layout_options=layout_options,
        )
