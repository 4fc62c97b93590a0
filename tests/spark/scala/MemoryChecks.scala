package io.dynastate.tests

import java.io.ByteArrayOutputStream
import java.nio.{ByteBuffer, ByteOrder}
import java.util.Random
import java.util.concurrent.CompletableFuture

import scala.collection.mutable

import io.dynastate.memory.{
  Attempt, BucketCache, BucketedVersions, BucketSink, BucketSource, ChangeCollector, ChangedBuckets, ChangeRecords,
  ChangeSink
}
import io.dynastate.memory.{
  Chunks, EncodedRow, HeldChanges, LoadingVersions, Row, RowIterator, RowTable, RowTables, RowsUnreadable, SlotIterator,
  Slots, SnapshotRows
}
import io.dynastate.memory.{Version, VersionOverlay, VersionTree}

import org.apache.spark.unsafe.Platform

/** The provider's memory (RowTable, VersionTree, VersionOverlay) against plain maps, with random operations from a
 * seed.
 */
final class MemoryChecks(checks: Checks, seed: Long) {
  import Checks._
  import MemoryChecks._
  import checks.{check, rounds}

  def run(): Unit = {
    check("row table: random operations, as a plain map") {
      randomTable(new Random(seed), new RowTable(_),
        bytes => EncodedRow.hash(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length), steps = 20000, largeBytes = 60000)
    }
    check("row table: random operations with all full pages on disk, as a plain map") {
      Seq(512, 20000).foreach { pageBytes =>
        val storage = DiskChecks.storage(0, pageBytes)
        randomTable(new Random(seed), _ => new RowTables(storage)(0),
          bytes => EncodedRow.hash(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length), steps = 10000, largeBytes = 60000)
        require(storage.diskBytes > 0, "nothing was on disk")
      }
    }
    check("row table: keys with few different hashes are distinguished") {
      // So few steps that no garbage is collected, for which the table computes hashes.
      val random = new Random(seed + 1)
      (0 until 50).foreach(_ =>
        randomTable(random, new RowTable(_), bytes => (bytes.length % 3) << 30, steps = 400, largeBytes = 0))
    }
    check("row table: a load leaves garbage where there is room, which later changes do not evacuate at once") {
      garbageOfLoad(new Random(seed + 3))
    }
    check("row table: shared slots do not change, and slots by hash are in order") {
      sharedSlots(new Random(seed + 2))
    }
    check("row table: after a peak, iterators walk few slots again")(shrinks())
    check("row table: filled in the order of another one, or of hashes, a table has no corner for all keys") {
      fillInOrder()
    }
    check("overlay: several at once, puts, removes, gets, iterators and folds, as plain maps") {
      rounds(30).foreach(round => new Play(new Random(seed + 100 + round), InTree).run(1500))
    }
    check("overlay: the same, with all full pages on disk, or some of them") {
      rounds(30).foreach { round =>
        val memory = new DiskChecks.OnDisk(Seq(0L, 6000L)(round % 2), isEncrypted = round % 3 == 0)
        new Play(new Random(seed + 100 + round), memory).run(1500)
        require(memory.storage.diskBytes > 0, "nothing was on disk")
      }
    }
    check("overlay: the same, with a disk that fails in between") {
      val failures = rounds(30).count { round =>
        val memory = new DiskChecks.FailingDisk(Seq(0L, 6000L)(round % 2), failsAt = 300 + 40 * round, round)
        new Play(new Random(seed + 900 + round), memory).run(1500)
        !memory.storage.isUsable
      }
      require(failures > rounds(20).size, s"of ${rounds(30).size} disks $failures failed")
    }
    check("buckets: the same, with room for some, one or none of them") {
      rounds(30).foreach(round =>
        new Play(new Random(seed + 700 + round), new InBuckets(Seq(0L, 800L, 20000L)(round % 3))).run(1500))
    }
    check("buckets: scans by range, in one pass and in many, as a plain map") {
      rounds(6).foreach(round => scansOfBuckets(new Random(seed + 800 + round), round % 2 == 0))
    }
    check("buckets: rows stay within the limit, new rows until they are durable, closed versions release theirs") {
      limitOfBuckets(new Random(seed + 820))
    }
    check("buckets: before any row is read, their number gives the size of the state") {
      val memory = new InBuckets(0L)
      val tree = new BucketedVersions(memory.cache, memory, 0L)
      val bytes = tree.stateBytes(tree.absent(7, Attempt.random(), "", Array(500L), 5))
      require(bytes > 31 * BucketedVersions.BucketBytes && bytes <= 32 * BucketedVersions.BucketBytes,
        s"$bytes bytes in 32 buckets")
    }
    check("buckets: a bucket that cannot be read is an error, and is read again the next time") {
      brokenSource(new Random(seed + 830))
    }
    check("held changes: by buckets, in two steps, they make the rows that all changes make") {
      rounds(20).foreach(round => heldChanges(new Random(seed + 860 + round)))
    }
    check("buckets: a commit reads several in one request, as many as there is room for") {
      severalAtOnce(new Random(seed + 880))
    }
    check("a version being loaded: needed rows are read with their buckets, other operations wait for the load") {
      onItsWay(new Random(seed + 840))
    }
    check("a version being loaded: reads of too many buckets wait for the load")(
      askedForTooMuch(new Random(seed + 850)))
    check("overlay: the sent changes, applied to the base, make the new version") {
      rounds(10).foreach(round => sentChanges(new Random(seed + 200 + round)))
    }
    check("overlay: rows larger than a chunk, and than the changes that are collected") {
      largeRows(new Random(seed + 300))
    }
    check("version tree: every referenced version stays readable while the head moves") {
      toAndFro(new Random(seed + 400), InTree)
    }
    check("version tree: the same, with rows on disk")(toAndFro(new Random(seed + 400), new DiskChecks.OnDisk(0)))
    check("version tree: a version without references is garbage") {
      garbage()
    }
    check("lists: short and long ones, in a tree, as plain lists") {
      rounds(8).foreach(round => new Lists(new Random(seed + 600 + round), InTree, hasRetries = true).run())
    }
    check("lists: short and long ones, on disk, as plain lists") {
      rounds(8).foreach(round =>
        new Lists(new Random(seed + 600 + round), new DiskChecks.OnDisk(0, isEncrypted = round % 2 == 0),
          hasRetries = true).run())
    }
    check("lists: short and long ones, on a disk that fails in between, as plain lists") {
      val failures = rounds(16).count { round =>
        val memory = new DiskChecks.FailingDisk(0, failsAt = 150 + 25 * round, round)
        new Lists(new Random(seed + 660 + round), memory, hasRetries = true).run()
        !memory.storage.isUsable
      }
      require(failures > rounds(10).size, s"of ${rounds(16).size} disks $failures failed")
    }
    check("lists: short and long ones, in buckets, as plain lists") {
      rounds(9).foreach(round =>
        new Lists(new Random(seed + 620 + round), new InBuckets(Seq(0L, 30000L, 10000000L)(round % 3)),
          hasRetries = false).run())
    }
    check("version tree: what folds leave as garbage is freed, and every row stays") {
      compacted(new Random(seed + 500), InTree)
    }
    check("version tree: the same, of rows on disk") {
      val memory = new DiskChecks.OnDisk(200000, pageBytes = 8192)
      compacted(new Random(seed + 500), memory)
      val (heap, disk) = (memory.storage.heapBytes, memory.storage.diskBytes)
      require(heap < 1000000 && disk > 0, s"$heap bytes of heap, $disk bytes of disk")
    }
  }

