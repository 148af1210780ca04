"""``minipic inspect``: a composed prompt, as a person wants to see it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from minipic_cli import options
from minipic_cli.blockmap import block_map
from minipic_cli.connection import connected, served_profile
from minipic_cli.console import note, out, print_json, table
from minipic_cli.corpus import settings
from minipic_cli.documents import chosen_documents
from minipic_cli.errors import CLIError, UsageError
from minipic_sdk import APIConnectionError, Document, ModelProfile, Prompt, SpanStatus

_PREVIEW: Final = 34  # characters of a segment's text
_COMPOSE: Final = ("docs", "question", "system", "tools", "history", "memory", "layout", "template_options")
_COLUMNS: Final = ("", "segment", "kind", "tokens", "pad", "blocks", "positions", "cached", "text")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("inspect")(inspect)


def inspect(
    question: Annotated[str | None, typer.Argument(help="The question; by default a placeholder.")] = None,
    more: options.MoreDocs = None,
    docs: options.Docs = None,
    format: settings.FormatName = None,
    encoding: settings.Encoding = None,
    arguments: Annotated[
        Path | None,
        typer.Option(
            "--compose",
            metavar="FILE",
            help="JSON object of arguments for Prompt.compose, instead of --docs: " + ", ".join(_COMPOSE),
        ),
    ] = None,
    system: options.System = None,
    layout: options.Layout = "anchored",
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Compose for this model directory; no server is asked.")
    ] = None,
    cache_salt: options.Salt = None,
    base_url: options.BaseUrl = None,
    api_key: options.ApiKey = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Show how a prompt is composed: segments, blocks, padding, positions, and what the server would find cached.

    Without a server the bundled model's profile is used, and what is cached is unknown. Nothing is computed.
    """
    documents = chosen_documents(docs, more, format, encoding)
    given: dict[str, Any] = {"docs": documents, "question": question or "?", "system": system, "layout": layout}
    if arguments is not None:
        if docs or more:
            raise UsageError("give either --docs or --compose")
        given |= _arguments(arguments) | ({"question": question} if question is not None else {})
    if model is not None:
        options.check_model_directory(model)
        seen = Seen(_compose(given, ModelProfile.from_directory(model)), None)
    else:
        seen = _ask(given, base_url, api_key, cache_salt)
    if as_json:
        print_json(seen.to_json())
    else:
        seen.show()


