package io.dynastate.tests

import java.nio.{ByteBuffer, ByteOrder}
import java.util.Random

import scala.collection.mutable

import io.dynastate.memory.{Attempt, BucketSink, ChangeCollector, ChangedBuckets, ChangeRecords, Chunks, Row, RowTables}
import io.dynastate.memory.{SnapshotRows, Version, VersionOverlay, VersionTree}

import org.apache.spark.unsafe.Platform

/** Content of snapshots: changed buckets, and the rows of a version by bucket; against plain maps, from a seed. */
final class SnapshotChecks(checks: Checks, seed: Long) {
  import Checks._
  import MemoryChecks.{randomBytes, Families, Ignored, Key}
  import SnapshotChecks._
  import checks.check

  def run(): Unit = {
    check("changed buckets: random operations, as a plain model, and never less than what changed") {
      (0 until 20).foreach(round => randomChanges(new Random(seed + 500 + round)))
    }
    check("changed buckets: a bucket is touched if a hash in it is marked")(touched(new Random(seed + 530)))
    check("changed buckets: a version tree has the changes of every version after its first")(
      changesOfTree(new Random(seed + 540)))
    check("changes: the hashes of changes after a snapshot are marked, and no others")(marksOfRuns())
    check("snapshot rows: a version by bucket, while newer versions are folded") {
      (0 to ChangedBuckets.HashBits).foreach(bits => rowsByBucket(new Random(seed + 600 + bits), bits))
    }
    check("snapshot rows: a version with few rows in memory, each of its buckets read once") {
      (0 to ChangedBuckets.HashBits by 2).foreach(bits => rowsOfAbsent(new Random(seed + 640 + bits), bits))
    }
    check("snapshot rows: rows larger than a chunk, long lists, versions without rows")(oddRows(new Random(seed + 620)))
    check("snapshot rows: after a failed send the version's tables are released")(failing(new Random(seed + 630)))
  }

  private def randomChanges(random: Random): Unit = {
    val start = random.nextInt(3) * 10L
    val buckets = new ChangedBuckets(start)
    var floor = start
    var steps = Vector.empty[(Long, Set[Int])]
    val history = mutable.ArrayBuffer.empty[(Long, Set[Int])]
    var version = start
    (0 until 600).foreach { turn =>
      random.nextInt(20) match {
        case 0 =>
          val upTo = math.max(0L, version - random.nextInt(20))
          buckets.forget(upTo)
          floor = math.max(floor, upTo)
          steps = steps.filter(_._1 > floor)
        // A query that is started again from an older batch.
        case 1 => version = math.max(0L, version - random.nextInt(15))
        case _ =>
          version += random.nextInt(3)
          val cells = Seq.fill(random.nextInt(40))(random.nextInt(Cells)).toSet
          buckets.add(version, bitmap(cells))
          history += ((version, cells))
          if (version > floor) steps :+= (version, cells)
          if (steps.size > 64) steps = (math.max(steps(0)._1, steps(1)._1), steps(0)._2 ++ steps(1)._2) +: steps.drop(2)
      }
      val base = math.max(0L, version - random.nextInt(120))
      val mask = buckets.since(base)
      same(mask == null, base < floor, s"whether it is known what changed since $base, floor $floor, turn $turn")
      if (mask != null) {
        same(cellsOf(mask), steps.filter(_._1 > base).flatMap(_._2).toSet, s"changed since $base at turn $turn")
        require(history.filter(_._1 > base).flatMap(_._2).toSet.subsetOf(cellsOf(mask)),
          s"a change since $base is not known at turn $turn")
      }
    }
  }

  private def touched(random: Random): Unit = (0 to ChangedBuckets.HashBits).foreach { bits =>
    (0 until 10).foreach { _ =>
      val hashes = Seq.fill(random.nextInt(30))(random.nextInt())
      val words = new Array[Long](ChangedBuckets.Words)
      hashes.foreach(ChangedBuckets.mark(words, _))
      val expected = hashes.map(bucketOf(_, bits)).toSet
      same((0 until 1 << bits).filter(ChangedBuckets.touches(words, _, bits)).toSet, expected,
        s"buckets of $bits bits")
    }
  }

