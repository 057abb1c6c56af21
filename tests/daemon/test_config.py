"""config.toml: what it says when it is right, and what it says when it is wrong."""

import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchswarm.daemon import config as configuration
from patchswarm.daemon.config import Config, Stream
from patchswarm.daemon.errors import BadInputError, ConfigError
from patchswarm.daemon.exits import Exit
from patchswarm.daemon.home import Home


@pytest.fixture
def home(tmp_path):
    return Home.at(tmp_path)


def problem(text, home):
    with pytest.raises(ConfigError) as caught:
        Config.parse(text, home)
    assert caught.value.exit is Exit.HOME
    message = str(caught.value)
    assert message.startswith(f"{home.config}: ")
    assert "\n" not in message
    return message.removeprefix(f"{home.config}: ")


def test_an_empty_file_means_the_documented_defaults(home):
    assert Config.parse("", home) == Config.parse(configuration.render({}), home)


def test_every_key_stands_in_the_written_file_with_its_default_and_a_comment_above(home):
    text = configuration.render({})
    uncommented = "\n".join(
        line.removeprefix("# ") if (" = " in line or "# [" in line) and "…" not in line else line
        for line in text.splitlines()
    )
    written = tomllib.loads(uncommented)
    for section in msgspec.structs.fields(Config):
        if section.name == "stream":
            assert "# [stream.NAME]" in text
            continue
        keys = {field.name for field in msgspec.structs.fields(type(section.default))}
        assert set(written[section.name]) == keys
    parsed = Config.parse(uncommented, home)
    assert parsed.stream == {"NAME": Stream()}
    assert msgspec.structs.replace(parsed, stream={}) == Config.parse("", home)
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if " = " in line:
            assert lines[number - 1].startswith("# ")


def test_the_written_file_says_what_version_its_keys_are_of(home):
    assert tomllib.loads(configuration.render({}))["config_version"] == configuration.VERSION


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("2", "config_version 2, but this patchswarm reads 1: upgrade it"),
        ("0", "config_version 0: write 1"),
        ("true", "config_version True: write 1"),
        ("'1'", "config_version '1': write 1"),
    ],
)
def test_a_file_of_another_version_is_not_misread(home, version, says):
    """Before anything else in it: its keys may not even be known here."""
    assert problem(f"config_version = {version}\n[later]\nkey = 1", home) == says


def test_given_values_are_written_uncommented_and_read_back(home):
    home.root.mkdir(exist_ok=True)
    config = configuration.write(
        home, {"node": {"site": 'a "quoted" site\\', "listen": "127.0.0.1:7340", "seeds": ("head:1", "[::1]:2")}}
    )
    assert config == Config.load(home)
    assert config.node.site == 'a "quoted" site\\'
    assert config.node.seeds == ("head:1", "[::1]:2")
    assert home.config.stat().st_mode & 0o777 == 0o600


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=64))
def test_any_site_survives_writing(tmp_path_factory, site):
    home = Home.at(tmp_path_factory.getbasetemp())
    assert Config.parse(configuration.render({"node": {"site": site}}), home).node.site == site


def test_paths_are_below_the_home_unless_absolute(home):
    config = Config.parse('[storage]\nslot_dir = "/dev/shm/x"\n[stream.qwen]\nbase = "models/a"', home)
    assert str(config.storage.slot_dir) == "/dev/shm/x"
    assert config.stream["qwen"].base == home.root / "models/a"
    assert config.local.socket == home.root / "patchswarm.sock"
    assert config.local.token_file == home.root / "token"


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ('listen = "10.0.0.1:7340"', ("10.0.0.1:7340",)),
        ('listen = "0.0.0.0:7340"', ()),
        ('listen = "[::]:7340"', ()),
        ('listen = ""', ()),
        ('listen = "0.0.0.0:7340"\nadvertise = ["head:7340"]', ("head:7340",)),
    ],
)
def test_a_node_advertises_what_others_can_dial(home, text, addresses):
    assert Config.parse(f"[node]\n{text}", home).node.addresses == addresses


TYPED = "; write what its comment says it takes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nod = 1", "unknown key nod; did you mean node?"),
        ("[node]\nsites = 'a'", "unknown key node.sites; did you mean site or seeds?"),
        ("[log]\nxyz = 1", "unknown key log.xyz; use one of level, format, or remove it"),
        ("[stream.qwen]\nbas = '/x'", "unknown key stream.qwen.bas; did you mean base?"),
        ("[node]\nsite = 3", "node.site: Expected `str`, got `int`" + TYPED),
        ("node = 3", "node: Expected a table, got `int`" + TYPED),
        ("stream = 3", "stream: Expected a table, got `int`" + TYPED),
        ("[storage]\nslots = 0", "storage.slots: Expected `int` >= 1" + TYPED),
        ("[storage]\nverify_every_s = -1", "storage.verify_every_s: Expected `float` >= 0.0" + TYPED),
        (
            "[log]\nlevel = 'loud'",
            "log.level: Invalid enum value 'loud'; choose 'debug' or 'info' or 'warning' or 'error'",
        ),
        ("[stream.qwen]\nbase = 3", "stream.qwen.base: 3 is not a path"),
        ("[local]\nsocket = ''", "local.socket: '' is not a path"),
        ("[local]\nsocket_mode = '0999'", "local: socket_mode '0999' is not octal, for example '0660'"),
        ("[local]\nsocket_mode = '07777'", "local: socket_mode '07777' is outside 0000 to 0777"),
        (
            "[local]\ntcp = '0.0.0.0:80'",
            "local: tcp '0.0.0.0:80' is not loopback; write 127.0.0.1:PORT: the API must not face the network",
        ),
    ],
)
def test_a_wrong_key_is_named(home, text, message):
    assert problem(text, home) == message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[node", "not TOML"),
        ("[storage]\nmemory_limit = '5 parsecs'", "storage.memory_limit: '5 parsecs' is not a size"),
        ("[limits]\nupload = '5'", "limits.upload: '5' is not a rate"),
        ("[node]\nlisten = 'nowhere'", "node: 'nowhere' is not an address"),
        ("[node]\nadvertise = ['0.0.0.0:1']", "node: '0.0.0.0:1' is a wildcard"),
        ("[storage]\nslot_dir = '~no-such-user/x'", "~no-such-user/x: no such user"),
        ("[node]\nseeds = ['x']", "node: 'x' is not an address"),
        ("[streams]\nfollow = ['a/b']", "streams: stream name 'a/b' is not allowed"),
        ("[stream.'..']\nbase = '/x'", "stream...: stream name '..' is not allowed"),
    ],
)
def test_a_wrong_value_says_what_would_be_right(home, text, part):
    assert part in problem(text, home)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.toml: cannot read it: No such file"):
        Config.load(Home.at(tmp_path))


def test_a_file_that_is_not_text_is_named(home):
    home.config.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        Config.load(home)


def test_nothing_wrong_is_written(home):
    with pytest.raises(BadInputError, match=r"^node: 'nowhere' is not an address"):
        configuration.write(home, {"node": {"listen": "nowhere"}})
    assert not home.config.exists()


def test_streams_are_followed_by_name_or_all(home):
    assert Config.parse("", home).streams.follows("anything")
    some = Config.parse("[streams]\nfollow = ['a', 'b']", home).streams
    assert some.follows("a")
    assert not some.follows("c")


def test_the_configuration_cannot_be_changed(home):
    config = Config.parse("", home)
    with pytest.raises(AttributeError):
        config.node = config.node
