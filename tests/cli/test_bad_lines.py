"""Every flag, variable and path that makes no sense: one clear error, the right status, nothing changed."""

from __future__ import annotations

import errno
import os
import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from podwire.cli import nodeapi
from podwire.cli.__main__ import main
from podwire.cli.errors import CommandError
from podwire.cli.locations import Locations
from tests.cli.helpers import host

VARIABLES = (
    "PODWIRE_ROOT",
    "PODWIRE_DEBUG",
    "CNI_PATH",
    "CNI_ARGS",
    "CAP_ARGS",
    "CNI_IFNAME",
    "NETCONFPATH",
)

Refused = Callable[..., str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ugly directory to stand in: files, sockets, loops and pipes beside each other."""
    monkeypatch.chdir(tmp_path)
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x\n")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        yield tmp_path


@pytest.fixture
def refused(place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Run a line that must fail and return the one line that says why."""

    def check(line: str, status: int, **variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        before = tree(place)
        found = main(shlex.split(line))
        said = capfd.readouterr()
        assert (found, said.out) == (status, ""), said
        first, *more = said.err.splitlines()
        assert first.startswith("error: "), said.err
        assert len(more) <= 1, said.err
        assert not any(line.startswith("error: ") for line in more)
        assert "Traceback" not in said.err
        assert "a fault in podwire" not in said.err
        assert tree(place) == before
        return first

    return check


def tree(place: Path) -> list[tuple[str, int, float]]:
    found = [(path, path.lstat()) for path in place.rglob("*")]
    return sorted((str(path), stat.st_mode, stat.st_mtime) for path, stat in found)


SENSELESS = """
nonsense                                        'nonsense'
--root r get pods                               --root
up -x                                           -x
up --detach=yes                                 --detach
up ''                                           PATH is empty
up empty ''                                     PATH is empty
up file://x                                     file://x
up HTTPS:///p.yaml                              no host
up oci+x://example.com                          http and https
up empty --manifest-url-header A:b              no URL is given
up http://[::1/                                 http://[::1/
up http://[::1]/ --manifest-url-header A        'A'
up empty --detach --once                        --once and --detach
up empty --timeout 5                            --timeout 5
up empty --once --timeout 0.5                   '0.5'
up empty --once --timeout nan                   'nan'
up empty --once --timeout inf                   --timeout inf
up empty --once --timeout 1e400                 --timeout inf
up empty --once --timeout 1e30                  --timeout 1e+30
up empty --once --timeout ''                    ''
up empty --once --timeout 1m                    '1m'
up empty --timeout                              --timeout
up empty --node-name ''                         --node-name ''
up empty --node-name Upper                      --node-name 'Upper'
up empty --node-name -a                         --node-name '-a'
up empty --node-name a..b                       --node-name 'a..b'
up empty --node-name a_b                        --node-name 'a_b'
up empty --node-name 'a b'                      --node-name 'a b'
up empty --bridge ''                            --bridge ''
up empty --bridge a%d                           --bridge 'a%d'
up empty --bridge é                             --bridge 'é'
up empty --bridge 0123456789012345              --bridge '0123456789012345'
up empty --bridge a/b                           --bridge 'a/b'
up empty --bridge a:b                           --bridge 'a:b'
up empty --bridge 'a b'                         --bridge 'a b'
up empty --bridge ..                            --bridge '..'
up empty --bridge all                           --bridge 'all'
up empty --bridge default                       --bridge 'default'
up empty --pod-cidr ''                          --pod-cidr ''
up empty --pod-cidr 10.3.0.1/24                 host bits
up empty --pod-cidr 10.3.0.0/24,                ''
up empty --pod-cidr 10.3.0.0                    no room for pods
up empty --pod-cidr 10.3.0.0/31                 no room for pods
up empty --pod-cidr fd00::/127                  no room for pods
up empty --pod-cidr 10.3.0.0/33                 '10.3.0.0/33'
up empty --pod-cidr fd00::1%eth0/64             'fd00::1%eth0/64'
up empty --pod-cidr 10.0.0.0/24,10.1.0.0/24     two ranges of IPv4
up empty --pod-cidr 0.0.0.0/0                   0.0.0.0/8
up empty --pod-cidr ::/0                        ::/127
up empty --pod-cidr 127.3.0.0/16                127.0.0.0/8
up empty --pod-cidr 169.254.3.0/24              169.254.0.0/16
up empty --pod-cidr 239.0.0.0/24                224.0.0.0/4
up empty --pod-cidr 255.255.255.0/24            255.255.255.255/32
up empty --pod-cidr ff02::/64                   ff00::/8
up empty --pod-cidr fe80::/64                   fe80::/10
up empty --pod-cidr ::ffff:10.0.0.0/120         ::ffff:0
up empty --ready-fd 99                          --ready-fd 99
up empty --ready-fd x                           'x'
up empty --root ''                              --root
up empty --root file                            --root file: not a directory
up empty --root socket                          --root socket: not a directory
up empty --root pipe                            --root pipe: not a directory
up empty --root loop                            --root loop
up empty --root dangling                        --root dangling
up empty --root file/x                          --root file/x
up empty --root /dev/null                       --root /dev/null
down x                                          (x)
down --timeout nan                              'nan'
down --timeout inf                              --timeout inf
down --timeout=-1                               '-1'
down --root ''                                  --root
down --root file                                --root file: not a directory
get                                             'KIND'
get pods a b                                    (b)
get pods a/b                                    'a/b'
get pods/                                       'pods/'
get pods/a/b                                    'pods/a/b'
get /a                                          '/a'
get pods,nodes                                  'pods,nodes'
get services                                    'services'
get pod/a a                                     give the name once
get pods --output                               --output
get pods -o jsonpath={.items}                   'jsonpath={.items}'
get pods -o custom-columns=A:.b                 'custom-columns=A:.b'
get pods -o go-template={{.}}                   'go-template={{.}}'
get pods -o JSON                                'JSON'
get pods -n ''                                  --namespace ''
get pods -n a/b                                 --namespace 'a/b'
get pods -n ../..                               --namespace '../..'
get pods -n Default                             --namespace 'Default'
get pods -n a?b                                 --namespace 'a?b'
get pods x -A                                   --all-namespaces
get pods -l ==                                  '=='
get pods -l ,                                   ','
get pods -l 'a b'                               'a b'
get pods -l 'a in (b'                           'a in (b'
get pods -l 'a in b'                            'a in b'
get pods -l -a=b                                '-a=b'
get pods --watch=true                           --watch
get pods --root file                            --root file
describe                                        'KIND'
describe pod                                    which one
describe pod a b                                (b)
describe events                                 pods and nodes
describe pod a/b                                'a/b'
describe service a                              'service'
logs                                            which pod
logs a -l a=b                                   a pod (a) and --selector
logs -l ==                                      '=='
logs a -c b --all-containers                    --container b and --all-containers
logs a --since 5                                --since '5'
logs a --since -5m                              --since '-5m'
logs a --since 1d                               --since '1d'
logs a --since 99999999h                        --since '99999999h'
get nodes -l a=b                                --selector 'a=b'
get pods --output-watch-events                  --output-watch-events
logs a b                                        (b)
logs a --tail 1.5                               '1.5'
logs a --tail=-2                                '-2'
logs a --tail                                   --tail
logs a -n A                                     --namespace 'A'
exec                                            'POD'
exec a                                          CMD
exec -n _ a -- ls                               --namespace '_'
install x                                       (x)
install --bin-dir ''                            --bin-dir
install --bin-dir file                          --bin-dir file: not a directory
install --bin-dir loop                          --bin-dir loop
install --bin-dir file/x                        --bin-dir file/x
version x                                       (x)
version --root r                                --root
cni add                                         'NETWORK'
cni add net                                     'NETNS'
cni add net /x y                                (y)
cni frobnicate net /x                           'frobnicate'
cni add net /x -o yaml                          'yaml'
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param(*(part.strip() for part in row.split("   ", 1)), id=row.split("   ")[0])
        for row in SENSELESS.strip().splitlines()
    ],
)
def test_a_line_that_makes_no_sense(refused: Refused, line: str, words: str) -> None:
    assert words in refused(line, 2)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("relative", "PODWIRE_ROOT 'relative': not an absolute path"),
        ("/dev/null", "PODWIRE_ROOT /dev/null: not a directory"),
        ("/dev/null/x", "PODWIRE_ROOT /dev/null/x: Not a directory"),
        ("/" + 100 * "r", "PODWIRE_ROOT /rrr"),
    ],
)
@pytest.mark.parametrize("line", ["up empty", "down", "get pods", "describe node", "logs a", "exec a -- b"])
def test_a_root_in_the_environment_that_is_no_place(
    refused: Refused, line: str, value: str, words: str
) -> None:
    assert words in refused(line, 2, PODWIRE_ROOT=value)


def test_an_empty_root_in_the_environment_counts_as_unset(refused: Refused) -> None:
    assert "/run/podwire/node.sock" in refused("get pods", 1, PODWIRE_ROOT="")


FAILING = """
up missing                                      missing: No such file or directory
up socket                                       socket: neither a directory nor a file
up pipe                                         pipe: neither a directory nor a file
up loop                                         loop: Too many levels
up dangling                                     dangling: No such file or directory
up file/x                                       file/x: Not a directory
up /dev/null                                    /dev/null: neither a directory nor a file
up empty missing                                missing: No such file or directory
up empty --bridge lo                            --bridge lo
up empty --pod-cidr 10.200.0.0/24               10.200.0.9
up empty --root /proc                           /proc/lib
up empty --root /sys/podwire                    /sys/podwire
install --no-agent --bin-dir /proc/podwire      /proc/podwire
exec a '' --root r                              node.sock
cni add net nowhere                             /etc/cni/net.d
cni check net nowhere                           /etc/cni/net.d
"""


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param(*(part.strip() for part in row.split("   ", 1)), id=row.split("   ")[0])
        for row in FAILING.strip().splitlines()
    ],
)
def test_a_line_that_cannot_be_done(refused: Refused, line: str, words: str) -> None:
    os.system("ip addr add 10.200.0.9/24 dev lo")
    before = host()
    assert words in refused(line, 1)
    assert host() == before


VARIABLES_OF_CNI = [
    ("CAP_ARGS", "{", "CAP_ARGS '{'"),
    ("CAP_ARGS", "[]", "CAP_ARGS '[]'"),
    ("CAP_ARGS", '"x"', "CAP_ARGS"),
    ("CNI_ARGS", "novalue", "CNI_ARGS"),
    ("CNI_ARGS", "=x", "CNI_ARGS"),
    ("CNI_ARGS", "a=b;;", "CNI_ARGS"),
    ("CNI_ARGS", "a=b=c", "CNI_ARGS"),
    ("CNI_IFNAME", "0123456789012345", "0123456789012345"),
    ("CNI_IFNAME", "a/b", "a/b"),
    ("CNI_IFNAME", "..", ".."),
    ("CNI_IFNAME", "a b", "a b"),
    ("NETCONFPATH", "missing", "missing"),
    ("NETCONFPATH", "file", "file"),
    ("NETCONFPATH", "empty", "empty"),
    ("NETCONFPATH", "loop", "loop"),
]


@pytest.mark.kernel
@pytest.mark.parametrize("verb", ["add", "check"])
@pytest.mark.parametrize(("variable", "value", "words"), VARIABLES_OF_CNI)
def test_a_variable_of_cni_that_makes_no_sense(
    refused: Refused, place: Path, verb: str, variable: str, value: str, words: str
) -> None:
    configuration = place / "net.d"
    configuration.mkdir()
    (configuration / "10-net.conflist").write_text(
        '{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "loopback"}]}'
    )
    before = host()
    variables = {"NETCONFPATH": str(configuration), variable: value}
    assert words in refused(f"cni {verb} net /proc/self/ns/net", 1, **variables)
    assert host() == before


def test_without_the_nftables_library_it_says_what_to_install(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("podwire.cli.checks.ctypes.CDLL", missing)
    assert "libnftables.so.1 cannot be loaded" in refused("up empty", 1)


def test_who_may_not_ask_the_node_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", closed)
        with pytest.raises(CommandError) as caught:
            nodeapi.ask(Locations(), lambda client: client.pods())
    assert caught.value.message == "/run/podwire/node.sock: Permission denied"
    assert "sudo" in caught.value.hint