  private def changesOfTree(random: Random): Unit = {
    val floor = 7L
    val buckets = new ChangedBuckets(floor)
    buckets.add(9, bitmap(Set(1, 2, 3)))
    var version = VersionTree.load(new RowTables, 9, Attempt.random(), "", buckets)
    val changes = mutable.ArrayBuffer[(Long, Set[Int])]((9L, Set(1, 2, 3)))
    (0 until 30).foreach { turn =>
      val open = new VersionOverlay(version, Ignored)
      val keys = Seq.fill(random.nextInt(30))((Families(random.nextInt(Families.length)), Key(random.nextInt(5000))))
      // Some are sent before the others; removed keys have changed, too.
      keys.foreach { case (family, key) =>
        MemoryChecks.put(open, family, key, randomBytes(random, 5))
        if (random.nextInt(4) == 0) MemoryChecks.remove(open, family, key)
        if (random.nextInt(20) == 0) open.flush()
      }
      open.flush()
      val next = open.fold(Attempt.random(), "")
      changes += ((next.number, keys.map(_._2.hash >>> 20).toSet))
      if (random.nextInt(4) > 0) version = next // else its commit failed
      require(version.versions.changed.since(floor - 1) == null, "what changed before the first version is known")
      (floor to next.number).foreach { base =>
        same(cellsOf(version.versions.changed.since(base)), changes.filter(_._1 > base).flatMap(_._2).toSet,
          s"changed since $base at turn $turn")
      }
    }
    val other = VersionTree.load(new RowTables, 20, Attempt.random(), "")
    require(other.versions.changed.since(19) == null && cellsOf(other.versions.changed.since(20)).isEmpty,
      "a version that was loaded begins another tree")
    same(cellsOf(VersionTree.empty("").versions.changed.since(0)), Set.empty[Int], "version 0")
  }

  private def marksOfRuns(): Unit = {
    val keys = (0 until 300).map(Key(_))
    def run(of: Seq[Key]): ByteBuffer = {
      val out = ByteBuffer.allocate(10000).order(ByteOrder.LITTLE_ENDIAN)
      of.foreach { key =>
        val bytes = if (key.number % 3 == 0) Row.probe(key.bytes).bytes else key.put(Array[Byte](1))
        out.putShort((key.number % 4).toShort).put(bytes)
      }
      out.flip()
    }
    val runs = new ChangeCollector
    runs.add(200, run(keys.take(200)))
    same(cellsOf(runs.marked), Set.empty[Int], "rows of the snapshot")
    runs.markFromHere()
    runs.add(60, run(keys.slice(200, 260)))
    runs.add(40, run(keys.drop(260)))
    same(cellsOf(runs.marked), keys.drop(200).map(_.hash >>> 20).toSet, "changes since")
  }

  private def rowsByBucket(random: Random, bits: Int): Unit = {
    var model = Model.empty
    var version = VersionTree.empty("")
    def change(rows: Int): Unit = {
      val open = new VersionOverlay(version, Ignored)
      model = play(random, open, model, rows)
      open.flush()
      version = open.fold(Attempt.random(), "")
    }
    change(4000)
    change(1500)
    // Send the head, then the version below it, then one further below, while new ones are committed.
    (0 until 3).foreach { depth =>
      val (head, expected) = (version, model)
      (0 until depth).foreach(_ => change(800))
      val choice = Array.tabulate(1 << bits)(_ => depth == 0 || random.nextInt(3) > 0)
      var folds = 3
      val sink = new Sorted(bits, choice, () => if (folds > 0) { folds -= 1; change(300) })
      SnapshotRows.send(head, bits, choice, sink)
      same(sink.buckets.toList, choice.indices.filter(choice(_)).toList, "buckets that came")
      val inWanted = expected.filter { case ((_, key), _) => choice(bucketOf(key.hash, bits)) }
      require(sink.rows == inWanted,
        s"the rows by bucket are not those of version $head: ${sink.rows.size}, not ${inWanted.size}, at $bits bits")
    }
  }

