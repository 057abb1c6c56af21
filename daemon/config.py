"""Configuration: one TOML file in the home, read once into one frozen value.

The structs below are the whole truth: their fields are the keys, their defaults the defaults, their
descriptions the comments of the file that `init` and `join` write.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec

from ..protocol.errors import MessageError
from ..protocol.ids import check_stream_name
from .errors import BadInputError, ConfigError, reason
from .home import Home, write_private
from .mirror.url import check_url
from .tables import convert, keys_of, refuse_unknown, to_toml
from .units import Rate, Size, is_wildcard, parse_address

DEFAULT_PORT: Final = 7340

VERSION: Final = 1
"""Of what the keys mean. Raised when a key changes its meaning or goes, so that an old file is not misread."""


def _doc(description: str) -> msgspec.Meta:
    return msgspec.Meta(description=description)


Count = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=366 * 86400)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file."""


class Node(Section, frozen=True):
    """Where this node stands among the others."""

    site: Annotated[
        str,
        msgspec.Meta(max_length=64),
        _doc("Where this node is, for example 'us-east/provider-a': nodes of one site share what crosses a WAN once."),
    ] = ""
    listen: Annotated[
        str,
        _doc("HOST:PORT to accept other nodes on; '' to accept none and only dial out (behind NAT)."),
    ] = f"0.0.0.0:{DEFAULT_PORT}"
    advertise: Annotated[
        tuple[str, ...],
        msgspec.Meta(max_length=8),
        _doc(
            "HOST:PORTs under which others reach this node. Empty: the listen address, or none if that is a wildcard."
        ),
    ] = ()
    seeds: Annotated[tuple[str, ...], _doc("HOST:PORTs of nodes to dial first.")] = ()
    dial_networks: Annotated[
        tuple[str, ...],
        msgspec.Meta(max_length=64),
        _doc(
            "Networks, as 169.254.7.0/24, to which other nodes may send this one although they are loopback, "
            "link-local or reserved."
        ),
    ] = ()

    def __post_init__(self) -> None:
        for network in self.dial_networks:
            ipaddress.ip_network(network)
        for address in (*((self.listen,) if self.listen else ()), *self.advertise, *self.seeds):
            parse_address(address)
        for address in (*self.advertise, *self.seeds):
            if is_wildcard(parse_address(address)[0]):
                raise ValueError(f"{address!r} is a wildcard, no address that others can dial")

    @property
    def addresses(self) -> tuple[str, ...]:
        """HOST:PORTs that other nodes are told to dial; empty when this node cannot be dialled."""
        if self.advertise:
            return self.advertise
        return () if not self.listen or is_wildcard(parse_address(self.listen)[0]) else (self.listen,)


class Storage(Section, frozen=True):
    """Slots, versions and checking."""

    slot_dir: Annotated[
        Path,
        _doc("Folder of the checkpoints, as <slot_dir>/<stream>/v<N>; relative to the home. RAM for large models."),
    ] = Path("slots")
    slots: Annotated[Count, _doc("Checkpoints kept materialised per stream: 2 alternate, 1 where space is tight.")] = 2
    memory_limit: Annotated[Size, _doc("Most memory for chunks and patches in flight.")] = Size(512 * 1024 * 1024)
    retain_versions: Annotated[Count, _doc("Versions per stream whose chunks are kept for others to fetch.")] = 16
    retain_bytes: Annotated[Size, _doc("Most bytes of such chunks per stream; 0 for no limit.")] = Size(0)
    retain_age_s: Annotated[
        Seconds, _doc("How long such chunks are kept since this daemon first had them, in seconds; 0 for no limit.")
    ] = 0.0
    verify: Annotated[
        Literal["background", "full"],
        _doc("When the full digest table is checked: 'background' after commit, 'full' before it."),
    ] = "background"
    verify_every_s: Annotated[Seconds, _doc("Each slot is checked in full again at least this often, in seconds.")] = (
        3600.0
    )
    upkeep_share: Annotated[
        float,
        msgspec.Meta(gt=0, le=1),
        _doc("Most of the time that goes into such checks, of slots and of chunks; urgent ones are not held back."),
    ] = 0.1
    min_interval_s: Annotated[
        Seconds | Literal["auto"],
        _doc(
            "Least time between two commits of one stream, in seconds; versions in between are applied in one go. "
            "'auto': none in RAM, on a disk what writing the model at 1 GB/s takes."
        ),
    ] = "auto"


