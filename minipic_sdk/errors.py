"""Every error the SDK raises.

    MiniPICError
    └── LayoutError (also ValueError)
"""


class MiniPICError(Exception):
    """Base of all errors of this package."""


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
