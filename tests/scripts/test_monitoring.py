"""Alerts and dashboard: valid, fed by what the daemon says, and fired by a real Prometheus."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import aiohttp
import pytest
from daemon.nodes import free_port
from daemon.single import head_of
from prometheus_client.parser import text_string_to_metric_families
from support.streams import model, write_tree

MONITORING = Path(__file__).parents[2] / "scripts" / "monitoring"
STREAM = "qwen"

needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")


@pytest.fixture
async def head(root):
    async with head_of(root, tcp=True) as running:
        await running.publish(STREAM, write_tree(root / "trainer", model(1)))
        yield running


async def test_rules_and_panels_ask_for_what_the_daemon_says(head):
    text = head.node.service.metrics().decode()
    said = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    said |= {family.name for family in text_string_to_metric_families(text)}
    asked = {
        name
        for file in ("alerts.yml", "dashboard.json")
        for name in re.findall(r"\bpatchswarm_[a-z_]+\b", (MONITORING / file).read_text())
    }
    asked = {name for name in asked if not re.fullmatch(r"patchswarm_stage_seconds_bucket", name)}
    assert asked
    assert asked <= said
    assert json.loads((MONITORING / "dashboard.json").read_text())["panels"]


@needs_prometheus
def test_the_rules_fire_when_they_should_and_not_before():
    subprocess.run(["promtool", "check", "rules", MONITORING / "alerts.yml"], check=True)
    subprocess.run(["promtool", "test", "rules", MONITORING / "alerts_test.yml"], check=True)


@needs_prometheus
async def test_a_real_prometheus_reads_the_daemon_and_says_when_it_is_gone(head, tmp_path):
    rules = (MONITORING / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 1s", rules))
    token = head.config.local.token_file.read_text().strip()
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 250ms, evaluation_interval: 250ms}\n"
        "rule_files: [alerts.yml]\n"
        "scrape_configs:\n"
        f"  - {{job_name: patchswarm, authorization: {{credentials: {token}}},\n"
        f"     static_configs: [{{targets: ['{head.config.local.tcp}']}}]}}\n"
    )
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        "prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={address}", "--log.level=warn",
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession(f"http://{address}") as session, asyncio.timeout(60):
            while not (found := await asked(session, "query", query="patchswarm_version"))["result"]:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
            (sample,) = found["result"]
            assert sample["metric"]["stream"] == STREAM
            assert sample["value"][1] == "1"
            assert (await asked(session, "alerts"))["alerts"] == []

            await head.stop()
            while not firing(await asked(session, "alerts")):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
            assert "PatchswarmDown" in firing(await asked(session, "alerts"))
    finally:
        process.kill()
        await process.wait()


async def asked(session, what, **query):
    """What the server answers; nothing while it starts."""
    try:
        async with session.get(f"/api/v1/{what}", params=query) as answer:
            return (await answer.json())["data"] if answer.status == 200 else {"result": []}
    except aiohttp.ClientConnectionError:
        return {"result": []}


def firing(data):
    return {alert["labels"]["alertname"] for alert in data.get("alerts", []) if alert["state"] == "firing"}
