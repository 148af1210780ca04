"""Running vLLM's OpenAI server in this process.

Not ``exec``: finding out the plugin's arguments imports vLLM, which takes long enough to do it once only.
"""

import os
import runpy
import sys
from collections.abc import Sequence

from minipic_cli.errors import CLIError
from minipic_sdk import ModelProfile
from minipic_sdk.errors import ProfileError

_MODULE = "vllm.entrypoints.openai.api_server"


def run_server(model: str, options: Sequence[str], block_size: int, pin_share: float) -> None:
    """Serve until interrupted.

    Args:
        model: a directory or a hub id.
        options: of vLLM's server.
        block_size: tokens per KV block.
        pin_share: of the KV cache, that spans may be pinned in.

    Raises:
        CLIError: the model or an option can't be served with spans.
    """
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
    run_module(command[command.index(_MODULE) + 1 :])


def run_module(arguments: Sequence[str]) -> None:
    """VLLM's server as ``python -m`` would run it, with its own arguments."""
    sys.argv = [_MODULE, *arguments]
    runpy.run_module(_MODULE, run_name="__main__", alter_sys=True)


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
