"""A plugin as functions of a request, and the request: checked, decoded, typed (the SDK's core).

The same `Plugin` runs hosted in a daemon, in process under `podwire.cni.runtime`, or as its own process
(`podwire.cni.process`). Everything that the specification asks of every plugin is done here, before the
plugin's function sees the request.
"""

from __future__ import annotations

import builtins
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from podwire.cni import args as cni_args
from podwire.cni import convert, fields, versions
from podwire.cni.errors import (
    AlreadyAttached,
    CNIError,
    DecodeFailure,
    IncompatibleVersion,
    InvalidConfig,
    InvalidEnvironment,
    InvalidNetns,
    is_same_refusal,
    joined,
)
from podwire.cni.types import AttachmentKey, Result, TraceContext

C = TypeVar("C")
K = TypeVar("K")

COMMANDS = ("ADD", "CHECK", "DEL", "GC", "STATUS")
DEFAULT_SECONDS = 180.0
"""How long a request may take where nobody says: below the four minutes that a kubelet waits."""
CLEANUP_SECONDS = 30.0
"""The time of its own that undoing a failed request gets, whatever the request has used up."""

_PER_CONTAINER = frozenset({"ADD", "CHECK", "DEL"})
_SINCE = {"CHECK": versions.CHECK_SINCE, "GC": versions.GC_SINCE, "STATUS": versions.STATUS_SINCE}
_ATTACHMENT_KEYS = ("cni.dev/valid-attachments", "cni.dev/attachments")

Registry: TypeAlias = "Callable[[str], Plugin[Any, Any] | None]"
"""Finds a plugin of ours by type; None means that it is foreign, a program in the path."""


def no_registry(_type: str) -> Plugin[Any, Any] | None:
    """Know no plugin: every delegate is a program in the path."""
    return None


def as_registry(plugins: Mapping[str, Plugin[Any, Any]] | Registry | None) -> Registry:
    """Return a mapping or a loader as a loader."""
    if plugins is None:
        return no_registry
    return plugins if callable(plugins) else plugins.get


def _no_kernel() -> AbstractContextManager[Any]:
    return nullcontext(None)


class Plugin(msgspec.Struct, Generic[C, K], frozen=True):
    """A CNI plugin: its type, its configuration and what it does for each command.

    ``add`` returns the result for the whole chain; the others return nothing and raise `CNIError`.
    ``config`` is a msgspec Struct; keys that it does not have pass, unless it forbids unknown fields.
    ``delete`` must succeed on what is already gone. A command that is None succeeds silently.
    ``known_args`` are the CNI_ARGS keys it takes: given, other keys are refused without IgnoreUnknown.
    ``undo`` has ``delete`` follow an ADD that fails, at once, so that nothing of it stays, unless it raised
    AlreadyAttached. ``mend`` gets a CHECK's request, puts back what others took from the attachment on the
    host and tells what that was; UnknownContainer if only a new ADD could. ``open_kernel`` opens what the
    functions get as ``kernel`` in a process of its own.
    """

    type: str
    about: str
    config: builtins.type[C]
    add: Callable[[Request[C], K], Result]
    delete: Callable[[Request[C], K], None] | None = None
    check: Callable[[Request[C], K], None] | None = None
    gc: Callable[[Request[C], K], None] | None = None
    status: Callable[[Request[C], K], None] | None = None
    mend: Callable[[Request[C], K], list[str]] | None = None
    open_kernel: Callable[[], AbstractContextManager[K]] = _no_kernel
    versions: tuple[str, ...] = versions.SUPPORTED
    known_args: frozenset[str] | None = None
    undo: bool = False