  private def randomTable(random: Random, make: Int => RowTable, hash: Array[Byte] => Int, steps: Int,
      largeBytes: Int): Unit = {
    var table = make(random.nextInt(40))
    val model = mutable.HashMap.empty[Key, Seq[Byte]]
    val (row, target) = (new Row, new Row)
    val copies = mutable.ListBuffer.empty[(Row, Seq[Byte])]
    var isOrdered = false
    (0 until steps).foreach { step =>
      val key = Key(random.nextInt(700))
      val (base, at, length) = (key.bytes, Platform.BYTE_ARRAY_OFFSET.toLong, key.bytes.length)
      val expected = model.get(key)
      def expect(hasRow: Boolean, what: String): Unit =
        same((if (hasRow) Some(valueOf(target)) else None): Option[Seq[Byte]], expected, s"$what $key at step $step")
      random.nextInt(5) match {
        case 0 | 1 =>
          // Large ones too, so that pages become garbage.
          val value = randomBytes(
            random, if (largeBytes > 0 && random.nextInt(20) == 0) random.nextInt(largeBytes) else random.nextInt(30))
          expect(table.put(hash(key.bytes), Row.of(key.put(value)), target, null), "put")
          model(key) = value.toSeq
        case 2 =>
          expect(table.remove(hash(key.bytes), base, at, length, target), "remove")
          model.remove(key)
        case _ =>
          val isThere = table.get(hash(key.bytes), base, at, length, target)
          expect(isThere, "get")
          if (isThere && random.nextInt(50) == 0) {
            val copy = new Row
            require(table.get(hash(key.bytes), base, at, length, copy), "a row is gone")
            copies += ((copy, expected.get))
          }
      }
      if (step == steps / 4 || isOrdered && step % 500 == 0) {
        isOrdered = true
        inOrder(table, model, step)
      }
      if (random.nextInt(3000) == 0 && table.heapBytes >= table.bytes) table = table.copy()
      same(table.size, model.size)
    }
    val slots = table.share()
    val entries = (0 until slots.capacity).filterNot(slots.isFree).map { slot =>
      slots.read(slot, row); Key.of(row) -> valueOf(row)
    }
    slots.release()
    same(entries.size, model.size, "entries in slots")
    same(entries.toMap, model.toMap, "rows in slots")
    copies.foreach { case (kept, value) => same(valueOf(kept), value, "a row that was read before") }
    val live = model.map { case (key, value) => 16L + key.bytes.length + value.length }.sum
    require(table.heapBytes < 2 * live + 4 * (1 << 20), s"${table.heapBytes} bytes of heap for $live bytes of rows")
  }

  /** The rows of a table in the order of their keys are the model's. */
  private def inOrder(table: RowTable, model: mutable.HashMap[Key, Seq[Byte]], step: Int): Unit = {
    val cursor = table.inOrder.range(null, inclusive = true, null)
    val row = new Row
    val pairs = mutable.ArrayBuffer.empty[(Key, Seq[Byte])]
    while (cursor.advance(row)) pairs += Key.of(row) -> valueOf(row)
    val expected =
      model.toSeq.sortWith((one, other) => java.util.Arrays.compareUnsigned(one._1.bytes, other._1.bytes) < 0)
    same(pairs.toSeq, expected, s"rows in order at step $step")
  }

  private def garbageOfLoad(random: Random): Unit = {
    val (rows, pageBytes) = (20000, 4096)
    def change(table: RowTable, number: Int): Unit = {
      val key = Key(number)
      table.put(key.hash, Row.of(key.put(randomBytes(random, 60))))
      ()
    }
    def made(isLoad: Boolean, heapLimit: Long): RowTable = {
      val table = new RowTables(DiskChecks.storage(heapLimit, pageBytes), isLoad)(0)
      (0 until rows).foreach(change(table, _))
      // As many changes as the default snapshotThreshold lets come after a snapshot.
      (0 until rows * 5 / 4).foreach(_ => change(table, random.nextInt(rows)))
      table
    }
    def share(table: RowTable): Double = table.heapBytes.toDouble / table.bytes
    require(share(made(isLoad = false, Long.MaxValue)) < 1.6, "changes leave too much garbage")
    val table = made(isLoad = true, Long.MaxValue)
    require(share(table) > 1.9 && share(table) < 2.5, s"a load leaves ${share(table)} times the rows")
    val heapBytes = table.heapBytes
    change(table, 1)
    require(table.heapBytes >= heapBytes - 2 * pageBytes, s"one change freed ${heapBytes - table.heapBytes} bytes")
    while (table.evacuate(1.0 / 8)) {}
    (0 until 2 * rows).foreach(_ => change(table, random.nextInt(rows)))
    require(share(table) < 1.6, s"after the load changes leave ${share(table)} times the rows")
    val tight = made(isLoad = true, heapLimit = 3 * table.bytes)
    require(share(tight) < 1.75, s"a load of more than half of the heap leaves ${share(tight)} times the rows")
  }

