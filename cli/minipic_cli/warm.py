"""``minipic warm``: prefill documents, so that the first question about them is fast."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, Final

import typer

from minipic_cli import options
from minipic_cli.connection import connected
from minipic_cli.console import Advance, error, note, out, print_json, reading, table
from minipic_cli.corpus import settings
from minipic_cli.corpus.chunking import DEFAULT_TOKENS
from minipic_cli.corpus.entry import default_path
from minipic_cli.corpus.manifest import Manifest
from minipic_cli.corpus.room import Room
from minipic_cli.corpus.sending import LOST, SHOWN, Send
from minipic_cli.corpus.sources import FORMATS, STDIN, expand, of_stdin, scope, size_of, walk
from minipic_cli.corpus.totals import Row, Totals
from minipic_cli.corpus.warming import Warmer
from minipic_cli.errors import CLIError
from minipic_sdk import APIConnectionError, MiniPIC, MiniPICError, ModelProfile, NotFoundError, SpansReport
from minipic_sdk.wire import SpanQuery

_POLL_S: Final = 1.0
_KINDS: Final = 5  # suffixes that are named


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("warm")(warm)


def warm(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Text, Markdown, HTML, PDF or JSONL files, directories of them, globs, or - for stdin.",
        ),
    ],
    chunk_tokens: settings.ChunkTokens = DEFAULT_TOKENS,
    format: settings.FormatName = None,
    encoding: settings.Encoding = None,
    manifest: settings.ManifestFile = None,
    no_manifest: Annotated[
        bool, typer.Option("--no-manifest", help="Note nothing; read everything each time.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Compute nothing: say how much it is and whether that fits into the cache."),
    ] = False,
    pin: Annotated[bool, typer.Option("--pin", help="Keep them in the cache until `minipic corpus unpin`.")] = False,
    ttl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Keep them in the cache for so long.", min=0.001)
    ] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait so long for the server to be up.", show_default=False)
    ] = 0,
    cache_salt: options.Salt = None,
    base_url: options.BaseUrl = None,
    api_key: options.ApiKey = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Prefill documents on the server; each file or chunk is a span, reusable at any place of any prompt.

    Run it again after documents changed, after ^C or after the server was restarted: what is warm is not computed
    twice, what is unchanged is not read again.
    """
    found = expand(paths)
    kind = settings.format_of(format)
    settings.check_encoding(encoding)
    with ExitStack() as stack:
        client = stack.enter_context(connected(base_url, api_key, cache_salt=cache_salt))
        profile = _profile(client, wait, dry=dry_run and base_url is None)
        limit = settings.chunk_limit(chunk_tokens, profile.served)
        path = None if no_manifest or dry_run else manifest or default_path()
        noted = stack.enter_context(Manifest(path))
        files = [p for p in found if p != STDIN]
        bar = stack.enter_context(reading("reading" if dry_run else "warming", size_of(files)))
        warmer = Warmer(
            noted,
            profile.served,
            _telling(_sender(client, dry=dry_run, pin=pin, ttl=ttl), bar, dry=dry_run) if profile.up else None,
            chunk_tokens=limit,
            salt=cache_salt,
            encoding=encoding,
            advance=bar,
            pinned=pin or ttl is not None,
            ttl=ttl,
        )
        others: dict[str, int] = {}
        try:
            warmer.run(walk(files, kind, others), scope(files))
            if STDIN in found:
                source, held = of_stdin(kind)
                with held:
                    warmer.run(iter((source,)), scope(()))
        except (KeyboardInterrupt, MiniPICError) as stop:
            _stopped(warmer, stop)
            raise
        needs = noted.distinct(warmer.target)
        room = Room.of(client.stats() if profile.up else {}, needs[1])
    _report(warmer, room, needs, others, as_json=as_json, dry=dry_run)
    if others:
        _left_out(others, files)
    _end(warmer, found)


class _Profile:
    def __init__(self, served: ModelProfile, *, up: bool) -> None:
        self.served, self.up = served, up


def _profile(client: MiniPIC, wait: float, *, dry: bool) -> _Profile:
    """The server's profile, once it is up; without a server a dry run takes the bundled model's."""
    until = time.monotonic() + wait
    told = False
    while True:
        try:
            return _Profile(client.profile(), up=True)
        except NotFoundError as error:
            raise CLIError(
                f"{client.base_url} has no MiniPIC plugin, so there is nothing to warm: serve with `minipic serve`"
            ) from error
        except APIConnectionError as error:
            if time.monotonic() < until:
                if not told:
                    note(f"waiting for the server at {client.base_url} (up to {wait:g} s)")
                    told = True
                time.sleep(min(_POLL_S, max(0.0, until - time.monotonic())))
            elif dry:
                note(f"no server ({error}): counted for the bundled model, what is cached is unknown")
                return _Profile(ModelProfile.default(), up=False)
            elif wait:
                raise CLIError(
                    f"the server at {client.base_url} is not up after {wait:g} s: see its log, or wait longer with --wait"
                ) from error
            else:
                raise


