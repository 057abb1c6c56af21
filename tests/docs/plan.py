"""What becomes of each code block of the pages.

Shell blocks are named by page and by how they begin. Python blocks are run wherever their page is.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """Run it, on the machine `on`. With `until` its commands go on for ever, and are stopped when they printed that."""

    on: str = "head"
    until: str = ""


@dataclass(frozen=True)
class Read:
    """Hold it against the parsers only, because of `why`; `tests` run the same."""

    why: str
    tests: tuple[str, ...] = ()


WALKS = ("README.md", "docs/quickstart.md")
"""Pages that are walked through from nothing, on two machines."""

TALES = ("docs/gateway.md", "docs/operations.md")
"""Pages whose blocks are run by a test that knows what happens between them."""

EXAMPLES = {
    "docs/http-api.md",
    "docs/integrations.md",
    "docs/python-api.md",
    "docs/stillness.md",
    "docs/trainers.md",
}
"""Pages whose blocks are run beside a head that has versions."""

_PACKAGING = ("tests/scripts/test_packaging.py",)
_INSTALL = ("tests/scripts/test_install.py",)
_GATEWAY = Read("needs the engine itself", ("tests/docs/test_gateway.py", "tests/daemon/local/gateway/test_command.py"))
_CLUSTER = Read("needs a cluster", ("tests/scripts/test_k8s.py",))
_PODMAN = Read("needs podman", ("tests/scripts/test_packaging.py",))
_WATCHED = Run(until=" as version ")

SHELL = {
    "README.md": {
        "scripts/demo": Read("minutes, and an environment of its own", ("tests/scripts/test_demo.py",)),
        "pip install .": Read("the tests run in such an environment", _PACKAGING),
        "patchswarm init": Run(),
        "patchswarm join": Run("rollout"),
        "patchswarm publish": Run(),
        "export": Run("rollout"),
    },
    "docs/quickstart.md": {
        "python3 -m venv": Read("the tests run in such an environment", _PACKAGING),
        "sudo nft": Read("changes the host's firewall"),
        "sudo install": Read("makes a folder of the host's"),
        "export PATCHSWARM_HOME=/var/lib/patchswarm\npatchswarm init": Run(),
        "export PATCHSWARM_HOME=/var/lib/patchswarm\npatchswarm join": Run("rollout"),
        "patchswarm publish /checkpoints/step-4200": Run(),
        "patchswarm pull": Run("rollout"),
        "patchswarm publish /checkpoints/step-4201": Run(),
        "curl": Run("rollout"),
    },
    "docs/deploy.md": {"podman build": _PODMAN, "run()": _PODMAN, "kubectl apply": _CLUSTER, "kubectl exec": _CLUSTER},
    "docs/gateway.md": {
        "patchswarm gateway --engine sglang": Run(),
        "curl": Run(),
        "# on the first host": Read("needs two hosts", ("tests/daemon/local/gateway/test_group.py",)),
    },
    "docs/http-api.md": {"export SOCKET": Run()},
    "docs/integrations.md": {
        "python3 -m sglang": _GATEWAY,
        "VLLM_SERVER_DEV_MODE=1": _GATEWAY,
        "export PATCHSWARM_STREAM": Read("needs slime", ("tests/daemon/local/hooks/test_slime.py",)),
        "patchswarm write-deltas": Read("needs SGLang", ("tests/daemon/local/slime/test_following.py",)),
        "python3 -m verl": Read("needs verl", ("tests/daemon/local/hooks/test_verl.py",)),
        "patchswarm watch /checkpoints/openrlhf": _WATCHED,
        "patchswarm watch /checkpoints/run17/broadcasts": _WATCHED,
    },
    "docs/mirror.md": {"pip": Read("the tests run in such an environment", _PACKAGING)},
    "docs/operations.md": {
        "sudo scripts/install  ": Read("needs systemd", _INSTALL),
        "sudo scripts/install\n": Read("needs systemd", _INSTALL),
        "sudo sysctl": Read("changes the host's kernel"),
        "install -d": Run(),
        "tar -C /var/lib/patchswarm -czf": Run(),
        "tar -C /var/lib/patchswarm -xzf": Run(),
        "patchswarm publisher adopt": Run("rollout"),
        "patchswarm publisher rotate": Run("rollout"),
        "patchswarm revoke": Run("rollout"),
    },
    "docs/simulator.md": {"scripts/simulate": Read("minutes", ("tests/simulation",))},
    "docs/stillness.md": {"patchswarm inspect": Run()},
    "docs/trainers.md": {
        "patchswarm watch": _WATCHED,
        "python3 -m verl": Read("needs verl", ("tests/daemon/local/hooks/test_verl.py",)),
        "patchswarm publish /checkpoints/base": Read(
            "needs slime's folders", ("tests/daemon/local/slime/test_source.py",)
        ),
        "patchswarm write-deltas": Read("goes on for ever", ("tests/daemon/local/slime/test_following.py",)),
    },
}


def plan_of(block):
    """What becomes of a shell or Python block. Fails when nobody has said so."""
    if block.language == "python":
        assert block.page in {*WALKS, *EXAMPLES}, f"{block}: put the page into EXAMPLES in tests/docs/plan.py"
        return Run("rollout" if block.page in WALKS else "head")
    found = [what for start, what in SHELL.get(block.page, {}).items() if block.text.startswith(start)]
    assert len(found) == 1, f"{block}: say in tests/docs/plan.py what becomes of {block.text.splitlines()[0]!r}"
    return found[0]