  private def rowsOfAbsent(random: Random, bits: Int): Unit = {
    val memory = new MemoryChecks.InBuckets(5000L)
    val (version, model) = MemoryChecks.filled(memory, random, 3000, 1)
    val bucketBits = version.versions.bucketBits(version)
    require(bucketBits > 4, s"the version has 2^$bucketBits buckets")
    val choice = Array.tabulate(1 << bits)(_ => bits == 0 || random.nextInt(3) > 0)
    val sink = new Sorted(bits, choice, () => ())
    val (reads, cacheBytes) = (memory.reads, memory.cache.bytes)
    SnapshotRows.send(version, bits, choice, sink)
    require(memory.reads - reads <= (1 << bucketBits),
      s"${memory.reads - reads} reads of ${1 << bucketBits} buckets at $bits bits")
    same(memory.cache.bytes, cacheBytes, "what is in memory was not driven out")
    same(sink.buckets.toList, choice.indices.filter(choice(_)).toList, "buckets that came")
    val expected =
      model.collect { case (at @ (_, key), value) if choice(bucketOf(key.hash, bits)) => at -> Vector(value) }
    require(sink.rows == expected,
      s"the rows by bucket are not those of the version: ${sink.rows.size}, not ${expected.size}, at $bits bits")
  }

  private def oddRows(random: Random): Unit = {
    val none = new Sorted(3, Array.fill(8)(true), () => ())
    SnapshotRows.send(VersionTree.empty(""), 3, Array.fill(8)(true), none)
    same((none.buckets.toList, none.rows), ((0 until 8).toList, Model.empty), "version 0")
    SnapshotRows.send(VersionTree.empty(""), 3, new Array[Boolean](8), none)
    same(none.buckets.size, 8, "no bucket is wanted")
    val open = new VersionOverlay(VersionTree.empty(""), Ignored)
    var model = Model.empty
    Seq(0, 1, Chunks.Bytes - 100, Chunks.Bytes, 1000000, 3000000, 10).zipWithIndex.foreach { case (size, number) =>
      val value = randomBytes(random, size)
      MemoryChecks.put(open, number % 2, Key(number), value)
      model += (number % 2, Key(number)) -> Vector(value.toSeq)
    }
    (0 until 3000).foreach { at =>
      val value = randomBytes(random, if (at % 500 == 0) 300000 else random.nextInt(200))
      merge(open, 0, Key(100), value)
      model += (0, Key(100)) -> (model.getOrElse((0, Key(100)), Vector.empty) :+ value.toSeq)
    }
    open.flush()
    val version = open.fold(Attempt.random(), "")
    Seq(0, 2).foreach { bits =>
      val all = Array.fill(1 << bits)(true)
      val sink = new Sorted(bits, all, () => ())
      SnapshotRows.send(version, bits, all, sink)
      require(sink.rows == model, s"the rows by bucket are not those of the version at $bits bits")
    }
  }

  private def failing(random: Random): Unit = {
    val open = new VersionOverlay(VersionTree.empty(""), Ignored)
    play(random, open, Model.empty, 2000)
    open.flush()
    val version = open.fold(Attempt.random(), "")
    def slots = {
      val shares = Families.map(version.versions.share(version, _, 0).head)
      shares.foreach(_.release())
      shares.toList
    }
    // A removal takes no slot, so that only a reader makes the tables copy theirs.
    def removeOne(): Version = {
      val next = new VersionOverlay(version, Ignored)
      Families.foreach { family =>
        val rows = next.rows(family)
        rows.advance()
        val key = Key.of(rows.row)
        rows.close()
        MemoryChecks.remove(next, family, key)
      }
      next.flush()
      next.fold(Attempt.random(), "")
    }
    val first = slots
    val all = Array.fill(16)(true)
    mustFail("the sink is full")(SnapshotRows.send(version, 4, all,
        new Sorted(4, all, () => sys.error("the sink is full"))))
    val next = removeOne()
    val second = Families.map { family =>
      val top = next.versions.share(next, family, 0).head
      top.release()
      top
    }.toList
    require(
      first.zip(second).forall { case (one, other) => one eq other }, "slots were copied: someone still holds them")
  }