class Streams(Section, frozen=True):
    """Which streams this node follows."""

    follow: Annotated[tuple[str, ...], _doc("Names of streams, or '*' for every stream of the cluster.")] = ("*",)

    def __post_init__(self) -> None:
        for name in self.follow:
            if name != "*":
                _check_stream(name)

    def follows(self, stream: str) -> bool:
        """Whether `stream` is wanted here."""
        return "*" in self.follow or stream in self.follow


class Stream(Section, frozen=True):
    """One stream."""

    base: Annotated[
        Path | None,
        _doc("A checkpoint directory that is here already: saves the first transfer when its digests match."),
    ] = None
    anchor_every: Annotated[
        int,
        msgspec.Meta(ge=0, le=512),
        _doc("On the head: every so many versions a skip is made from each base and from the last one; 0 for never."),
    ] = 16
    full_every: Annotated[
        int,
        msgspec.Meta(ge=0, le=512),
        _doc("On the head: every so many versions a full transition is made; 0 for only when the way in grew long."),
    ] = 0


class Local(Section, frozen=True):
    """The HTTP API for this host."""

    socket: Annotated[Path, _doc("Unix socket of the API; relative to the home.")] = Path("patchswarm.sock")
    socket_mode: Annotated[str, _doc("Permissions of the socket, octal.")] = "0660"
    tcp: Annotated[
        str,
        _doc(f"Also serve the API on this loopback HOST:PORT, for example '127.0.0.1:{DEFAULT_PORT + 1}'; '' for no."),
    ] = ""
    socket_rights: Annotated[
        tuple[Literal["read", "publish", "admin"], ...],
        _doc("What other users may do on the socket; the daemon's own user and root may do everything."),
    ] = ("read", "publish")
    token_file: Annotated[
        Path, _doc("File with the bearer token with which TCP callers may read and lease; relative to the home.")
    ] = Path("token")
    publish_token_file: Annotated[
        Path, _doc("The one with which they may publish too; without the file nobody may over TCP.")
    ] = Path("token-publish")
    admin_token_file: Annotated[
        Path, _doc("The one with which they may do everything; without the file nobody may over TCP.")
    ] = Path("token-admin")

    def __post_init__(self) -> None:
        if not 0 <= self.mode_bits <= 0o777:
            raise ValueError(f"socket_mode {self.socket_mode!r} is outside 0000 to 0777")
        if self.tcp and parse_address(self.tcp)[0] not in {"127.0.0.1", "::1", "localhost"}:
            raise ValueError(
                f"tcp {self.tcp!r} is not loopback; write 127.0.0.1:PORT: the API must not face the network"
            )

    @property
    def mode_bits(self) -> int:
        """`socket_mode` as a number. Raises ValueError."""
        try:
            return int(self.socket_mode, 8)
        except ValueError:
            raise ValueError(f"socket_mode {self.socket_mode!r} is not octal, for example '0660'") from None


