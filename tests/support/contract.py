"""What each Spark asks of a state store, read from class files, for docs/state-store-contract.md.

    python -m tests.support.contract              of the pyspark here: the page, with its news
    python -m tests.support.contract --all        of every Spark that is supported; downloads what is missing of them

The page itself keeps what is known of the other Sparks, so one that is new changes only the lines that have its news.
"""

from __future__ import annotations

import argparse
import re
import struct
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

import pyspark

from dynastate.spark.jar import MINORS, jar_path
from tests.support.jvm import ROOT, SPARK

PAGE: Final = ROOT / "docs" / "state-store-contract.md"
STATE: Final = "org/apache/spark/sql/execution/streaming/state/"
#: What a provider implements; a trait with a new name that begins as the last is among them.
TRAITS: Final = re.compile(f"{STATE}(ReadStateStore|StateStore|StateStoreProvider|Supports[A-Za-z]+)")
#: What calls the traits, by the names of its classes.
CALLERS: Final = {
    "aggregation": "StreamingAggregationStateManager.*|StateStoreRestoreExec|StatefulStreamlineAggregateExec",
    "deduplication": "(Base)?StreamingDeduplicate.*",
    "session windows": "StreamingSessionWindowStateManager.*|SessionWindow.*",
    "joins": "SymmetricHashJoinStateManager.*",
    "limit": "StreamingGlobalLimitExec",
    "flatMapGroupsWithState": "FlatMapGroupsWithState.*",
    "transformWithState": "((List|Map|Value|Timer|TTL)State|OneTo|StatefulProcessorHandle|TransformWithState).*",
    "the state reader": "SchemaUtil|StatePartitionReader.*|StateStoreChangeData.*",
    "offline repartition": "StatePartitionAllColumnFamilies.*",
    "eviction in several operators": "EvictionIterator|WatermarkSupport",
    "all operators": "StateStore|StateStoreProvider|StateStoreWriter|package",
    "the user interface": "StreamingQueryStatisticsPage",
    "others": ".*",
}
#: The case of the provider's contract that is about a member, by the member's name.
CASES: Final = {
    "abort": "abort",
    "allColumnFamilyNames": "names-of-all-families",
    "close": "close-more-than-once",
    "commit": "get-put-remove-commit-iterate",
    "createColFamilyIfAbsent": "a-family-is-made-once",
    "deleteRange": "removal-of-a-range",
    "doCleanupMaintenance": "both-kinds-of-maintenance-at-once",
    "doMaintenance": "maintenance-with-nothing-to-do",
    "doSnapshotMaintenance": "both-kinds-of-maintenance-at-once",
    "get": "get-put-remove-commit-iterate",
    "getReadStore": "a-reader-beside-a-writer",
    "getStateStoreChangeDataReader": "change-feed",
    "getStateStoreCheckpointInfo": "checkpoint-ids",
    "getStore": "missing-versions",
    "hasCommitted": "a-commit-that-fails",
    "init": "families-off",
    "iterator": "changing-while-iterating",
    "iteratorWithMultiValues": "all-values-of-all-keys",
    "keyExists": "exists-and-many-at-once",
    "merge": "merge",
    "mergeList": "merge",
    "metrics": "metrics-at-any-time",
    "multiGet": "exists-and-many-at-once",
    "prefixScan": "prefix-scan",
    "prefixScanWithMultiValues": "all-values-of-a-prefix",
    "put": "get-put-remove-commit-iterate",
    "putList": "put-list",
    "reusableIterator": "an-iterator-that-is-moved",
    "rangeScan": "edges-of-ranges",
    "rangeScanWithMultiValues": "all-values-of-a-range",
    "registerColFamily": "a-family-registered-by-a-reader",
    "release": "read-store",
    "remove": "removing-while-iterating",
    "removeColFamilyIfExists": "a-family-that-was-removed",
    "replayReadStateFromSnapshot": "replay-from-a-snapshot",
    "replayStateFromSnapshot": "replay-from-a-snapshot",
    "supportedCustomMetrics": "reported-metrics-are-supported",
    "supportedInstanceMetrics": "reported-metrics-are-supported",
    "upgradeReadStoreToWriteStore": "a-reader-becomes-a-writer",
    "valuesIterator": "put-list",
    "version": "read-store",
}
#: What a provider has that does not implement a member.
SPARKS_OWN: Final = "Spark's"
HEAD: Final = """\
# Contract of a state store

Spark calls a provider by traits of `org.apache.spark.sql.execution.streaming.state`; this page has all their members.
`python -m tests.support.contract --all` makes it from the class files of each Spark and of our jar.
A test compares it with the Spark on which it runs: what is new in a Spark is a line that differs.

- Numbers are minors of Spark: `4.0` is from 4.0 on, and `4.0 to 4.2` ends there.
  What has none is as old as the member.
- *Called by* has Spark's classes that call the member, without those of its own providers.
- *Own* is a member that the provider implements, and *Spark's* one of which it has the trait's default.
- *Case* is one of the cases that run on each provider; queries on each Spark reach the rest.

| member | since | parameters | called by | RocksDB's | ours | case |
|---|---|---|---|---|---|---|
"""
#: JVM specification, 4.1 and 4.4: flags, tags of the constants, and the layout of each.
_INTERFACE, _STATIC, _ABSTRACT = 0x0200, 0x0008, 0x0400
_UTF8, _LONG, _METHODS = 1, (5, 6), (10, 11)
_ENTRIES: Final = {
    **dict.fromkeys((7, 8, 16, 19, 20), "H"),
    **dict.fromkeys((9, 10, 11, 12, 17, 18), "HH"),
    **dict.fromkeys((3, 4), "I"),
    **dict.fromkeys(_LONG, "Q"),
    15: "BH",
}
_TYPES: Final = {"Z": "Boolean", "I": "Int", "J": "Long", "V": "Unit", "B": "Byte"}
_CODE: Final = re.compile(r"`([^`]+)`(?: (\d[^,;]+))?")
_RUN: Final = re.compile(r"([\d.]+)(?: to ([\d.]+)|( only))?")
_DESCRIPTOR: Final = re.compile(r"(\[*)(?:L([^;]+);|([A-Z]))")


