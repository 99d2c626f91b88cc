"""Kind A: loading, choosing and naming network configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.cni import config
from podwire.cni.config import ConfigError, NetworkNotFound
from podwire.cni.errors import CNIError
from tests.cni.helpers import RESULT

GOOD = {"cniVersion": "1.0.0", "name": "good", "plugins": [{"type": "bridge"}]}


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a02_a_list_in_a_conf_file_is_a_list(tmp_path: Path) -> None:
    write(tmp_path / "10-x.conf", GOOD)
    assert config.find(tmp_path, "good").plugins[0].type == "bridge"


def test_a_single_configuration_becomes_a_list_of_one(tmp_path: Path) -> None:
    single = {
        "cniVersion": "0.4.0",
        "name": "one",
        "type": "ptp",
        "capabilities": {"mac": True, "ips": False},
    }
    made = config.load_list(write(tmp_path / "1.conf", single))
    assert (made.name, made.cni_version, made.capabilities) == ("one", "0.4.0", ("mac",))
    again = config.parse_list(made.raw)
    assert (again.name, again.plugins) == (made.name, made.plugins)


def test_a07_bad_files_are_skipped_and_told(tmp_path: Path) -> None:
    write(tmp_path / "00-bad.conf", '{"name": "x",\n "type": }')
    write(tmp_path / "05-worse.conflist", {"name": "y", "plugins": [{"type": "a"}, {}]})
    write(tmp_path / "10-good.conflist", GOOD)
    write(tmp_path / "ignored.txt", "x")
    (tmp_path / "dir.conf").mkdir()
    (tmp_path / "90-gone.conf").symlink_to(tmp_path / "nowhere")
    found = config.load_directory(tmp_path)
    assert found.default().name == "good"
    told = [str(problem) for problem in found.problems]
    assert told == [
        f"{tmp_path}/00-bad.conf: not JSON: Expecting value at line 2 column 10",
        f"{tmp_path}/05-worse.conflist: plugins[1]: missing 'type'",
        f"{tmp_path}/90-gone.conf: cannot read it: No such file or directory",
    ]
    with pytest.raises(NetworkNotFound, match=r"00-bad\.conf"):
        found.find("x")


def test_a07_a_conf_that_was_turned_into_a_list_is_found_there(tmp_path: Path) -> None:
    write(tmp_path / "10-x.conflist", GOOD)
    assert config.load_list(tmp_path / "10-x.conf").source == f"{tmp_path}/10-x.conflist"
    with pytest.raises(ConfigError, match=r"11-x\.conf: cannot read it"):
        config.load_list(tmp_path / "11-x.conf")


def test_a_choice_has_a_reason(tmp_path: Path) -> None:
    write(tmp_path / "00-bad.conf", "{")
    write(tmp_path / "10-good.conflist", GOOD)
    write(tmp_path / "20-again.conflist", GOOD)
    write(tmp_path / "99-late.conf", "{")
    found = config.load_directory(tmp_path)
    first = found.choose()
    assert first.network.source == f"{tmp_path}/10-good.conflist"
    assert first.reason.startswith("10-good.conflist is the first of 2 by file name; passed over: ")
    assert "00-bad.conf: not JSON" in first.reason and "99-late" not in first.reason
    named = found.choose("good")
    assert named.network is first.network
    assert named.reason == '10-good.conflist has the name "good", as have 20-again.conflist behind it'
    with pytest.raises(NetworkNotFound, match='no net configuration with name "other"'):
        found.choose("other")


def test_a13_a_list_emptied_by_its_writer_says_so(tmp_path: Path) -> None:
    write(tmp_path / "10-calico.conflist", "")
    with pytest.raises(NetworkNotFound, match=r"10-calico\.conflist: not JSON: it is empty"):
        config.load_directory(tmp_path).default()


def test_a_directory_that_is_not_there_has_no_networks(tmp_path: Path) -> None:
    found = config.load_directory(tmp_path / "none")
    assert (found.networks, found.problems) == ((), ())
    with pytest.raises(NetworkNotFound, match="no usable network"):
        found.default()


def test_lists_come_before_single_configurations_of_the_same_name(tmp_path: Path) -> None:
    write(tmp_path / "00.conf", {"name": "good", "type": "ptp"})
    write(tmp_path / "99.conflist", GOOD)
    assert config.find(tmp_path, "good").plugins[0].type == "bridge"
    assert config.load_directory(tmp_path).default().plugins[0].type == "ptp"


@pytest.mark.parametrize("name", ["../bar", "foo ", "a/b", "", ".x", 3])
def test_a08_names_that_would_escape_are_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="name"):
        config.parse_list(json.dumps({**GOOD, "name": name}))


def test_a09_a_name_of_one_character_is_fine() -> None:
    assert config.parse_list(json.dumps({**GOOD, "name": "a"})).name == "a"


def test_b08_a_missing_version_means_010() -> None:
    assert config.parse_list('{"name":"n","plugins":[{"type":"a"}]}').cni_version == "0.1.0"


def test_cni_versions_takes_the_highest_known() -> None:
    made = config.parse_list(json.dumps({**GOOD, "cniVersions": ["0.4.0", "1.1.0", "7.0.0"]}))
    assert made.cni_version == "1.1.0"


def test_keys_of_any_case_and_boolean_strings() -> None:
    made = config.parse_list(
        '{"CNIVERSION":"1.0.0","Name":"n","disablecheck":"True","disableGC":"false","PLUGINS":[{"Type":"a"}]}'
    )
    assert (made.cni_version, made.disable_check, made.disable_gc) == ("1.0.0", True, False)
    assert made.plugins[0].type == "a"


def test_plugins_of_the_networks_directory_are_appended(tmp_path: Path) -> None:
    path = write(tmp_path / "1.conflist", GOOD)
    write(tmp_path / "good" / "b.conf", {"type": "tuning"})
    write(tmp_path / "good" / "a.conf", {"type": "portmap", "capabilities": {"portMappings": True}})
    write(tmp_path / "good" / "c.json", {"type": "never"})
    made = config.load_list(path)
    assert [plugin.type for plugin in made.plugins] == ["bridge", "portmap", "tuning"]
    assert config.parse_list(made.raw).plugins == made.plugins
    write(path, {**GOOD, "loadOnlyInlinedPlugins": "true"})
    assert [plugin.type for plugin in config.load_list(path).plugins] == ["bridge"]
    write(path, {"name": "good"})
    assert [plugin.type for plugin in config.load_list(path).plugins] == ["portmap", "tuning"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"name": "n"}, "no plugins"),
        ({"plugins": [{"type": "a"}]}, "no 'name'"),
        ({"name": "n", "plugins": []}, "plugins: the list is empty"),
        ({"name": "n", "plugins": {"type": "a"}}, "plugins: want a list"),
        ({"name": "n", "plugins": ["a"]}, "plugins[0]: want an object"),
        ({"name": "n", "plugins": [{"type": "a/b"}]}, "plugins[0]: plugin type"),
        ({"name": "n", "plugins": [{"type": 3}]}, "plugins[0]: plugin type"),
        ({"name": "n", "plugins": [{"plugins": []}]}, "it is itself a list"),
        ({"name": "n", "plugins": [{"type": "a", "capabilities": {"x": 1}}]}, "plugins[0]: capabilities"),
        ({"name": "n", "loadOnlyInlinedPlugins": True}, "loadOnlyInlinedPlugins"),
        ({**GOOD, "disableCheck": "maybe"}, "disableCheck"),
        ({**GOOD, "cniVersion": "one"}, '"one"'),
        ({**GOOD, "cniVersion": 1}, "cniVersion: want a string"),
        ({**GOOD, "cniVersions": ["1.0.0", 2]}, "cniVersions"),
        ({**GOOD, "cniVersions": ["x"]}, '"x"'),
        ([], "not a JSON object"),
    ],
)
def test_a_bad_field_is_named(values: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse_list(json.dumps(values).encode(), "10-x.conflist")
    assert told in str(caught.value)
    assert str(caught.value).startswith("10-x.conflist: ")
    assert caught.value.code == 7


def test_the_execution_configuration() -> None:
    raw = {
        "type": "a",
        "NAME": "other",
        "prevResult": {"cniVersion": "9"},
        "unknown": {"kept": [1]},
        "capabilities": {"mac": True, "ips": False, "portMappings": True},
        "RuntimeConfig": {"old": 1},
    }
    plugin = config.parse_list(json.dumps({"name": "n", "plugins": [raw]})).plugins[0]
    given = {"mac": "02:00:00:00:00:01", "ips": ["10.0.0.1"], "bandwidth": {}}
    assert plugin.execution("n", "1.0.0", RESULT, given) == {
        "type": "a",
        "name": "n",
        "cniVersion": "1.0.0",
        "unknown": {"kept": [1]},
        "runtimeConfig": {"mac": "02:00:00:00:00:01"},
        "prevResult": plugin.execution("n", "1.0.0", RESULT)["prevResult"],
    }
    assert "prevResult" not in plugin.execution("n", "1.0.0")
    assert plugin.execution("n", "1.0.0", None, {"ips": []})["RuntimeConfig"] == {"old": 1}


names = st.sampled_from(
    ["name", "NAME", "plugins", "type", "cniVersion", "cniVersions", "capabilities", "disableGC", "ipam"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["a", "1.0.0", "true", "../x", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(names, values, max_size=5).map(json.dumps) | st.text() | st.binary())
def test_any_text_is_a_network_or_a_configuration_error(text: str | bytes) -> None:
    try:
        made = config.parse_list(text)
    except CNIError:
        return
    assert made.plugins
    assert config.parse_list(made.raw).plugins == made.plugins


def test_a13_a_list_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = write(tmp_path / "10-x.conflist", GOOD)
    with pytest.raises(ConfigError, match=r"10-x\.conflist: not JSON"):
        config.save_list(path, '{"name": ')
    assert config.load_list(path).name == "good"
    made = config.save_list(path, json.dumps({**GOOD, "name": "other"}))
    assert made == config.load_list(path) and made.name == "other"
    assert [each.name for each in tmp_path.iterdir()] == ["10-x.conflist"]
    with pytest.raises(ConfigError, match=r"nowhere/x\.conflist: cannot write it: No such file"):
        config.save_list(tmp_path / "nowhere" / "x.conflist", json.dumps(GOOD))
    (tmp_path / "is.conflist").mkdir()
    with pytest.raises(ConfigError, match="cannot write it: Is a directory"):
        config.save_list(tmp_path / "is.conflist", json.dumps(GOOD))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["10-x.conflist", "is.conflist"]