class Request(msgspec.Struct, Generic[C], frozen=True):
    """One request to one plugin.

    ``netns`` is the path of the container's namespace (may be empty at DEL), ``args`` the pairs of CNI_ARGS,
    ``path`` where foreign plugins are searched. ``config`` is the typed configuration, ``raw`` the whole
    execution configuration as it came, ``runtime_config`` its capability arguments. ``deadline`` is a
    `time.monotonic` time. ``valid_attachments`` is set at GC: what must stay; all else may go. ``trace`` is
    the caller's span, if it told one. What foreign delegates wrote to stderr is in ``stderr``: it belongs to
    the caller's (spec section 4). When ``cancel`` is set nobody waits for the answer any more.
    """

    command: str
    container_id: str
    netns: str
    ifname: str
    args: Mapping[str, str]
    path: tuple[str, ...]
    cni_version: str
    name: str
    config: C
    raw: Mapping[str, Any]
    prev_result: Result | None
    runtime_config: Mapping[str, Any]
    deadline: float
    plugin_type: str = ""
    valid_attachments: tuple[AttachmentKey, ...] | None = None
    kernel: Any = None
    registry: Registry = no_registry
    delegators: tuple[str, ...] = ()
    trace: TraceContext | None = None
    stderr: list[str] = []
    cancel: threading.Event | None = None

    def remaining(self) -> float:
        """Return the seconds until the deadline; never negative."""
        return max(0.0, self.deadline - time.monotonic())

    def link_name(self, prefix: str) -> str:
        """Return a name for the host's side of this attachment: ``prefix`` and a hash, 15 characters long."""
        import hashlib

        key = "\0".join((self.name, self.container_id, self.ifname))
        return (prefix + hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest())[:15]

    def run(self, *command: str) -> str:
        """Run a program of the host and return its stdout; CNIError (100) tells its stderr.

        At the request's deadline, or when it is cancelled, it is killed: TryLater (11).
        """
        from podwire.cni import command as host

        return host.run(command, self.deadline, self.cancel)

    @property
    def ipam_type(self) -> str:
        """The type of the IPAM plugin that the configuration names, or an empty string."""
        return ipam_type(self.raw)

    def need_prev_result(self) -> Result:
        """Return the result of the plugins before this one; InvalidConfig (7) says why there is none."""
        if self.prev_result is not None:
            return self.prev_result
        since = versions.PREV_RESULT_SINCE
        old = "" if versions.at_least(self.cni_version, since) else f' and has "{self.cni_version}"'
        raise InvalidConfig(
            f'plugin "{self.plugin_type}": missing prevResult from earlier plugin',
            f"it must come after another plugin in a list whose cniVersion is {since} or newer{old}",
        )

    def delegate(self, type: str, command: str | None = None) -> Result | None:
        """Have another plugin do ``command`` (default: this one) with this same configuration.

        In process when it is one of ours, else as a program from the path. A failed ADD is followed by the
        delegate's DEL (spec section 4); both errors are told. Returns the ADD's result, else None.
        """
        command = command or self.command
        cni_args.check_plugin_type(type)
        if type == self.plugin_type or type in self.delegators:
            raise InvalidConfig(f'plugin "{self.plugin_type}" delegates to "{type}", itself')
        try:
            return self._delegated(type, command)
        except CNIError as error:
            if command != "ADD" or isinstance(error, AlreadyAttached):
                raise
            trouble = self._undo(type)
            if trouble is None or is_same_refusal(error, trouble):
                raise
            raise joined([error, trouble]) from error

    @contextmanager
    def delegated(self, type: str) -> Iterator[Result]:
        """ADD by a delegate for the length of a block: an exception inside it runs the delegate's DEL."""
        result = self.delegate(type, "ADD")
        if result is None:
            raise InvalidConfig(f'plugin "{type}" answered nothing to ADD')
        try:
            yield result
        except BaseException as error:
            trouble = self._undo(type)
            if trouble and isinstance(error, CNIError):
                raise joined([error, trouble]) from error
            if trouble:
                error.add_note(str(trouble))
            raise

    def _delegated(self, type: str, command: str) -> Result | None:
        plugin = self.registry(type)
        if plugin is not None:
            request = make_request(
                plugin,
                command,
                self.raw,
                container_id=self.container_id,
                netns=self.netns,
                ifname=self.ifname,
                args=self.args,
                path=self.path,
                deadline=self.deadline,
                registry=self.registry,
                netns_override=True,  # whose namespace it is was checked for this request
                delegators=(*self.delegators, self.plugin_type),
                trace=self.trace,
                stderr=self.stderr,
                cancel=self.cancel,
            )
            return call(plugin, request, self.kernel)
        from podwire.cni import invoke

        stdout = invoke.execute(
            type,
            self.path,
            command=command,
            container_id=self.container_id,
            netns=self.netns,
            ifname=self.ifname,
            args=cni_args.format_args(self.args),
            stdin=msgspec.json.encode(self.raw),
            deadline=self.deadline,
            trace=self.trace,
            stderr=self.stderr,
            cancel=self.cancel,
        ).stdout
        return convert.decode_result(stdout, self.cni_version) if command == "ADD" else None

    def _afresh(self) -> Request[C]:
        """Return the DEL of this request: in time of its own, and not to be cancelled."""
        until = time.monotonic() + CLEANUP_SECONDS
        return msgspec.structs.replace(self, command="DEL", deadline=until, cancel=None)

    def _undo(self, type: str) -> CNIError | None:
        try:
            self._afresh()._delegated(type, "DEL")
        except CNIError as error:
            return error
        return None


