"""A chat turn over documents, without I/O (see _flow.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, cast

from minipic_sdk._completions import ChatParts, chat_parts
from minipic_sdk._flow import Flow, Send, json_of
from minipic_sdk._flows import Opened, ask, connect, ended, generate, model_name, send_messages
from minipic_sdk._markup import parse_text
from minipic_sdk._session import Session
from minipic_sdk.documents import Document, Tool
from minipic_sdk.errors import (
    APIConnectionError,
    APIStatusError,
    ClientClosedError,
    InputError,
    ProfileMismatchError,
)
from minipic_sdk.prompt import Prompt
from minipic_sdk.rendering import Sources, plain_messages
from minipic_sdk.results import ChatResult, GenerateResult

if TYPE_CHECKING:
    from minipic_sdk.layouts import PromptLayout

DERENDER: Final = "/v1/chat/completions/derender"
_BARE: Final = frozenset(("type", "properties", "required", "additionalProperties", "title", "description"))
_OFF: Final = frozenset((403, 404, 405, 501))  # vLLM serves the route with --enable-scale-out only


@dataclass(frozen=True)
class Turn:
    """What the user asked for."""

    messages: Sequence[Mapping[str, Any]]
    documents: Sequence["str | Document | Mapping[str, Any]"]
    tools: Sequence["Tool | Mapping[str, Any]"]
    memory: Sequence["str | Document | Mapping[str, Any]"]
    layout: "str | PromptLayout"
    template_options: Mapping[str, Any]
    tool_choice: "str | Mapping[str, Any] | None"
    inline: Sequence["str | Document | Mapping[str, Any]"] = ()

    def prompt(self, session: Session) -> Prompt:
        """Composed with the server's profile."""
        return Prompt.from_messages(
            self.messages,
            documents=self.documents,
            tools=() if self.tool_choice == "none" else self.tools,
            memory=self.memory,
            inline=self.inline,
            layout=self.layout,
            profile=session.profile,
            template_options=self.template_options,
        )


def open_turn(
    session: Session, turn: Turn, params: Mapping[str, Any], timeout: float | None
) -> Flow[GenerateResult | Opened]:
    """Compose and send; composed anew, once, if the server's profile has changed."""
    yield from connect(session)
    if session.server != "minipic":
        return (yield from _send_plain(session, turn, params, timeout))
    params = {**params, **forced_call(turn)}
    try:
        return (yield from generate(session, turn.prompt(session), params, timeout))
    except ProfileMismatchError:
        return (yield from generate(session, turn.prompt(session), params, timeout))


def forced_call(turn: Turn) -> dict[str, Any]:
    """What makes the model call a tool: JSON that can be nothing else, as vLLM's chat route does it.

    Raises:
        InputError: an unknown choice, or a tool that isn't offered.
    """
    choice = turn.tool_choice
    if choice in (None, "auto", "none"):
        return {}
    tools = [Tool.of(t) for t in turn.tools]
    if isinstance(choice, Mapping):
        name = cast("dict[str, Any]", choice.get("function") or {}).get("name")
        tools = [t for t in tools if t.name == name]
    elif choice != "required":
        raise InputError(f"tool_choice={choice!r}: 'auto', 'none', 'required' or a function as in the OpenAI API")
    if not tools:
        raise InputError(f"tool_choice={choice!r}, but no such tool is offered")
    calls: list[dict[str, Any]] = []
    shared: dict[str, Any] = {}
    for tool in tools:
        arguments: dict[str, Any] = {"type": "object", **tool.parameters}
        shared |= arguments.pop("$defs", {})  # references are from the root
        if arguments.keys() <= _BARE and not arguments.get("properties") and not arguments.get("additionalProperties"):
            arguments = {"const": {}}  # not just an empty object: small models fill one with space and don't come back
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {"structured_outputs": {"json": {**schema, "$defs": shared} if shared else schema}}


def finish_turn(
    session: Session, turn: Turn, got: GenerateResult | Opened, parsed: ChatParts | None
) -> Flow[ChatResult]:
    """Parse what was generated, unless the server did (``parsed``)."""
    result = got
    if isinstance(result, Opened):
        if result.state.asked.route == "chat":
            parsed = result.state.chat_parts()
        result = yield from ended(session, result)
    if parsed is None:
        parsed = yield from _parse(session, turn, result)
    own = {f.name: getattr(result, f.name) for f in fields(result)}
    return ChatResult(**own, content=parsed.content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls)


def parsed_by_server(result: GenerateResult) -> ChatParts | None:
    """The message of a chat route's answer; ``None`` for a completion's."""
    choice = result.raw["choices"][0]
    return chat_parts(choice["message"]) if "message" in choice else None


def _parse(session: Session, turn: Turn, result: GenerateResult) -> Flow[ChatParts]:
    first = result.choices[0]
    tools = bool(turn.tools) and turn.tool_choice != "none"
    if session.derenders and first.token_ids and not isinstance(first.stop_reason, str):
        parts = yield from _derender(session, turn, result)
        if parts is not None and (parts.tool_calls or parts.reasoning):
            return parts
    return parse_text(first.text, tools=tools)


def _derender(session: Session, turn: Turn, result: GenerateResult) -> Flow[ChatParts | None]:
    """Let vLLM's own parsers (``--tool-call-parser``, ``--reasoning-parser``) read the text, as in its chat route."""
    profile = session.profile
    first = result.choices[0]
    ids = list(first.token_ids)
    while ids and profile is not None and ids[-1] in profile.eos_token_ids:
        ids.pop()
    if not ids:
        return None
    model = model_name(session)
    choice = {"index": 0, "token_ids": ids, "finish_reason": first.finish_reason}
    chat: dict[str, Any] = {"model": model, "messages": plain_messages(_sources(turn, bare=True))}
    if turn.tools and turn.tool_choice != "none":
        chat |= {"tools": [Tool.of(t).definition for t in turn.tools], "tool_choice": "auto"}
    body: dict[str, Any] = {
        "model": model,
        "generate_response": {"request_id": result.id, "choices": [choice]},
        "chat_request": chat,
    }
    try:
        response = yield from ask(session, Send("POST", DERENDER, body), max_retries=0)
        return chat_parts(json_of(response)["choices"][0]["message"])
    except APIStatusError as error:
        session.derenders = error.status_code not in _OFF
        return None
    except (APIConnectionError, ClientClosedError):
        return None  # the answer is there: better parsed here than lost


def _send_plain(
    session: Session, turn: Turn, params: Mapping[str, Any], timeout: float | None
) -> Flow[GenerateResult | Opened]:
    sources = _sources(turn)
    extra = {} if turn.tool_choice is None else {"tool_choice": turn.tool_choice}
    definitions = [t.definition for t in sources.tools]
    return (
        yield from send_messages(
            session, plain_messages(sources), definitions, turn.template_options, {**params, **extra}, timeout
        )
    )


def _sources(turn: Turn, *, bare: bool = False) -> Sources:
    return Sources(
        turn.messages,
        [Tool.of(t) for t in turn.tools],
        [] if bare else [Document.of(m) for m in turn.memory],
        [] if bare else [Document.of(d) for d in turn.documents],
        turn.template_options,
    )