  private def sharedSlots(random: Random): Unit = {
    val table = new RowTable()
    def set(number: Int): Unit = {
      val key = Key(number)
      table.put(key.hash, Row.of(key.put(randomBytes(random, 8))))
      ()
    }
    (0 until 300).foreach(set)
    val shares = mutable.ListBuffer.empty[(Slots, Map[Key, Seq[Byte]])]
    (0 until 40).foreach { turn =>
      val slots = table.share()
      shares += ((slots, rowsOf(slots)))
      (0 until 30).foreach { _ =>
        if (random.nextBoolean()) set(random.nextInt(600))
        else {
          val key = Key(random.nextInt(600));
          table.remove(key.hash, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length, new Row)
        }
      }
      shares.foreach { case (shared, expected) => same(rowsOf(shared), expected, s"shared slots after turn $turn") }
    }
    shares.foreach(_._1.release())
    val slots = table.share()
    val positions = table.slotsByHash()
    same(positions.length, table.size)
    same(positions.toSet, (0 until slots.capacity).filterNot(slots.isFree).toSet)
    require(positions.map(slots.hashAt(_) >>> 24).sliding(2).forall(pair => pair.length < 2 || pair(0) <= pair(1)),
      "slots are not in order of hashes")
    slots.release()
  }

  private def shrinks(): Unit = {
    val table = new RowTable()
    val rows = (0 until 100000).map(Key(_))
    rows.foreach(key => table.put(key.hash, Row.of(key.put(new Array[Byte](100)))))
    val full = table.heapBytes
    val (rest, victims) = rows.partition(_.number % 10000 == 0)
    victims.foreach(key =>
      require(table.remove(key.hash, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length, new Row),
        s"$key is not there"))
    val slots = table.share()
    require(slots.capacity <= 8 * 16, s"${slots.capacity} slots for ${table.size} rows")
    same(rowsOf(slots), rest.map(_ -> Seq.fill[Byte](100)(0)).toMap)
    slots.release()
    require(table.heapBytes < 4 * (1 << 20), s"${table.heapBytes} bytes of heap, at the peak $full")
  }

  private def rowsOf(slots: Slots): Map[Key, Seq[Byte]] = {
    val row = new Row
    (0 until slots.capacity).filterNot(slots.isFree).map { slot =>
      slots.read(slot, row); Key.of(row) -> valueOf(row)
    }.toMap
  }

  private def fillInOrder(): Unit = {
    val rows = 200000
    def fill(order: Seq[Row], what: String): RowTable = {
      val table = new RowTable()
      order.grouped(5000).foreach { some =>
        some.foreach(row => table.put(EncodedRow.hash(row.bytes, row.at), row))
        val slots = table.share()
        val distance =
          (0 until slots.capacity).filterNot(slots.isFree).map(slots.distanceFromHome(_).toLong).sum / table.size
        // 1.5 in a table that is three quarters full, 120 in a small one that grows, 16,000 where all keys are in one
        // corner.
        require(distance < 1000, s"filled in the order of $what, rows of ${table.size} are $distance slots from home")
        slots.release()
      }
      table
    }
    val source = fill((0 until rows).map(number => Row.of(Key(number).put(Array[Byte](1)))), "numbers")
    val slots = source.share()
    def at(slot: Int): Row = {
      val row = new Row
      slots.read(slot, row)
      row
    }
    fill((0 until slots.capacity).filterNot(slots.isFree).map(at), "slots")
    fill(source.slotsByHash().toSeq.map(at), "hashes")
    slots.release()
  }

  private def sentChanges(random: Random): Unit = {
    var model = Map.empty[(Int, Key), Seq[Byte]]
    var version = VersionTree.empty("")
    (0 until 4).foreach { _ =>
      val sink = new Replay(model)
      val open = new VersionOverlay(version, sink)
      val rows = 200 + random.nextInt(4000)
      (0 until rows).foreach { _ =>
        val family = Families(random.nextInt(Families.length))
        val key = Key(random.nextInt(3000))
        if (random.nextInt(4) == 0) {
          remove(open, family, key)
          model -= ((family, key))
        } else {
          val value = randomBytes(random, random.nextInt(3000))
          put(open, family, key, value)
          model += (family, key) -> value.toSeq
        }
        if (random.nextInt(2000) == 0) open.flush()
      }
      open.flush()
      require(sink.state == model, "what was sent does not lead to the new version")
      version = open.fold(Attempt.random(), "")
      open.show(version)
      compare(open, model, "after the fold")
    }
  }

  private def largeRows(random: Random): Unit = {
    val sizes = Seq(0, 1, Chunks.Bytes - 100, Chunks.Bytes, Chunks.Bytes + 1, 1000000, 5000000, 10, 300000, 20)
    val sink = new Replay(Map.empty)
    val open = new VersionOverlay(VersionTree.empty(""), sink)
    val model = sizes.zipWithIndex.map { case (size, number) =>
      val value = randomBytes(random, size)
      put(open, 0, Key(number), value)
      (0, Key(number)) -> value.toSeq
    }.toMap
    open.flush()
    require(sink.state == model, "what was sent is not what was put")
    open.show(open.fold(Attempt.random(), ""))
    compare(open, model, "after the fold")
  }

  private def toAndFro(random: Random, memory: Memory): Unit = {
    var versions = Vector[(Version, Map[(Int, Key), Seq[Byte]])]((memory.empty, Map.empty))
    (0 until 60).foreach { turn =>
      // Mostly the newest, as in batches; sometimes an old one, as in retries and rollbacks.
      val (base, rows) = if (random.nextInt(3) > 0) versions.last else versions(random.nextInt(versions.size))
      var model = rows
      val open = new VersionOverlay(base, new Replay(model))
      (0 until random.nextInt(80)).foreach { _ =>
        val (family, key) = (Families(random.nextInt(Families.length)), Key(random.nextInt(200)))
        if (random.nextInt(3) == 0) { remove(open, family, key); model -= ((family, key)) }
        else {
          val value = randomBytes(random, 6); put(open, family, key, value); model += (family, key) -> value.toSeq
        }
      }
      open.flush()
      val next = open.fold(Attempt.random(), "")
      same(next.number, base.number + 1)
      same(next.added, (model.size - rows.size).toLong, s"values that version $next adds")
      // Every third commit fails: its version is discarded, and the others are unchanged.
      if (random.nextInt(3) > 0) versions = versions :+ ((next, model))
      if (versions.size > 8) versions = versions.patch(random.nextInt(versions.size), Nil, 1)
      versions.foreach { case (version, expected) =>
        compare(new VersionOverlay(version, new Replay(expected)), expected, s"version $version at turn $turn")
        Families.foreach { family =>
          val keys = if (family < version.keys.length) version.keys(family) else 0L
          same(keys, expected.keys.count(_._1 == family).toLong, s"keys of family $family at $version")
        }
      }
    }
  }

