"""A client for the command line: warnings become notes, errors say what to do."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minipic_cli.console import note
from minipic_cli.errors import CLIError, UsageError
from minipic_sdk import (
    APIConnectionError,
    APITimeoutError,
    AuthenticationError,
    InputError,
    MiniPIC,
    ModelProfile,
    NotFoundError,
    SpansOffWarning,
)


def make_client(base_url: str | None, api_key: str | None, **options: Any) -> MiniPIC:
    """A client; raises ``UsageError`` for options that none can be made with, such as a URL that is none."""
    try:
        return MiniPIC(base_url=base_url, api_key=api_key, **options)
    except InputError as error:
        raise UsageError(str(error)) from error


@contextmanager
def connected(base_url: str | None, api_key: str | None, **options: Any) -> Iterator[MiniPIC]:
    """A client of the server; inside, its errors become one-line errors of the command."""
    with make_client(base_url, api_key, **options) as client, warnings.catch_warnings():
        warnings.simplefilter("always", SpansOffWarning)
        warnings.showwarning = lambda message, *_args, **_kwargs: note(f"note: {message}")  # pyright: ignore
        try:
            yield client
        except APITimeoutError as error:
            raise CLIError(f"{client.base_url} did not answer in time: is it busy? see its log") from error
        except APIConnectionError as error:
            raise CLIError(
                f"can't reach a server at {client.base_url} ({_reason(error)}): start one with `minipic serve`, "
                "or name another with --base-url"
            ) from error
        except AuthenticationError as error:
            raise CLIError(key_refused(client, api_key)) from error


def served_profile(client: MiniPIC) -> ModelProfile:
    """The server's profile; the bundled model's where there is no plugin (prompts are sent as ordinary ones then)."""
    try:
        return client.profile()
    except NotFoundError:
        return ModelProfile.default()


def key_refused(client: MiniPIC, api_key: str | None) -> str:
    """What to say when the server wants another API key."""
    return f"{client.base_url} wants an API key and yours {_key_hint(api_key)}"


def _key_hint(api_key: str | None) -> str:
    if not api_key:
        return "is missing: give --api-key or set MINIPIC_API_KEY"
    given = "MINIPIC_API_KEY" if api_key == os.environ.get("MINIPIC_API_KEY") else "--api-key"
    return f"is wrong: see what {given} says"


def _reason(error: APIConnectionError) -> str:
    return error.message.partition(": ")[2] or error.message
