"""A member of the fleet for chaos runs: the real daemon, watched from within, and lying when told to.

    member.py WITNESS LIE --home DIR

WITNESS is a folder: `wrong` gets a line with the sender's id for each chunk that came with other bytes than its
name says, whatever the daemon then does about it; `clock` holds how far this member's wall clock is off, in seconds.
LIE is "wrong" (every chunk it serves has a flipped bit), "have" (it claims every chunk there could be), "silent" (it
claims so, and answers no request), or "none".
"""

import sys
import time
from pathlib import Path

from patchswarm.daemon.cli import main
from patchswarm.daemon.fleet.fleet import Fleet
from patchswarm.daemon.fleet.peer import Peer
from patchswarm.protocol.ids import digest
from patchswarm.protocol.messages import Have

EVERY_CHUNK = ((0, 4095),)


def watch(folder):
    """Note who sent wrong bytes, before the daemon looks at them."""
    come = Fleet.chunk_came

    def chunk_came(self, peer, lane, name, body):
        if digest(bytes(body)) != name:
            with (folder / "wrong").open("a") as file:
                file.write(self.swarm.links[peer.number].node.hex() + "\n")
        come(self, peer, lane, name, body)

    Fleet.chunk_came = chunk_came


def follow_clock(path):
    """Let this process's wall clock be off by what `path` says."""
    real = time.time

    def shifted():
        try:
            return real() + float(path.read_text())
        except (FileNotFoundError, ValueError):
            return real()

    time.time = shifted


def serve_wrong_bytes():
    load = Fleet.load

    async def corrupted(self, name):
        sealed = await load(self, name)
        if sealed is None:
            return None
        damaged = bytearray(sealed)
        damaged[len(damaged) // 2] ^= 1
        return bytes(damaged)

    Fleet.load = corrupted


def claim_everything():
    send = Peer.send

    def boast(self, message):
        send(self, Have(message.attempt, EVERY_CHUNK) if isinstance(message, Have) else message)

    Peer.send = boast


def answer_nothing():
    Peer.serve = lambda self, request, name, *, secure: None


def run(witness, lie, arguments):
    watch(witness)
    follow_clock(witness / "clock")
    match lie:
        case "wrong":
            serve_wrong_bytes()
        case "have":
            claim_everything()
        case "silent":
            claim_everything()
            answer_nothing()
    sys.argv = ["patchswarm", "daemon", *arguments]
    main()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
