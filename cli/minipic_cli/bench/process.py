"""An engine measured in a process of its own, for the benchmarks that write what they find to a file."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from minipic_cli.servers import without_plugin


def run_engine(
    kind: str, arguments: Sequence[str], budget: float, environment: Mapping[str, str] | None = None
) -> None:
    """Run ``python -m`` with these arguments; ended after ``budget`` seconds, with all that it started.

    Args:
        kind: "stock", which gets no plugin at all, or "minipic".
        arguments: the module and its arguments.
        budget: seconds.
        environment: variables beside this process's own.
    """
    env = without_plugin() | dict(environment or {})
    if kind == "stock":
        env["VLLM_PLUGINS"] = ""
    # A session of its own: the engine's processes go with it.
    process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=sys.stderr, env=env, start_new_session=True)
    try:
        process.wait(budget)
    except subprocess.TimeoutExpired:
        print(f"{kind}: stopped after {budget:.0f} s", file=sys.stderr)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
