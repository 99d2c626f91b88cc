"""The verbs of the API on any kind of object: create, get, list, watch, update, patch, delete.

All is decided in one step on the newest state (:meth:`Storage.modify`), so a write never has to be tried
again. Failures are raised as :class:`~podwire.serving.status.Failure`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from podwire.apiserver import deletion, metadata, reading
from podwire.apiserver.database import DatabaseFault
from podwire.apiserver.deletion import DeleteOptions
from podwire.apiserver.kind import Column, Kind, Subresource, WriteOptions, same
from podwire.apiserver.patch import apply_patch, track
from podwire.apiserver.reading import ListOptions, Selection
from podwire.apiserver.schemas import checking
from podwire.apiserver.storage import Expired, FutureRevision, Key, KeyExists, Storage, Stored
from podwire.apiserver.stored import clone
from podwire.apiserver.watches import Watch
from podwire.serving import status

__all__ = ["Column", "DeleteOptions", "Kind", "ListOptions", "Registry", "Subresource", "WriteOptions"]

Object = dict[str, Any]
T = TypeVar("T")


Patch = Callable[[Kind, Object, bytes, str, WriteOptions], Object]
"""What a patch makes of an object: ``(kind, current, body, content_type, options)``.

``current`` may be kept and changed; it is empty when the object does not exist, which only an apply is asked
to deal with. Returns the object with the patch in it; raises Failure.
"""

Tracker = Callable[[Kind, Object, Object, WriteOptions], None]
"""Notes the owners of fields in the metadata.managedFields of ``new``: ``(kind, new, old, options)``.

