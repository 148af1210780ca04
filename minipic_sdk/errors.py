"""Every error the SDK raises.

MiniPICError
├── InputError (also ValueError)       an argument is wrong
├── LayoutError (also ValueError)      a token sequence breaks the layout's rules
├── ProfileError                       no usable profile: unreadable model directory, no control tokens
└── TemplateError (also ValueError)    the chat template refuses or loses what it was given
"""


class MiniPICError(Exception):
    """Base of all errors of this package."""


class InputError(MiniPICError, ValueError):
    """An argument has a value that no request can be made from."""


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
