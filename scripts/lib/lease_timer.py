"""Takes leases, one after the other, and prints how long each took to be handed over, and as many bare questions.

A process of its own: what is measured is the daemon, not another thread of whoever measures.
"""

from __future__ import annotations

import json
import sys
import time

from patchswarm.daemon.local.asks import ready
from patchswarm.daemon.local.client import Client
from patchswarm.daemon.local.connection import DaemonAddress


def main() -> None:
    socket, stream, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    client, address = Client(socket), DaemonAddress(socket, "")
    leases, questions = [], []
    for _ in range(count):
        lease = client.lease(stream)
        begun = time.perf_counter()
        lease.__enter__()
        leases.append(time.perf_counter() - begun)
        lease.__exit__(None, None, None)
        begun = time.perf_counter()
        with address.exchange("GET", ready().path.replace("readyz", "healthz"), timeout_s=30) as response:
            response.read()
        questions.append(time.perf_counter() - begun)
    json.dump({"leases": leases, "questions": questions}, sys.stdout)


if __name__ == "__main__":
    main()
