"""Baseline: libtorrent. `TORRENT FOLDER ADDRESS PORT [PEER…]`; a folder that has the file makes a seed.

Plain TCP, nothing announced anywhere, no peer exchange, every peer unchoked, buffers for long fat links: what a
careful operator would set.
"""

from __future__ import annotations

import sys
from pathlib import Path

import libtorrent

from . import worker

_SETTINGS = {
    "enable_dht": False,
    "enable_lsd": False,
    "enable_upnp": False,
    "enable_natpmp": False,
    "enable_outgoing_utp": False,
    "enable_incoming_utp": False,
    "out_enc_policy": 2,  # pe_disabled
    "in_enc_policy": 2,
    "unchoke_slots_limit": 100,
    "connection_speed": 200,
    "min_reconnect_time": 1,
    "max_out_request_queue": 2000,
    "max_allowed_in_request_queue": 4000,
    "send_buffer_watermark": 4 * 1024 * 1024,
    "send_buffer_watermark_factor": 150,
    "alert_mask": libtorrent.alert.category_t.status_notification | libtorrent.alert.category_t.error_notification,
}
_NO_PLUGINS = 0
_WAIT_MS = 1000


def main(torrent: Path, folder: Path, address: str, port: int, peers: list[str]) -> None:
    session = libtorrent.session(_SETTINGS | {"listen_interfaces": f"{address}:{port}"}, _NO_PLUGINS)
    params = libtorrent.add_torrent_params()
    params.ti = libtorrent.torrent_info(str(torrent))
    params.save_path = str(folder)
    params.flags &= ~(libtorrent.torrent_flags.auto_managed | libtorrent.torrent_flags.paused)
    handle = session.add_torrent(params)
    while handle.status().state in _CHECKING:
        session.wait_for_alert(_WAIT_MS)
        session.pop_alerts()
    worker.ready()
    for peer in peers:
        handle.connect_peer((peer, port))
    while not handle.status().is_seeding:
        session.wait_for_alert(_WAIT_MS)
        session.pop_alerts()
    worker.done()
    worker.linger()


_STATES = libtorrent.torrent_status.states
_CHECKING = {_STATES.checking_files, _STATES.checking_resume_data}

if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5:])
