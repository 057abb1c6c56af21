"""Chaos needs a lab: root, network namespaces and a TUN device. Its tests are skipped where one lacks."""

from pathlib import Path

import pytest
from wanlab.namespaces import missing


def pytest_collection_modifyitems(items):
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    lacking = missing() if here else ""
    if lacking:
        for item in here:
            item.add_marker(pytest.mark.skip(reason=f"the WAN lab needs {lacking}"))
