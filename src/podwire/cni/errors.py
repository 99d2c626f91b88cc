"""What a CNI operation can fail with: one tree of typed errors, one class a code (spec 1.1.0, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from podwire.cni.gojson import indented

NEWEST = "1.1.0"


class CNIError(Exception):
    """A refusal or failure as the protocol tells it: a ``code``, one line (``msg``) and ``details``.

    Codes below 100 are the specification's, 100 and above a plugin's own, 999 anything unexpected.
    Errors compare by what they say and survive pickling.
    """

    code: int = 999

    def __init__(self, msg: str, details: str = "", *, code: int | None = None) -> None:
        super().__init__(msg, details)
        self.msg = msg
        self.details = details
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.msg}; {self.details}" if self.details else self.msg

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code}, {self.msg!r}, {self.details!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CNIError) and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(self._said())

    def __reduce__(self) -> tuple[Callable[..., CNIError], tuple[object, ...], dict[str, object]]:
        return _empty, (type(self),), {**self.__dict__, "args": self.args}

    def _said(self) -> tuple[int, str, str]:
        return self.code, self.msg, self.details

    def to_json(self, cni_version: str = NEWEST) -> bytes:
        """Return the error as a plugin prints it: indented by four spaces, no newline at the end."""
        said: dict[str, object] = {
            "cniVersion": cni_version or NEWEST,
            "code": self.code,
            "msg": _printable(self.msg),
        }
        if self.details:
            said["details"] = _printable(self.details)
        return indented(msgspec.json.encode(said))


def _printable(text: str) -> str:
    # Variables and paths may hold bytes that are no UTF-8; Python has them as lone surrogates.
    return text.encode(errors="backslashreplace").decode()


def _empty(cls: type[CNIError]) -> CNIError:
    return cls.__new__(cls)


class IncompatibleVersion(CNIError):
    """1: the version of the configuration, or what it does not have, rules the request out."""

    code = 1


class UnsupportedField(CNIError):
    """2: a field of the configuration that the plugin does not support; names the key and the value."""

    code = 2


class UnknownContainer(CNIError):
    """3: no such container, so that there is nothing to clean up and no DEL is needed."""

    code = 3


class InvalidEnvironment(CNIError):
    """4: a ``CNI_*`` variable is missing or wrong; names it."""

    code = 4


class IOFailure(CNIError):
    """5: reading or writing failed."""

    code = 5


class DecodeFailure(CNIError):
    """6: what should be JSON of a certain shape is not."""

    code = 6


class InvalidConfig(CNIError):
    """7: the network configuration says something that cannot be; names the field and the value."""

    code = 7


class InvalidNetns(CNIError):
    """8: the network namespace is missing, is none, or is the plugin's own (Go's addition to the spec)."""

    code = 8


class TryLater(CNIError):
    """11: transient; the same request may succeed later."""

    code = 11


class NotAvailable(CNIError):
    """50: STATUS of a plugin that cannot serve an ADD."""

    code = 50


class LimitedConnectivity(CNIError):
    """51: STATUS of a plugin that cannot serve an ADD, with running containers affected as well."""

    code = 51


class AlreadyAttached(CNIError):
    """100: an ADD for what is there already. It did nothing, so that nothing of it must be undone."""

    code = 100


class PluginMissing(InvalidConfig):
    """7: a configuration names plugins that are neither ours nor in the path; ``types`` lists them."""

    def __init__(self, types: Sequence[str], path: Sequence[str]) -> None:
        names = ", ".join(f'"{name}"' for name in types)
        where = ":".join(path) or "an empty path"
        super().__init__(f"cannot find plugin {names} in {where}")
        self.types = tuple(types)


class PluginFailure(CNIError):
    """One plugin's failure inside a chain: what it said, and which plugin said it doing what.

    ``position`` and ``total`` count from 1 along the list of plugins (0: outside of a list).
    """

    def __init__(self, cause: CNIError, plugin: str, command: str, position: int = 0, total: int = 0) -> None:
        verb = {"DEL": "delete"}.get(command, command.lower())
        place = f" ({position} of {total} in the list)" if total > 1 else ""
        super().__init__(
            f'plugin type="{plugin}"{place} failed ({verb}): {cause.msg}', cause.details, code=cause.code
        )
        self.plugin = plugin
        self.command = command
        self.position = position
        self.total = total
        self.__cause__ = cause


class Failures(CNIError):
    """Several failures of one operation; the code is the first one's and the text tells all of them."""

    def __init__(self, errors: Sequence[CNIError]) -> None:
        super().__init__("; ".join(str(error) for error in errors), code=errors[0].code)
        self.errors = tuple(errors)


BY_CODE: dict[int, type[CNIError]] = {
    cls.code: cls
    for cls in (
        IncompatibleVersion,
        UnsupportedField,
        UnknownContainer,
        InvalidEnvironment,
        IOFailure,
        DecodeFailure,
        InvalidConfig,
        InvalidNetns,
        TryLater,
        NotAvailable,
        LimitedConnectivity,
    )
}


def from_code(code: int, msg: str, details: str = "") -> CNIError:
    """Return the error of the class that ``code`` has, e.g. for one read from a plugin's output."""
    return BY_CODE.get(code, CNIError)(msg, details, code=code)


_REFUSALS = frozenset({1, 2, 4, 6, 7})


def is_same_refusal(added: CNIError, deleted: CNIError) -> bool:
    """Whether a plugin refuses the DEL for what it refused the ADD: it did nothing, and never will.

    So for an incompatible version or a configuration that it cannot take; trying again would be in vain.
    """
    return added.code in _REFUSALS and deleted.code == added.code


def joined(errors: Sequence[CNIError]) -> CNIError:
    """Return the one error, or all of them as one (``errors`` is not empty)."""
    return errors[0] if len(errors) == 1 else Failures(errors)
