"""Running vLLM's OpenAI server in this process.

Not ``exec``: finding out the plugin's arguments imports vLLM, which takes long enough to do it once only.
"""

import argparse
import difflib
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

import psutil  # not in the handler: the signal may come in the middle of vLLM's own import of it

from minipic_cli.errors import CLIError, UsageError
from minipic_sdk import ModelProfile
from minipic_sdk.errors import ProfileError

OWN_OPTIONS: Final = ("--warm", "--pin-share", "--quiet")  # of `minipic serve`, unknown to vLLM
_MODULE = "vllm.entrypoints.openai.api_server"
_UNKNOWN: Final = "unrecognized arguments: "


class OneLineErrors(argparse.ArgumentParser):
    """A parser whose errors are ``UsageError``, without pages of usage."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        names = [*OWN_OPTIONS, *(name for action in self._actions for name in action.option_strings)]
        raise UsageError(_wrong(message, names))


def run_server(
    model: str, options: Sequence[str], block_size: int, pin_share: float, starting: Callable[[], None]
) -> None:
    """Serve until interrupted; during start-up, ^C and SIGTERM end this process and its children at once.

    Args:
        model: a directory or a hub id.
        options: of vLLM's server.
        block_size: tokens per KV block.
        pin_share: of the KV cache, that spans may be pinned in.
        starting: called once the options are known to be right, before the engine is started.

    Raises:
        CLIError: the model or an option can't be served with spans.
        UsageError: vLLM does not know an option or its value.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    from minipic_server import server_command

    try:
        profile = ModelProfile.from_directory(_directory(model), block_size=block_size)
        command, environment = server_command(
            model,
            options,
            block_size=block_size,
            control_tokens=tuple(profile.control_tokens),
            fingerprint=profile.fingerprint,
            pin_share=pin_share,
        )
    except (ProfileError, ValueError) as error:
        raise CLIError(f"{model} can't be served: {error}") from error
    os.environ.update(environment)
    run_module(command[command.index(_MODULE) + 1 :], starting)


def run_module(arguments: Sequence[str], starting: Callable[[], None] = lambda: None) -> None:
    """VLLM's ``main`` (entrypoints/launchers/api_server/entry.py) with these arguments, but our handling of signals."""
    import uvloop
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(OneLineErrors, FlexibleArgumentParser):
        pass

    cli_env_setup()
    sys.argv = [_MODULE, *arguments]  # what vLLM shows as the command, and some of its options look at
    parser = make_arg_parser(Parser(description="vLLM's OpenAI-compatible server"))
    try:
        args: Any = parser.parse_args()
        configure_logging_from_args(args)
        validate_parsed_serve_args(args)
    except (ValueError, TypeError) as error:
        raise UsageError(f"vLLM's options: {error}") from error
    starting()
    uvloop.run(_serve(args))


def _wrong(message: str, names: Iterable[str]) -> str:
    """What argparse says, as one sentence that begins with the option."""
    if not message.startswith(_UNKNOWN):
        return message.removeprefix("argument ")
    words = message.removeprefix(_UNKNOWN).split()
    option = next((word.split("=")[0] for word in words if word.startswith("-")), None)
    if option is None:
        return f"{words[0] if words else message}: neither an option nor the value of one"
    near = difflib.get_close_matches(option, list(names), n=1)
    return f"{option}: no such option of minipic serve or vLLM" + (f"; did you mean {near[0]}?" if near else "")


def _end(number: int, _: Any) -> None:
    """End all; a server that is up handles signals itself. vLLM would raise an exception, which start-up may swallow."""
    try:
        found: list[psutil.Process] = []
        while new := [c for c in psutil.Process().children(recursive=True) if c not in found]:
            for child in new:
                _signal(child, signal.SIGSTOP)  # so that it can't start another one unseen
            found += new
        for child in found:
            _signal(child, signal.SIGKILL)
    finally:
        os._exit(128 + number)


def _signal(process: psutil.Process, number: int) -> None:
    try:
        # Python's resource tracker frees shared memory when all others are gone, then ends by itself.
        if not any("resource_tracker" in part for part in process.cmdline()):
            process.send_signal(number)
    except psutil.Error:
        pass  # it is gone


async def _serve(args: Namespace) -> None:
    """VLLM's ``run_server`` without its handler of SIGTERM."""
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker
    from vllm.entrypoints.launchers.launcher import setup_server
    from vllm.utils.system_utils import decorate_logs

    decorate_logs("APIServer", skip_if_decorated=True)
    address, sock = setup_server(args, reuse_port=False)
    await run_server_worker(address, sock, args)


def _directory(model: str) -> str:
    if os.path.isdir(model):
        return model
    from minipic_server.prefill import local_directory

    try:
        return str(local_directory(model))
    except Exception as error:  # whatever the hub's client raises: offline, no such repository, gated
        raise CLIError(
            f"can't get {model} from the hub ({type(error).__name__}): check the name and the network, "
            "or give a model directory"
        ) from error