@dataclass(frozen=True)
class ClassFile:
    """What a class file (JVM specification, chapter 4) names: itself, its types, its methods, and what it calls."""

    name: str
    is_interface: bool
    parents: tuple[str, ...]
    #: Descriptors of its methods by name, without static and abstract ones.
    bodies: dict[str, str]
    #: The same of all that are not static.
    methods: dict[str, str]
    #: Owner and name of each method that its code calls.
    calls: frozenset[tuple[str, str]]

    @property
    def source(self) -> str:
        """Simple name of the outermost class."""
        return self.name.rsplit("/", 1)[-1].split("$")[0]


class _Reader:
    """Big-endian numbers, one after another."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(f">{layout}", self.data, self.at)
        self.at += struct.calcsize(f">{layout}")
        return values

    def skip(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]


class _Pool:
    """The constants of a class file: texts, and the fields of the other entries."""

    def __init__(self, reader: _Reader) -> None:
        (count,) = reader.read("H")
        self.texts: dict[int, str] = {}
        self.fields: dict[int, tuple[int, ...]] = {}
        self.methods: list[int] = []
        index = 1
        while index < count:
            (tag,) = reader.read("B")
            if tag == _UTF8:
                self.texts[index] = reader.skip(*reader.read("H")).decode(errors="replace")
            else:
                self.fields[index] = reader.read(_ENTRIES[tag])
            if tag in _METHODS:
                self.methods.append(index)
            index += 2 if tag in _LONG else 1

    def text(self, index: int, *steps: int) -> str:
        """The text that an entry leads to, by the number of its field at each step."""
        for step in steps:
            index = self.fields[index][step]
        return self.texts[index]


def read_class(data: bytes) -> ClassFile:
    reader = _Reader(data)
    reader.skip(8)
    pool = _Pool(reader)
    flags, this, parent, interfaces = reader.read("4H")
    parents = [index for index in (parent, *reader.read(f"{interfaces}H")) if index]
    _read_members(reader)  # fields
    methods, bodies = {}, {}
    for access, name, descriptor in _read_members(reader):
        if not access & _STATIC:
            methods[pool.text(name)] = pool.text(descriptor)
        if not access & (_STATIC | _ABSTRACT):
            bodies[pool.text(name)] = pool.text(descriptor)
    return ClassFile(
        name=pool.text(this, 0),
        is_interface=bool(flags & _INTERFACE),
        parents=tuple(pool.text(index, 0) for index in parents),
        methods=methods,
        bodies=bodies,
        calls=frozenset((pool.text(index, 0, 0), pool.text(index, 1, 0)) for index in pool.methods),
    )


def _read_members(reader: _Reader) -> list[tuple[int, ...]]:
    """Access flags, name and descriptor of each field or method; its attributes are passed over."""
    members = []
    (count,) = reader.read("H")
    for _ in range(count):
        *member, attributes = reader.read("4H")
        members.append(tuple(member))
        for _ in range(attributes):
            reader.skip(2)
            reader.skip(*reader.read("I"))
    return members


def read_jar(jar: Path, mark: str = STATE) -> dict[str, ClassFile]:
    """The classes of a jar that name something that begins as the mark, by name."""
    with zipfile.ZipFile(jar) as archive:
        contents = [archive.read(name) for name in archive.namelist() if name.endswith(".class")]
    classes = [read_class(each) for each in contents if mark.encode() in each]
    return {each.name: each for each in classes}


def descendants(classes: dict[str, ClassFile], name: str) -> set[str]:
    """A class with all that extend it, however far."""
    found = {name}
    while more := {each.name for each in classes.values() if not found.isdisjoint(each.parents)} - found:
        found |= more
    return found


def members(classes: dict[str, ClassFile]) -> Iterator[tuple[str, str]]:
    """Trait and name of each member that a provider may have, once; without the traits' own fields."""
    traits = [each for name, each in sorted(classes.items()) if each.is_interface and TRAITS.fullmatch(name)]
    for trait in traits:
        inherited = {name for each in traits if each.name in trait.parents for name in each.methods}
        for name in sorted(trait.methods.keys() - inherited):
            is_field = any(each.endswith(f"{name}_$eq") for each in trait.methods)
            if "$" not in name and not is_field:
                yield trait.name, name


