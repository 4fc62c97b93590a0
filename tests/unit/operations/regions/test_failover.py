"""Failover to another Region: what both sides have, where the query can resume, and the steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast
from uuid import NAMESPACE_OID, UUID, uuid5

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.errors import ConfigurationError, UnavailableError, VersionMissingError
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import EMPTY, META, NO_ATTEMPT, SPECS, Attempt, Role, VersionId, version_list_key
from dynastate.operations.checkpoints import open_checkpoint
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.regions.failover import SOURCE_DEADLINE_S, Failover, plan_failover
from dynastate.settings import PREFIX, Settings
from tests.support.engine_driver import make_engine, write
from tests.support.memory_tables import MemoryTables
from tests.support.samples import QUERY, attempt, query_run
from tests.support.store_builder import StoreBuilder
from tests.unit.operations.lifecycle.test_rollback import BATCHES, NAMESPACE, STORES, location_in, make_checkpoint
from tests.unit.operations.lifecycle.test_rollback_in_dynamodb import put_files

HERE, THERE = "us-east-1", "us-east-2"
CONTINUE = f"Start the query with {PREFIX}region={THERE}, {PREFIX}namespace={NAMESPACE}"


class RegionTables(MemoryTables):
    """The tables in one Region, described as DynamoDB does; the engine's items, and what a test changes of them."""

    names = {"delta": "dynastate-delta", "snapshot": "dynastate-snapshot-group"}  # noqa: RUF012  # as in BotoTables

    def __init__(self, region: str) -> None:
        super().__init__()
        self.settings = Settings(region=region)
        self.described: dict[Role, dict[str, Any]] = {role: self._description(role) for role in SPECS}

    def _description(self, role: Role) -> dict[str, Any]:
        spec = SPECS[role]
        names = {"HASH": spec.hash_key, "RANGE": spec.range_key}
        return {
            "TableArn": f"arn:aws:dynamodb:{self.settings.region}:123456789012:table/{self.names[role]}",
            "TableStatus": "ACTIVE",
            "KeySchema": [{"AttributeName": name, "KeyType": kind} for kind, name in names.items()],
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in names.values()],
        }

    def replica(self, *, is_strong: bool) -> RegionTables:
        """Make tables in the other Region that have the same items now, and describe both as replicas."""
        other = RegionTables(THERE)
        for one, two in ((self, other), (other, self)):
            for table in one.described.values():
                table["Replicas"] = [{"RegionName": two.settings.region, "ReplicaStatus": "ACTIVE"}]
                table["MultiRegionConsistency"] = "STRONG" if is_strong else "EVENTUAL"
        other.items.update(self.items)
        return other

    def describe(self) -> dict[Role, dict[str, Any]]:
        return self.described

    def close(self) -> None:
        """Stay, for the test."""


@pytest.fixture
def source() -> RegionTables:
    """Two stores with a version for each batch, by a clock of long ago."""
    return filled_long_ago()


def filled_long_ago(versions: int = BATCHES) -> RegionTables:
    return filled(lambda: datetime(2026, 1, 1, tzinfo=timezone.utc), versions)


def filled(clock: Callable[[], datetime], versions: int = BATCHES) -> RegionTables:
    tables = RegionTables(HERE)
    with closing(make_engine(tables, now=clock)) as engine:
        for store in STORES:
            StoreBuilder(engine, store).count_to(versions)
    return tables


def with_blocks(region: str) -> RegionTables:
    tables, chance = RegionTables(region), random.Random(1)  # noqa: S311  # no secret
    with closing(make_engine(tables, objects="s3://objects/state", objects_threshold_kb=0)) as engine:
        for store in STORES:
            base = EMPTY
            for version in range(1, BATCHES + 1):
                row = {b"%d" % version: chance.randbytes(9_000)}
                base = write(engine, store, attempt(version), row, base=base)
    assert tables.objects.objects
    return tables


def plan(source: RegionTables, target: RegionTables, checkpoint: Path | str | None = None) -> Failover:
    files = None if checkpoint is None else open_checkpoint(target, str(checkpoint))
    return plan_failover(
        lambda _: cast("BotoTables", source), source.settings, cast("BotoTables", target), NAMESPACE, files
    )