  private def scansOfBuckets(random: Random, isInManyPasses: Boolean): Unit = {
    // A pass returns at least 1,024 rows.
    val (version, model) = filled(new InBuckets(if (isInManyPasses) 500L else 500000L), random, 2500, 2)
    val open = new VersionOverlay(version, new Replay(model))
    var expected = model
    (0 until 300).foreach { _ =>
      val key = Key(random.nextInt(3000))
      if (random.nextBoolean()) { remove(open, 2, key); expected -= ((2, key)) }
      else { put(open, 2, key, Array[Byte](7)); expected += (2, key) -> Seq[Byte](7) }
    }
    val inOrder = expected.keys.map(_._2).toArray.sortWith((one, other) =>
      java.util.Arrays.compareUnsigned(one.bytes, other.bytes) < 0)
    val bounds = Seq((null, null)) ++ Seq.fill(5) {
      val Array(from, to) = Array(Key(random.nextInt(3000)), Key(random.nextInt(3000)))
      if (java.util.Arrays.compareUnsigned(from.bytes, to.bytes) <= 0) (from, to) else (to, from)
    }
    bounds.foreach { case (from, to) =>
      val rows = open.scan(2, if (from == null) null else from.bytes, if (to == null) null else to.bytes)
      val keys = mutable.ArrayBuffer.empty[Key]
      while (rows.advance()) keys += Key.of(rows.row)
      val expected = inOrder.filter { key =>
        (from == null || java.util.Arrays.compareUnsigned(key.bytes, from.bytes) >= 0) &&
        (to == null || java.util.Arrays.compareUnsigned(key.bytes, to.bytes) < 0)
      }
      require(keys.toSeq == expected.toSeq, s"a scan from $from to $to gives ${keys.size} rows, not ${expected.length}")
    }
  }

  private def limitOfBuckets(random: Random): Unit = {
    val limit = 60000L
    val memory = new InBuckets(limit)
    var (version, model) = filled(memory, random, 5000, 0)
    require(version.versions.stateBytes(version) > 4 * limit,
      s"state of ${version.versions.stateBytes(version)} bytes is not much more than the limit")
    (0 until 40).foreach { turn =>
      val open = new VersionOverlay(version, new Replay(model))
      (0 until 50).foreach { _ =>
        val key = Key(random.nextInt(5000))
        same(get(open, 0, key), model.get((0, key)), s"get of $key at turn $turn")
        require(memory.cache.bytes <= limit, s"${memory.cache.bytes} bytes are in memory at turn $turn")
        put(open, 0, key, Array[Byte](turn.toByte))
        model += (0, key) -> Seq(turn.toByte)
      }
      open.flush()
      val next = open.fold(Attempt.random(), "")
      memory.committed(next, model)
      version = next
      val heapBytes = version.versions.heapBytes(version)
      require(memory.cache.bytes <= limit && heapBytes > 0 && heapBytes <= limit,
        s"$heapBytes bytes of a version are in memory at turn $turn")
    }
    val reads = memory.reads
    val open = new VersionOverlay(version, new Replay(model))
    (0 until 100).foreach(_ => same(get(open, 0, Key(7)), model.get((0, Key(7)))))
    require(memory.reads <= reads + 1, "a bucket that is in use is read again and again")
    version.versions.close()
    same((memory.cache.bytes, version.versions.heapBytes(version)), (0L, 0L), "bytes after the end")
    compare(new VersionOverlay(version, new Replay(model)), model, "after the end: it is read again")
  }

  private def onItsWay(random: Random): Unit = {
    val memory = new InBuckets(0L)
    val (durable, model) = filled(memory, random, 3000, 0)
    def begin(whole: CompletableFuture[CompletableFuture[Version]]): Version =
      new LoadingVersions(memory, each => require(whole.complete(each), "the load began twice")).begin(durable.number,
        durable.attempt, "", durable.keys, 4)
    val whole = new CompletableFuture[CompletableFuture[Version]]
    val version = begin(whole)
    require(!whole.isDone, "the load began before the first row was asked for")
    same((version.number, version.attempt, version.keys.toSeq), (durable.number, durable.attempt, durable.keys.toSeq))
    val open = new VersionOverlay(version, new Replay(model))
    var expected = model
    val reads = memory.reads
    (0 until 400).foreach { _ =>
      val key = Key(random.nextInt(3500))
      same(get(open, 0, key), expected.get((0, key)), s"get of $key")
      if (random.nextBoolean()) { put(open, 0, key, Array[Byte](9)); expected += (0, key) -> Seq[Byte](9) }
      else { remove(open, 0, key); expected -= ((0, key)) }
    }
    require(memory.reads - reads <= 16, s"${memory.reads - reads} reads of 16 buckets")
    require(version.versions.heapBytes(version) > 0, "what came is not counted")
    val tree = VersionTree.load(rowsOf(model), durable.number, durable.attempt, "")
    val late = new Thread(() => { Thread.sleep(300); whole.get.complete(tree); () })
    late.start()
    compare(open, expected, "while all rows come")
    late.join()
    open.flush()
    val next = open.fold(Attempt.random(), "")
    same(next.keys.sum, expected.size.toLong, "keys")
    val count = memory.reads
    compare(new VersionOverlay(next, new Replay(expected)), expected, "the next version")
    compare(new VersionOverlay(version, new Replay(model)), model, "the version, when it is there")
    same(memory.reads, count, "buckets that were read though all rows were there")
    val load = new CompletableFuture[CompletableFuture[Version]]
    val overlay = new VersionOverlay(begin(load), new Replay(model))
    load.thenAccept(each => { each.completeExceptionally(new IllegalStateException("the load failed")); () })
    mustFail("the load failed")(entries(overlay, 0))
    same(get(overlay, 0, Key(7)), model.get((0, Key(7))), "a single row all the same")
    put(overlay, 0, Key(7), Array[Byte](1))
    overlay.flush()
    mustFail("the load failed")(overlay.fold(Attempt.random(), ""))
  }

