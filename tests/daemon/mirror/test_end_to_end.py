"""Real daemons and a mirror: a member whose whole fleet is gone comes back to the newest version."""

import json

from daemon.single import until
from support.checkpoints import files_of
from support.streams import model, write_tree


def set_mirror(node, url):
    """Say so in the node's config.toml, where the key stands with its default."""
    config = node.home / "config.toml"
    text = config.read_text()
    assert text.count('# url = ""') == 1
    config.write_text(text.replace('# url = ""', f'url = "{url}"').replace("# poll_s = 5.0", "poll_s = 0.2"))


def said(node, message):
    """What the node logged under this message."""
    lines = (json.loads(line) for line in node.log.read_text().splitlines() if line.startswith("{"))
    return [line for line in lines if line["message"] == message]


async def test_a_member_that_was_off_catches_up_after_everybody_else_is_gone(own_fleet, stream, tmp_path):
    (tmp_path / "mirror").mkdir()
    head = own_fleet.head
    head.stop()
    set_mirror(head, f"file://{tmp_path}/mirror")
    head.start()
    member = own_fleet.add("member", "eu-west/b", start=False)
    set_mirror(member, f"file://{tmp_path}/mirror")
    member.start()
    own_fleet.publish(write_tree(tmp_path / "0", model(1, 0)), stream)
    await until(lambda: said(head, "mirrored"))
    own_fleet.publish(write_tree(tmp_path / "1", model(1, 1)), stream)
    member.kill()
    for steps in (2, 3):
        head.publish(write_tree(tmp_path / str(steps), model(1, steps)), stream)
    await until(lambda: said(head, "mirrored")[-1]["version"] == 4)
    head.kill()

    member.start()
    own_fleet.check(member, stream, 4, files_of(tmp_path / "3"))
    assert not any(peer.connected for peer in member.client.peers())
