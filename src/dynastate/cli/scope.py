"""Commands that work on all stores of a scope: one progress bar, and one end, whatever becomes of single stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from dynastate.cli.output import error_text, progress
from dynastate.counts import plural
from dynastate.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    from dynastate.operations.scope import Outcomes
    from dynastate.storage.tables import Tables

T = TypeVar("T")

Scope = Annotated[
    str,
    typer.Argument(
        metavar="SCOPE",
        help="The stores of namespace, namespace/operator or namespace/operator/partition (* for all partitions), or "
        "one: namespace/operator/partition/name.",
    ),
]
#: Stores that failed of which standard error has the reason.
_FAILED_MAX: Final = 20


def current_stores(tables: Tables, scope: str) -> list[str]:
    """The stores of a scope, but for those of earlier queries, where there are others. Refuse a scope without any."""
    from dynastate.operations.scope import stores_in

    found = stores_in(tables, scope)
    if found.current and found.earlier:
        left = plural(len(found.earlier), "store")
        typer.echo(f"left out: {left} of an earlier query; 'dynastate clean' deletes what it left", err=True)
    return found.current or found.earlier


def on_each(
    tables: Tables, stores: Sequence[str], unit: str, work: Callable[[str, ProgressCallback], T], at_once: int = 0
) -> Outcomes[T]:
    """Do work on each store. The bar counts stores; of a single one, what the work reports, in `unit`."""
    from dynastate.operations.scope import STORES_AT_ONCE, each_store

    with progress("stores" if len(stores) > 1 else unit) as report:
        if len(stores) > 1:
            limit = at_once or STORES_AT_ONCE
            return each_store(tables, stores, lambda _, store: work(store, no_progress), report, at_once=limit)
        return each_store(tables, stores, lambda _, store: work(store, report))


def failures(found: Outcomes[Any]) -> list[dict[str, str]]:
    """The stores that failed, for programs."""
    return [{"store": store, "error": error_text(error)} for store, error in found.failed.items()]


def end(found: Outcomes[Any]) -> None:
    """Say on standard error which stores failed and why, and end the command; none did: return."""
    if found.stores == 1:
        found.all()
    for store, error in list(found.failed.items())[:_FAILED_MAX]:
        typer.echo(f"{store}: {' '.join(error_text(error).split())}", err=True)
    if found.is_interrupted:
        raise KeyboardInterrupt
    if found.failed:
        typer.echo(f"dynastate: {len(found.failed):,} of {plural(found.stores, 'store')} failed", err=True)
        raise typer.Exit(2)


def counted(found: Outcomes[Any]) -> str:
    """The number of stores, and how many of them were not done."""
    left = found.stores - len(found.done) - len(found.failed)
    failed = f", {len(found.failed):,} failed" if found.failed else ""
    return f"{plural(found.stores, 'store')}{failed}" + (f", {left:,} not done when it was interrupted" if left else "")
