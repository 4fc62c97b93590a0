"""Recovery of a query whose checkpoint is lost, from its state in DynamoDB (docs/changing-a-query.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.catalog import of_namespace
from dynastate.errors import ConfigurationError
from dynastate.format.graph import VersionGraph, last_of_one_run
from dynastate.operations.inspection.inspect import read_lists
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import PREFIX
from dynastate.spark.transfer.jvm import errors_of_spark
from dynastate.spark.transfer.rows import same_schema
from dynastate.spark.transfer.steps import Moved, Source, Transfer, namespace_in, tables_of
from dynastate.storage.tables import Tables
from dynastate.unsaferow.schema import described_families

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def recover_checkpoint(
    spark: SparkSession,
    lost: str,
    template: str,
    new: str,
    namespace: str | None = None,
    progress: ProgressCallback = no_progress,
) -> Moved:
    """Make a query resume from the state of namespace `lost`, whose checkpoint is lost.

    `template` is a new checkpoint of the same query, after at least one batch with the same number of partitions; it is
    only read. `new` becomes a copy of it with the newest state that all stores of `lost` have. Offsets and watermark
    are the template's: DynamoDB has neither.

    Raises:
        ConfigurationError: it cannot be done; the message says why.
        UnavailableError: DynamoDB was unreachable, or throttled, until the deadline; run it again.
    """
    refuse_template(template)
    with errors_of_spark():
        transfer = Transfer(spark, "recover", template, new)
        to, settings = transfer.ours(namespace, other=lost), transfer.settings(lost)
        with tables_of({**settings, f"{PREFIX}namespace": lost}) as tables:
            version, ids = _newest(tables, lost, transfer.plan["stores"], progress)
        return transfer.run(to, Source(settings, version, ids), progress)


def refuse_template(template: str) -> None:
    """Refuse a template in DynamoDB."""
    if namespace_in(template):
        raise ConfigurationError(
            "the location of a template in DynamoDB names another state than the lost query's: run the template "
            "with a checkpoint in a folder; the new checkpoint may be in DynamoDB",
            template=template,
        )


def _newest(
    tables: BotoTables, namespace: str, described: Sequence[dict[str, Any]], progress: ProgressCallback
) -> tuple[int, dict[str, str]]:
    """The newest version that every store has of one run, and its id in each, by operator/partition/name.

    If a query failed in its first batch since a rollback, its stores have versions of two runs, with different input.
    """
    expected = {
        f"{namespace}/{each['operator']}/{partition}/{each['name']}": each
        for each in described
        for partition in range(each["partitions"])
    }
    stores = of_namespace(tables, namespace).current
    if set(stores) != set(expected):
        different = sorted(set(stores) ^ set(expected))
        raise ConfigurationError(
            "the template has other stores than the namespace: it must be the same query with the same number of "
            f"partitions; {len(different)} differ",
            namespace=namespace,
            first=different[0],
        )
    graphs: dict[str, VersionGraph] = {}

    def look(view: Tables, store: str) -> None:
        graph, _ = read_lists(view, store)
        _check_schema(graph, expected[store])
        graphs[store] = graph

    each_store(tables, stores, look, progress, until_failure=True).all()
    lineages = {store: graph.lineage(graph.newest()) for store, graph in graphs.items()}
    version = last_of_one_run([(lineage, graphs[store].runs) for store, lineage in lineages.items()])
    if not version:
        raise ConfigurationError(
            "the stores have no version in common that one run made: their states do not fit together",
            newest=min(lineage[-1].version for lineage in lineages.values()),
        )
    ids = {}
    for store, lineage in lineages.items():
        entry = next((each for each in lineage if each.version == version), None)
        if entry is None or graphs[store].bases()[entry.id] is None:
            raise ConfigurationError(
                "the newest version that all stores have cannot be read in this one; 'dynastate verify' it",
                store=store,
                version=version,
            )
        ids[store.split("/", 1)[1]] = str(UUID(bytes=entry.attempt))
    return version, ids


def _check_schema(graph: VersionGraph, described: dict[str, Any]) -> None:
    """Refuse a template whose rows have other schemas, or other ids of schemas."""
    families = {each["name"]: each for each in described_families(graph.schema(graph.newest()))}
    for family in described["described"]:
        stored = families.get(family["name"])
        if stored is not None and not _same_earlier(stored, family):
            raise ConfigurationError(
                "the values of the state have had other schemas than those of the template: run the template with the "
                "lost query's programs, one after the other, a batch each",
                store=graph.store,
                family=family["name"],
            )
        if stored is None or not same_schema((stored["key"], stored["value"]), (family["key"], family["value"])):
            raise ConfigurationError(
                "the template's rows have another schema than the state; it must be the same query",
                store=graph.store,
                family=family["name"],
            )


def _same_earlier(stored: dict[str, Any], described: dict[str, Any]) -> bool:
    """Whether two families have the same earlier schemas of values, in the same order."""
    old, new = (each.get("earlier_values", []) for each in (stored, described))
    return len(old) == len(new) and all(map(same_schema, old, new))
