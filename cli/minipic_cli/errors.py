"""Errors that end the command with one line."""

from minipic_sdk.errors import MiniPICError


class CLIError(MiniPICError):
    """The command failed; the message says what to do. Exit code 1."""

    exit_code = 1


class UsageError(CLIError):
    """The command was called wrongly. Exit code 2."""

    exit_code = 2