def lose_parts_of(target: RegionTables, store: str, version: int) -> None:
    """Let the parts of a version not be there yet."""
    late = [key for key in target.items if key.role == "delta" and key.store_shard.startswith(store)]
    for key in late:
        if key.sort.split("/")[1].lstrip("0") == str(version):
            del target.items[key]


def lose_store(target: RegionTables, store: str) -> None:
    for key in [key for key in target.items if key.store_shard.startswith(f"{store}#")]:
        del target.items[key]


@pytest.mark.parametrize("is_strong", [True, False], ids=["strong", "asynchronous"])
def test_replicas_that_have_all(source: RegionTables, tmp_path: Path, *, is_strong: bool) -> None:
    """The query continues after the checkpoint's last batch, from the checkpoint's location there."""
    target = source.replica(is_strong=is_strong)
    checkpoint = make_checkpoint(tmp_path)
    failover = plan(source, target, checkpoint)
    kind = "strong" if is_strong else "asynchronous"
    assert (failover.source.replication, failover.target.replication) == (kind, kind)
    assert (failover.target.region, failover.target.replicas) == (THERE, (HERE,))
    assert (failover.source.version, failover.target.version, failover.stores) == (BATCHES, BATCHES, 2)
    assert (failover.batch, failover.undone, failover.problems) == (BATCHES, 0, ())
    stop, adopt, start = failover.steps
    assert stop.startswith(f"See that the query in {HERE} does not run")
    assert ("is refused" in stop) is is_strong
    assert ("mixes with" in stop) is not is_strong
    assert adopt.endswith(f"dynastate adopt {NAMESPACE} --checkpoint {checkpoint} --region {THERE}")
    assert start == f"{CONTINUE} and checkpointLocation {checkpoint}."
    assert failover.read_units > 0


def test_a_checkpoint_in_dynamodb(source: RegionTables, tmp_path: Path) -> None:
    """It is read in the target, which may not have all of its files yet, and its location is the same there."""
    location = f"dynastate://{NAMESPACE}/query"
    put_files(source, make_checkpoint(tmp_path))
    adopt_stores(source, STORES, f"{location}/state")
    target = source.replica(is_strong=False)
    failover = plan(source, target, location)
    assert (failover.batch, failover.undone, failover.problems, len(failover.steps)) == (BATCHES, 0, (), 2)
    assert failover.steps[-1] == f"{CONTINUE} and checkpointLocation {location}."
    CheckpointFiles(target, set()).delete(Checkpoint(NAMESPACE, "query"), [f"commits/{BATCHES - 1}"])
    lose_parts_of(target, STORES[1], BATCHES - 1)
    failover = plan(source, target, location)
    assert (failover.batch, failover.undone) == (BATCHES - 2, 1)
    assert f"dynastate rollback {location} --to {BATCHES - 3} --region {THERE}" in failover.steps[1]


def test_parts_that_have_not_arrived(source: RegionTables, tmp_path: Path) -> None:
    """Asynchronous replicas: the version whose parts are missing cannot be opened, so the checkpoint goes back."""
    target = source.replica(is_strong=False)
    lose_parts_of(target, f"{NAMESPACE}/0/1/default", BATCHES - 1)
    failover = plan(source, target, make_checkpoint(tmp_path))
    assert (failover.source.version, failover.target.version) == (BATCHES, BATCHES - 2)
    assert (failover.batch, failover.undone) == (BATCHES - 2, 2)
    assert f"--to {BATCHES - 3} --region {THERE}" in failover.steps[2]


def test_a_version_list_that_has_not_arrived() -> None:
    """Asynchronous replicas: versions whose parents are not listed there yet cannot be opened; earlier ones can."""
    source = filled_long_ago(versions=12)
    target = source.replica(is_strong=False)
    old_tables = filled_long_ago(versions=8)
    late = version_list_key(f"{NAMESPACE}/0/0/default", 8)
    target.items[late] = old_tables.items[late]
    failover = plan(source, target)
    assert (failover.source.version, failover.target.version, failover.problems) == (12, 8, ())


@pytest.mark.parametrize("is_strong", [True, False], ids=["strong", "asynchronous"])
def test_objects_in_s3(*, is_strong: bool) -> None:
    """S3 does not replicate them with the tables, so they are read in the other Region; in the first one none is."""
    source = with_blocks(HERE)
    target = source.replica(is_strong=is_strong)
    target.objects.objects.update(source.objects.objects)
    source.objects.objects.clear()
    source.calls.clear()
    failover = plan(source, target)
    assert (failover.source.version, failover.target.version) == (BATCHES, BATCHES)
    assert {key.role for call in source.calls for key in call.keys} == {"snapshot"}
    target.objects.objects.clear()
    assert plan(source, target).problems == (f"no version can be opened in all stores in {THERE}",)