For every write that is no apply; ``old`` is empty for a create.
"""

States = list[Stored]


class Listing(NamedTuple):
    """A page of a list; ``token`` is empty at its end, ``remaining`` -1 when it is not known."""

    items: list[Stored]
    revision: int
    token: str
    remaining: int


APPLY = "application/apply-patch+yaml"


class Registry:
    """The kinds that are served and their objects in a storage."""

    def __init__(self, storage: Storage, kinds: Iterable[Kind] = ()) -> None:
        self.storage = storage
        self.patcher: Patch = apply_patch
        self.track: Tracker = track
        self._kinds: dict[tuple[str, str, str], Kind] = {}
        self._changed: list[Callable[[], None]] = []
        for kind in kinds:
            self.add(kind)

    @property
    def kinds(self) -> list[Kind]:
        """All kinds."""
        return list(self._kinds.values())

    def add(self, kind: Kind) -> None:
        """Serve a kind, in place of one of the same group, version and plural."""
        self._kinds[kind.group, kind.version, kind.plural] = kind
        self._tell()

    def remove(self, kind: Kind) -> None:
        """Serve it no more; its objects stay."""
        self._kinds.pop((kind.group, kind.version, kind.plural), None)
        self._tell()

    def on_change(self, call: Callable[[], None]) -> None:
        """Call when kinds were added or removed."""
        self._changed.append(call)

    def _tell(self) -> None:
        for call in self._changed:
            call()

    def lookup(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind of a path."""
        return self._kinds.get((group, version, plural))

    def of_kind(self, api_version: str, kind: str) -> Kind | None:
        """The kind that an object or a reference names."""
        return next(
            (k for k in self._kinds.values() if k.kind == kind and k.api_version == api_version), None
        )

    def key(self, kind: Kind, namespace: str, name: str) -> Key:
        """Where an object is stored."""
        return Key(*kind.storage, namespace if kind.namespaced else "", name)

    def view(self, kind: Kind, stored: Stored) -> Object:
        """The object as the kind shows it; not to be changed."""
        return stored.object if kind.read is None else kind.read(stored.object)

    def get(self, kind: Kind, namespace: str, name: str, resource_version: str = "") -> Stored:
        """The object. Raise 404, or 504 for a resourceVersion in the future."""
        reading.check_reached(reading.parse_revision(resource_version), self.storage)
        stored = self.storage.get(self.key(kind, namespace, name))
        if stored is None:
            raise status.not_found(kind.group, kind.plural, name)
        return stored

    def list(self, kind: Kind, namespace: str | None, options: ListOptions) -> Listing:
        """A page of objects; ``namespace`` None: of all namespaces. Raise 400, 410, 422, 504."""
        options.check()
        selection = self.selection(kind, options)
        place = reading.start(options, self.storage)
        try:
            page = self.storage.list(
                *kind.storage,
                namespace if kind.namespaced else None,
                limit=options.limit,
                after=place.after,
                revision=place.revision,
                index=selection.index,
                predicate=None if selection.everything else selection.matches,
            )
        except Expired as error:
            raise reading.expired(error, options, place) from error
        except FutureRevision as error:
            raise status.too_large(error.revision, error.current) from error
        token = reading.encode_token(page.last, page.revision) if page.last else ""
        return Listing(page.items, page.revision, token, page.remaining)

    def watch(self, kind: Kind, namespace: str | None, options: ListOptions) -> tuple[States, int, Watch]:
        """Objects to be sent first, the revision they are of, and the watch that follows.

        Raise 400, 410, 422, 504.
        """
        options.check()
        selection = self.selection(kind, options)
        since = reading.parse_revision(options.resource_version)
        namespace = namespace if kind.namespaced else None
        first: States = []
        initial = options.send_initial_events if options.send_initial_events is not None else since == 0
        reading.check_reached(since, self.storage)
        if initial:
            predicate = None if selection.everything else selection.matches
            first = self.storage.list(
                *kind.storage, namespace, index=selection.index, predicate=predicate
            ).items
            since = self.storage.revision
        elif not since:
            since = self.storage.revision
        try:
            watch = self.storage.watch(
                *kind.storage,
                namespace,
                since=since,
                index=selection.index,
                predicate=selection.beside_index,
            )
        except Expired as error:
            raise status.too_old(error.revision, error.oldest) from error
        return first, since, watch

    def selection(self, kind: Kind, options: ListOptions) -> Selection:
        """The selectors of the options. Raise 400."""
        return Selection(kind, options, lambda stored: self.view(kind, stored))

    async def create(self, kind: Kind, namespace: str, obj: Object, options: WriteOptions) -> Stored:
        """Store a new object. Raise 400, 403, 404, 409, 422."""
        return await self._create(kind, namespace, obj, options, tracked=True)

    async def _create(
        self, kind: Kind, namespace: str, obj: Object, options: WriteOptions, *, tracked: bool
    ) -> Stored:
        generate = not metadata.meta_of(obj).get("name") and bool(obj["metadata"].get("generateName"))
        for attempt in range(8):
            if not attempt:
                self.check_fields(kind, obj, options)
            made = metadata.begin(kind, namespace, clone(obj) if generate else obj, metadata.now())
            name = str(made["metadata"].get("name") or "")
            if tracked:
                self.track(kind, made, {}, options)
            if kind.namespaced:
                self._check_namespace(kind, namespace, name)
            if kind.admit is not None:
                kind.admit(self, made, None)
            causes = metadata.check_new(kind, made)
            if causes:
                raise status.invalid(kind.group, kind.kind, name, causes)
            options.warnings.extend(kind.warn(made))
            stored = made if kind.write is None else kind.write(made)
            key = self.key(kind, namespace, name)
            try:
                if options.dry_run:
                    if self.storage.get(key) is not None:
                        raise KeyExists(key)
                    return Stored.unsaved(stored)
                return await self._durably(self.storage.create(key, stored))
            except KeyExists:
                if not generate:
                    raise status.already_exists(kind.group, kind.plural, name) from None
                if attempt == 7:
                    raise status.generate_name_conflict(kind.group, kind.plural, name) from None
        raise AssertionError

    def check_fields(
        self,
        kind: Kind,
        obj: Object,
        options: WriteOptions,
        old: Object | None = None,
        *,
        patched: bool = False,
    ) -> None:
        """Remove unknown fields, and refuse or warn of them as the options say.

        What is as in ``old`` is not looked at. Raise Failure 400, or 422 for what a patch made.
        """

        def refusal(why: str) -> status.Failure:
            if not patched:
                return status.cannot_handle(kind.kind, kind.version, why)
            return status.invalid("", "", "", [status.invalid_value("patch", json.dumps(obj), why)])

        try:
            if kind.message:
                unknown = checking.prune(kind.message, obj, old)
            else:
                unknown = [] if kind.prune is None else kind.prune(obj)
        except checking.WrongType as wrong:
            raise refusal(str(wrong)) from wrong
        faults = [*options.duplicates, *(f'unknown field "{path}"' for path in unknown)]
        if faults and options.field_validation == "Strict":
            raise refusal(f"strict decoding error: {', '.join(faults)}")
        if options.field_validation == "Warn":
            options.warnings.extend(faults)

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        stored = self.storage.get(Key("", "namespaces", "", namespace))
        if stored is None:
            raise status.not_found("", "namespaces", namespace)
        if stored.object["metadata"].get("deletionTimestamp"):
            cause = status.Cause(
                "NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace"
            )
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise status.forbidden(kind.group, kind.plural, name, why, [cause])

    async def replace(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        obj: Object,
        options: WriteOptions,
        subresource: Subresource | None = None,
    ) -> tuple[Stored, bool]:
        """Put an object in the place of the one that is there; whether it was created.

        Raise 400, 404, 409, 422.
        """
        meta = metadata.meta_of(obj)
        if (meta.get("name") or name) != name:
            raise status.bad_request(
                f"the name of the object ({meta.get('name')}) does not match the name on the URL ({name})"
            )
        meta["name"] = name
        metadata.put_namespace(kind, namespace, meta)

        def change(current: Object) -> Object:
            return obj if subresource is None else _merged(subresource, current, obj)

        creates = subresource is None and kind.allow_create_on_update
        if creates and self.storage.get(self.key(kind, namespace, name)) is None:
            return await self.create(kind, namespace, obj, options), True
        return await self._update(
            kind, namespace, name, change, options=options, subresource=subresource
        ), False

    async def patch(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        body: bytes,
        content_type: str,
        options: WriteOptions,
        subresource: Subresource | None = None,
    ) -> tuple[Stored, bool]:
        """Change an object by a patch; whether it was created, as only an apply can.

        Raise 400, 404, 409, 415, 422.
        """
        patcher = self.patcher
        apply = content_type == APPLY
        if apply and subresource is None and self.storage.get(self.key(kind, namespace, name)) is None:
            obj = patcher(kind, {}, body, content_type, options)
            meta = metadata.meta_of(obj)
            meta.setdefault("name", name)
            metadata.check_place(meta, namespace if kind.namespaced else "", name)
            if meta.get("uid"):
                why = (
                    f"uid mismatch: the provided object specified uid {meta['uid']},"
                    " and no existing object was found"
                )
                raise status.conflict(kind.group, kind.plural, name, why)
            return await self._create(kind, namespace, obj, options, tracked=False), True

        def change(current: Object) -> Object:
            if subresource is None:
                obj = patcher(kind, current, body, content_type, options)
                metadata.check_place(metadata.meta_of(obj), namespace if kind.namespaced else "", name)
                return obj
            shown = subresource.view(current if subresource.view is same else clone(current))
            return _merged(subresource, current, patcher(kind, shown, body, content_type, options))

        return await self._update(
            kind,
            namespace,
            name,
            change,
            options=options,
            subresource=subresource,
            tracked=not apply,
            patched=not apply,
        ), False

    async def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Callable[[Object], Object],
        *,
        dry_run: bool = False,
    ) -> Stored:
        """Change an object from inside the server, beyond what clients may: no rule is checked.

        ``change`` gets a copy of the newest state. An object whose deletion waits for nothing any more is
        removed. Raise 404.
        """
        return await self._modify(
            kind, namespace, name, lambda current: change(current.copy()), dry_run=dry_run
        )

    async def _update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Callable[[Object], Object],
        *,
        options: WriteOptions,
        subresource: Subresource | None,
        tracked: bool = True,
        patched: bool = False,
    ) -> Stored:
        part = "" if subresource is None else subresource.name

        def checked(current: Stored) -> Object:
            old = self.view(kind, current)
            new = change(current.copy() if kind.read is None else clone(old))
            self.check_fields(kind, new, options, old, patched=patched)
            if new["metadata"].get("name") != name:
                cause = status.invalid_value("metadata.name", new["metadata"].get("name"), metadata.IMMUTABLE)
                raise status.invalid(kind.group, kind.kind, name, [cause])
            metadata.put_namespace(kind, namespace, new["metadata"])
            metadata.check_version(kind, new, old)
            new = metadata.follow(kind, new, old, subresource=part)
            if tracked and new != old:
                self.track(kind, new, old, options)
            if kind.admit is not None and not part:
                kind.admit(self, new, old)
            causes = metadata.check_next(kind, new, old, subresource=part)
            if causes:
                raise status.invalid(kind.group, kind.kind, name, causes)
            options.warnings.extend(kind.warn(new))
            return new if kind.write is None else kind.write(new)

        return await self._modify(kind, namespace, name, checked, dry_run=options.dry_run)

    async def _modify(
        self, kind: Kind, namespace: str, name: str, change: Callable[[Stored], Object], *, dry_run: bool
    ) -> Stored:
        key = self.key(kind, namespace, name)
        after: Object = {}

        def step(current: Stored | None) -> Object | None:
            nonlocal after
            if current is None:
                raise status.not_found(kind.group, kind.plural, name)
            after = change(current)
            return None if deletion.finished(kind, after) else after

        if dry_run:
            step(self.storage.get(key))
            return Stored.unsaved(after)
        stored = await self._durably(self.storage.modify(key, step))
        assert stored is not None
        return stored

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        options: DeleteOptions,
        check: Callable[[Object], None] | None = None,
    ) -> tuple[Stored, bool]:
        """Begin to delete an object, or delete it; whether it is gone. Raise 404, 409."""
        key = self.key(kind, namespace, name)
        gone = False

        def step(held: Stored | None) -> Object | None:
            nonlocal gone
            if held is None:
                raise status.not_found(kind.group, kind.plural, name)
            current = held.copy()
            if check is not None:
                check(current)
            kind.check_delete(current)
            deletion.check_preconditions(kind, current, options)
            after = deletion.begin_deletion(kind, current, options)
            gone = after is None
            return after

        def announce(held: Stored | None) -> Object | None:
            after = step(held)
            return after if after is not None or held is None else deletion.last_state(kind, held.copy())

        if options.dry_run:
            found = self.storage.get(key)
            after = step(found)
            assert found is not None
            return (found if after is None else Stored.unsaved(after)), gone
        stored = await self._durably(self.storage.modify(key, announce))
        assert stored is not None
        if not gone:
            return stored, False
        uid = stored.meta.uid

        def remove(held: Stored | None) -> Object | None:
            return None if held is None or held.meta.uid == uid else held.object

        return await self._durably(self.storage.modify(key, remove)) or stored, True

    async def delete_collection(
        self, kind: Kind, namespace: str | None, options: DeleteOptions, selection: ListOptions
    ) -> States:
        """Delete all that are selected, and return them. Raise what delete raises, and 400."""
        deleted = []
        for stored in self.list(kind, namespace, selection).items:
            meta = stored.object["metadata"]
            try:
                state, _ = await self.delete(kind, meta.get("namespace", ""), meta["name"], options)
            except status.Failure as failure:
                if failure.reason != "NotFound":
                    raise
            else:
                deleted.append(state)
        return deleted

    async def _durably(self, write: Awaitable[T]) -> T:
        try:
            return await write
        except DatabaseFault as fault:
            raise status.internal_error(str(fault)) from fault


def _merged(subresource: Subresource, current: Object, incoming: Object) -> Object:
    assert subresource.merge is not None
    return subresource.merge(current, incoming)