def _sender(client: MiniPIC, *, dry: bool, pin: bool, ttl: float | None) -> Send:
    return client.lookup if dry else partial(client.warm, pin=pin, ttl=ttl)


def _telling(send: Send, bar: Advance, *, dry: bool) -> Send:
    """The same, with a word about each batch: a slow server takes a minute for one."""
    done, doing = 0, "looking up" if dry else "warming"

    def told(queries: Sequence[SpanQuery]) -> SpansReport:
        nonlocal done
        bar.say(f"{doing}: {done} chunks done, {len(queries)} under way")
        report = send(queries)
        done += len(queries)
        return report

    return told


def _stopped(warmer: Warmer, why: BaseException) -> None:
    """Say what is done; the reason itself is said by whoever ends the command."""
    totals = warmer.totals
    done, interrupted = totals.hit + totals.computed, isinstance(why, KeyboardInterrupt)
    if done or interrupted:
        word = "interrupted" if interrupted else "stopped"
        note(f"{word}: {done} chunks are warm; run it again to go on")


def _report(
    warmer: Warmer, room: Room, needs: tuple[int, int], others: Mapping[str, int], *, as_json: bool, dry: bool
) -> None:
    totals = warmer.totals
    body: dict[str, Any] = totals.to_json()
    body |= {"distinct": {"tokens": needs[0], **room.to_json()}, "other_suffixes": others}
    if as_json:
        rejected = [{"name": name, "reason": why} for name, why in warmer.outbox.rejected]
        print_json({**body, "dry_run": dry, "failures": warmer.failures, "rejections": rejected})
        return
    columns = ("document", "change", "chunks", "tokens", "blocks", "status", "reason")
    shown = table(*columns, right=("chunks", "tokens", "blocks"))
    for row in warmer.outbox.rows:
        numbers = (str(row.chunks), str(row.tokens), str(row.blocks))
        shown.add_row(row.name, row.change, *numbers, row.status, row.reason or "")
    console = out()
    console.print(shown, markup=False)
    if totals.documents > SHOWN:
        console.print(f"... and {totals.documents - SHOWN} more: `minipic corpus ls` has them all", markup=False)
    console.print(_summary(totals, warmer.outbox.rows, dry=dry), markup=False, soft_wrap=True)
    what = "together" if dry else "all that is in the manifest"
    console.print(room.sentence(what), markup=False, soft_wrap=True)


def _summary(totals: Totals, rows: Sequence[Row], *, dry: bool) -> str:
    chunks = "" if totals.chunks == totals.documents else f" in {totals.chunks} chunks"
    text = f"{totals.documents} documents{chunks}, {totals.tokens} tokens: "
    if dry and all("unknown" in row.counts for row in rows):
        return text + f"{totals.chunks} would be computed, fewer if some are cached"
    if dry:
        return text + f"{totals.hit} are warm, {totals.chunks - totals.hit} would be computed"
    again = f" ({totals.refilled} of them again: {LOST})" if totals.refilled else ""
    text += f"{totals.computed} computed{again}, {totals.hit} hit, {totals.rejected} rejected"
    if totals.vanished:
        text += f"; {totals.vanished} documents are gone from disk (`minipic corpus rm --vanished`)"
    return text


def _left_out(others: Mapping[str, int], paths: Sequence[str]) -> None:
    """Say which files of directories were not looked at, and how they would be."""
    often = sorted(others, key=lambda suffix: (-others[suffix], suffix))
    kinds = [f"{suffix or 'no suffix'} ({others[suffix]})" for suffix in often[:_KINDS]]
    if len(often) > _KINDS:
        kinds.append(f"{len(often) - _KINDS} more suffixes")
    folder = next(path for path in paths if os.path.isdir(path)).rstrip(os.sep)
    suffix = next((f"*{suffix}" for suffix in often if suffix), "NAME")
    note(
        f"left out {sum(others.values())} files of other kinds: {', '.join(kinds)}; named ones are read as text, "
        f"or as --format says: minipic warm '{folder}/**/{suffix}'"
    )


def _end(warmer: Warmer, paths: Sequence[str]) -> None:
    """The exit code: 1 if anything that was named could not be used."""
    totals = warmer.totals
    for why in warmer.failures:
        error(why)
    if totals.failed or totals.rejected:
        raise typer.Exit(1)
    if not totals.documents and not totals.vanished:
        where = paths[0] if len(paths) == 1 else "these paths"
        has = "has" if len(paths) == 1 else "have"
        raise CLIError(f"{where} {has} no documents: MiniPIC reads {', '.join(sorted(FORMATS))}")
