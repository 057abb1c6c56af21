"""What a node's keys and certificates are, and what is said when they are not."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from daemon.nodes import UTC_NOW, make_head, make_member

from patchswarm.daemon.errors import HomeError
from patchswarm.daemon.fleet import authority
from patchswarm.daemon.fleet.identity import Identity
from patchswarm.protocol.ids import digest
from patchswarm.protocol.manifest import Membership
from patchswarm.protocol.signed import verify

DAY = dt.timedelta(days=1)


@pytest.fixture
def head(tmp_path):
    return make_head(tmp_path / "head")


def test_init_makes_a_ca_a_node_and_a_publisher(head):
    own = head.identity
    assert own.node_id == digest(own.node_public_key)
    assert own.ca_key.public_key().public_bytes_raw() == own.ca_public_key
    assert own.publisher_key.public_key().public_bytes_raw() not in {own.node_public_key, own.ca_public_key}
    assert verify(own.membership, Membership, own.ca_public_key).node_key == own.node_public_key
    assert verify(own.membership, Membership, own.ca_public_key).not_after == int(own.not_after.timestamp())
    assert 89 * DAY < own.not_after - UTC_NOW < 91 * DAY


def test_every_file_in_the_home_is_for_its_owner_only(head):
    files = [path for path in head.home.root.rglob("*") if path.is_file() and path.name != "lock"]
    assert {path.name for path in files} >= {"node.key", "ca.key", "publisher.key", "node.crt", "ca.crt", "membership"}
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_each_cluster_has_a_name_of_its_own(tmp_path):
    names = {make_head(tmp_path / str(n)).identity.ca_certificate.subject.rfc4514_string() for n in range(3)}
    assert len(names) == 3


def test_an_identity_shows_no_private_key(head):
    raw = head.identity.node_key.private_bytes_raw()
    assert "PrivateKey" not in repr(head.identity)
    assert raw.hex() not in repr(head.identity)


@pytest.mark.parametrize("name", ["node.key", "node.crt", "ca.crt", "membership"])
def test_a_missing_file_is_named(head, name):
    (head.home.keys / name).unlink()
    with pytest.raises(HomeError, match=f"{name}: missing; restore it from a backup"):
        Identity.load(head.home)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("node.key", "not an Ed25519 private key in PEM"),
        ("ca.key", "not an Ed25519 private key in PEM"),
        ("publisher.key", "not an Ed25519 private key in PEM"),
        ("node.crt", "not a certificate in PEM"),
        ("ca.crt", "not a certificate in PEM"),
        ("membership", r"not by ca\.crt"),
    ],
)
@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_damaged_file_is_named(head, name, message, content):
    path = head.home.keys / name
    path.write_bytes(content)
    with pytest.raises(HomeError, match=message):
        Identity.load(head.home)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("node.key", r"node\.crt: is not the certificate of node\.key"),
        ("ca.key", r"ca\.key: is not the key of ca\.crt"),
        ("membership", r"not by ca\.crt"),
    ],
)
def test_files_mixed_from_two_homes_are_noticed(head, tmp_path, name, message):
    other = make_head(tmp_path / "other")
    (head.home.keys / name).write_bytes((other.home.keys / name).read_bytes())
    with pytest.raises(HomeError, match=message):
        Identity.load(head.home)


def test_the_membership_of_another_member_is_noticed(head, tmp_path):
    home = make_member(head, tmp_path / "other")
    (home.keys / "membership").write_bytes(head.identity.membership)
    with pytest.raises(HomeError, match="membership of another node"):
        Identity.load(home)


@pytest.mark.parametrize("name", ["node.key", "ca.key", "publisher.key"])
def test_a_key_that_others_may_read_is_refused(head, name):
    (head.home.keys / name).chmod(0o640)
    with pytest.raises(HomeError, match=f"{name}: others may read this key; run 'chmod 600"):
        Identity.load(head.home)


def test_a_certificate_with_another_kind_of_key_is_refused(head):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    certificate = x509.CertificateBuilder(name, name, key.public_key(), 1, UTC_NOW, UTC_NOW + DAY).sign(key, SHA256())
    (head.home.keys / "ca.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    with pytest.raises(HomeError, match=r"ca\.crt: the certificate's key is not Ed25519"):
        Identity.load(head.home)


def test_a_host_that_only_joined_holds_no_ca_and_no_publisher_key(head, tmp_path):
    other = Identity.load(make_member(head, tmp_path / "other"))
    assert other.ca_key is None
    assert other.publisher_key is None
    assert other.ca_public_key == head.identity.ca_public_key


PRIME = 2**255 - 19
CURVE_D = -121665 * pow(121666, -1, PRIME) % PRIME


def on_the_curve(y):
    """A point of edwards25519 with this y (RFC 8032, 5.1.3), or None."""
    y %= PRIME
    u, v = (y * y - 1) % PRIME, (CURVE_D * y * y + 1) % PRIME
    square = u * pow(v, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    for root in (x, x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME):
        if root * root % PRIME == square:
            return root, y
    return None


def doubled(point):
    x, y = point
    product = CURVE_D * x * x * y * y % PRIME
    return (
        2 * x * y * pow(1 + product, -1, PRIME) % PRIME,
        (y * y + x * x) * pow(1 - product, -1, PRIME) % PRIME,
    )


def test_exactly_the_points_of_small_order_are_weak_keys():
    for y in authority._WEAK_KEYS:
        point = on_the_curve(y)
        assert point is not None
        assert doubled(doubled(doubled(point))) == (0, 1)
        for sign in (0, 2**255):
            assert authority.is_weak((y | sign).to_bytes(32, "little"))
    assert len({y % PRIME for y in authority._WEAK_KEYS}) == 5  # orders 1, 2, 4 and, of opposite sign, 8
    assert not any(
        authority.is_weak(ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw()) for _ in range(20)
    )
