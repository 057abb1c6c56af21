"""Kubernetes manifests and the page about them: valid, hardened as the systemd unit is, agreeing with the image."""

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
from local_fleet import COMMAND, Node, free_port

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install '.[dev]'")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="not installed: pip install '.[dev]'")

from patchswarm.daemon.cli import main  # noqa: E402
from patchswarm.daemon.config import DEFAULT_PORT  # noqa: E402
from patchswarm.daemon.local.probe import QUESTIONS  # noqa: E402
from patchswarm.daemon.membership import init, join  # noqa: E402

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scripts/k8s").glob("*.yaml"))
CONTAINERFILE = (ROOT / "scripts/container/Containerfile").read_text()
VERSIONS = ("1.29.0", "1.33.0", "1.37.0")
"""The API's of the last years: oldest, middle, newest that the checker has."""

DOCUMENTS = [each for path in FILES for each in yaml.safe_load_all(path.read_text())]
WORKLOADS = [each for each in DOCUMENTS if each["kind"] in ("DaemonSet", "StatefulSet")]


def pods():
    return [each["spec"]["template"]["spec"] for each in WORKLOADS]


def containers():
    return [each for pod in pods() for each in (*pod["initContainers"], *pod["containers"])]


def daemons():
    return [each for pod in pods() for each in pod["containers"]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_is_valid(document, version):
    kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each["kind"])
def test_the_checker_would_see_a_wrong_key(document):
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**document, "specs": {}}, VERSIONS[0], strict=True)


def test_there_is_a_set_for_rollouts_and_one_for_the_head():
    assert {each["kind"] for each in WORKLOADS} == {"DaemonSet", "StatefulSet"}
    (head,) = (each for each in WORKLOADS if each["kind"] == "StatefulSet")
    assert head["spec"]["replicas"] == 1
    services = {each["metadata"]["name"] for each in DOCUMENTS if each["kind"] == "Service"}
    assert head["spec"]["serviceName"] in services


def test_selectors_find_the_pods():
    for workload in WORKLOADS:
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_no_container_may_become_more_than_it_is():
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        assert not pod.get("hostPID")
        assert not pod.get("hostIPC")
    for container in containers():
        context = container["securityContext"]
        assert not context["allowPrivilegeEscalation"]
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in context


def test_only_the_container_that_makes_folders_is_root_and_it_runs_no_daemon():
    roots = [each for each in containers() if each["securityContext"].get("runAsUser") == 0]
    assert [each["name"] for each in roots] == ["folders"]
    assert "patchswarm " not in " ".join(roots[0]["command"])
    assert all("add" not in each["securityContext"]["capabilities"] for each in containers() if each not in roots)


def test_every_container_says_what_it_needs():
    for container in containers():
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_probes_ask_what_the_probe_answers():
    for daemon in daemons():
        for name, question in (("startupProbe", "healthz"), ("livenessProbe", "healthz"), ("readinessProbe", "readyz")):
            assert daemon[name]["exec"]["command"] == ["python", "-m", "patchswarm.daemon.local.probe", question]
            assert question in QUESTIONS
        startup = daemon["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 600, "as TimeoutStartSec of the unit"


def test_the_join_token_comes_from_a_secret_and_stands_nowhere():
    assert not any("patchswarm1_" in path.read_text() for path in FILES)
    (volume,) = (each for pod in pods() for each in pod["volumes"] if each["name"] == "join")
    assert volume["secret"]["secretName"] == "patchswarm-join"
    (joining,) = (each for each in containers() if each["name"] == "join")
    (mount,) = (each for each in joining["volumeMounts"] if each["name"] == "join")
    assert f"{mount['mountPath']}/token" in joining["command"][-1]
    assert not any(each["name"] == "join" for daemon in daemons() for each in daemon["volumeMounts"])


def test_every_setting_in_the_environment_is_an_option_of_its_command():
    options = {"INIT": init, "JOIN": join}
    for container in containers():
        for variable in container.get("env", []):
            match = re.fullmatch(r"PATCHSWARM_(INIT|JOIN)_(\w+)", variable["name"])
            if match is not None:
                assert match[2].lower() in {each.name for each in options[match[1]].params}, variable["name"]
            else:
                assert variable["name"] == "HOST_IP"


def test_mounts_are_of_volumes_and_cover_what_the_image_writes():
    written = set(re.findall(r'"(/var/[^"]+)"', re.search(r"^VOLUME (.+)$", CONTAINERFILE, re.MULTILINE)[1]))
    for workload, pod in zip(WORKLOADS, pods(), strict=True):
        claims = [each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])]
        volumes = {*claims, *(each["name"] for each in pod["volumes"])}
        for container in (*pod["initContainers"], *pod["containers"]):
            assert {each["name"] for each in container["volumeMounts"]} <= volumes
        for daemon in pod["containers"]:
            assert written | {"/tmp"} <= {each["mountPath"] for each in daemon["volumeMounts"]}


