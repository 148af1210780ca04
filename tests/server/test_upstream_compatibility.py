"""Every fact about vLLM 0.32.0 that the plugin leans on, so that an upgrade fails here, loudly, and by name."""

import ast
import importlib.metadata
import inspect
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM (make setup)")

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "server" / "minipic_server"
OURS = (SERVER, ROOT / "cli" / "minipic_cli", ROOT / "minipic_sdk")
MAX_PATCH_LINES = 78  # the paper's core footprint


def _source(thing: object) -> str:
    return inspect.getsource(thing)  # type: ignore[arg-type]


def test_version() -> None:
    import vllm

    assert vllm.__version__.startswith("0.32.0")


def test_engine_core_loads_plugins_then_initializes_the_cache_then_asks_for_the_hasher() -> None:
    from vllm.v1.engine.core import EngineCore

    text = _source(EngineCore.__init__)
    order = [
        text.index(part)
        for part in ("load_general_plugins()", "_initialize_kv_caches(vllm_config)", "get_request_block_hasher(")
    ]
    assert order == sorted(order)


def test_requests_hash_through_one_callable() -> None:
    from vllm.v1.request import Request

    assert "self._block_hasher(self)" in _source(Request.update_block_hashes)


def test_a_block_has_its_key_while_it_is_cached() -> None:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

    block = KVCacheBlock(0)
    block.set_block_hash(b"key")  # pyright: ignore[reportArgumentType]
    assert block._block_hash == b"key"  # pyright: ignore[reportPrivateUsage]
    block.reset_hash()
    assert block._block_hash is None  # pyright: ignore[reportPrivateUsage]


def test_salt_reaches_only_the_first_block_in_stock() -> None:
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys

    assert "start_token_idx == 0 and request.cache_salt" in _source(generate_block_hash_extra_keys)


def test_all_front_ends_pass_process_inputs_which_clones_the_parameters() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.engine.llm_engine import LLMEngine

    assert "params.clone()" in _source(InputProcessor.process_inputs)
    assert "process_inputs(" in _source(AsyncLLM.add_request)
    assert "process_inputs(" in _source(LLMEngine.add_request)


def test_async_engine_passes_client_errors_on() -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    assert "except (VLLMClientError, GracefulHTTPError)" in _source(AsyncLLM.generate)


@pytest.mark.parametrize(
    "method",
    ["_handle_blocked_waiting_request", "_get_local_prefix_cache_hit", "_preempt_request", "_free_request"],
)
def test_scheduler_hooks_exist_and_are_called(method: str) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    calls = _source(Scheduler).count(f"self.{method}(")
    assert calls >= 1


def test_lookup_happens_when_a_request_is_about_to_be_scheduled() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    text = _source(Scheduler.schedule)
    assert text.index("_handle_blocked_waiting_request(") < text.index("_get_local_prefix_cache_hit(")


def test_the_grammar_is_asked_for_while_the_model_runs() -> None:
    from vllm.v1.engine.core import EngineCore

    text = _source(EngineCore.step)
    assert text.index("execute_model(") < text.index("scheduler.get_grammar_bitmask(") < text.index("future.result()")
    assert "self.scheduler.get_grammar_bitmask(" in _source(EngineCore.step_with_batch_queue)


def test_finished_requests_carry_transfer_parameters_to_the_response() -> None:
    from vllm.entrypoints.openai.completion.protocol import CompletionResponse
    from vllm.v1.engine import EngineCoreOutput

    assert "kv_transfer_params" in CompletionResponse.model_fields
    assert "kv_transfer_params" in EngineCoreOutput.__struct_fields__


def test_runner_v1_hooks() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    text = _source(GPUModelRunner.execute_model)
    order = [text.index(f"self.{name}(") for name in ("_prepare_inputs", "_build_attention_metadata", "_model_forward")]
    assert order == sorted(order)
    assert "self.requests[" in _source(GPUModelRunner._update_states)


def test_runner_v2_asks_for_the_model_state_class_by_name() -> None:
    from vllm.v1.worker.gpu.model_states import init_model_state

    assert "resolve_model_state_cls(" in _source(init_model_state)


def test_runner_v2_lets_the_model_state_replace_positions() -> None:
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    text = _source(GPUModelRunner.execute_model)
    assert text.index('"positions": input_batch.positions') < text.index("**self.model_state.prepare_inputs(")


def test_cpu_worker_names_its_runner_class_itself() -> None:
    from vllm.v1.worker.cpu_worker import CPUWorker

    assert "self.model_runner = CPUModelRunner(" in _source(CPUWorker.init_device)


