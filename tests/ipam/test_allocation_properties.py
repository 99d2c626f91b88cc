"""Whatever is asked in whatever order, and killed wherever: nobody shares an address, none is lost."""

from __future__ import annotations

import os
import shutil
import tempfile
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from podwire.ipam.directory import AddressDirectory
from podwire.ipam.errors import AddressTaken, AddressUnusable, AlreadyAllocated, PoolExhausted
from tests.ipam.helpers import add, addresses, given, pool, release

SETS = [pool("10.0.0.0/29", "10.0.1.0/30"), pool("fd00::/125")]
CAPACITY = [one.capacity for one in SETS]
NAMES = st.sampled_from([f"c{n}" for n in range(9)])
WISHES = st.sampled_from(["10.0.0.3", "10.0.1.2", "fd00::5", "10.0.0.1", "10.0.0.0", "10.0.0.7", "10.3.0.1"])
CALLS = ("open", "write", "read", "unlink", "rename", "fstat", "close")


class Pool(RuleBasedStateMachine):
    """The model is a dict of who holds what; the store is read by listing files only."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.store = AddressDirectory(self.root, "net")
        self.model: dict[str, list[str]] = {}
        self.torn: set[str] = set()  # killed while it was added or released

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def full(self) -> bool:
        held = addresses(self.store) if self.store.exists() else {}
        counts = [sum(ip_address(name).version == version for name in held) for version in (4, 6)]
        return any(count >= most for count, most in zip(counts, CAPACITY, strict=True))

    @rule(name=NAMES, wishes=st.lists(WISHES, max_size=1))
    def allocate(self, name: str, wishes: list[str]) -> None:
        holds = name in self.model or any(text == f"{name}\r\neth0" for text in self.on_disk().values())
        try:
            got = given(add(self.store, SETS, name, *wishes))
        except AlreadyAllocated:
            assert holds
        except AddressTaken as error:
            assert str(error.address) in self.on_disk()
        except AddressUnusable as error:
            assert str(error.address) in {"10.0.0.1", "10.0.0.0", "10.0.0.7", "10.3.0.1"}
        except PoolExhausted:
            assert self.full()
        else:
            assert not holds
            assert len(got) == len(SETS)
            assert set(wishes) <= set(got)
            self.torn.discard(name)
            self.model[name] = got

    @rule(name=NAMES)
    def free(self, name: str) -> None:
        got = release(self.store, name)
        if name not in self.torn:
            assert sorted(got) == sorted(self.model.get(name, []))
        self.model.pop(name, None)
        self.torn.discard(name)

    @rule(keep=st.sets(NAMES))
    def collect(self, keep: set[str]) -> None:
        with self.store.locked() as leases:
            leases.retain({(name, "eth0") for name in keep})
        for name in [*self.model]:
            if name not in keep:
                del self.model[name]
        self.torn &= keep

    @rule(name=NAMES, releases=st.booleans(), call=st.sampled_from(CALLS), turn=st.integers(1, 6))
    def killed(self, name: str, releases: bool, call: str, turn: int) -> None:
        child = os.fork()
        if child == 0:
            self.die_at(name, releases, call, turn)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 9 or any(
            text == f"{name}\r\neth0" and address not in self.model.get(name, [])
            for address, text in self.on_disk().items()
        ):
            self.torn.add(name)
        elif releases:
            self.model.pop(name, None)
            self.torn.discard(name)

    def die_at(self, name: str, releases: bool, call: str, turn: int) -> None:
        real = getattr(os, call)
        count = 0

        def deadly(*args: object, **kwargs: object) -> object:
            nonlocal count
            count += 1
            if count == turn:
                os._exit(9)
            return real(*args, **kwargs)

        setattr(os, call, deadly)
        try:
            if releases:
                release(self.store, name)
            else:
                add(self.store, SETS, name)
        except (AlreadyAllocated, PoolExhausted):
            pass
        finally:
            os._exit(0)

    @precondition(lambda self: len(self.model) > 2)
    @rule()
    def restart(self) -> None:
        self.store = AddressDirectory(self.root / ".", "net")

    def on_disk(self) -> dict[str, str]:
        held = addresses(self.store) if self.store.exists() else {}
        held.pop(".new", None)
        return held

    @invariant()
    def each_address_is_whole_inside_the_ranges_and_has_one_holder(self) -> None:
        held = self.on_disk()
        for name, text in held.items():
            address = ip_address(name)
            assert any(one.refusal(address) is None for one in SETS), name
            assert text.endswith("\r\neth0"), f"{name} holds {text!r}"
        for name, got in self.model.items():
            if name not in self.torn:
                assert sorted(a for a, text in held.items() if text == f"{name}\r\neth0") == sorted(got)
        holders = {text.partition("\r\n")[0] for text in held.values()}
        assert holders <= set(self.model) | self.torn


Pool.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
test_any_sequence_keeps_the_pool_whole = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")(
    Pool.TestCase
)