def test_ports_and_users_are_those_of_the_image():
    assert f"EXPOSE {DEFAULT_PORT}" in CONTAINERFILE
    assert all(each["ports"][0]["containerPort"] == DEFAULT_PORT for each in daemons())
    (user,) = re.findall(r"^USER (\d+):\d+$", CONTAINERFILE, re.MULTILINE)
    assert all(pod["securityContext"]["runAsUser"] == int(user) for pod in pods())


# -- the containers that make a home ------------------------------------------------------------------------


def run_initial(name, home, **instead):
    """Run the init container's own command with its own environment, here; what stands in `instead` replaces values."""
    (container,) = (each for each in containers() if each["name"] == name)
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert instead.keys() <= environment.keys() | {"/run/join"}
    environment |= {name: value for name, value in instead.items() if name in environment}
    environment |= {"PATCHSWARM_HOME": str(home), "PATH": f"{COMMAND.parent}:/usr/bin:/bin"}
    shell, flags, script = container["command"]
    script = script.replace("/run/join", instead.get("/run/join", "/run/join"))
    return subprocess.run([shell, flags, script], env=environment, capture_output=True, text=True, check=False)


def test_a_head_and_a_rollout_make_their_homes_once(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    head = Node(tmp_path, "head", "us-east/provider-a", address)
    where = {"PATCHSWARM_INIT_LISTEN": address, "PATCHSWARM_INIT_ADVERTISE": address}
    for said in (f"lives in {head.home}", ""):  # the second time it is there
        done = run_initial("init", head.home, **where, PATCHSWARM_INIT_SLOT_DIR=str(tmp_path / "slots"))
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
        assert bool(said) == bool(done.stdout)
    head.start()
    try:
        (tmp_path / "token").write_text(head.invite())
        listen = f"127.0.0.1:{free_port()}"
        where = {"PATCHSWARM_JOIN_LISTEN": listen, "PATCHSWARM_JOIN_ADVERTISE": listen, "/run/join": str(tmp_path)}
        for said in (f"lives in {tmp_path / 'rollout'}", ""):
            done = run_initial(
                "join", tmp_path / "rollout", **where, PATCHSWARM_JOIN_SLOT_DIR=str(tmp_path / "slots-2")
            )
            assert done.returncode == 0, done.stderr
            assert said in done.stdout
            assert bool(said) == bool(done.stdout)
    finally:
        head.stop()


# -- what docs/deploy.md says --------------------------------------------------------------------------------

PAGE = (ROOT / "docs/deploy.md").read_text()


def test_every_file_that_the_page_names_is_there():
    named = re.findall(r"scripts/[\w./-]+[\w]", PAGE)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
    linked = re.findall(r"\]\((\w+\.md)\)", PAGE)
    assert [name for name in linked if not (ROOT / "docs" / name).exists()] == []


@pytest.mark.parametrize("line", re.findall(r"(?:patchswarm|patchswarm:[\d.]+) ((?:invite|join|publish)\b.*)", PAGE))
def test_every_command_of_the_page_is_one_that_patchswarm_takes(line):
    """Parsed as click would, with nothing run."""
    words = shlex.split(line, comments=True)
    command = main.get_command(click.Context(main), words[0])
    command.make_context(words[0], words[1:], resilient_parsing=True)
    options = {option for each in command.params for option in each.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_the_page_mounts_and_runs_as_the_image_says():
    folders = re.findall(r'"(/var/[^"]+)"', re.search(r"^VOLUME (.+)$", CONTAINERFILE, re.MULTILINE)[1])
    assert all(f"`{folder}`" in PAGE for folder in folders)
    assert "-o 10001 -g 10001" in PAGE