def test_the_checkpoint_of_another_namespace(source: RegionTables, tmp_path: Path) -> None:
    """It is refused before anything is read, and both namespaces are named."""
    target = source.replica(is_strong=True)
    checkpoint = make_checkpoint(tmp_path)
    for marker in checkpoint.rglob("dynastate"):
        marker.write_text(marker.read_text().replace(NAMESPACE, "clicks"))
    target.calls.clear()
    with pytest.raises(ConfigurationError, match=f"in the namespace clicks, not in {NAMESPACE}; give the checkpoint"):
        plan(source, target, checkpoint)
    assert target.calls == []


def test_the_checkpoint_of_an_earlier_query(source: RegionTables, tmp_path: Path) -> None:
    """It has fewer partitions and other ids in the same namespace: none of its batches has its state there."""
    target = source.replica(is_strong=True)
    checkpoint = make_checkpoint(tmp_path, with_ids=True, partitions=1, first_attempt=101)
    (problem,) = plan(source, target, checkpoint).problems
    assert problem.startswith(f"no batch of the checkpoint has its state in {THERE}")


def test_stores_that_are_missing(source: RegionTables, tmp_path: Path) -> None:
    """By the first Region, by the ids or folders of the checkpoint, or by a gap: a copy that was cut off is noticed."""
    target = source.replica(is_strong=False)
    last = f"{NAMESPACE}/0/1/default"
    lose_store(target, last)
    problem = f"1 store is missing in {THERE}: {last}"
    assert plan(source, target).problems == (problem,)
    lose_store(source, last)
    assert plan(source, target).problems == ()
    for with_ids in (True, False):
        folder = tmp_path / str(with_ids)
        assert plan(source, target, make_checkpoint(folder, with_ids=with_ids)).problems == (problem,)
    lost = f"{NAMESPACE}/1/0"
    place = folder / "checkpoint" / "state" / "1" / "0"
    place.mkdir(parents=True)
    (place / "dynastate").write_text(f"store={lost}/default\n")
    assert plan(source, target, folder / "checkpoint").problems == (f"2 stores are missing in {THERE}: {last}, {lost}",)


def test_many_stores_that_are_missing() -> None:
    """Between the partitions that are there; the message names the first ones."""
    source = RegionTables(HERE)
    with closing(make_engine(source)) as engine:
        for partition in (0, 7):
            StoreBuilder(engine, f"{NAMESPACE}/0/{partition}/default").count_to(1)
    named = ", ".join(f"{NAMESPACE}/0/{partition}/default" for partition in range(1, 5))
    assert plan(source, source).problems == (f"6 stores are missing in {HERE}: {named}, …",)


def test_folders_of_an_earlier_query(source: RegionTables, tmp_path: Path) -> None:
    """A query that started over with fewer partitions at the same path: stores of the one before are not missing."""
    moment = datetime(2026, 6, 1, tzinfo=timezone.utc)
    with closing(make_engine(source, now=lambda: moment)) as engine:
        StoreBuilder(engine, f"{NAMESPACE}/0/0/default", run="run-2", query=str(UUID(int=2))).count_to(BATCHES)
    target = source.replica(is_strong=True)
    checkpoint = make_checkpoint(tmp_path)
    for offsets in (checkpoint / "offsets").glob("[0-9]*"):
        offsets.write_text(offsets.read_text().replace('"conf": {}', '"conf": {"spark.sql.shuffle.partitions": "1"}'))
    failover = plan(source, target, checkpoint)
    assert (failover.stores, failover.batch, failover.problems) == (1, BATCHES, ())


