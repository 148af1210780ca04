"""The client side of stock_worker.py: a stock vLLM engine beside the tests' own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from invariants.engines import Answer, gpu_share


class StockEngine:
    """Stock vLLM in another process. ``proof`` says where its pieces come from."""

    def __init__(self, model: Path | str, **options: Any) -> None:
        to_read, self_write = os.pipe()
        self_read, to_write = os.pipe()
        env = {k: v for k, v in os.environ.items() if k not in ("MINIPIC", "VLLM_PLUGINS")}
        worker = str(Path(__file__).with_name("stock_worker.py"))
        self._process = subprocess.Popen(
            [sys.executable, worker, str(to_read), str(to_write)],
            pass_fds=(to_read, to_write),
            env=env,
            stdout=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._sink, self._source = os.fdopen(self_write, "w"), os.fdopen(self_read)
        defaults = {
            "dtype": "float32",
            "max_model_len": 1024,
            "num_gpu_blocks_override": 160,
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "seed": 0,
            "block_size": 32,  # what stock takes on CPU
            **gpu_share(),
        }
        self.proof: dict[str, Any] = self._call({"model": str(model), **defaults, **options})

    def run(self, *prompts: list[int], tokens: int = 6, **params: Any) -> list[Answer]:
        """Greedy answers of one batch."""
        options = {"temperature": 0.0, "max_tokens": tokens, "logprobs": 8, "ignore_eos": True, **params}
        answers = self._call([[ids, options] for ids in prompts])
        return [
            Answer(a["tokens"], [{int(t): p for t, p in row.items()} for row in a["logprobs"]], a["cached"], [], "", [])
            for a in answers
        ]

    def close(self) -> None:
        """End the process: it has nothing to save, and a dozen orderly ends take a minute."""
        self._process.kill()
        self._process.wait(30)
        self._sink.close()
        self._source.close()

    def _call(self, message: Any) -> Any:
        self._sink.write(json.dumps(message) + "\n")
        self._sink.flush()
        line = self._source.readline()
        if not line:
            raise RuntimeError(f"stock vLLM ended with {self._process.wait(30)}")
        return json.loads(line)