def test_cpu_platform_takes_cpu_attn() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    assert "CPU_ATTN" in AttentionBackendEnum.__members__
    assert "CUSTOM" in AttentionBackendEnum.__members__


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("size", "isa"), [(16, "vec16"), (32, "vec"), (64, "vec")])
def test_cpu_cache_holds_keys_transposed_then_values(size: int, isa: str, dtype: torch.dtype) -> None:
    from vllm import _custom_ops as ops
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        pytest.skip("needs vLLM's CPU build")
    current_platform.import_kernels()
    heads, head = 2, 32
    cache = torch.zeros(2, heads, size, 2 * head, dtype=dtype)
    keys, values = cache.view(2, heads, 2 * size, head).chunk(2, dim=2)
    new = torch.randn(size, heads, head).to(dtype)
    slots = torch.arange(size) + size
    ops.cpu_attn_reshape_and_cache(new, -new, keys, values, slots, isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto")
    block = cache[1].view(heads, 2 * size, head)
    assert torch.equal(block[:, :size].reshape(heads, head, size).permute(2, 0, 1), new)
    assert torch.equal(block[:, size:].transpose(0, 1), -new)


def test_plugins_are_loaded_by_entry_point() -> None:
    points = {p.name: p.value for p in importlib.metadata.entry_points(group="vllm.general_plugins")}
    assert points.get("minipic") == "minipic_server.plugin:register"
    points = {p.name: p.value for p in importlib.metadata.entry_points(group="vllm.endpoint_plugins")}
    assert points.get("minipic") == "minipic_server.routes:plugin"


def test_patches_stay_small() -> None:
    tree = ast.parse((SERVER / "patches.py").read_text())
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not _is_docstring(node):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            lines.update(range(node.lineno, max(end, node.lineno) + 1))
    text = (SERVER / "patches.py").read_text().splitlines()
    code = [n for n in lines if text[n - 1].strip() and not text[n - 1].strip().startswith(("#", '"""'))]
    assert len(code) <= MAX_PATCH_LINES


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_nothing_else_assigns_into_vllm() -> None:
    """Other modules may subclass and register, never set attributes of vLLM's modules or classes."""
    offenders: list[str] = []
    for path in (p for folder in OURS for p in folder.rglob("*.py")):
        if path.name == "patches.py":
            continue
        tree = ast.parse(path.read_text())
        foreign: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                foreign |= {a.asname or a.name for a in node.names}
            if isinstance(node, ast.Import):
                foreign |= {(a.asname or a.name).split(".")[0] for a in node.names if a.name.startswith("vllm")}
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr":
                targets = [ast.Attribute(value=node.args[0], attr="?")]
            for target in targets:
                root = target
                while isinstance(root, ast.Attribute):
                    root = root.value
                if isinstance(target, ast.Attribute) and isinstance(root, ast.Name) and root.id in foreign:
                    offenders.append(f"{path.name}:{node.lineno}")
    assert not offenders


def test_minipic_serve_does_what_vllms_main_does_less_its_signal_handler() -> None:
    from vllm.entrypoints.launchers.api_server import entry

    lines = f"{inspect.getsource(entry.run_server)}\n{inspect.getsource(entry.main)}".splitlines()
    code = [line.strip() for line in lines if line.strip() and not line.strip().startswith(("#", '"""'))]
    assert code == [
        "async def run_server(args, **uvicorn_kwargs) -> None:",
        'decorate_logs("APIServer", skip_if_decorated=True)',
        "def _interrupt_init(*_) -> None:",
        'raise KeyboardInterrupt("terminated")',
        "signal.signal(signal.SIGTERM, _interrupt_init)",
        "listen_address, sock = setup_server(args, reuse_port=False)",
        "await run_server_worker(listen_address, sock, args, **uvicorn_kwargs)",
        "def main():",
        "import uvloop",
        "from vllm.entrypoints.serve.utils.api_utils import cli_env_setup",
        "from vllm.utils.argparse_utils import FlexibleArgumentParser",
        "from ..cli_args import (",
        "make_arg_parser,",
        "validate_parsed_serve_args,",
        ")",
        "cli_env_setup()",
        "parser = FlexibleArgumentParser(",
        'description="vLLM OpenAI-Compatible RESTful API server."',
        ")",
        "parser = make_arg_parser(parser)",
        "args = parser.parse_args()",
        "configure_logging_from_args(args)",
        "validate_parsed_serve_args(args)",
        "uvloop.run(run_server(args))",
    ]