def delegate_ipam(request: Request[Any], _kernel: Any = None) -> None:
    """Have the IPAM plugin do the same, if there is one: the whole GC or STATUS of a plugin without state."""
    if request.ipam_type:
        request.delegate(request.ipam_type)


def ipam_type(config: Mapping[str, Any]) -> str:
    """Return the IPAM plugin's type in a plugin configuration, or an empty string."""
    ipam = fields.lookup(config, "ipam")
    name = fields.lookup(ipam, "type", "") if isinstance(ipam, Mapping) else ""
    return name if isinstance(name, str) else ""


def _check_command(command: str, version: str) -> None:
    if command not in COMMANDS:
        raise InvalidEnvironment(f"unknown CNI_COMMAND: {command}")
    since = _SINCE.get(command)
    if since and not versions.at_least(version, since):
        raise IncompatibleVersion(
            f"config version does not allow {command}",
            f'cniVersion is "{version or versions.WHEN_MISSING}", want {since} or newer',
        )


def _is_own_netns(path: str, own: tuple[int, int] | None) -> bool:
    try:
        given = os.stat(path)  # noqa: PTH116
        if own is None:
            return os.path.samestat(given, os.stat("/proc/thread-self/ns/net"))  # noqa: PTH116
    except (OSError, ValueError):
        return False
    return (given.st_dev, given.st_ino) == own


def _text(config: Mapping[str, Any], key: str) -> str:
    value = fields.lookup(config, key, "")
    if not isinstance(value, str):
        raise InvalidConfig(f"{key}: want a string (it is {value!r})")
    return value


def _attachments(config: Mapping[str, Any]) -> tuple[AttachmentKey, ...] | None:
    """Read what must stay. Both keys are in use; where both are there, what either lists stays."""
    found: dict[AttachmentKey, None] | None = None
    for key in _ATTACHMENT_KEYS:
        listed = fields.lookup(config, key)
        if listed is None:
            continue
        found = found if found is not None else {}
        try:
            for each in fields.convert(listed, tuple[AttachmentKey, ...]):
                found[each] = None
        except fields.FieldError as error:
            raise InvalidConfig(f"{key}{error.path}: {error.reason}", error.value) from None
    return None if found is None else tuple(found)


def _prev_result(config: Mapping[str, Any], version: str, command: str) -> Result | None:
    raw = fields.lookup(config, "prevResult")
    if raw is None:
        return None
    try:
        return convert.decode_result(raw, version)
    except CNIError as error:
        if command == "DEL":
            return None
        raise type(error)(f"prevResult: {error.msg}", error.details) from None


def _typed(plugin: Plugin[C, Any], config: Mapping[str, Any]) -> C:
    known: Mapping[str, Any] = config
    target: Any = plugin.config
    if getattr(getattr(target, "__struct_config__", None), "forbid_unknown_fields", False):
        own = {each.encode_name.lower() for each in msgspec.structs.fields(target)}
        known = {key: value for key, value in config.items() if key.lower() in own or not _is_reserved(key)}
    try:
        return fields.convert(known, plugin.config)
    except fields.FieldError as error:
        raise InvalidConfig(f'plugin "{plugin.type}": {error}') from None


_RESERVED = frozenset(
    {"cniversion", "name", "type", "args", "capabilities", "runtimeconfig", "prevresult", "ipmasq", "ipam"}
    | {"dns"}
)


def _is_reserved(key: str) -> bool:
    return key.lower() in _RESERVED or key.startswith("cni.dev/")


