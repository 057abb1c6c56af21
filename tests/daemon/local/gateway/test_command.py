"""The `patchswarm gateway` command and the [gateway] section, beside a real daemon."""

import http.client
import json
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from daemon.local.contract_sglang import ContractSglang
from local_fleet import COMMAND, LocalFleet, clean_environment, free_port
from safetensors.numpy import save_file

from patchswarm.daemon.cli import main
from patchswarm.daemon.config import Config
from patchswarm.daemon.errors import ConfigError
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.home import Home
from patchswarm.daemon.local.gateway.run import configured

STREAM = "qwen"


def checkpoint(folder, number):
    folder.mkdir(parents=True)
    save_file({"w": np.full(4096, number, np.float32)}, folder / "model.safetensors")
    (folder / "weights.txt").write_text(str(number))
    return folder


@pytest.fixture
def node():
    root = Path(tempfile.mkdtemp(prefix="patchswarm-"))  # short: a socket's path has at most 107 bytes
    try:
        with LocalFleet(root) as fleet:
            yield fleet.add_head()
    finally:
        shutil.rmtree(root, ignore_errors=True)


class EngineThread:
    """A contract engine on a loop of its own, for tests that block."""

    def __enter__(self):
        import asyncio

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.engine = self.run(self._make())
        return self

    async def _make(self):
        engine = ContractSglang()
        await engine.start()
        return engine

    def run(self, coroutine):
        import asyncio

        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def __exit__(self, *_):
        self.run(self.engine.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def engine():
    with EngineThread() as thread:
        yield thread.engine


def ask(port, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def generate(port, **constraint):
    return ask(port, "/generate", {"text": "hi", "weight_version": {"wait_s": 60, **constraint}})


def test_the_command_brings_the_engine_to_what_is_published(node, engine, tmp_path):
    port = free_port()
    line = [COMMAND, "gateway", "--engine", "sglang", "--engine-url", engine.url, "--stream", STREAM]
    line += ["--listen", f"127.0.0.1:{port}", "--home", node.home]
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean_environment()
    )
    try:
        assert any('"gateway ready"' in line for line in process.stdout)
        for number in (1, 2):
            node.publish(checkpoint(tmp_path / str(number), number), STREAM)
            status, answer = generate(port, min_version=number)
            assert status == 200
            assert set(answer["output_ids"]) == {number}
            assert answer["meta_info"]["weight_version_start"] == number
        status, info = ask(port, "/server_info")
        assert info["applied"]["version"] == 2
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_daemon_serves_the_gateway_that_its_configuration_names(node, engine, tmp_path):
    port = free_port()
    node.stop()
    config = node.home / "config.toml"
    section = f'[gateway]\nlisten = "127.0.0.1:{port}"\nengine_url = "{engine.url}"\nstream = "{STREAM}"'
    config.write_text(config.read_text().replace("[gateway]", section))
    node.start()
    node.publish(checkpoint(tmp_path / "1", 1), STREAM)
    status, answer = generate(port, exact_version=1)
    assert (status, set(answer["output_ids"])) == (200, {1})


def run(*arguments):
    return CliRunner().invoke(main, ["gateway", *arguments])


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["--engine-url", "http://a:1", "--engine-url", "http://a:2"], "drives one engine", Exit.BAD_INPUT),
        ([], "needs an address", Exit.HOME),
        (["--listen", "127.0.0.1:0"], "engine_url ''", Exit.HOME),
        (["--listen", "127.0.0.1:0", "--engine-url", "http://a:1"], "needs a stream", Exit.HOME),
        (["--listen", "nowhere"], "not an address", Exit.BAD_INPUT),
        (["--stream", "no/such name"], "stream", Exit.BAD_INPUT),
        (["--lora", "poet"], "not NAME=STREAM", Exit.BAD_INPUT),
        (["--lora", "poet=a", "--lora", "poet=b"], "twice", Exit.BAD_INPUT),
        (["--listen", "127.0.0.1:0", "--engine", "none"], "token", Exit.HOME),
        (
            ["--listen", "127.0.0.1:0", "--engine-url", "http://a:1", "--stream", "a", "--lora", "poet=a"],
            "either the model's weights or one adapter",
            Exit.HOME,
        ),
        (
            ["--listen", "127.0.0.1:0", "--engine-url", "http://a:1", "--engine", "openai", "--lora", "poet=a"],
            "cannot be given adapters",
            Exit.HOME,
        ),
    ],
)
def test_what_cannot_be_is_one_clear_line(arguments, said, code, tmp_path):
    result = run("--socket", str(tmp_path / "api.sock"), "--home", str(tmp_path / "none"), *arguments)
    assert said in result.output
    assert result.output.count("\n") == 1
    assert result.exit_code == code


def test_without_a_home_it_says_how_to_get_one(tmp_path):
    result = run("--home", str(tmp_path / "none"))
    assert result.exit_code == Exit.HOME
    assert "config.toml" in result.output


def test_a_port_that_is_taken_is_named(node, engine):
    taken = node.address
    result = node.command(
        "gateway", "--engine-url", engine.url, "--stream", STREAM, "--listen", taken, expect=Exit.IN_USE
    )
    assert taken in result.stderr


def test_the_section_says_what_the_command_line_does(tmp_path):
    (tmp_path / "secret").write_text("s" * 32 + "\n")
    text = """
        [gateway]
        listen = "127.0.0.1:9000"
        engine = "vllm"
        engine_url = "http://127.0.0.1:8000"
        stream = "qwen"
        loras = ["poet=qwen-poet"]
        commit_mode = "quiesce"
        max_lag_versions = 3
        group = ["10.0.0.2:9000"]
        group_token_file = "secret"
        body_limit = "1MiB"
    """
    config = configured(Config.parse(text, Home.at(tmp_path)).gateway, "/socket")
    assert config.adapters == {"poet": "qwen-poet"}
    assert (config.quiesce, config.staleness.versions, config.token) == (True, 3, "s" * 32)
    assert (config.listen, config.group, config.body_limit_bytes) == (("127.0.0.1", 9000), ("10.0.0.2:9000",), 2**20)
    config.check()


@pytest.mark.parametrize("line", ['group = ["nowhere"]', 'loras = ["x"]', 'engine = "tgi"', "patience_s = -1"])
def test_a_section_that_cannot_be_is_refused_by_key(line, tmp_path):
    with pytest.raises(ConfigError, match="gateway"):
        Config.parse(f"[gateway]\n{line}", Home.at(tmp_path))


def test_a_group_without_its_secret_is_refused(tmp_path):
    text = '[gateway]\nlisten = "127.0.0.1:9000"\nengine = "none"'
    with pytest.raises(ConfigError, match="group-token"):
        configured(Config.parse(text, Home.at(tmp_path)).gateway, "/socket")
