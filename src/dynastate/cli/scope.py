"""Commands that work on all stores of a scope: one progress bar, and one end, even if single stores fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from dynastate.cli.output import in_options, progress
from dynastate.counts import plural
from dynastate.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    from dynastate.operations.lifecycle.drop import Look
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
#: Failed stores whose reasons are printed.
_FAILED_MAX: Final = 20


def current_stores(tables: Tables, scope: str, *, may_have_files_only: bool = False) -> list[str]:
    """The stores of a scope, without those of earlier queries if it has others. Refuse what `stores_in` refuses."""
    from dynastate.operations.scope import stores_in

    names = stores_in(tables, scope, may_have_files_only=may_have_files_only)
    if names.current and names.earlier:
        earlier = plural(len(names.earlier), "store")
        typer.echo(f"left out: {earlier} of an earlier query; 'dynastate clean' deletes what it left", err=True)
    return names.current or names.earlier


def on_each(
    tables: Tables, stores: Sequence[str], unit: str, work: Callable[[str, ProgressCallback], T], at_once: int = 0
) -> Outcomes[T]:
    """Do work on each store. The bar counts stores; for a single store, the `unit`s that the work reports."""
    from dynastate.operations.scope import STORES_AT_ONCE, each_store

    with progress("stores" if len(stores) > 1 else unit) as report:
        if len(stores) > 1:
            limit = at_once or STORES_AT_ONCE
            return each_store(tables, stores, lambda _, store: work(store, no_progress), report, at_once=limit)
        return each_store(tables, stores, lambda _, store: work(store, report))


def look_again(tables: Tables, namespace: str, first_look: Look, advice: str) -> None:
    """Look a second time at what a query may write, and refuse if one does. It prints how long it looks."""
    from dynastate.operations.lifecycle.drop import refuse_written, seconds_to_look

    seconds = seconds_to_look(first_look)
    typer.echo(f"looking for {seconds:.0f} s whether a query writes to {namespace}", err=True)
    with progress("stores") as report:
        refuse_written(tables, first_look, seconds, report, advice=advice)


def failures(outcomes: Outcomes[Any]) -> list[dict[str, str]]:
    """The stores that failed, for programs."""
    return [{"store": store, "error": in_options(error)} for store, error in outcomes.failed.items()]


def end(outcomes: Outcomes[Any]) -> None:
    """Print which stores failed and why, and end the command; return if none failed."""
    if outcomes.stores == 1:
        outcomes.all()
    for store, error in list(outcomes.failed.items())[:_FAILED_MAX]:
        typer.echo(f"{store}: {' '.join(in_options(error).split())}", err=True)
    if outcomes.is_interrupted:
        raise KeyboardInterrupt
    if outcomes.failed:
        typer.echo(f"dynastate: {len(outcomes.failed):,} of {plural(outcomes.stores, 'store')} failed", err=True)
        raise typer.Exit(2)


def counted(outcomes: Outcomes[Any]) -> str:
    """The number of stores, and of stores that were not done."""
    rest = outcomes.stores - len(outcomes.results) - len(outcomes.failed)
    failed = f", {len(outcomes.failed):,} failed" if outcomes.failed else ""
    undone = f", {rest:,} not done when it was interrupted" if rest else ""
    return f"{plural(outcomes.stores, 'store')}{failed}{undone}"
