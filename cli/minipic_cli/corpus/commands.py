"""``minipic corpus``: what was warmed, and whether it still is."""

import fnmatch
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import typer

from minipic_cli import options
from minipic_cli.connection import connected, served_profile
from minipic_cli.console import error, note, out, print_json, table
from minipic_cli.corpus import settings
from minipic_cli.corpus.chunking import DEFAULT_TOKENS, Chunker
from minipic_cli.corpus.entry import Entry, salt_digest
from minipic_cli.corpus.manifest import Manifest
from minipic_cli.corpus.reading import Bad, ReadError, texts
from minipic_cli.corpus.sources import STDIN, expand, of_stdin, walk
from minipic_cli.errors import CLIError, UsageError
from minipic_sdk import MiniPIC, NotFoundError, SpansReport
from minipic_sdk.wire import SpanQuery

_AT_ONCE: Final = 64  # spans in one request

Patterns = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SOURCE]...", help="Files, directories or patterns such as '*.md'; by default everything."),
]

app = typer.Typer(help="Show, check and forget what was warmed.", no_args_is_help=True)


def add_to(root: typer.Typer) -> None:
    """Register the commands."""
    root.add_typer(app, name="corpus")


@app.command("ls")
def ls(
    sources: Patterns = None,
    manifest: settings.ManifestFile = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """List the documents that were warmed: one line, or one line of JSON, each."""
    with settings.open_manifest(manifest, create=False) as known:
        if as_json:
            for entry in _chosen(known, sources):
                _json_line(entry.to_json())
            return
        shown = table(
            "document", "tokens", "blocks", "chunks", "state", "warmed", "model", right=("tokens", "blocks", "chunks")
        )
        count = tokens = 0
        for entry in _chosen(known, sources):
            count, tokens = count + 1, tokens + entry.tokens
            numbers = (str(entry.tokens), str(entry.blocks), str(entry.chunks))
            shown.add_row(entry.source, *numbers, _state(entry), _when(entry.warmed_at), entry.model)
        out().print(shown, markup=False)
        out().print(f"{count} documents, {tokens} tokens")


@app.command("show")
def show(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A document, as `minipic corpus ls` names it.")],
    manifest: settings.ManifestFile = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Show all that is known of one document, chunk by chunk."""
    with settings.open_manifest(manifest, create=False) as known:
        found = list(_chosen(known, [source]))
        if not found:
            raise CLIError(f"the manifest has no document {source}: `minipic corpus ls` lists them")
        if as_json:
            print_json([{**e.to_json(), "spans": _spans(known, e)} for e in found])
            return
        for entry in found:
            for key, value in entry.to_json().items():
                if value is not None:
                    shown = _when(value) if key in ("warmed_at", "expires_at") else value
                    out().print(f"{key:13} {shown}", markup=False, soft_wrap=True)
            spans = table("chunk", "tokens", "blocks", "key", right=("chunk", "tokens", "blocks"))
            for s in _spans(known, entry):
                spans.add_row(str(s["chunk"]), str(s["tokens"]), str(s["blocks"]), s["key"])
            out().print(spans, markup=False)


@app.command("rm")
def rm(
    sources: Patterns = None,
    vanished: Annotated[bool, typer.Option("--vanished", help="Those that are gone from disk.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All documents.")] = False,
    manifest: settings.ManifestFile = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Forget documents; the server's cache is not touched, it evicts what is not used any more by itself."""
    if not sources and not vanished and not everything:
        raise UsageError("say what to forget: SOURCE..., --vanished or --all")
    count = 0
    with settings.open_manifest(manifest, create=False) as known:
        for entry in _chosen(known, sources):
            if not vanished or entry.state == "vanished":
                known.remove(entry)
                count += 1
    if as_json:
        print_json({"removed": count})
    else:
        out().print(f"{count} documents forgotten")
    if sources and not count:
        raise CLIError(f"the manifest has no document {' '.join(sources)}: `minipic corpus ls` lists them")


@app.command("verify")
def verify(
    sources: Patterns = None,
    manifest: settings.ManifestFile = None,
    cache_salt: options.Salt = None,
    base_url: options.BaseUrl = None,
    api_key: options.ApiKey = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Ask the server which documents are in its cache; computes nothing. Exit code 1 if any is missing."""
    counts = {"resident": 0, "partial": 0, "absent": 0, "rejected": 0}
    other = 0
    with (
        settings.open_manifest(manifest, create=False) as known,
        connected(base_url, api_key, cache_salt=cache_salt) as client,
    ):
        mine = _mine(client, cache_salt)
        shown = table("document", "chunks", "status", "resident", right=("chunks", "resident"))
        for entry in _chosen(known, sources):
            if not mine(entry):
                other += 1
                continue
            status, have, blocks = _look_up(client, known, entry)
            counts[status] += 1
            if as_json:
                body = {"source": entry.source, "status": status, "resident_blocks": have, "blocks": blocks}
                _json_line(body)
            elif status != "resident":
                shown.add_row(entry.source, str(entry.chunks), status, f"{have}/{blocks}")
    if not as_json:
        if shown.row_count:
            out().print(shown, markup=False)
        out().print(", ".join(f"{n} {name}" for name, n in counts.items() if n or name == "resident"))
    if other:
        note(f"{other} documents are of another model, profile or salt, or gone from disk: not asked about")
    if sum(counts.values()) != counts["resident"]:
        note("`minipic warm PATH...` refills what is missing")
        raise typer.Exit(1)


@app.command("unpin")
def unpin(
    sources: Patterns = None,
    manifest: settings.ManifestFile = None,
    cache_salt: options.Salt = None,
    base_url: options.BaseUrl = None,
    api_key: options.ApiKey = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Let the server evict documents that `minipic warm --pin` pinned; they stay cached until it does."""
    count = 0
    with (
        settings.open_manifest(manifest, create=False) as known,
        connected(base_url, api_key, cache_salt=cache_salt) as client,
    ):
        mine = _mine(client, cache_salt)
        for entry in _chosen(known, sources):
            if entry.pinned and mine(entry):
                for _ in each_batch(known, entry, client.unpin):
                    pass
                known.unpin(entry.id)
                count += 1
    if as_json:
        print_json({"unpinned": count})
    else:
        out().print(f"{count} documents unpinned")


@app.command("split")
def split(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="As for `minipic warm`.")],
    chunk_tokens: settings.ChunkTokens = DEFAULT_TOKENS,
    format: settings.FormatName = None,
    encoding: settings.Encoding = None,
    base_url: options.BaseUrl = None,
    api_key: options.ApiKey = None,
    quiet: options.Quiet = False,
) -> None:
    """Write the chunks that `minipic warm` makes as JSON lines, for an application to use the same ones."""
    found = expand(paths)
    kind = settings.format_of(format)
    settings.check_encoding(encoding)
    with connected(base_url, api_key) as client:
        profile = served_profile(client)
    cut = Chunker(profile.encode_batch, settings.chunk_limit(chunk_tokens, profile))
    failed = False
    given = [p for p in found if p != STDIN]
    held = [of_stdin(kind)] if STDIN in found else []
    for source in (*walk(given, kind), *(s for s, _ in held)):
        try:
            for text in texts(source, encoding):
                if isinstance(text, Bad):
                    failed = True
                    error(text.why)
                    continue
                for number, chunk in enumerate(cut.chunks(text.pieces, text.title)):
                    name = f"{text.name}#{number + 1}" if number else text.name
                    title = {"title": text.title} if text.title and not number else {}
                    _json_line({"name": name, **title, "text": chunk.text, "tokens": len(chunk.ids)})
        except ReadError as problem:
            failed = failed or source.named
            error(str(problem))
    if failed:
        raise typer.Exit(1)


def _chosen(known: Manifest, patterns: list[str] | None) -> Iterator[Entry]:
    """Documents that a pattern names: their source, their name, a file or directory above them, or a glob of those."""
    for entry in known.entries():
        if not patterns or any(_matches(entry, pattern) for pattern in patterns):
            yield entry


def _matches(entry: Entry, pattern: str) -> bool:
    if pattern in (entry.source, entry.name):
        return True
    whole = os.path.abspath(pattern)
    if entry.source == whole or entry.file == whole or entry.file.startswith(whole.rstrip(os.sep) + os.sep):
        return True
    return any(fnmatch.fnmatchcase(name, p) for name in (entry.source, entry.name) for p in (pattern, whole))


def _mine(client: MiniPIC, salt: str | None) -> Callable[[Entry], bool]:
    """Whether a document was warmed for this server and salt."""
    try:
        profile = client.profile()
    except NotFoundError as problem:
        raise CLIError(f"{client.base_url} has no MiniPIC plugin, so nothing is warm there") from problem
    wanted = (profile.model, profile.fingerprint, salt_digest(salt))
    return lambda e: (e.model, e.fingerprint, e.salt) == wanted and e.state != "vanished"


def _look_up(client: MiniPIC, known: Manifest, entry: Entry) -> tuple[str, int, int]:
    """Status, resident blocks, blocks of a document."""
    have = 0
    statuses: set[str] = set()
    for report in each_batch(known, entry, client.lookup):
        statuses |= {s.status for s in report.spans}
        have += sum(s.resident_blocks or 0 for s in report.spans)
    if "rejected" in statuses:
        return "rejected", have, entry.blocks
    if statuses <= {"resident"}:
        return "resident", have, entry.blocks
    return ("partial" if have else "absent"), have, entry.blocks


def each_batch(known: Manifest, entry: Entry, send: Callable[[list[SpanQuery]], SpansReport]) -> Iterator[SpansReport]:
    """Send the spans of a document, a few at a time."""
    batch: list[SpanQuery] = []
    for _, _, ids, _ in known.spans(entry.id):
        batch.append(SpanQuery(ids, name=entry.name, public=entry.public))
        if len(batch) == _AT_ONCE:
            yield send(batch)
            batch = []
    if batch:
        yield send(batch)


def _spans(known: Manifest, entry: Entry) -> list[dict[str, Any]]:
    return [
        {"chunk": ordinal + 1, "key": key.hex(), "tokens": len(ids), "blocks": blocks}
        for ordinal, key, ids, blocks in known.spans(entry.id)
    ]


def _state(entry: Entry) -> str:
    pinned = entry.pinned and (entry.expires_at is None or entry.expires_at > time.time())
    return f"{entry.state}, pinned" if pinned else entry.state


def _when(at: float | None) -> str:
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _json_line(body: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(body, ensure_ascii=False) + "\n")