  private def askedForTooMuch(random: Random): Unit = {
    val memory = new InBuckets(0L)
    val (durable, model) = filled(memory, random, 3000, 0)
    val whole = new CompletableFuture[CompletableFuture[Version]]
    val version = new LoadingVersions(memory, each => { whole.complete(each); () }).begin(durable.number,
      durable.attempt, "", durable.keys, 8)
    val count = memory.reads
    var wrong = Option.empty[Throwable]
    val reader = new Thread(() => {
      try {
        val open = new VersionOverlay(version, new Replay(model))
        (0 until 3500).foreach(each => same(get(open, 0, Key(each)), model.get((0, Key(each))), s"get of $each"))
      } catch { case e: Throwable => wrong = Some(e) }
    })
    reader.start()
    while (reader.isAlive && reader.getState != Thread.State.WAITING) Thread.sleep(5)
    require(reader.isAlive, s"it did not wait: $wrong")
    same(memory.reads - count, 16, "buckets that were read singly")
    whole.get.complete(VersionTree.load(rowsOf(model), durable.number, durable.attempt, ""))
    reader.join()
    wrong.foreach(throw _)
    same(memory.reads - count, 16, "buckets that were read in all")
  }

  private def heldChanges(random: Random): Unit = {
    def chunk(): ByteBuffer = {
      val out = new ByteArrayOutputStream
      (0 until 1 + random.nextInt(60)).foreach { _ =>
        val key = Key(random.nextInt(200))
        val operation = random.nextInt(3)
        val bytes = if (operation == 2) Row.probe(key.bytes).bytes else key.put(randomBytes(random, 9))
        val tag = (if (operation == 1) 1 << 12 else 0) | random.nextInt(2)
        out.write(tag & 0xff)
        out.write(tag >>> 8)
        out.write(bytes)
      }
      ByteBuffer.wrap(out.toByteArray).order(ByteOrder.LITTLE_ENDIAN)
    }
    def count(chunk: ByteBuffer): Int = {
      val records = new ChangeRecords(chunk.duplicate().order(ByteOrder.LITTLE_ENDIAN))
      Iterator.continually(records.advance()).takeWhile(identity).size
    }
    def add(collector: ChangeCollector, chunk: ByteBuffer): Unit =
      collector.add(count(chunk), chunk.duplicate().order(ByteOrder.LITTLE_ENDIAN))
    def textOf(rows: RowTables): Set[(Int, Seq[Seq[Byte]])] = {
      val content = mutable.HashSet.empty[(Int, Seq[Seq[Byte]])]
      rows.foreach { (family, table) =>
        val all = new SlotIterator(Array(table.share()), showAll = true)
        while (all.advance()) content += family -> (all.row.key.toSeq +: valuesOf(all.row))
      }
      content.toSet
    }
    val (snapshot, early, late, last) = (Seq.fill(2)(chunk()), Seq.fill(5)(chunk()), Seq.fill(3)(chunk()), chunk())
    val bits = random.nextInt(4)
    val first = HeldChanges.after(3, bits)
    early.foreach(each => first.add(each.duplicate().order(ByteOrder.LITTLE_ENDIAN)))
    val (one, two) = (Attempt.random(), Attempt.random())
    val prefix = first.upTo(7, one)
    val more = prefix.builder
    late.foreach(each => more.add(each.duplicate().order(ByteOrder.LITTLE_ENDIAN)))
    val all = more.upTo(9, two)
    same((all.snapshot, all.version, all.attempt, all.isEmpty, HeldChanges.None.isEmpty), (3L, 9L, two, false, true))
    require(all.heapBytes > prefix.heapBytes && prefix.heapBytes > early.map(_.remaining).sum, "bytes of heap")
    Seq((prefix, early, 7L), (all, early ++ late, 9L)).foreach { case (each, changes, version) =>
      same(each.version, version)
      val readBits = bits + random.nextInt(3)
      val buckets = (0 until 1 << readBits).filter(_ => random.nextBoolean())
      def collector = new ChangeCollector(hash => buckets.contains(ChangedBuckets.bucketOf(hash, readBits)))
      val (expected, actual) = (collector, collector)
      (snapshot ++ changes :+ last).foreach(add(expected, _))
      snapshot.foreach(add(actual, _))
      each.addTo(actual, readBits, buckets)
      add(actual, last)
      same(textOf(actual.asRows), textOf(expected.asRows), s"rows of $buckets of $readBits bits")
    }
  }

  private def severalAtOnce(random: Random): Unit = Seq(0L -> 64, (1L << 20) -> 2).foreach { case (limit, expected) =>
    val memory = new InBuckets(limit)
    val (durable, model) = filled(memory, random, 3000, 0)
    val tree = new BucketedVersions(memory.cache, memory, durable.number, 400L)
    val open = new VersionOverlay(tree.absent(durable.number, durable.attempt, "", durable.keys, 6), new Replay(model))
    (0 until 3000).foreach(each => put(open, 0, Key(each), Array[Byte](9)))
    open.flush()
    val count = memory.reads
    same(open.fold(Attempt.random(), "").keys.sum, 3000L, "keys")
    same(memory.reads - count, expected, s"requests for 64 buckets with room for $limit bytes")
  }

  private def rowsOf(model: Map[(Int, Key), Seq[Byte]]): RowTables = {
    val rows = new RowTables
    model.foreach { case ((family, key), value) => rows(family).put(key.hash, Row.of(key.put(value.toArray))) }
    rows
  }

  private def brokenSource(random: Random): Unit = {
    val memory = new InBuckets(0L)
    val (version, model) = filled(memory, random, 200, 0)
    val open = new VersionOverlay(version, new Replay(model))
    memory.isBroken = true
    mustFail("the source is broken")(get(open, 0, Key(5)))
    put(open, 0, Key(5), Array[Byte](1))
    open.flush()
    mustFail("the source is broken")(open.fold(Attempt.random(), ""))
    memory.isBroken = false
    same(get(open, 0, Key(6)), model.get((0, Key(6))))
    val next = open.fold(Attempt.random(), "")
    val expected = model + ((0, Key(5)) -> Seq[Byte](1))
    memory.committed(next, expected)
    compare(new VersionOverlay(next, new Replay(expected)), expected, "after the source was mended")
    same(next.keys.sum, expected.size.toLong, "keys")
  }

