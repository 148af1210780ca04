"""What ``minipic serve`` hands to vLLM, and servers as child processes."""

import inspect
import os
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from minipic_cli import serve
from minipic_cli.errors import CLIError, UsageError
from minipic_cli.servers import Server, free_port, telling_line
from minipic_cli.serving import OWN_OPTIONS, OneLineErrors

CHECK_PORT = serve.check_port


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What reaches ``run_server``."""
    got: dict = {}
    monkeypatch.setattr(
        "minipic_cli.serving.run_server",
        lambda *args: got.update(zip(("model", "options", "size", "pin_share", "starting"), args, strict=True)),
    )
    monkeypatch.setattr("minipic_cli.serving.run_module", lambda arguments: got.update(module=arguments))
    monkeypatch.setattr("minipic_cli.models.default_model_dir", lambda: tmp_path / "default")
    monkeypatch.setattr(serve, "check_vllm", lambda: None)
    monkeypatch.setattr(serve, "check_port", lambda host, port: None)
    monkeypatch.setattr(serve, "cpu_has_bfloat16", lambda: True)
    names = (
        "VLLM_API_KEY",
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_USE_AOT_COMPILE",
        "TORCHINDUCTOR_CACHE_DIR",
        "HF_HUB_OFFLINE",
    )
    for name in names:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # so that what the command sets is taken back
        monkeypatch.delenv(name)
    return got


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "some-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_without_a_model_it_is_the_bundled_one(run, handed, tmp_path: Path) -> None:
    assert run("serve").code == 0
    assert handed["model"] == str(tmp_path / "default")
    assert handed["size"] == 16
    assert handed["options"] == [
        "--host", "127.0.0.1", "--port", "8000", "--served-model-name", "SmolLM2-135M-Instruct",
    ]  # fmt: skip


def test_vllm_options_pass_through_in_order(run, handed, model: Path) -> None:
    run("serve", model, "--max-model-len", "4096", "--port", "9", "--enable-lora", "-tp", "2", "--seed=3")
    assert handed["model"] == str(model)
    passed = handed["options"]
    assert passed[:4] == ["--host", "127.0.0.1", "--port", "9"]
    rest = passed[4:]
    assert rest[:6] == ["--max-model-len", "4096", "--enable-lora", "-tp", "2", "--seed=3"]
    assert rest[-2:] == ["--served-model-name", "some-model"]


def test_options_without_a_model_are_no_model(run, handed, tmp_path: Path) -> None:
    run("serve", "--max-model-len", "4096", "--block-size", "32")
    assert handed["model"] == str(tmp_path / "default")
    assert handed["size"] == 32


def test_the_served_name_may_be_given(run, handed, model: Path) -> None:
    run("serve", model, "--served-model-name", "mine")
    assert handed["options"].count("--served-model-name") == 1


def test_a_key_travels_in_the_environment(run, handed, model: Path) -> None:
    import os

    run("serve", model, "--api-key", "sk-secret")
    assert "sk-secret" not in handed["options"]
    assert os.environ["VLLM_API_KEY"] == "sk-secret"


def test_float32_where_bfloat16_is_emulated_unless_told_otherwise(run, handed, model: Path, monkeypatch) -> None:
    monkeypatch.setattr(serve, "cpu_has_bfloat16", lambda: False)
    run("serve", model)
    assert handed["options"][-2:] == ["--dtype", "float32"] or "--dtype" in handed["options"]
    run("serve", model, "--dtype", "bfloat16")
    assert handed["options"].count("--dtype") == 1


def test_help_of_vllm(run, handed) -> None:
    run("serve", "--", "--help")
    assert handed["module"] == ["--help"]


def test_the_banner_comes_when_the_options_are_known_to_be_right(run, handed, model: Path, capsys) -> None:
    assert run("serve", model, "--port", "9").err == "loading vLLM\n"
    handed["starting"]()
    assert "serving some-model on http://127.0.0.1:9" in capsys.readouterr().err
    assert run("serve", model, "--quiet").err == ""
    handed["starting"]()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("cpu", [True, False], ids=["CPU", "GPU"])
def test_a_start_that_compiles_is_said_to(run, handed, model: Path, monkeypatch, capsys, tmp_path: Path, cpu) -> None:
    from vllm import envs

    def told(*options: str) -> str:
        run("serve", model, *options)
        handed["starting"]()
        return capsys.readouterr().err.splitlines()[0]

    monkeypatch.setattr(serve, "on_cpu", lambda: cpu)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = "MINIPIC_HOME", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "VLLM_DISABLE_COMPILE_CACHE"
    for name in (*names, *serve.NOT_COMPILING):
        monkeypatch.delenv(name, raising=False)
    assert told() == serve.FIRST_START
    assert told("--enforce-eager").startswith("serving")
    assert told("-O0").startswith("serving")
    for name in serve.NOT_COMPILING:
        with monkeypatch.context() as context:
            context.setenv(name, "1")
            assert told().startswith("serving")
    own = tmp_path / "cache" / "minipic" / "torchinductor" / "fxgraph" / "b7"
    vllms = tmp_path / "cache" / "vllm" / "torch_compile_cache" / "torch_aot_compile" / "0fbe"
    assert (
        own.is_relative_to(os.environ["TORCHINDUCTOR_CACHE_DIR"]) if cpu else "VLLM_USE_AOT_COMPILE" not in os.environ
    )
    assert vllms.is_relative_to(envs.VLLM_CACHE_ROOT)
    (vllms if cpu else own).mkdir(parents=True)
    assert told() == serve.FIRST_START
    (own if cpu else vllms).mkdir(parents=True)
    assert told().startswith("serving")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--prot", "8001"), "--prot: no such option of minipic serve or vLLM; did you mean --port?"),
        (("--pin-shore=1",), "--pin-shore: no such option of minipic serve or vLLM; did you mean --pin-share?"),
        (("--colour-of-the-sky", "blue"), "--colour-of-the-sky: no such option of minipic serve or vLLM"),
        (("stray",), "stray: neither an option nor the value of one"),
        (("--port", "x"), "--port: invalid int value: 'x'"),
    ],
)
def test_what_vllms_parser_refuses_is_one_line(run, handed, model: Path, monkeypatch, arguments, says: str) -> None:
    parser = OneLineErrors()
    parser.add_argument("--port", type=int)
    monkeypatch.setattr("minipic_cli.serving.run_server", lambda *_: parser.parse_args(arguments))
    done = run("serve", model, "--quiet")
    assert (done.code, done.out, done.err) == (2, "", f"minipic: {says}\n")


def test_options_that_are_suggested_exist() -> None:
    own = {
        name
        for parameter in inspect.signature(serve.serve).parameters.values()
        for extra in getattr(parameter.annotation, "__metadata__", ())
        for name in (*(getattr(extra, "param_decls", None) or ()), f"--{parameter.name.replace('_', '-')}")
    }
    assert own.issuperset(OWN_OPTIONS)


def test_a_busy_port_is_said_before_anything_starts(run, handed, model: Path, monkeypatch) -> None:
    monkeypatch.setattr(serve, "check_port", CHECK_PORT)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        done = run("serve", model, "--port", str(port))
        assert (done.code, done.out) == (1, "")
        assert done.err == f"minipic: port {port} of 127.0.0.1 is in use: choose another one with --port\n"
        assert not handed
        assert run("serve", model, "--port", str(port), "--uds", "/tmp/unused").code == 0
    assert run("serve", model, "--port", str(port)).code == 0
    with pytest.raises(UsageError, match="--port: 65536 is no port"):
        CHECK_PORT("127.0.0.1", 65536)
    with pytest.raises(CLIError, match="can't listen on port 8000 of 192.0.2.1"):
        CHECK_PORT("192.0.2.1", 8000)


def test_a_directory_that_is_no_model(run, handed, tmp_path: Path) -> None:
    done = run("serve", tmp_path)
    assert done.code == 2
    assert "no config.json" in done.err


def test_vllm_must_be_there_and_of_the_right_version(run, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = run("serve")
    assert done.code == 1
    assert "pip install" in done.err
    monkeypatch.undo()
    monkeypatch.setattr(serve, "vllm_version", lambda: "0.11.0")
    done = run("serve")
    assert done.code == 1
    assert "0.11.0 is installed" in done.err


def test_defaults_never_override_the_user(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serve, "on_cpu", lambda: True)
    monkeypatch.setenv("MINIPIC_HOME", str(tmp_path))
    given = dict.fromkeys(
        ("VLLM_CPU_KVCACHE_SPACE", "VLLM_USE_AOT_COMPILE", "TORCHINDUCTOR_CACHE_DIR", "HF_HUB_OFFLINE"), "7"
    )
    assert serve.server_environment(given, local=True, api_key=None) == {}
    made = serve.server_environment({}, local=False, api_key="k")
    assert set(made) == {*given, "VLLM_API_KEY"} - {"HF_HUB_OFFLINE"}
    assert made["VLLM_USE_AOT_COMPILE"] == "0"
    assert 1 <= int(made["VLLM_CPU_KVCACHE_SPACE"]) <= 16
    monkeypatch.setattr(serve, "on_cpu", lambda: False)
    assert set(serve.server_environment({}, local=False, api_key=None)) == {"VLLM_CPU_KVCACHE_SPACE"}


def test_a_home_that_cannot_be_written_keeps_nothing(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINIPIC_HOME", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(serve, "on_cpu", lambda: True)
    made = serve.server_environment({}, local=False, api_key=None)
    assert set(made) == {"VLLM_CPU_KVCACHE_SPACE", "VLLM_USE_AOT_COMPILE"}
    assert serve.compiling([], made) is False


def _child(code: str) -> Server:
    return Server([sys.executable, "-c", code], name="test", environment={}, port=free_port())


def test_a_server_that_ends_says_why() -> None:
    server = _child("raise SystemExit('ValueError: no such model')")
    with pytest.raises(CLIError, match="did not start: ValueError: no such model"), server:
        server.wait_ready(limit_s=30)
    assert server.log_path.exists()
    server.log_path.unlink()


def test_a_server_is_stopped_with_its_children_and_its_log_is_removed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        f"open({str(pid_file)!r}, 'w').write(str(p.pid)); time.sleep(600)"
    )
    with _child(code) as server:
        while not pid_file.exists() or not pid_file.read_text():
            assert server.process.poll() is None
            time.sleep(0.05)
    child = int(pid_file.read_text())

    def state() -> str:
        try:
            return psutil.Process(child).status()
        except psutil.NoSuchProcess:
            return "gone"

    limit = time.monotonic() + 60
    while (said := state()) not in ("gone", psutil.STATUS_ZOMBIE) and time.monotonic() < limit:
        time.sleep(0.05)  # it was told to end; on a busy machine that takes a moment
    assert said in ("gone", psutil.STATUS_ZOMBIE)
    assert not server.log_path.exists()


def test_the_telling_line_is_the_cause_not_the_consequence() -> None:
    log = (
        "INFO starting\n(EngineCore) ERROR minipic_server.refusals.UnsupportedError: MiniPIC: ALiBi is not supported\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\nlast words\n"
    )
    assert telling_line(log) == "UnsupportedError: MiniPIC: ALiBi is not supported"
    assert telling_line("only words\n\n") == "only words"
    assert telling_line("") == "it said nothing"