@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
def test_a_query_that_was_restored_after_another(tmp_path: Path, *, with_ids: bool) -> None:
    """Partition 1 is still the other one's, since the first batch committed partition 0 only: it is looked at, too."""
    source = RegionTables(HERE)
    with closing(make_engine(source)) as engine:
        builders = [StoreBuilder(engine, store, query=QUERY, location=location_in(tmp_path)) for store in STORES]
        for each in builders:
            each.count_to(BATCHES)
        build(source, "other-1", "other", tmp_path, EMPTY, 2)
        builders[0].run = "run-2"
        builders[0].count_to(BATCHES + 1)
    target = source.replica(is_strong=False)
    checkpoint = make_checkpoint(tmp_path, with_ids=with_ids)
    failover = plan(source, target, checkpoint)
    assert (failover.stores, failover.batch, failover.problems) == (2, BATCHES, ())
    lose_parts_of(target, STORES[1], BATCHES)
    failover = plan(source, target, checkpoint)
    assert (failover.batch, failover.undone, failover.problems) == (BATCHES - 1, 1, ())
    lose_store(target, STORES[1])
    assert plan(source, target, checkpoint).problems == (f"1 store is missing in {THERE}: {STORES[1]}",)


@pytest.mark.parametrize("side", [HERE, THERE])
def test_a_replica_that_is_not_active(source: RegionTables, side: str) -> None:
    """That of the other Region keeps the query from continuing, whichever side says so; others are named only."""
    target = source.replica(is_strong=False)
    tables = {HERE: source, THERE: target}[side]
    for region, is_problem in ((HERE, False), (THERE, True)):
        tables.described["delta"]["Replicas"] = [
            {"RegionName": HERE, "ReplicaStatus": "ACTIVE"},
            {"RegionName": THERE, "ReplicaStatus": "UPDATING"},
            {"RegionName": region, "ReplicaStatus": "CREATING"},
        ]
        failover = plan(source, target)
        message = f"the replica of table dynastate-delta in {region} is CREATING, needed is ACTIVE"
        assert [str(each) for each in (*failover.source.unready, *failover.target.unready)] == [message]
        assert failover.problems == ((message,) if is_problem else ())


def test_ids_of_checkpoint_format_2(source: RegionTables, tmp_path: Path) -> None:
    """A version by another attempt is not that of the batch."""
    target = source.replica(is_strong=True)
    checkpoint = make_checkpoint(tmp_path, with_ids=True)
    assert plan(source, target, checkpoint).batch == BATCHES
    last = checkpoint / "commits" / str(BATCHES - 1)
    last.write_text(last.read_text().replace("00000006", "000000ff"))
    assert plan(source, target, checkpoint).batch == BATCHES - 1


def build(tables: RegionTables, run: str, query: str, place: Path, base: VersionId, versions: int) -> VersionId:
    """Commit versions of a query's run in both stores, after one that both have."""
    with closing(make_engine(tables)) as engine:
        for store in STORES:
            builder = StoreBuilder(engine, store, run=run, query=query, location=location_in(place))
            builder.version = base
            for _ in range(versions):
                builder.commit(by=Attempt(uuid5(NAMESPACE_OID, f"{run} {builder.version}").bytes))
    return builder.version


@pytest.mark.parametrize("is_strong", [True, False], ids=["strong", "asynchronous"])
def test_a_version_of_another_query(tmp_path: Path, *, is_strong: bool) -> None:
    """Another query has made the numbers of the last batches, from which this one would not start: format 1."""
    source = RegionTables(HERE)
    version = build(source, "run-1", QUERY, tmp_path, EMPTY, BATCHES - 2)
    build(source, "other-1", "other", tmp_path, EMPTY, BATCHES)
    target = source.replica(is_strong=is_strong)
    failover = plan(source, target, make_checkpoint(tmp_path))
    assert (failover.target.version, failover.batch, failover.undone, failover.problems) == (
        BATCHES,
        version.version,
        2,
        (),
    )
    run = query_run("run-2", location_in(tmp_path), QUERY)
    with closing(make_engine(target)) as engine:
        assert engine.find(f"{NAMESPACE}/0/1/default", version.version, NO_ATTEMPT, run).entry.id == version
        with pytest.raises(VersionMissingError, match="only another query has made this version"):
            engine.find(f"{NAMESPACE}/0/1/default", version.version + 1, NO_ATTEMPT, run)