class Gateway(Section, frozen=True):
    """The gateway before this host's inference engine."""

    listen: Annotated[
        str, _doc("HOST:PORT where the daemon serves it; '' for none. 'patchswarm gateway' serves it by itself.")
    ] = ""
    engine: Annotated[
        Literal["sglang", "vllm", "openai", "none"],
        _doc("What stands behind it; 'none' on the other hosts of an engine that is spread over several."),
    ] = "sglang"
    engine_url: Annotated[str, _doc("Where the engine answers, for example 'http://127.0.0.1:30000'.")] = ""
    stream: Annotated[str, _doc("The stream of the model's weights; '' when only adapters are followed.")] = ""
    loras: Annotated[tuple[str, ...], _doc("LoRA adapters, each as NAME=STREAM.")] = ()
    commit_mode: Annotated[
        Literal["in_place", "quiesce"],
        _doc("A new version waits for the requests that it would break ('in_place'), or for all ('quiesce')."),
    ] = "in_place"
    max_lag_versions: Annotated[
        int, msgspec.Meta(ge=0), _doc("Not ready when more versions behind than this; 0 for no limit.")
    ] = 0
    max_lag_s: Annotated[Seconds, _doc("Not ready when behind for longer than this, in seconds; 0 for no limit.")] = 0.0
    patience_s: Annotated[
        Seconds, _doc("How long a request waits for its version when it does not say, in seconds.")
    ] = 30.0
    drain_s: Annotated[Seconds, _doc("How long requests may hold a new version back before they are cut.")] = 120.0
    load_timeout_s: Annotated[Seconds, _doc("Longest time that the engine may take to load a version.")] = 600.0
    read_timeout_s: Annotated[Seconds, _doc("Longest silence of the engine in an answer.")] = 3600.0
    body_limit: Annotated[Size, _doc("Largest request body.")] = Size(256 * 1024 * 1024)
    reload_path: Annotated[str, _doc("Path where an engine of kind 'openai' is told of new weights; '' for none.")] = ""
    group: Annotated[
        tuple[str, ...],
        msgspec.Meta(max_length=64),
        _doc("HOST:PORTs of the gateways on the engine's other hosts; a version is loaded when all of them hold it."),
    ] = ()
    group_token_file: Annotated[
        Path, _doc("File with the secret that the hosts of a group share; relative to the home.")
    ] = Path("group-token")

    def __post_init__(self) -> None:
        if self.listen and not self.listen.endswith(":0"):
            parse_address(self.listen)
        for address in self.group:
            parse_address(address)
        if self.stream:
            _check_stream(self.stream)
        if len(self.adapters) != len(self.loras):
            raise ValueError(f"loras {list(self.loras)} name an adapter twice")

    @property
    def adapters(self) -> dict[str, str]:
        """`loras`, name to stream. Raises ValueError."""
        adapters = {}
        for text in self.loras:
            name, equals, stream = text.partition("=")
            if not (name and equals):
                raise ValueError(f"{text!r} is not NAME=STREAM")
            _check_stream(stream)
            adapters[name] = stream
        return adapters


class Limits(Section, frozen=True):
    """What this node may use of its links."""

    upload: Annotated[Rate, _doc("Most that is sent to other nodes, for example '2Gbit/s'; '' for no limit.")] = Rate(0)
    download: Annotated[Rate, _doc("Most that is fetched from other nodes; '' for no limit.")] = Rate(0)
    lanes: Annotated[int, msgspec.Meta(ge=1, le=64), _doc("Most data connections to one node.")] = 8


class Mirror(Section, frozen=True):
    """A store that the publisher fills, for nodes that find no peer with what they need."""

    url: Annotated[
        str,
        _doc(
            "s3://BUCKET/PATH, gs://…, az://…, file:///DIR, or https://HOST/PATH which is only read; '' for none. "
            "Credentials come from the environment."
        ),
    ] = ""
    poll_s: Annotated[
        float,
        msgspec.Meta(ge=0.1, le=86400),
        _doc("How often a node that reaches no other one looks there for what is new, in seconds."),
    ] = 5.0

    def __post_init__(self) -> None:
        if self.url:
            check_url(self.url)


