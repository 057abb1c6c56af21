"""Commands run in this process, on a home of their own, with a daemon that is a stand-in where they ask for one."""

import os

import pytest
from click.testing import CliRunner
from daemon.cli.fakes import FakeClient
from daemon.nodes import make_head

from patchswarm.daemon import cli
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.local import client as client_module


@pytest.fixture
def fake(monkeypatch):
    fake = FakeClient()
    monkeypatch.setattr(client_module, "Client", fake)
    return fake


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    return make_head(tmp_path_factory.mktemp("cli") / "head")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("PATCHSWARM_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def run(head):
    def run(*arguments, code=Exit.OK, home=head.home.root, **options):
        home_option = [] if home is None else ["--home", str(home)]
        result = CliRunner().invoke(cli.main, [*map(str, arguments), *home_option], **options)
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        assert "Traceback" not in result.output
        return result

    return run