class Seen:
    """A prompt and what the server says about its spans."""

    def __init__(self, prompt: Prompt, found: tuple[SpanStatus, ...] | None) -> None:
        self.prompt = prompt
        self.size = prompt.profile.block_size
        told = iter(found or ())
        self.found = [next(told, None) if s.kind == "span" else None for s in prompt.spans]

    def to_json(self) -> dict[str, Any]:
        prompt = self.prompt
        segments = [
            {
                "name": s.name,
                "kind": s.kind,
                "physical": [s.physical.start, s.physical.stop],
                "visible": [s.visible.start, s.visible.stop],
                "logical": [s.logical.start, s.logical.stop],
                "pad": s.physical.stop - s.visible.stop,
                "blocks": len(self._blocks(s)),
                "key": s.key,
                "status": found.status if found else None,
                "resident_blocks": found.resident_blocks if found else None,
                "text": self._text(s),
            }
            for s, found in zip(prompt.spans, self.found, strict=True)
        ]
        stats = prompt.stats
        return {
            "model": prompt.profile.model,
            "layout": prompt.layout,
            "block_size": self.size,
            "anchor_token_ids": list(prompt.meta.anchor),
            "fingerprint": prompt.profile.fingerprint,
            "tokens": {
                "visible": stats.visible,
                "pad": stats.pad,
                "control": stats.control,
                "physical": stats.physical,
            },
            "max_model_len": prompt.profile.max_model_len,
            "segments": segments,
            "text": prompt.text,
        }

    def show(self) -> None:
        prompt, console = self.prompt, out()
        shown = table(*_COLUMNS, right=("tokens", "pad", "blocks"))
        for mark, s, found in zip(self._marks(), prompt.spans, self.found, strict=True):
            blocks = self._blocks(s)
            cached = "" if found is None else found.status
            if found is not None and found.status == "partial":
                cached += f" {found.resident_blocks}/{found.blocks}"
            pad = s.physical.stop - s.visible.stop
            preview = " ".join(self._text(s).split())
            preview = preview if len(preview) <= _PREVIEW else preview[: _PREVIEW - 1] + "…"
            reads = f"{s.logical.start}-{s.logical.stop - 1}" if s.logical else "nothing"
            shown.add_row(mark, s.name, s.kind, str(len(s.visible)), str(pad), str(len(blocks)), reads, cached, preview)
        console.print(shown, markup=False)
        console.print()
        for line in block_map(self._marks(), [self._blocks(s) for s in prompt.spans], console.width):
            console.print(line, markup=False, soft_wrap=True)
        console.print()
        console.print("\n".join(self._totals()), markup=False, soft_wrap=True)

    def _totals(self) -> list[str]:
        prompt, stats = self.prompt, self.prompt.stats
        anchor = prompt.profile.tokenizer.decode(prompt.meta.anchor)
        extra = (stats.pad + stats.control) / max(1, stats.visible)
        lines = [
            f"{stats.physical} tokens in blocks of {self.size}: {stats.visible} that the model reads, {stats.pad} padding, "
            f"{stats.control} control ({extra:.1%} more); the model takes {prompt.profile.max_model_len}",
            f"layout {prompt.layout}, anchor {anchor!r} ({len(prompt.meta.anchor)} tokens), model {prompt.profile.model}",
        ]
        told = [f for f in self.found if f is not None]
        if told:
            hits = [f for f in told if f.status == "resident"]
            lines.append(
                f"{len(hits)} of {len(told)} spans would hit: {sum(f.tokens for f in hits)} of "
                f"{sum(f.tokens for f in told)} span tokens need no computing"
            )
        return lines

    def _marks(self) -> list[str]:
        letters = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ" * (1 + len(self.prompt.spans) // 26))
        return [next(letters) if s.kind == "span" else "h" if s.kind == "head" else "q" for s in self.prompt.spans]

    def _blocks(self, span: Any) -> range:
        return range(span.physical.start // self.size, -(-span.physical.stop // self.size))

    def _text(self, span: Any) -> str:
        return self.prompt.profile.tokenizer.decode(self.prompt.token_ids[span.visible.start : span.visible.stop])


def _ask(given: Mapping[str, Any], base_url: str | None, api_key: str | None, salt: str | None) -> Seen:
    """Compose for the server and look its spans up; without a server, for the bundled model."""
    try:
        with connected(base_url, api_key, cache_salt=salt, max_retries=0) as client:
            profile = served_profile(client)
            prompt = _compose(given, profile)
            found = client.lookup(prompt).spans if prompt.has_spans else ()
            return Seen(prompt, None if any(s.status == "rejected" for s in found) else found)
    except CLIError as error:
        if base_url is not None or not isinstance(error.__cause__, APIConnectionError):
            raise
        note(f"no server ({error.__cause__}): composed for the bundled model, what is cached is unknown")
    return Seen(_compose(given, ModelProfile.default()), None)


def _compose(given: Mapping[str, Any], profile: ModelProfile) -> Prompt:
    """As `minipic ask` does; documents of --compose stay as they are."""
    docs = given["docs"]
    if docs and all(isinstance(d, Document) for d in docs):
        docs = settings.cut_documents(docs, profile)
    arguments: dict[str, Any] = {**given, "docs": docs}
    return Prompt.compose(**arguments, profile=profile)


def _arguments(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise CLIError(f"{path} is not JSON: {error}") from error
    if not isinstance(body, dict) or (unknown := body.keys() - set(_COMPOSE)):
        what = f"unknown key {min(unknown)!r}" if isinstance(body, dict) else "not an object"
        raise CLIError(f"{path}: {what}; --compose takes a JSON object with the keys {', '.join(_COMPOSE)}")
    return body