  private def garbage(): Unit = {
    var version = next(VersionTree.empty(""), 0)
    val first = new java.lang.ref.WeakReference(version)
    (1 until 20).foreach(number => version = next(version, number))
    val deadline = System.nanoTime() + 50000000000L
    while (first.get != null && System.nanoTime() < deadline) System.gc()
    require(first.get == null, "a version without references is not garbage")
    same(version.number, 20L)
  }

  private def compacted(random: Random, memory: Memory): Unit = {
    val rows = 20000
    val model = Array.fill(rows)(0)
    def value(turn: Int) = Array.fill[Byte](100)(turn.toByte)
    var version = memory.empty
    (0 until 30).foreach { turn =>
      val open = new VersionOverlay(version, Ignored)
      (0 until (if (turn == 0) rows else rows / 5)).foreach { each =>
        val number = if (turn == 0) each else random.nextInt(rows)
        put(open, 0, Key(number), value(turn))
        model(number) = turn
      }
      open.flush()
      version = open.fold(Attempt.random(), "")
    }
    val live = rows * 128L
    val deadline = System.nanoTime() + 50000000000L
    while (version.versions.heapBytes(version) > live * 5 / 4 + (1 << 20) &&
      System.nanoTime() < deadline) Thread.sleep(10)
    val heapBytes = version.versions.heapBytes(version)
    require(heapBytes <= live * 5 / 4 + (1 << 20), s"$heapBytes bytes of heap for $live bytes of rows")
    val open = new VersionOverlay(version, Ignored)
    (0 until rows).foreach(each => same(get(open, 0, Key(each)), Some(value(model(each)).toSeq), s"row $each"))
  }

  private def next(base: Version, number: Int): Version = {
    val open = new VersionOverlay(base, new Replay(Map.empty))
    put(open, 0, Key(number % 3), new Array[Byte](100))
    open.flush()
    open.fold(Attempt.random(), "")
  }
}

object MemoryChecks {
  import Checks._

  /** Ids of column families: the first, some near it, and the largest possible. */
  val Families: Array[Int] = Array(0, 1, 2, 5, 4095)

