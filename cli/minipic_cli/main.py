"""The command's entry. Until ^C is seen to it imports next to nothing, not even typing."""

import os
import signal

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code; errors are one line on stderr.

    Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
    """
    ours = False
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # A KeyboardInterrupt could hit one of the import system's callbacks, which print exceptions and go on.
            signal.signal(signal.SIGINT, _end)
            ours = True
    except ValueError:
        pass  # in a thread other than the main one, which gets no ^C
    try:
        from minipic_cli.app import run

        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


def _end(*_: object) -> None:
    os._exit(INTERRUPTED)
