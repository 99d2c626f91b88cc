"""``podwire cni conformance``: run the specification against plugins and tell what was found."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from podwire.cli.cnitool import plugin_path
from podwire.cli.errors import CommandError, usage

if TYPE_CHECKING:
    from rich.console import Console

    from podwire.conformance.findings import Outcome
    from podwire.conformance.services import Daemon

_STYLES = {"violation": "red", "weakness": "yellow", "note": "cyan", "skipped": "dim", "passed": "green"}
_PLAIN_WIDTH = 120


def run(
    plugins: Sequence[str],
    *,
    conf: Path | None,
    output: str,
    junit: Path | None,
    only: Sequence[str],
    timeout: float,
    fail_on: str,
    verbose: bool,
    daemon: str,
    ready: Path | None,
) -> int:
    """Test each plugin; the status is 1 where something was found that weighs ``fail_on`` or more.

    A plugin that cannot be tested counts as found.
    """
    from podwire.conformance import report, subject, tester
    from podwire.conformance.findings import NotTestable, Severity

    if output not in {"", "json"}:
        raise usage(f"--output {output!r} is not a form", hint="It can be: json.")
    if fail_on not in set(Severity):
        raise usage(f"--fail-on {fail_on!r} is no weight", hint=f"It can be: {', '.join(Severity)}.")
    known = tester.check_ids()
    unknown = [one for one in only if one not in known]
    if unknown:
        raise usage(f"--check {unknown[0]!r}: no such check", hint=f"There are: {', '.join(known)}.")
    beside = _daemon(daemon, ready)
    path, _ = plugin_path(os.environ)
    outcomes: list[Outcome] = []
    untested: list[str] = []
    console = _console()
    for plugin in plugins:
        try:
            tested = tester.prepare(subject.resolve(plugin, path, conf, timeout, beside))
        except NotTestable as error:
            if len(plugins) == 1:
                raise CommandError(str(error)) from error
            untested.append(plugin)
            print(f"{plugin}: not tested: {error}", file=sys.stderr)
            continue
        with _progress(tested.name, len(only or known)) as done:
            found = tester.run(tested, only, done=done)
        outcomes += found
        if not output:
            shown = tested.name if tested.then else tested.executable
            _show(console, shown, tested.versions, found, verbose=verbose)
    if output:
        print(report.as_json(outcomes).decode())
    if junit is not None:
        junit.write_bytes(report.as_junit(outcomes))
    return 1 if untested or any(one.weighs(Severity(fail_on)) for one in outcomes) else 0


def _daemon(command: str, ready: Path | None) -> Daemon | None:
    from podwire.conformance.services import Daemon

    if not command:
        if ready is not None:
            raise usage(f"--ready {ready}: tells of no --daemon")
        return None
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise usage(f"--daemon {command!r}: {error}") from None
    if not words or ready is None:
        raise usage(f"--daemon {command!r}: give --ready too, what is there when it serves")
    return Daemon(words, ready)


@contextmanager
def _progress(plugin: str, total: int) -> Iterator[Callable[[Outcome], None]]:
    """Show on a terminal which check was the last one to end."""
    from rich.console import Console

    ended: list[str] = []
    with Console(stderr=True).status(f"{plugin}: 0 of {total} checks") as status:

        def done(outcome: Outcome) -> None:
            ended.append(outcome.check)
            status.update(f"{plugin}: {len(ended)} of {total} checks, {outcome.check}")

        yield done


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)


def _show(
    console: Console,
    plugin: str,
    versions: Sequence[str],
    outcomes: Sequence[Outcome],
    *,
    verbose: bool,
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from podwire.conformance.findings import Severity, Status

    failed = [one for one in outcomes if one.status is Status.FAILED]
    shown = list(outcomes) if verbose else failed
    console.print(Text(f"{plugin}  (versions {', '.join(versions)})", style="bold"))
    if shown:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
        for heading in ("", "CHECK", "SECTION"):
            table.add_column(heading, no_wrap=True)
        table.add_column("FINDING", ratio=1, overflow="fold")
        for one in shown:
            word = str(one.weight if one.status is Status.FAILED else one.status)
            table.add_row(Text(word, style=_STYLES[word]), one.check, one.section, Text(_told(one)))
        console.print(table)
    counts = {severity: sum(one.weight is severity for one in failed) for severity in Severity}
    passed = sum(one.status is Status.PASSED for one in outcomes)
    skipped = sum(one.status is Status.SKIPPED for one in outcomes)
    found = ", ".join(_counted(count, str(severity)) for severity, count in counts.items())
    seconds = sum(one.seconds for one in outcomes)
    line = f"{found}; {passed} passed, {skipped} do not apply; {seconds:.1f} s of checks"
    console.print(Text(line, style="bold"))
    console.print()


def _counted(count: int, word: str) -> str:
    plural = {"weakness": "weaknesses"}.get(word, f"{word}s")
    return f"{count} {word if count == 1 else plural}"


def _told(outcome: Outcome) -> str:
    from podwire.conformance.findings import Status

    if outcome.status is Status.SKIPPED:
        return f"{outcome.title}: {outcome.reason}"
    if outcome.status is Status.PASSED:
        return outcome.title
    lines = [outcome.title, f"  expected: {outcome.expected}"]
    lines += [f"  {problem.did}: {problem.observed}" for problem in outcome.problems]
    return "\n".join(lines)