  final case class Key(number: Int) {
    lazy val bytes: Array[Byte] =
      if (number == 0) Array.emptyByteArray else Array.fill[Byte](number % 13)(3) ++ BigInt(number).toByteArray

    lazy val hash: Int = EncodedRow.hash(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)

    /** The row with this key and a value. */
    def put(value: Array[Byte]): Array[Byte] = {
      val row = new Array[Byte](EncodedRow.HeaderBytes + bytes.length + value.length)
      EncodedRow.writeKey(row, 0, value.length, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
      System.arraycopy(value, 0, row, EncodedRow.HeaderBytes + bytes.length, value.length)
      row
    }
  }

  object Key {
    def of(row: Row): Key = {
      val bytes = row.key
      if (bytes.isEmpty) Key(0)
      else {
        val key = (1 to 4).map(size => Key(BigInt(bytes.takeRight(size)).toInt)).find(_.bytes.sameElements(bytes))
        key.getOrElse(throw new AssertionError(s"no key has the bytes ${bytes.toSeq}"))
      }
    }
  }

  def randomBytes(random: Random, length: Int): Array[Byte] = {
    val bytes = new Array[Byte](length)
    random.nextBytes(bytes)
    bytes
  }

  def put(open: VersionOverlay, family: Int, key: Key, value: Array[Byte]): Unit =
    open.put(family, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length, value, Platform.BYTE_ARRAY_OFFSET,
      value.length)

  def remove(open: VersionOverlay, family: Int, key: Key): Unit =
    open.remove(family, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length)

  def get(open: VersionOverlay, family: Int, key: Key): Option[Seq[Byte]] =
    Option(open.get(family, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length)).map(valuesOf(_).head)

  /** The first value of a row. */
  def valueOf(row: Row): Seq[Byte] = row.bytes.slice(row.valueAt, row.valueAt + row.valueLength).toSeq

  def valuesOf(row: Row): Seq[Seq[Byte]] =
    if (row.isDelete) Nil
    else {
      val values = row.values
      Iterator.continually(values).takeWhile(_.advance()).map(each =>
        each.bytes.slice(each.at, each.at + each.length).toSeq).toList
    }

  def entries(open: VersionOverlay, family: Int): Map[Key, Seq[Byte]] = drain(open.rows(family))

  def drain(iterator: RowIterator): Map[Key, Seq[Byte]] = {
    val rows = mutable.HashMap.empty[Key, Seq[Byte]]
    while (iterator.advance()) {
      val key = Key.of(iterator.row)
      require(rows.put(key, valueOf(iterator.row)).isEmpty, s"$key came twice")
    }
    rows.toMap
  }

  /** All rows of an overlay must be the model's. */
  def compare(open: VersionOverlay, model: Map[(Int, Key), Seq[Byte]], when: String): Unit =
    Families.foreach { family =>
      val expected = model.collect { case ((of, key), value) if of == family => key -> value }
      require(entries(open, family) == expected, s"family $family $when: the iterator gives other rows")
      expected.foreach { case (key, value) =>
        require(get(open, family, key).contains(value), s"family $family $when: get of $key")
      }
      require(get(open, family, Key(1 << 20)).isEmpty, s"family $family $when: a key that was never put")
    }

  /** Applies sent changes to a base, and checks the rules of docs/storage-format.md. */
  final class Replay(base: Map[(Int, Key), Seq[Byte]]) extends ChangeSink {
    var state: Map[(Int, Key), Seq[Byte]] = base

    override def append(records: Int, hashMin: Int, hashMax: Int, run: Array[Byte], length: Int): Unit = {
      require(records > 0 && (length <= Chunks.Bytes || records == 1), s"a chunk of $length bytes and $records records")
      val keys = mutable.HashSet.empty[(Int, Key)]
      val hashes = mutable.ArrayBuffer.empty[Long]
      var order = (0, 0)
      var at = 0
      while (at < length) {
        val tag = (run(at) & 0xff) | (run(at + 1) & 0xff) << 8
        val keyLength = Platform.getInt(run, Platform.BYTE_ARRAY_OFFSET + at + 2L)
        val valueLength = Platform.getInt(run, Platform.BYTE_ARRAY_OFFSET + at + 6L)
        val end = at + 10 + keyLength + math.max(valueLength, 0)
        val row = Row.of(run.slice(at + 2, end))
        val key = Key.of(row)
        same(tag >>> 12, 0, "operation")
        require(keys.add((tag, key)), s"$key comes twice in one chunk")
        hashes += key.hash & 0xffffffffL
        require(Ordering[(Int, Int)].lteq(order, (tag, key.hash >>> 24)),
          "keys are not in the order of families and hashes")
        order = (tag, key.hash >>> 24)
        if (valueLength == EncodedRow.DeleteMarker) state -= ((tag, key)) else state += (tag, key) -> valueOf(row)
        at = end
      }
      same(at, length, "end of the last record")
      same(keys.size, records, "records")
      same((hashMin & 0xffffffffL, hashMax & 0xffffffffL), (hashes.min, hashes.max), "bounds of hashes")
    }
  }

  object Ignored extends ChangeSink {
    override def append(records: Int, hashMin: Int, hashMax: Int, chunk: Array[Byte], length: Int): Unit = ()
  }

  /** The kind of versions under test. */
  trait Memory {
    def empty: Version

    /** Make a version durable, with these rows. */
    def committed(next: Version, rows: Map[(Int, Key), Seq[Byte]]): Unit =
      durable(next, rows.map { case (key, value) => key -> List(value) })

    /** The same, with all values of each row. */
    def durable(next: Version, lists: Map[(Int, Key), List[Seq[Byte]]]): Unit = next.versions.committed(next)

    /** Called between operations. */
    def pass(): Unit = ()
  }

  object InTree extends Memory {
    override def empty: Version = VersionTree.empty("")
  }

  /** Buckets of few rows, with room for a number of bytes; durable rows are in a map, and only they can be read. */
  final class InBuckets(limit: Long) extends Memory with BucketSource {
    val cache = new BucketCache(limit)
    private val stored = new java.util.concurrent.ConcurrentHashMap[(Long, Attempt), Map[(Int, Key), List[Seq[Byte]]]]
    @volatile var reads = 0
    var isBroken = false

    override def empty: Version = new BucketedVersions(cache, this, 0L, 400L).empty("")

    override def durable(next: Version, lists: Map[(Int, Key), List[Seq[Byte]]]): Unit = {
      stored.put((next.number, next.attempt), lists)
      next.versions.committed(next)
    }

    /** A durable version of which nothing is in memory. */
    def absent(version: Version): Version = {
      val versions = new BucketedVersions(cache, this, version.number, 400L)
      if (version.keys.sum == 0) versions.empty("", version.number)
      else versions.absent(version.number, version.attempt, "", version.keys, 3)
    }

    override def read(version: Version, bits: Int, buckets: Seq[Int]): RowTables = {
      if (isBroken) sys.error("the source is broken")
      reads += 1
      val rows = Option(stored.get((version.number, version.attempt))).getOrElse(
        throw new AssertionError(s"version $version is not durable"))
      val tables = new RowTables
      rows.foreach { case ((family, key), values) =>
        if (buckets.contains(ChangedBuckets.bucketOf(key.hash, bits))) {
          tables(family).put(key.hash, Row.of(key.put(values.head.toArray)))
          values.tail.foreach { value =>
            val (bytes, length) = (key.bytes, key.bytes.length)
            tables(family).append(key.hash, bytes, Platform.BYTE_ARRAY_OFFSET, length, value.toArray,
              Platform.BYTE_ARRAY_OFFSET, value.length, null)
          }
        }
      }
      tables
    }
  }

  /** Commit rows of a family, a hundred a version. */
  def filled(memory: InBuckets, random: Random, keys: Int, family: Int): (Version, Map[(Int, Key), Seq[Byte]]) = {
    var version = memory.empty
    var model = Map.empty[(Int, Key), Seq[Byte]]
    (0 until keys).grouped(100).foreach { some =>
      val open = new VersionOverlay(version, new Replay(model))
      some.foreach { number =>
        val value = randomBytes(random, random.nextInt(40))
        put(open, family, Key(number), value)
        model += (family, Key(number)) -> value.toSeq
      }
      open.flush()
      val next = open.fold(Attempt.random(), "")
      memory.committed(next, model)
      version = next
    }
    (version, model)
  }

  /** Random operations on lists, version after version; some are so long that they have segments. */
  final class Lists(random: Random, memory: Memory, hasRetries: Boolean) {
    private type Model = Map[(Int, Key), List[Seq[Byte]]]
    private val Family = 2
    private val keys = (0 until 12).map(number => Key(number * 37))
    private var versions = Vector[(Version, Model)]((memory.empty, Map.empty))

    def run(): Unit = (0 until 60).foreach { turn =>
      val (base, content) =
        if (!hasRetries || random.nextInt(4) > 0) versions.last else versions(random.nextInt(versions.size))
      var model = content
      val sink = new Sent(content)
      val open = new VersionOverlay(base, sink)
      open.keepEveryWrite(Family)
      (0 until random.nextInt(25)).foreach { _ =>
        val key = keys(random.nextInt(keys.size))
        val at = (Family, key)
        memory.pass()
        random.nextInt(30) match {
          case 0 =>
            remove(open, Family, key)
            model -= at
          case 1 | 2 =>
            val value = someBytes()
            put(open, Family, key, value)
            model += at -> List(value.toSeq)
          case 3 => open.flush()
          case 4 => same(get(open, Family, key), model.get(at).map(_.head), s"the first value of $key")
          case _ =>
            val value = someBytes()
            open.merge(Family, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length, value,
              Platform.BYTE_ARRAY_OFFSET, value.length)
            model += at -> (model.getOrElse(at, Nil) :+ value.toSeq)
        }
      }
      compare(open, model, s"the overlay at turn $turn")
      open.flush()
      require(sink.state == model, s"what was sent at turn $turn does not lead to the new version")
      val next = open.fold(Attempt.random(), "")
      memory.durable(next, model)
      same(next.keys.lift(Family).getOrElse(0L), model.size.toLong, s"keys at turn $turn")
      same(next.added, model.values.map(_.size).sum.toLong - content.values.map(_.size).sum,
        s"values added at turn $turn")
      if (random.nextInt(3) > 0) versions = (versions :+ ((next, model))).takeRight(5)
      versions.foreach { case (version, expected) =>
        compare(new VersionOverlay(version, Ignored), expected, s"version $version at turn $turn")
      }
      snapshot(versions.last._1, versions.last._2)
    }

    private def someBytes(): Array[Byte] =
      randomBytes(random, if (random.nextInt(4) == 0) random.nextInt(3000) else random.nextInt(50))

    private def compare(open: VersionOverlay, model: Model, when: String): Unit = {
      val expected = model.map { case ((_, key), values) => key -> values }
      keys.foreach { key =>
        val row = open.get(Family, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length)
        same(Option(row).map(valuesOf(_).toList), expected.get(key), s"the list of $key, $when")
      }
      Seq(open.rows(Family), open.scan(Family, null, null)).foreach { rows =>
        val pairs = Iterator.continually(rows).takeWhile(_.advance()).map(each =>
          Key.of(each.row) -> valuesOf(each.row).toList).toList
        same(pairs.size, expected.size, s"rows, $when")
        same(pairs.toMap, expected, s"rows, $when")
      }
    }

    private def snapshot(version: Version, model: Model): Unit = {
      def sent(of: Version): Model = {
        val sink = new Sent(Map.empty) with BucketSink {
          override def bucket(number: Int): Unit = ()
        }
        SnapshotRows.send(of, 2, Array.fill(4)(true), sink)
        sink.state
      }
      // The next maintenance makes a snapshot that the disk fails.
      val state =
        try sent(version)
        catch { case _: RowsUnreadable => sent(version.versions.durable(version)) }
      require(state == model, s"the snapshot of $version has other rows")
    }

    /** Applies what is sent. */
    private class Sent(var state: Model) extends ChangeSink {
      override def append(records: Int, hashMin: Int, hashMax: Int, chunk: Array[Byte], length: Int): Unit = {
        val changes = new ChangeRecords(ByteBuffer.wrap(chunk, 0, length).order(ByteOrder.LITTLE_ENDIAN))
        while (changes.advance()) {
          val at = (changes.family, Key.of(changes.row))
          if (changes.row.isDelete) state -= at
          else if (changes.isMerge) state += at -> (state.getOrElse(at, Nil) :+ valueOf(changes.row))
          else state += at -> List(valueOf(changes.row))
        }
      }
    }
  }

  /** Random operations on several overlays at once; each has its own model. */
  final class Play(random: Random, memory: Memory) {
    private final class Player(val open: VersionOverlay, val sink: Replay, var model: Map[(Int, Key), Seq[Byte]])
    private final class Reader(val iterator: RowIterator, val expected: Map[Key, Seq[Byte]],
        var rest: Map[Key, Seq[Byte]])

    private var versions = Vector[(Version, Map[(Int, Key), Seq[Byte]])]((memory.empty, Map.empty))
    private val players = mutable.ArrayBuffer.empty[Player]
    private val readers = mutable.ArrayBuffer.empty[Reader]

    def run(steps: Int): Unit = {
      (0 until steps).foreach(_ => step())
      players.foreach(player => compare(player.open, player.model, "at the end"))
      readers.toList.foreach(finish)
      versions.foreach { case (version, model) =>
        compare(new VersionOverlay(version, new Replay(model)), model, s"version $version at the end")
      }
    }

    private def step(): Unit = {
      memory.pass()
      if (players.isEmpty || (players.size < 5 && random.nextInt(40) == 0)) {
        val (version, model) = versions(random.nextInt(versions.size))
        players += new Player(new VersionOverlay(version, new Replay(model)), null, model)
      }
      val player = players(random.nextInt(players.size))
      val (family, key) = (Families(random.nextInt(Families.length)), Key(random.nextInt(150)))
      random.nextInt(100) match {
        case n if n < 40 =>
          val value = randomBytes(random, random.nextInt(12))
          put(player.open, family, key, value)
          player.model += (family, key) -> value.toSeq
        case n if n < 60 =>
          remove(player.open, family, key)
          player.model -= ((family, key))
        case n if n < 80 => same(get(player.open, family, key), player.model.get((family, key)), s"get of $key")
        case n if n < 84 => player.open.flush()
        case n if n < 88 =>
          val expected = player.model.collect { case ((of, each), value) if of == family => each -> value }
          readers += new Reader(player.open.rows(family), expected, expected)
        case n if n < 96 => if (readers.nonEmpty) advance(readers(random.nextInt(readers.size)))
        case 96 =>
          player.open.discard()
          players -= player
        case _ =>
          player.open.flush()
          val version = player.open.fold(Attempt.random(), "")
          // The fold itself is not visible: the commit may still fail.
          compare(player.open, player.model, "after the fold, before it is shown")
          if (random.nextInt(4) > 0) {
            memory.committed(version, player.model)
            player.open.show(version)
            val keys = Families.map(family => if (family < version.keys.length) version.keys(family) else 0L)
            same(keys.toSeq, Families.map(family => player.model.keys.count(_._1 == family).toLong).toSeq, "keys")
            versions = (versions :+ ((version, player.model))).takeRight(6)
          } else {
            player.open.discard()
            players -= player
          }
      }
    }

    private def advance(reader: Reader): Unit = {
      val steps = random.nextInt(30)
      var at = 0
      while (at < steps && reader.iterator.advance()) {
        val key = Key.of(reader.iterator.row)
        require(reader.rest.get(key).contains(valueOf(reader.iterator.row)),
          s"an iterator gives $key, which it should not, or not any more")
        reader.rest -= key
        at += 1
      }
      if (at < steps) finish(reader)
      else if (random.nextInt(20) == 0) { reader.iterator.close(); readers -= reader }
    }

    private def finish(reader: Reader): Unit = {
      while (reader.iterator.advance()) {
        val key = Key.of(reader.iterator.row)
        require(reader.rest.get(key).contains(valueOf(reader.iterator.row)),
          s"an iterator gives $key, which it should not, or not any more")
        reader.rest -= key
      }
      require(reader.rest.isEmpty, s"an iterator did not give ${reader.rest.keys}")
      readers -= reader
      ()
    }
  }
}
