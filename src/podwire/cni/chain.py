"""Operations on a network's list of plugins, one after the other, in the calling thread.

This is the order, the bookkeeping and the undoing; `podwire.cni.runtime` puts locks, threads and waiting
around it. Plugins of ours are called, foreign ones run as processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from podwire.cni import args as cni_args
from podwire.cni import config, convert, versions
from podwire.cni.cache import Cache, Record
from podwire.cni.config import NetworkConfigList
from podwire.cni.errors import (
    AlreadyAttached,
    CNIError,
    IncompatibleVersion,
    InvalidConfig,
    InvalidEnvironment,
    PluginFailure,
    PluginMissing,
    TryLater,
    UnknownContainer,
    is_same_refusal,
    joined,
)
from podwire.cni.request import CLEANUP_SECONDS, Plugin, Registry, call, make_request, unexpected
from podwire.cni.turns import Attachment, Step, Turn, turns_of
from podwire.cni.types import AttachmentKey, Result, TraceContext


class Chain:
    """The operations over lists of plugins. Callers see to it that none overlap for one container."""

    def __init__(
        self,
        registry: Registry,
        kernel: Any,
        path: Sequence[str],
        cache: Cache,
        observe: Callable[[Step], None] | None = None,
    ) -> None:
        self.registry = registry
        self.kernel = kernel
        self.path = tuple(path)
        self.cache = cache
        self.observe = observe

    def add(
        self,
        network: NetworkConfigList,
        attachment: Attachment,
        deadline: float,
        cancel: threading.Event | None = None,
        trace: TraceContext | None = None,
    ) -> Result:
        """Attach a container, all or nothing: whatever fails, the plugins that began get their DEL.

        Nothing begins before every plugin is known to exist. Where undoing fails as well, both are told and
        the record stays, so that `delete` can try again.
        """
        _check(network.name, attachment)
        if not attachment.netns:
            raise InvalidEnvironment("the path of the network namespace is empty")
        if network.cni_version not in versions.SUPPORTED:
            raise IncompatibleVersion(
                f'network "{network.name}" has unknown cniVersion "{network.cni_version}"'
            )
        self.require_plugins(network)
        self._clear_earlier(network, attachment, trace)
        record = Record(
            network.name,
            attachment.container_id,
            attachment.ifname,
            attachment.netns,
            network.raw,
            attachment.args,
            attachment.capability_args,
        )
        place = self.cache.begin(record)
        begun: list[Turn] = []
        result: Result | None = None
        try:
            for turn in turns_of(network, "ADD", attachment, trace):
                begun.append(turn)
                _still_wanted(turn, deadline, cancel)
                result = self._run(turn, result, deadline, cancel)
            if cancel is not None and cancel.is_set():
                raise TryLater("the request was cancelled")
            final = result if result is not None else Result()
            self.cache.complete(place, convert.to_object(final, network.cni_version))
        except CNIError as error:
            raise self._undone(error, begun, result) from error
        return final

    def check(
        self,
        network: NetworkConfigList,
        attachment: Attachment,
        deadline: float,
        trace: TraceContext | None = None,
    ) -> None:
        """Verify an attachment with every plugin in order; the first failure ends it."""
        _check(network.name, attachment)
        if not versions.at_least(network.cni_version, versions.CHECK_SINCE):
            raise IncompatibleVersion(
                f'configuration version "{network.cni_version}" does not support the CHECK command'
            )
        if network.disable_check:
            return
        record = self._read(network.name, attachment)
        result = record.typed_result() if record is not None else None
        if record is None or result is None:
            raise UnknownContainer(
                f'container "{attachment.container_id}" has no result on network "{network.name}"',
                f"interface {attachment.ifname}: never added, deleted, or its record is damaged",
            )
        network = _as_added(network, record) or network
        for turn in turns_of(network, "CHECK", _as_told(attachment, record), trace):
            _still_wanted(turn, deadline, None)
            self._run(turn, result, deadline)

    def delete(
        self,
        network: NetworkConfigList | str,
        attachment: Attachment,
        deadline: float,
        trace: TraceContext | None = None,
    ) -> None:
        """Detach a container by what was recorded when it was added, else by ``network``.

        All plugins run, backwards, each failure is told, and the record goes when there was none. A network
        given by its name alone is deleted from its record; without one there is nothing to do.
        """
        name = network if isinstance(network, str) else network.name
        _check(name, attachment)
        record = self._read(name, attachment)
        given = None if isinstance(network, str) else network
        used = (_as_added(given, record) if record is not None else None) or given
        if used is None:
            if record is None:
                return
            raise InvalidConfig(
                f'the record of container "{attachment.container_id}" on network "{name}" has no usable '
                "configuration: give the network's"
            )
        prev_result = None
        if record is not None:
            attachment = _as_told(attachment, record)
            if versions.at_least(used.cni_version, versions.PREV_RESULT_AT_DEL_SINCE):
                prev_result = record.typed_result()
        errors = self._undo(list(turns_of(used, "DEL", attachment, trace)), prev_result, deadline)
        if errors:
            raise joined(errors)
        self.cache.remove(name, attachment.container_id, attachment.ifname)

    def gc(
        self,
        network: NetworkConfigList,
        valid: Iterable[AttachmentKey],
        deadline: float,
        trace: TraceContext | None = None,
    ) -> None:
        """Remove what is attached to the network and not in ``valid``; goes on past failures and tells all.

        Only what this cache directory knows is deleted one by one; from 1.1.0 each plugin's GC follows.
        """
        if network.disable_gc:
            return
        valid = tuple(valid)
        errors: list[CNIError] = []
        for record in self.cache.records(network=network.name):
            if AttachmentKey(record.container_id, record.ifname) in valid:
                continue
            try:
                self.delete(network, recorded(record), deadline, trace)
            except CNIError as error:
                errors.append(about(record, error))
        if versions.at_least(network.cni_version, versions.GC_SINCE):
            listed = [msgspec.to_builtins(each) for each in valid]
            extra = {"cni.dev/valid-attachments": listed, "cni.dev/attachments": listed}
            for turn in turns_of(network, "GC", trace=trace):
                try:
                    self._run(turn, None, deadline, extra=extra)
                except CNIError as error:
                    errors.append(error)
        if errors:
            raise joined(errors)

    def status(self, network: NetworkConfigList, deadline: float, trace: TraceContext | None = None) -> None:
        """Ask every plugin whether it could serve an ADD (from 1.1.0); the first failure ends it."""
        if versions.at_least(network.cni_version, versions.STATUS_SINCE):
            for turn in turns_of(network, "STATUS", trace=trace):
                self._run(turn, None, deadline)

    def versions(self, type: str, deadline: float) -> tuple[str, ...]:
        """Return the versions that a plugin speaks, by asking it."""
        ours = self.registry(type)
        if ours is not None:
            return ours.versions
        from podwire.cni import gojson, invoke

        stdin = msgspec.json.encode({"cniVersion": versions.CURRENT})
        outcome = invoke.execute(type, self.path, command="VERSION", stdin=stdin, deadline=deadline)
        said = gojson.parse(outcome.stdout)
        listed = said.get("supportedVersions") if isinstance(said, dict) else None
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise InvalidConfig(f'plugin "{type}" does not tell its versions', f"it printed {said!r}")
        return tuple(listed)

    def validate(self, network: NetworkConfigList, deadline: float) -> tuple[str, ...]:
        """Check that each plugin exists and speaks the version; returns the capabilities declared."""
        self.require_plugins(network)
        errors: list[CNIError] = []
        for turn in turns_of(network, "VERSION"):
            try:
                versions.require(network.cni_version, self.versions(turn.plugin.type, deadline))
            except CNIError as error:
                errors.append(PluginFailure(error, turn.plugin.type, "VERSION"))
        if errors:
            raise joined(errors)
        return network.capabilities

    def require_plugins(self, network: NetworkConfigList) -> None:
        """Raise PluginMissing with every type that is neither ours nor in the path, IPAM of ours included."""
        missing: dict[str, None] = {}
        for plugin in network.plugins:
            ours = self._ours(plugin.type)
            if ours is None and not self._in_path(plugin.type):
                missing[plugin.type] = None
            ipam = plugin.ipam_type
            if ours is not None and ipam and self._ours(ipam) is None and not self._in_path(ipam):
                missing[ipam] = None
        if missing:
            raise PluginMissing(tuple(missing), self.path)

    def _ours(self, type: str) -> Plugin[Any, Any] | None:
        try:
            return self.registry(type)
        except Exception as error:
            raise unexpected(error) from error

    def _in_path(self, type: str) -> bool:
        from podwire.cni import invoke

        try:
            return bool(invoke.find(type, self.path))
        except PluginMissing:
            return False

    def _read(self, network: str, attachment: Attachment) -> Record | None:
        return self.cache.read(network, attachment.container_id, attachment.ifname)

    def _clear_earlier(
        self, network: NetworkConfigList, attachment: Attachment, trace: TraceContext | None
    ) -> None:
        record = self._read(network.name, attachment)
        if record is None:
            return
        if record.result is not None and not self.cache.is_stale(record):
            raise AlreadyAttached(
                f'container "{attachment.container_id}" is already attached to network "{network.name}" '
                f"as {attachment.ifname}",
                "delete it first",
            )
        self.delete(network, attachment, time.monotonic() + CLEANUP_SECONDS, trace)

    def _undone(self, error: CNIError, begun: Sequence[Turn], result: Result | None) -> CNIError:
        """Undo a failed ADD in time of its own; return what to raise: the failure, with what undoing met."""
        cause = error.__cause__ if isinstance(error, PluginFailure) else None
        network, attachment = begun[0].network, begun[0].attachment
        turns = [msgspec.structs.replace(turn, command="DEL") for turn in begun]
        # Code 3 and "already attached" say that the plugin that failed has nothing to undo.
        if isinstance(cause, (UnknownContainer, AlreadyAttached)):
            turns = turns[:-1]
        if not versions.at_least(network.cni_version, versions.PREV_RESULT_AT_DEL_SINCE):
            result = None
        errors = self._undo(turns, result, time.monotonic() + CLEANUP_SECONDS)
        if errors and cause is not None and is_same_refusal(error, errors[0]):
            # Undoing begins with the plugin that failed.
            first = errors[0]
            if isinstance(first, PluginFailure) and first.position == begun[-1].position:
                del errors[0]
        if not errors:
            try:
                self.cache.remove(network.name, attachment.container_id, attachment.ifname)
            except CNIError as trouble:
                errors.append(trouble)
        return joined([error, *errors])

    def _undo(self, turns: Sequence[Turn], result: Result | None, deadline: float) -> list[CNIError]:
        """Run DEL backwards past every failure. Each plugin gets its share of the time that is left."""
        errors: list[CNIError] = []
        for to_go in range(len(turns), 0, -1):
            now = time.monotonic()
            share = now + max(0.0, deadline - now) / to_go
            try:
                self._run(turns[to_go - 1], result, share)
            except CNIError as error:
                if not isinstance(error.__cause__, UnknownContainer):
                    errors.append(error)
        return errors

    def _run(
        self,
        turn: Turn,
        prev_result: Result | None,
        deadline: float,
        cancel: threading.Event | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Result | None:
        network = turn.network
        began = time.monotonic()
        made: dict[str, Any] = {}
        result: Result | None = None
        failure: CNIError | None = None
        stderr: list[str] = []
        try:
            made = turn.plugin.execution(
                network.name, network.cni_version, prev_result, turn.attachment.capability_args
            )
            if extra:
                made.update(extra)
            result = self._dispatch(turn, made, prev_result, deadline, cancel=cancel, stderr=stderr)
        except CNIError as error:
            total = len(network.plugins)
            failure = PluginFailure(error, turn.plugin.type, turn.command, turn.position, total)
            raise failure from error
        finally:
            if self.observe is not None:
                took = time.monotonic() - began
                self._observed(turn, took, made, result=result, failure=failure, stderr=stderr)
        return result

    def _observed(
        self,
        turn: Turn,
        took: float,
        made: Mapping[str, Any],
        *,
        result: Result | None,
        failure: CNIError | None,
        stderr: list[str],
    ) -> None:
        plugin = turn.plugin.type
        step = Step(
            plugin=plugin,
            command=turn.command,
            seconds=took,
            config=made,
            result=result,
            error=failure,
            network=turn.network.name,
            position=turn.position,
            total=len(turn.network.plugins),
            attachment=turn.attachment,
            executable=self._program(plugin),
            stderr="; ".join(stderr),
        )
        assert self.observe is not None
        try:
            self.observe(step)
        except Exception:
            import logging

            logging.getLogger(__name__).exception("the observer of plugin %s failed", plugin)

    def _program(self, type: str) -> str:
        from podwire.cni import invoke

        try:
            return "" if self._ours(type) is not None else invoke.find(type, self.path)
        except CNIError:
            return ""

    def _dispatch(
        self,
        turn: Turn,
        made: Mapping[str, Any],
        prev_result: Result | None,
        deadline: float,
        *,
        cancel: threading.Event | None,
        stderr: list[str],
    ) -> Result | None:
        version, attachment = turn.network.cni_version, turn.attachment
        ours = self._ours(turn.plugin.type)
        if ours is not None:
            request = make_request(
                ours,
                turn.command,
                made,
                container_id=attachment.container_id,
                netns=attachment.netns,
                ifname=attachment.ifname,
                args=attachment.args,
                path=self.path,
                prev_result=prev_result,
                deadline=deadline,
                registry=self.registry,
                trace=turn.trace,
                stderr=stderr,
                cancel=cancel,
            )
            result = call(ours, request, self.kernel)
        else:
            from podwire.cni import invoke

            outcome = invoke.execute(
                turn.plugin.type,
                self.path,
                command=turn.command,
                container_id=attachment.container_id,
                netns=attachment.netns,
                ifname=attachment.ifname,
                args=cni_args.format_args(attachment.args),
                stdin=msgspec.json.encode(made),
                deadline=deadline,
                cancel=cancel,
                trace=turn.trace,
                stderr=stderr,
            )
            result = convert.decode_result(outcome.stdout, version) if turn.command == "ADD" else None
        if result is not None and not versions.at_least(version, versions.PREV_RESULT_SINCE):
            # What this version cannot say is this plugin's failure now, not somebody's at DEL.
            convert.to_object(result, version)
        return result


def _check(name: str, attachment: Attachment) -> None:
    cni_args.check_network_name(name)
    cni_args.check_container_id(attachment.container_id)
    cni_args.check_ifname(attachment.ifname)


def _still_wanted(turn: Turn, deadline: float, cancel: threading.Event | None) -> None:
    if cancel is not None and cancel.is_set():
        raise TryLater(f'the request was cancelled before plugin "{turn.plugin.type}"')
    if time.monotonic() >= deadline:
        raise TryLater(f'no time was left for plugin "{turn.plugin.type}" ({turn.command})')


def _as_added(network: NetworkConfigList | None, record: Record) -> NetworkConfigList | None:
    """Return the configuration that the container was added with, if its record has a usable one."""
    if network is not None and record.config == network.raw:
        return network
    if not record.config:
        return None
    try:
        added = config.parse_list(record.config)
    except config.ConfigError:
        return None
    return added if added.name == record.network else None


def _as_told(attachment: Attachment, record: Record) -> Attachment:
    """Return the attachment with the arguments of its ADD; the namespace is the caller's, being newer."""
    if record.legacy:
        return attachment
    return msgspec.structs.replace(attachment, args=record.args, capability_args=record.capability_args)


def recorded(record: Record) -> Attachment:
    """Return the attachment that a record tells of, for its DEL."""
    # A path below /proc may be another process's by now.
    netns = "" if record.netns.startswith("/proc/") else record.netns
    return Attachment(record.container_id, netns, record.ifname, record.args, record.capability_args)


def about(record: Record, error: CNIError) -> CNIError:
    """Return the failure of a record's DEL with the attachment in its text."""
    failed = f"cannot delete stale attachment {record.container_id} {record.ifname}: {error.msg}"
    return CNIError(failed, error.details, code=error.code)