def make_request(
    plugin: Plugin[C, Any],
    command: str,
    config: Mapping[str, Any],
    *,
    container_id: str = "",
    netns: str = "",
    ifname: str = "",
    args: Mapping[str, str] | str = "",
    path: tuple[str, ...] = (),
    prev_result: Result | None = None,
    deadline: float | None = None,
    registry: Mapping[str, Plugin[Any, Any]] | Registry | None = None,
    netns_override: bool = False,
    delegators: tuple[str, ...] = (),
    trace: TraceContext | None = None,
    stderr: list[str] | None = None,
    cancel: threading.Event | None = None,
    own_netns: tuple[int, int] | None = None,
) -> Request[C]:
    """Check and decode a request by the rules of the specification; CNIError with the right code if not.

    ``config`` is the execution configuration (parsed JSON); ``prev_result`` stands in for its
    ``prevResult``. ``netns_override`` allows the caller's own namespace (CNI_NETNS_OVERRIDE),
    which is ``own_netns`` (device and inode), by default the calling thread's.
    """
    if command not in COMMANDS:
        raise InvalidEnvironment(f"unknown CNI_COMMAND: {command}")
    name = fields.lookup(config, "name", "")
    cni_args.check_network_name(name)
    if command in _PER_CONTAINER:
        cni_args.check_container_id(container_id)
        cni_args.check_ifname(ifname)
    version = _text(config, "cniVersion") or versions.WHEN_MISSING
    _check_command(command, version)
    versions.require(version, plugin.versions)
    if isinstance(args, str):
        args = cni_args.salvage_args(args) if command == "DEL" else cni_args.parse_args(args)
    if plugin.known_args is not None and command in {"ADD", "CHECK"}:
        cni_args.check_known(args, plugin.known_args)
    if command in _PER_CONTAINER and netns and not netns_override and _is_own_netns(netns, own_netns):
        raise InvalidNetns(
            "plugin's netns and netns from CNI_NETNS should not be the same", f"CNI_NETNS={netns}"
        )
    runtime_config = fields.lookup(config, "runtimeConfig", {})
    if not isinstance(runtime_config, Mapping):
        raise InvalidConfig(f"runtimeConfig: want an object (it is {runtime_config!r})")
    if prev_result is None:
        prev_result = _prev_result(config, version, command)
    if command == "CHECK" and prev_result is None:
        raise InvalidConfig(f'plugin "{plugin.type}": CHECK needs prevResult, the result of ADD')
    return Request(
        command=command,
        container_id=container_id,
        netns=netns,
        ifname=ifname,
        args=args,
        path=path,
        cni_version=version,
        name=name,
        config=_typed(plugin, config),
        raw=config,
        prev_result=prev_result,
        runtime_config=runtime_config,
        deadline=time.monotonic() + DEFAULT_SECONDS if deadline is None else deadline,
        plugin_type=plugin.type,
        valid_attachments=_attachments(config) if command == "GC" else None,
        registry=as_registry(registry),
        delegators=delegators,
        trace=trace,
        stderr=[] if stderr is None else stderr,
        cancel=cancel,
    )


def call(plugin: Plugin[C, K], request: Request[C], kernel: K) -> Result | None:
    """Run a plugin's function for a request. Only `CNIError` comes out: anything else becomes one (999).

    GC without any list of what is valid does nothing: it would delete what somebody still uses.
    """
    function = {
        "ADD": plugin.add,
        "DEL": plugin.delete,
        "CHECK": plugin.check,
        "GC": plugin.gc,
        "STATUS": plugin.status,
    }[request.command]
    if function is None or (request.command == "GC" and request.valid_attachments is None):
        return None
    request = msgspec.structs.replace(request, kernel=kernel)
    try:
        result = function(request, kernel)
    except Exception as error:
        failure = error if isinstance(error, CNIError) else unexpected(error)
        if request.command == "ADD" and plugin.undo and not isinstance(error, AlreadyAttached):
            failure = _undone(plugin, request, failure)
        if failure is error:
            raise
        raise failure from error
    if request.command != "ADD":
        return None
    if not isinstance(result, Result):
        raise CNIError(f'plugin "{plugin.type}" returned {result!r} from ADD, not a Result')
    return result


def _undone(plugin: Plugin[C, Any], request: Request[C], failure: CNIError) -> CNIError:
    """Run DEL after a failed ADD, in time of its own; return the failure, with what the DEL met."""
    try:
        call(plugin, request._afresh(), request.kernel)
    except CNIError as trouble:
        return failure if is_same_refusal(failure, trouble) else joined([failure, trouble])
    return failure


def unexpected(error: BaseException) -> CNIError:
    """Return an exception that nobody foresaw as a CNI error (999) that says where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        code = trace.tb_frame.f_code
        place = f" at {os.path.basename(code.co_filename)}:{trace.tb_lineno}"  # noqa: PTH119
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return CNIError(str(error) or type(error).__name__, f"{type(error).__name__}{place}{notes}")


def parse_config(stdin: bytes) -> Mapping[str, Any]:
    """Return a configuration's JSON object; DecodeFailure (6) if it is none."""
    from podwire.cni import gojson

    try:
        config = gojson.parse(stdin)
    except ValueError as error:
        raise DecodeFailure(f"cannot decode the network configuration on stdin: {error}") from None
    if not isinstance(config, dict):
        raise DecodeFailure("the network configuration on stdin is not a JSON object")
    return config