  private def play(random: Random, open: VersionOverlay, base: Model, rows: Int): Model = {
    var model = base
    (0 until rows).foreach { _ =>
      val at = (Families(random.nextInt(Families.length)), Key(random.nextInt(3000)))
      val value = randomBytes(random, random.nextInt(60))
      random.nextInt(4) match {
        case 0 =>
          MemoryChecks.remove(open, at._1, at._2)
          model -= at
        case 1 =>
          MemoryChecks.put(open, at._1, at._2, value)
          model += at -> Vector(value.toSeq)
        case _ =>
          merge(open, at._1, at._2, value)
          model += at -> (model.getOrElse(at, Vector.empty) :+ value.toSeq)
      }
      if (random.nextInt(1000) == 0) open.flush()
    }
    model
  }

  private def merge(open: VersionOverlay, family: Int, key: Key, value: Array[Byte]): Unit =
    open.merge(family, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length, value, Platform.BYTE_ARRAY_OFFSET,
      value.length)
}

private object SnapshotChecks {
  import Checks._
  import MemoryChecks.{valueOf, Key}

  /** The values of each key. */
  type Model = Map[(Int, Key), Vector[Seq[Byte]]]

  object Model {
    val empty: Model = Map.empty
  }

  val Cells: Int = 1 << ChangedBuckets.HashBits

  def bitmap(cells: Set[Int]): Array[Long] = {
    val bits = new Array[Long](ChangedBuckets.Words)
    cells.foreach(cell => ChangedBuckets.mark(bits, cell << 20))
    bits
  }

  def cellsOf(bits: Array[Long]): Set[Int] =
    (0 until Cells).filter(cell => (bits(cell / 64) >>> cell % 64 & 1) == 1).toSet

  def bucketOf(hash: Int, bits: Int): Int = ((hash & 0xffffffffL) >>> 32 - bits).toInt

  /** Collects the rows of buckets, and checks the rules of docs/protocol.md. `onBucket` is called at each bucket. */
  final class Sorted(bits: Int, choice: Array[Boolean], onBucket: () => Unit) extends BucketSink {
    val buckets = mutable.ArrayBuffer.empty[Int]
    var rows: Model = Model.empty

    override def bucket(number: Int): Unit = {
      require(choice(number), s"bucket $number is not wanted")
      require(buckets.isEmpty || buckets.last < number, s"bucket $number after ${buckets.last}")
      buckets += number
      onBucket()
    }

    override def append(records: Int, hashMin: Int, hashMax: Int, run: Array[Byte], length: Int): Unit = {
      require(records > 0 && (length <= Chunks.Bytes || records == 1), s"a chunk of $length bytes and $records records")
      val changes = new ChangeRecords(ByteBuffer.wrap(run, 0, length).order(ByteOrder.LITTLE_ENDIAN))
      val hashes = mutable.ArrayBuffer.empty[Long]
      while (changes.advance()) {
        val at = (changes.family, Key.of(changes.row))
        require(!changes.row.isDelete, s"$at is removed")
        same(changes.isMerge, rows.contains(at), s"whether $at came before")
        same(bucketOf(at._2.hash, bits), buckets.last, s"bucket of $at")
        rows += at -> (rows.getOrElse(at, Vector.empty) :+ valueOf(changes.row))
        hashes += at._2.hash & 0xffffffffL
      }
      same(hashes.size, records, "records")
      same((hashMin & 0xffffffffL, hashMax & 0xffffffffL), (hashes.min, hashes.max), "bounds of hashes")
    }
  }
}