def implements(classes: Iterable[ClassFile], trait: str, name: str) -> bool:
    """Whether one of these has a body of its own for a member; a call of the trait's body is what a default is."""
    return any(name in each.bodies and (trait, f"{name}$") not in each.calls for each in classes)


def callers(classes: Iterable[ClassFile], owners: set[str], name: str) -> set[str]:
    calls = {(owner, name) for owner in owners}
    return {each.source for each in classes if each.name not in owners and not calls.isdisjoint(each.calls)}


def parameters(descriptor: str) -> str:
    """The parameters of a method, as Scala has them, without the arguments of their types."""
    listed = descriptor[1 : descriptor.index(")")]
    types = [
        "Array[" * len(arrays) + (re.split(r"[/$]", name)[-1] if name else _TYPES[basic]) + "]" * len(arrays)
        for arrays, name, basic in _DESCRIPTOR.findall(listed)
    ]
    return f"({', '.join(types)})"


@dataclass
class Member:
    """A row of the page. Minors of Spark are in sets."""

    #: The parameters that it has had.
    parameters: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    callers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: Those whose RocksDB's provider implements it.
    rocksdb: set[str] = field(default_factory=set)
    ours: str = "no"
    case: str = "none"

    @property
    def minors(self) -> set[str]:
        return set().union(*self.parameters.values())


def read_spark(jar: Path, minor: str, page: dict[str, Member]) -> None:
    """Replace what a page has of one minor of Spark by what its jar has."""
    for member in page.values():
        for minors in (*member.parameters.values(), *member.callers.values(), member.rocksdb):
            minors.discard(minor)
    classes = read_jar(jar)
    providers = [each for each in classes.values() if re.match(f"{STATE}RocksDBStateStoreProvider", each.name)]
    outside = [each for each in classes.values() if not re.match(r"RocksDB|HDFSBacked|Wrapped", each.source)]
    for trait, name in members(classes):
        member = page.setdefault(f"{trait.removeprefix(STATE)}.{name}", Member())
        member.parameters[parameters(classes[trait].methods[name])].add(minor)
        for caller in callers(outside, descendants(classes, trait), name):
            member.callers[caller].add(minor)
        if implements(providers, trait, name):
            member.rocksdb.add(minor)


def read_ours(spark: Path, bridge: Path, page: dict[str, Member]) -> None:
    """Replace what a page has of our provider, which is of the newest Spark only."""
    known = read_jar(spark)
    ours = read_jar(bridge, "dynastate")
    cases = {file: file.read_text() for file in sorted((ROOT / "tests/contract/provider/scala").glob("*Cases.scala"))}
    for trait, name in members(known):
        member = page[f"{trait.removeprefix(STATE)}.{name}"]
        own = [ours[each] for each in descendants(known | ours, trait) if each in ours]
        member.ours = "own" if implements(own, trait, name) else SPARKS_OWN if own else "no"
        case = CASES.get(name, "none")
        files = [file.relative_to(ROOT) for file, text in cases.items() if re.search(rf'test\w*\("{case}"', text)]
        member.case = f"[{case}](../{files[0]})" if files else "none"


