"""What a node counts while versions travel."""

from daemon.single import head_of, member_of, until
from prometheus_client.parser import text_string_to_metric_families
from support.streams import model, write_tree

STREAM = "qwen"


def measured(single):
    """Samples by (name, labels)."""
    families = text_string_to_metric_families(single.node.service.metrics().decode())
    return {
        (sample.name.removeprefix("patchswarm_"), *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


async def test_a_version_that_travels_is_counted_on_both_ends_and_its_life_has_one_id(root):
    async with head_of(root) as head, member_of(head, root) as member:
        made = await head.publish(STREAM, write_tree(root / "trainer", model(1)))
        slot = await member.committed(STREAM, made.slot.version)
        await until(lambda: head.node.service.lives(STREAM) and member.node.service.lives(STREAM))

        here, there = measured(head), measured(member)
        assert there["version", STREAM] == here["version", STREAM] == slot.version
        assert there["head_version", STREAM] == slot.version
        assert there["lag_versions", STREAM] == 0
        assert there["received_bytes_total", "wan"] >= made.patch_bytes  # the chunks, and the lists
        assert here["sent_bytes_total", "wan"] == there["received_bytes_total", "wan"]
        assert there["duplicate_bytes_total",] == 0
        assert there["chunk_failures_total", "damaged"] == 0
        assert there["slots", "committed", STREAM] == 1
        assert there["peers", "connected"] == 1
        assert there["stage_seconds_count", STREAM, "rebuilt"] == 1
        assert there["stage_seconds_count", "committed", STREAM] == 1
        assert there["disk_free_bytes", STREAM] > 0

        (life,) = member.node.service.lives(STREAM)
        at = [life.moments[name] for name in ("announced", "first_byte", "complete", "rebuilt", "committed")]
        assert at[2:] == sorted(at[2:]), "chunks first, then all bytes in the slot behind, then the commit"
        assert life.trace == head.node.service.lives(STREAM)[0].trace
        (patch,) = member.node.service.patches(STREAM)
        assert (patch.version, patch.kind, patch.here) == (slot.version, "full", True)
        assert patch.size_bytes == made.patch_bytes
        contents = await member.node.service.patch(STREAM, slot.version)
        assert sum(group.changed for group in contents.groups) == sum(group.elements for group in contents.groups) > 0
        assert member.node.service.fetching(STREAM) == []

        lease = await member.node.service.lease(STREAM, None, 60)
        assert measured(member)["leases", STREAM] == 1
        await member.node.service.release(STREAM, lease.lease)
        assert measured(member)["leases", STREAM] == 0
