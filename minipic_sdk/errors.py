"""Every error the SDK raises.

    MiniPICError
    ├── InputError (also ValueError)          an argument is wrong
    │   └── SchemaError                       a Prompt Cache schema or a selection from it is wrong
    ├── LayoutError (also ValueError)         a token sequence breaks the layout's rules
    ├── ProfileError                          no usable profile: unreadable model directory, no control tokens
    ├── TemplateError (also ValueError)       the chat template refuses or loses what it was given
    ├── ClientClosedError (also RuntimeError) a client is used after its close()
    └── APIError                              a request failed
        ├── APIConnectionError                no answer, or it broke off
        │   └── APITimeoutError
        ├── APIResponseValidationError        an answer that can't be read
        └── APIStatusError                    an answer with an error status
            ├── BadRequestError               400
            ├── AuthenticationError           401
            ├── PermissionDeniedError         403
            ├── NotFoundError                 404
            ├── ConflictError                 409
            │   └── ProfileMismatchError      composed under another profile than the server's
            ├── UnprocessableEntityError      422
            ├── RateLimitError                429
            └── InternalServerError           5xx

    SpansOffWarning (a UserWarning)           the server has no plugin: answers are right, only slower

Below APIError the names are those of the OpenAI client, and ``except openai.APIError`` catches them too where openai
is imported (see _raising.py).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


class MiniPICError(Exception):
    """Base of all errors of this package."""


class InputError(MiniPICError, ValueError):
    """An argument has a value that no request can be made from."""


class SchemaError(InputError):
    """A Prompt Cache schema, its markup, or a selection of its modules is wrong.

    Attributes:
        rule: what is required.
        line, column: place in the markup, from 1; ``None`` for objects made in Python.
    """

    def __init__(self, rule: str, line: int | None = None, column: int | None = None) -> None:
        self.rule = rule
        self.line = line
        self.column = column
        super().__init__(rule if line is None else f"line {line}, column {column}: {rule}")


class LayoutError(MiniPICError, ValueError):
    """A prompt or its metadata breaks a rule of the token layout.

    Attributes:
        index: physical token index, or ``None`` when the metadata itself is at fault.
        rule: what is required.
    """

    def __init__(self, index: int | None, rule: str) -> None:
        self.index = index
        self.rule = rule
        super().__init__(rule if index is None else f"token {index}: {rule}")


class ProfileError(MiniPICError):
    """A model profile can't be made, read or used."""


class TemplateError(MiniPICError, ValueError):
    """The model's chat template refused the messages, or lost a span on the way."""


class ClientClosedError(MiniPICError, RuntimeError):
    """The client was closed, or the http_client that it was given; make a new one."""


class SpansOffWarning(UserWarning):
    """The server has no MiniPIC plugin; prompts are sent as ordinary ones. Given once per client."""


class APIError(MiniPICError):
    """A request failed.

    Attributes:
        message: one line.
        request: what was asked, if it got that far.
        body: the decoded error object of the answer, if there was one.
        code, param, type: its fields of these names.
    """

    def __init__(self, message: str, *, request: "httpx.Request | None" = None, body: object | None = None) -> None:
        # Not super(): beside openai's class the next in line would be its __init__, with other arguments.
        Exception.__init__(self, message)
        self.message = message
        self.request = request
        self.body = body
        fields: dict[str, object] = dict(body) if isinstance(body, dict) else {}  # pyright: ignore[reportUnknownArgumentType]
        self.code = fields.get("code")
        self.param = fields.get("param")
        self.type = fields.get("type")


class APIConnectionError(APIError):
    """The server can't be reached, or the connection broke off."""


class APITimeoutError(APIConnectionError):
    """The server didn't answer in time."""


class APIResponseValidationError(APIError):
    """The answer isn't what the API promises: not JSON, or a field is missing."""


class APIStatusError(APIError):
    """The server answered with an error status.

    Attributes:
        response: the whole answer.
        status_code: its HTTP status.
        request_id: the ``x-request-id`` header, if any.
    """

    def __init__(self, message: str, *, response: "httpx.Response", body: object | None = None) -> None:
        super().__init__(message, request=response.request, body=body)
        self.response = response
        self.status_code = response.status_code
        self.request_id = response.headers.get("x-request-id")


class BadRequestError(APIStatusError):
    """400: the request is malformed; the message names the token index and the rule."""


class AuthenticationError(APIStatusError):
    """401: the API key is missing or wrong."""


class PermissionDeniedError(APIStatusError):
    """403."""


class NotFoundError(APIStatusError):
    """404: no such model or route."""


class ConflictError(APIStatusError):
    """409."""


class ProfileMismatchError(ConflictError):
    """409: the prompt was composed under another profile than the server's; compose it again.

    Attributes:
        changed: what differs, in words, such as "the block size changed from 16 to 32".
    """

    changed: tuple[str, ...] = ()


class UnprocessableEntityError(APIStatusError):
    """422."""


class RateLimitError(APIStatusError):
    """429."""


class InternalServerError(APIStatusError):
    """5xx: the server failed."""
