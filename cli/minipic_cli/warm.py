"""``minipic warm``: prefill documents, so that the first question about them is fast."""

from pathlib import Path
from typing import Annotated, Any

import typer

from minipic_cli import options
from minipic_cli.connection import connected
from minipic_cli.console import note, out, print_json, progress, table
from minipic_cli.documents import read_documents
from minipic_cli.errors import CLIError
from minipic_sdk import Document, MiniPIC, NotFoundError, SpanStatus

_AT_ONCE = 16  # documents a request: small enough that the bar moves and ^C loses little


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("warm")(warm)


def warm(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Text or Markdown files, or directories of them.")
    ],
    cache_salt: options.Salt = None,
    base_url: options.BaseUrl = None,
    api_key: options.ApiKey = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Prefill documents on the server; each file is a span of its own, reusable at any place of any prompt.

    Interrupted or run again, it goes on where it stopped: what is cached is not computed twice.
    """
    documents = read_documents(paths)
    with connected(base_url, api_key, cache_salt=cache_salt) as client:
        try:
            client.profile()
        except NotFoundError as error:
            raise CLIError(
                f"{client.base_url} has no MiniPIC plugin, so there is nothing to warm: serve with `minipic serve`"
            ) from error
        statuses = _warm(client, documents)
    if as_json:
        print_json(_summary(statuses))
    else:
        _show(statuses)
    if any(s.status == "rejected" for s in statuses):
        raise typer.Exit(1)


def _warm(client: MiniPIC, documents: list[Document]) -> list[SpanStatus]:
    statuses: list[SpanStatus] = []
    try:
        with progress("warming", len(documents)) as advance:
            for start in range(0, len(documents), _AT_ONCE):
                batch = documents[start : start + _AT_ONCE]
                statuses += client.warm(batch).spans
                advance(len(batch))
    except KeyboardInterrupt:
        note(f"interrupted: {len(statuses)} of {len(documents)} documents are warm; run it again to go on")
        raise
    return statuses


def _summary(statuses: list[SpanStatus]) -> dict[str, Any]:
    counts = {name: sum(s.status == name for s in statuses) for name in ("hit", "computed", "rejected")}
    tokens = sum(s.tokens for s in statuses)
    return {"documents": len(statuses), **counts, "tokens": tokens, "spans": [s.to_json() for s in statuses]}


def _show(statuses: list[SpanStatus]) -> None:
    shown = table("document", "tokens", "blocks", "status", "reason", right=("tokens", "blocks"))
    for s in statuses:
        shown.add_row(s.name, str(s.tokens), str(s.blocks), s.status, s.reason or "")
    out().print(shown, markup=False)
    summary = _summary(statuses)
    out().print(
        f"{summary['documents']} documents, {summary['tokens']} tokens: {summary['computed']} computed, "
        f"{summary['hit']} were warm, {summary['rejected']} rejected"
    )