class Minors:
    """How the page writes sets of minors of Spark, of which `known` are all, in order."""

    def __init__(self, known: Iterable[str]) -> None:
        self.known = sorted(known, key=lambda minor: [int(part) for part in minor.split(".")])

    def write(self, minors: set[str]) -> str:
        runs = [list(run) for is_in, run in groupby(self.known, minors.__contains__) if is_in]
        return " and ".join(self._run(run[0], run[-1]) for run in runs)

    def _run(self, first: str, last: str) -> str:
        if last == self.known[-1]:
            return first
        return f"{first} only" if first == last else f"{first} to {last}"

    def read(self, text: str) -> set[str]:
        minors: set[str] = set()
        for first, last, only in _RUN.findall(text):
            end = self.known.index(last or (first if only else self.known[-1]))
            minors.update(self.known[self.known.index(first) : end + 1])
        return minors


def read_page(text: str, known: Minors) -> dict[str, Member]:
    page: dict[str, Member] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            name, since, listed, called, rocksdb, ours, case = (cell.strip() for cell in line.strip("|").split("|"))
            whole = known.read(since)
            page[name.strip("`")] = member = Member(ours=ours, case=case)
            for cell, into in ((listed, member.parameters), (called, member.callers)):
                for code, minors in _CODE.findall(cell):
                    into[code] = known.read(minors) if minors else set(whole)
            if rocksdb != SPARKS_OWN:
                member.rocksdb = known.read(rocksdb[4:]) if rocksdb[4:] else set(whole)
    return page


def write_page(page: dict[str, Member], known: Minors) -> str:
    lines = [write_row(name, member, known) for name, member in sorted(page.items()) if member.minors]
    return HEAD + "".join(lines)


def write_row(name: str, member: Member, known: Minors) -> str:
    whole = member.minors

    def codes(codes: dict[str, set[str]]) -> list[str]:
        """Names with their minors, the newest first."""
        held = [(max(map(known.known.index, minors)), code, minors) for code, minors in codes.items() if minors]
        held.sort(key=lambda each: (-each[0], each[1]))
        return [f"`{code}`" + (f" {known.write(minors)}" if minors != whole else "") for _, code, minors in held]

    by_caller: dict[str, dict[str, set[str]]] = {operator: {} for operator in CALLERS}
    for code, minors in member.callers.items():
        by_caller[operator_of(code)][code] = minors
    called = "; ".join(
        f"{operator}: {', '.join(held)}" for operator, each in by_caller.items() if (held := codes(each))
    )
    rocksdb = "own" + (f" {known.write(member.rocksdb)}" if member.rocksdb != whole else "")
    cells = [
        f"`{name}`",
        known.write(whole),
        "; ".join(codes(member.parameters)),
        called or "nothing",
        rocksdb if member.rocksdb else SPARKS_OWN,
        member.ours,
        member.case,
    ]
    return f"| {' | '.join(cells)} |\n"


def operator_of(caller: str) -> str:
    return next(operator for operator, pattern in CALLERS.items() if re.fullmatch(pattern, caller))


def spark_jar(jars: Path) -> Path:
    """The jar of Spark's operators, in the folder of PySpark's jars."""
    (jar,) = jars.glob("spark-sql_*.jar")
    return jar


def updated(text: str, minor: str, spark: Path, bridge: Path | None = None) -> str:
    """The page's text with what Spark's jar of one minor has, and ours, if it is given."""
    page = read_page(text, Minors(MINORS))
    read_spark(spark, minor, page)
    if bridge is not None:
        read_ours(spark, bridge, page)
    return write_page(page, Minors({*MINORS, minor}))


def page_here(text: str) -> str:
    """The page's text with what the pyspark here has, and, where no supported one is newer, with our provider."""
    spark = spark_jar(Path(pyspark.__file__).parent / "jars")
    return updated(text, SPARK, spark, jar_path() if SPARK not in MINORS[:-1] else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="read the class files of every Spark that is supported")
    options = parser.parse_args()
    text = PAGE.read_text() if PAGE.exists() else ""
    for minor in MINORS if options.all else ():
        if minor != SPARK:
            subprocess.run([sys.executable, "jvm-bridge/build.py", "--fetch", minor], cwd=ROOT, check=True)
            (jars,) = ROOT.glob(f"build/spark-{minor}/lib/python*/site-packages/pyspark/jars")
            text = updated(text, minor, spark_jar(jars))
    PAGE.write_text(page_here(text))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
