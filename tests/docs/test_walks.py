"""The pages that begin with nothing end with what they promise: two machines, a version, and the same bytes on both."""

import numpy as np
import pytest
from local_fleet import free_port
from support.checkpoints import files_of, model, stepped, write

from .machines import Machine
from .markdown import Page
from .plan import WALKS, Run, plan_of


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", WALKS)
def test_the_page_leads_from_nothing_to_a_pull_that_is_the_trainers_bytes(name, root):
    tensors = model(1)
    truth = files_of(write(root / "checkpoints" / "step-4200", tensors))
    write(root / "checkpoints" / "step-4201", stepped(tensors, np.random.default_rng(1)))
    addresses = {machine: f"127.0.0.1:{free_port()}" for machine in ("head", "rollout")}
    said: dict[str, str] = {}
    machines = {machine: Machine(root, machine, addresses, said=said) for machine in addresses}
    try:
        for block in Page(name).blocks:
            if block.language in {"sh", "python"} and isinstance(run := plan_of(block), Run):
                machine = machines[run.on]
                machine.python(block) if block.language == "python" else machine.shell(block, run.until)
    finally:
        for machine in machines.values():
            machine.close()
    assert files_of(root / "rollout-weights") == truth