@pytest.mark.parametrize("late", ["nothing", META, "the checkpoint"])
def test_versions_of_two_runs(tmp_path: Path, late: str) -> None:
    """Only in one partition those have arrived that a query made again after it was taken back: format 1."""
    source = RegionTables(HERE)
    base = build(source, "run-1", QUERY, tmp_path, EMPTY, 3)
    build(source, "run-1", QUERY, tmp_path, base, BATCHES - 3)
    target = source.replica(is_strong=False)
    build(source, "run-2", QUERY, tmp_path, base, BATCHES - 3)
    arrived = {key: item for key, item in source.items.items() if "/0/0/" in key.store_shard and key.sort != late}
    target.items.update(arrived)
    if late == "the checkpoint":
        failover = plan(source, target)
        assert f"Its last batch in commits/ must be {base.version - 1} or an earlier one" in failover.steps[1]
    else:
        failover = plan(source, target, make_checkpoint(tmp_path))
        assert (failover.batch, failover.undone) == (base.version, BATCHES - base.version)
    assert (failover.source.version, failover.target.version, failover.problems) == (BATCHES, base.version, ())


def test_a_version_of_several_locations(tmp_path: Path) -> None:
    """Its number does not say which is meant: format 1."""
    source = RegionTables(HERE)
    base = build(source, "run-1", QUERY, tmp_path, EMPTY, 3)
    build(source, "run-1", QUERY, tmp_path, base, BATCHES - 3)
    adopt_stores(source, STORES, location_in(tmp_path / "moved"))
    build(source, "run-2", QUERY, tmp_path / "moved", base, BATCHES - 3)
    adopt_stores(source, STORES, location_in(tmp_path))
    target = source.replica(is_strong=True)
    assert plan(source, target, make_checkpoint(tmp_path)).batch == base.version
    assert plan(source, target, make_checkpoint(tmp_path / "moved")).batch == BATCHES


def test_a_region_that_does_not_answer(source: RegionTables) -> None:
    """The steps are those by the other one; each of its requests has a short deadline."""
    target = source.replica(is_strong=True)
    deadlines: list[int] = []

    def refuse(settings: Settings) -> BotoTables:
        deadlines.append(settings.request_deadline_s)
        raise UnavailableError("the Region is away")

    failover = plan_failover(refuse, source.settings, cast("BotoTables", target), NAMESPACE)
    assert deadlines == [SOURCE_DEADLINE_S]
    assert failover.source.problems == ("the Region is away",)
    assert failover.problems == ()
    assert f"Its last batch in commits/ must be {BATCHES - 1} or an earlier one;" in failover.steps[1]
    assert failover.batch is None


def test_a_query_that_still_runs() -> None:
    source = filled(lambda: datetime.now(timezone.utc))
    target = source.replica(is_strong=True)
    assert plan(source, target).steps[0].startswith(f"Stop the query in {HERE}: it committed at 20")


def test_what_keeps_a_query_from_continuing(source: RegionTables, tmp_path: Path) -> None:
    target = source.replica(is_strong=True)
    checkpoint = make_checkpoint(tmp_path)
    for file in (checkpoint / "commits").iterdir():
        file.rename(file.with_name(str(int(file.name) + 100)))
    failover = plan(source, target, checkpoint)
    assert failover.problems == (
        f"no batch of the checkpoint has its state in {THERE}; its newest version is that of batch {BATCHES - 1}",
    )
    assert failover.steps == ()
    del target.described["delta"]["MultiRegionConsistency"]
    target.described["snapshot"]["TableStatus"] = "CREATING"
    target.described["snapshot"]["Replicas"] = target.described["delta"]["Replicas"] = [{"RegionName": "eu-west-1"}]
    status, kinds, replica = plan(source, target).problems
    assert status == "table dynastate-snapshot-group is CREATING, needed is ACTIVE"
    assert "different replication: dynastate-delta: asynchronous and dynastate-snapshot-group: strong" in kinds
    assert replica == f"the tables in {THERE} have no replica in {HERE}"


def test_tables_that_are_no_replicas(source: RegionTables, tmp_path: Path) -> None:
    """Restored or copied ones: the query can continue with what they have; without the namespace it is refused."""
    target = RegionTables(THERE)
    with pytest.raises(ConfigurationError, match="no store of this namespace"):
        plan(source, target)
    target.items.update(source.items)
    failover = plan(source, target)
    assert (failover.target.replication, failover.problems, len(failover.steps)) == ("none", (), 3)
    assert failover.steps[0].endswith("What it commits from now on is lost.")
    for key in [key for key in target.items if key.role == "delta"]:
        del target.items[key]
    for checkpoint in (None, make_checkpoint(tmp_path)):
        assert plan(source, target, checkpoint).problems == (f"no version can be opened in all stores in {THERE}",)