class Log(Section, frozen=True):
    """Logging, to standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], _doc("Least level that is written.")] = "info"
    format: Annotated[Literal["auto", "human", "json"], _doc("'auto': human on a terminal, JSON elsewhere.")] = "auto"


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration. Paths are absolute once loaded."""

    node: Node = Node()
    storage: Storage = Storage()
    streams: Streams = Streams()
    stream: dict[str, Stream] = {}
    local: Local = Local()
    gateway: Gateway = Gateway()
    limits: Limits = Limits()
    mirror: Mirror = Mirror()
    log: Log = Log()

    @classmethod
    def load(cls, home: Home) -> Config:
        """The configuration of `home`. Raises ConfigError naming file and key."""
        try:
            text = home.config.read_text()
        except OSError as error:
            raise ConfigError(f"{home.config}: cannot read it: {reason(error)}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{home.config}: not UTF-8 text: write it anew") from None
        return cls.parse(text, home)

    @classmethod
    def parse(cls, text: str, home: Home) -> Config:
        """The configuration that TOML `text` gives to `home`. Raises ConfigError naming file and key."""
        where = str(home.config)
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{where}: not TOML: {error}; correct it") from None
        _check_version(raw.pop("config_version", VERSION), where)  # files of the first days do not say
        sections = _sections()
        refuse_unknown(raw, [*sections, "stream"], where, "")
        values: dict[str, Any] = {
            name: convert(raw.get(name, {}), kind, where, name) for name, kind in sections.items()
        }
        streams = convert(raw.get("stream", {}), dict[str, dict[str, Any]], where, "stream")
        for name in streams:
            try:
                _check_stream(name)
            except ValueError as error:
                raise ConfigError(f"{where}: stream.{name}: {error}") from None
        values["stream"] = {name: convert(table, Stream, where, f"stream.{name}") for name, table in streams.items()}
        return _resolve(cls(**values), home.root)


def _resolve(config: Config, root: Path) -> Config:
    """`config` with absolute paths."""

    def absolute(path: Path) -> Path:
        try:
            return root / path.expanduser()
        except RuntimeError:
            raise ConfigError(f"{root / 'config.toml'}: {path}: no such user; write a whole path") from None

    replace = msgspec.structs.replace
    return replace(
        config,
        storage=replace(config.storage, slot_dir=absolute(config.storage.slot_dir)),
        local=replace(
            config.local,
            socket=absolute(config.local.socket),
            token_file=absolute(config.local.token_file),
            publish_token_file=absolute(config.local.publish_token_file),
            admin_token_file=absolute(config.local.admin_token_file),
        ),
        gateway=replace(
            config.gateway,
            group_token_file=absolute(config.gateway.group_token_file),
        ),
        stream={
            name: replace(stream, base=absolute(stream.base) if stream.base else None)
            for name, stream in config.stream.items()
        },
    )


def render(values: Mapping[str, Mapping[str, object]]) -> str:
    """The text of a config.toml that sets `values` ({section: {key: value}}) and explains every other key."""
    lines = [
        "# patchswarm configuration. Commented keys show their defaults; relative paths are below this folder.",
        "# Restart the daemon after a change.",
        f"config_version = {VERSION}",
    ]
    for section, kind in _sections().items():
        lines += ["", f"# {kind.__doc__}", f"[{section}]"]
        given = values.get(section, {})
        for key, default, description in keys_of(kind):
            text = f"{key} = {to_toml(given.get(key, default))}"
            lines += [f"# {description}", text if key in given else f"# {text}"]
        if section == "streams":
            lines += ["", "# A table for one stream:", "# [stream.NAME]"]
            for key, default, description in keys_of(Stream):
                lines += [
                    f"# {description}",
                    f"# {key} = {to_toml(default or '/models/…') if key == 'base' else default}",
                ]
    return "\n".join(lines) + "\n"


def write(home: Home, values: Mapping[str, Mapping[str, object]]) -> Config:
    """Write the config.toml of a new home; returns what it says. Raises BadInputError for values it may not hold."""
    text = render(values)
    try:
        config = Config.parse(text, home)
    except ConfigError as error:
        raise BadInputError(str(error).removeprefix(f"{home.config}: ")) from None
    write_private(home.config, text.encode())
    return config


def _sections() -> dict[str, type[Section]]:
    hints = get_type_hints(Config)
    return {name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, Section)}


def _check_version(version: object, where: str) -> None:
    if version == VERSION and type(version) is int:
        return
    if type(version) is int and version > VERSION:
        raise ConfigError(f"{where}: config_version {version}, but this patchswarm reads {VERSION}: upgrade it")
    raise ConfigError(f"{where}: config_version {version!r}: write {VERSION}")


def _check_stream(name: str) -> None:
    try:
        check_stream_name(name)
    except MessageError as error:
        raise ValueError(str(error)) from None
