"""``minipic ask``: a question about documents, answered as it is generated."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from minipic_cli import options
from minipic_cli.connection import connected, served_profile
from minipic_cli.console import err, is_quiet, note, print_json, table
from minipic_cli.corpus import settings
from minipic_cli.documents import chosen_documents
from minipic_cli.errors import CLIError, UsageError
from minipic_sdk import GenerateResult, InputError, MiniPIC, Prompt


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("ask")(ask)


def ask(
    question: Annotated[str, typer.Argument(help="What to ask; it comes before --docs.")],
    more: options.MoreDocs = None,
    docs: options.Docs = None,
    format: settings.FormatName = None,
    encoding: settings.Encoding = None,
    system: options.System = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of the answer, at most.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.0,
    layout: options.Layout = "anchored",
    cache_salt: options.Salt = None,
    base_url: options.BaseUrl = None,
    api_key: options.ApiKey = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Ask a question about documents.

    The answer goes to stdout while it is generated; what was cached, document by document, to stderr.
    """
    check_question(question)
    documents = chosen_documents(docs, more, format, encoding)
    if not documents:
        note("no documents (--docs PATH...): the question is asked alone")
    with connected(base_url, api_key, cache_salt=cache_salt) as client:
        profile = served_profile(client)
        cut = settings.cut_documents(documents, profile)
        prompt = Prompt.compose(cut, question, system=system, layout=layout, profile=profile)
        answer = _Answer(client, prompt, max_tokens=max_tokens, temperature=temperature, echo=not as_json)
    if as_json:
        print_json(answer.to_json())
    elif not is_quiet():
        answer.show()


def check_question(question: str) -> None:
    """Raise UsageError for what can't be a question."""
    if not question.strip():
        raise UsageError('the question is empty: minipic ask "QUESTION" --docs PATH...')
    if len(question) < 256 and Path(question).exists():
        raise UsageError(f"{question} is a path: the question comes first, minipic ask QUESTION --docs PATH...")


class _Answer:
    """A finished answer with its times."""

    def __init__(self, client: MiniPIC, prompt: Prompt, *, echo: bool, **options: Any) -> None:
        started = time.perf_counter()
        self.first_s: float | None = None
        try:
            with client.generate(prompt, stream=True, **options) as stream:
                for chunk in stream:
                    if self.first_s is None and (chunk.text or chunk.token_ids):
                        self.first_s = time.perf_counter() - started
                    if echo:
                        sys.stdout.write(chunk.text)
                        sys.stdout.flush()
                self.total_s = time.perf_counter() - started
                self.result: GenerateResult = stream.result()
        except InputError as error:
            raise CLIError(str(error)) from error
        if echo:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def to_json(self) -> dict[str, Any]:
        usage = self.result.usage
        return {
            "answer": self.result.text,
            "finish_reason": self.result.finish_reason,
            "ttft_s": None if self.first_s is None else round(self.first_s, 4),
            "total_s": round(self.total_s, 4),
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "spans": [
                {"name": s.name, "status": s.status, "reason": s.reason, "tokens": s.tokens, "key": s.key}
                for s in self.result.spans
            ],
        }

    def show(self) -> None:
        """What was cached, on stderr."""
        usage = self.result.usage
        if self.result.spans:
            shown = table("document", "tokens", "status", "reason", right=("tokens",))
            for s in self.result.spans:
                shown.add_row(s.name, str(s.tokens), s.status, s.reason or "")
            err().print()
            err().print(shown, markup=False)
        cached = "unknown" if usage.cached_tokens is None else usage.cached_tokens
        note(
            f"{usage.prompt_tokens} prompt tokens, {cached} cached; first token after {self.first_s or self.total_s:.2f} s, "
            f"{usage.completion_tokens} tokens in {self.total_s:.2f} s"
        )
