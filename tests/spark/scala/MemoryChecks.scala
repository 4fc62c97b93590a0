package io.dynastate.tests

import java.io.ByteArrayOutputStream
import java.nio.{ByteBuffer, ByteOrder}
import java.util.Random
import java.util.concurrent.CompletableFuture

import scala.collection.mutable

import io.dynastate.memory.{Attempt, BucketCache, BucketedVersions, BucketSource, ChangeCollector, ChangedBuckets, ChangeRecords, ChangeSink}
import io.dynastate.memory.{Chunks, EncodedRow, HeldChanges, LoadingVersions, Row, RowIterator, RowTable, RowTables, SlotIterator, Slots}
import io.dynastate.memory.{ValueList, Version, VersionOverlay, VersionTree}

import org.apache.spark.unsafe.Platform

/** The provider's memory (RowTable, VersionTree, VersionOverlay) against plain maps, with random operations from a seed. */
final class MemoryChecks(checks: Checks, seed: Long) {
  import Checks._
  import MemoryChecks._
  import checks.check

  def run(): Unit = {
    check("row table: random operations, as a plain map") {
      randomTable(new Random(seed), bytes => EncodedRow.hash(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length))
    }
    check("row table: keys with few different hashes are distinguished") {
      randomTable(new Random(seed + 1), bytes => (bytes.length % 3) << 30)
    }
    check("row table: shared slots do not change, and slots by hash are in order") {
      sharedSlots(new Random(seed + 2))
    }
    check("row table: after a peak, iterators walk few slots again")(shrinks())
    check("row table: a table filled in the order of another is as fast as one filled at random") {
      fillInOrder()
    }
    check("overlay: several at once, puts, removes, gets, iterators and folds, as plain maps") {
      (0 until 30).foreach(round => new Play(new Random(seed + 100 + round), InTree).run(1500))
    }
    check("buckets: the same, with room for some, one or none of them") {
      (0 until 30).foreach(round => new Play(new Random(seed + 700 + round), new InBuckets(Seq(0L, 800L, 20000L)(round % 3))).run(1500))
    }
    check("buckets: scans by range, in one pass and in many, as a plain map") {
      (0 until 6).foreach(round => scansOfBuckets(new Random(seed + 800 + round), round % 2 == 0))
    }
    check("buckets: rows stay within the limit, new rows until they are durable, closed versions release theirs") {
      limitOfBuckets(new Random(seed + 820))
    }
    check("buckets: before any row is read, their number gives the size of the state") {
      val memory = new InBuckets(0L)
      val tree = new BucketedVersions(memory.cache, memory, 0L)
      val bytes = tree.stateBytes(tree.absent(7, Attempt.random(), "", Array(500L), 5))
      require(bytes > 31 * BucketedVersions.BucketBytes && bytes <= 32 * BucketedVersions.BucketBytes, s"$bytes bytes in 32 buckets")
    }
    check("buckets: a bucket that cannot be read is an error, and is read again the next time") {
      brokenSource(new Random(seed + 830))
    }
    check("held changes: by buckets, in two steps, they make the rows that all changes make") {
      (0 until 20).foreach(round => heldChanges(new Random(seed + 860 + round)))
    }
    check("buckets: a commit reads several in one request, as many as there is room for") {
      severalAtOnce(new Random(seed + 880))
    }
    check("a version being loaded: needed rows are read with their buckets, other operations wait for the load") {
      onItsWay(new Random(seed + 840))
    }
    check("a version being loaded: reads of too many buckets wait for the load")(askedForTooMuch(new Random(seed + 850)))
    check("overlay: the sent changes, applied to the base, make the new version") {
      (0 until 10).foreach(round => sentChanges(new Random(seed + 200 + round)))
    }
    check("overlay: rows larger than a chunk, and than the changes that are collected") {
      largeRows(new Random(seed + 300))
    }
    check("version tree: every referenced version stays readable while the head moves") {
      toAndFro(new Random(seed + 400))
    }
    check("version tree: a version without references is garbage") {
      garbage()
    }
    check("version tree: readers and writers of one tree at the same time") {
      atTheSameTime()
    }
  }

  private def randomTable(random: Random, hash: Array[Byte] => Int): Unit = {
    val table = new RowTable(random.nextInt(40))
    val model = mutable.HashMap.empty[Key, Array[Byte]]
    def offset(key: Key) = (key.bytes, Platform.BYTE_ARRAY_OFFSET.toLong, key.bytes.length)
    (0 until 20000).foreach { step =>
      val key = Key(random.nextInt(700))
      val (base, at, length) = offset(key)
      random.nextInt(5) match {
        case 0 | 1 =>
          val encoded = key.put(randomBytes(random, random.nextInt(30)))
          require(table.put(hash(key.bytes), encoded) eq model.put(key, encoded).orNull, s"put $key replaced another row at step $step")
        case 2 =>
          require(table.remove(hash(key.bytes), base, at, length) eq model.remove(key).orNull, s"remove $key at step $step")
        case _ =>
          require(table.get(hash(key.bytes), base, at, length) eq model.get(key).orNull, s"get $key at step $step")
      }
      same(table.size, model.size)
    }
    val slots = table.share()
    val entries = (0 until slots.capacity).map(slots.rowAt).filter(_ != null).map(Row.root)
    slots.release()
    same(entries.size, model.size, "entries in slots")
    require(entries.forall(encoded => model(Key.of(encoded)) eq encoded), "a row is not the map's")
    same(table.heapBytes, model.values.map(encoded => EncodedRow.heapBytes(encoded).toLong).sum + 8L * slots.capacity, "bytes of heap")
  }

  private def sharedSlots(random: Random): Unit = {
    val table = new RowTable()
    def set(number: Int): Unit = {
      val encoded = Key(number).put(randomBytes(random, 8))
      table.put(EncodedRow.hash(encoded), encoded)
    }
    (0 until 300).foreach(set)
    val held = mutable.ListBuffer.empty[(Slots, Set[Array[Byte]])]
    (0 until 40).foreach { turn =>
      val slots = table.share()
      held += ((slots, entriesOf(slots)))
      (0 until 30).foreach { _ =>
        if (random.nextBoolean()) set(random.nextInt(600))
        else { val key = Key(random.nextInt(600)); table.remove(key.hash, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length) }
      }
      held.foreach { case (shared, expected) => same(entriesOf(shared), expected, s"shared slots after turn $turn") }
    }
    held.foreach(_._1.release())
    val now = table.share()
    val ordered = table.slotsByHash()
    same(ordered.length, table.size)
    same(ordered.map(now.rowAt).map(Row.root).toSet, entriesOf(now))
    require(ordered.map(now.hashAt(_) >>> 24).sliding(2).forall(pair => pair.length < 2 || pair(0) <= pair(1)), "slots are not in order of hashes")
    now.release()
  }

  private def shrinks(): Unit = {
    val table = new RowTable()
    val rows = (0 until 100000).map(number => Key(number) -> Key(number).put(Array[Byte](1)))
    rows.foreach { case (key, encoded) => table.put(key.hash, encoded) }
    val (kept, removed) = rows.partition(_._1.number % 10000 == 0)
    removed.foreach { case (key, encoded) =>
      require(table.remove(key.hash, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length) eq encoded, s"$key is not there")
    }
    val slots = table.share()
    require(slots.capacity <= 8 * 16, s"${slots.capacity} slots for ${table.size} rows")
    same(entriesOf(slots), kept.map(_._2).toSet)
    slots.release()
  }

  private def entriesOf(slots: Slots): Set[Array[Byte]] = (0 until slots.capacity).map(slots.rowAt).filter(_ != null).map(Row.root).toSet

  private def fillInOrder(): Unit = {
    val rows = 200000
    val entries = Array.tabulate(rows)(number => Key(number).put(Array[Byte](1)))
    def fill(order: Array[Array[Byte]]): Long = {
      val start = System.nanoTime()
      val table = new RowTable()
      order.foreach(encoded => table.put(EncodedRow.hash(encoded), encoded))
      System.nanoTime() - start
    }
    val source = new RowTable(rows)
    entries.foreach(encoded => source.put(EncodedRow.hash(encoded), encoded))
    val slots = source.share()
    val inSlots = (0 until slots.capacity).map(slots.rowAt).filter(_ != null).map(Row.root).toArray
    val byHash = source.slotsByHash().map(slots.rowAt).map(Row.root).map(Row.root)
    slots.release()
    fill(entries)
    val atRandom = Seq.fill(3)(fill(entries)).min
    Seq("slots" -> inSlots, "hashes" -> byHash).foreach { case (what, order) =>
      val took = Seq.fill(3)(fill(order)).min
      // Quadratic would be hundreds of times as long.
      require(took < 10 * atRandom, s"in the order of $what it took ${took / 1000000} ms, at random ${atRandom / 1000000} ms")
    }
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

  private def toAndFro(random: Random): Unit = {
    var held = Vector[(Version, Map[(Int, Key), Seq[Byte]])]((VersionTree.empty(""), Map.empty))
    (0 until 60).foreach { turn =>
      // Mostly the newest, as in batches; sometimes an old one, as in retries and rollbacks.
      val (base, rows) = if (random.nextInt(3) > 0) held.last else held(random.nextInt(held.size))
      var model = rows
      val open = new VersionOverlay(base, new Replay(model))
      (0 until random.nextInt(80)).foreach { _ =>
        val (family, key) = (Families(random.nextInt(Families.length)), Key(random.nextInt(200)))
        if (random.nextInt(3) == 0) { remove(open, family, key); model -= ((family, key)) }
        else { val value = randomBytes(random, 6); put(open, family, key, value); model += (family, key) -> value.toSeq }
      }
      open.flush()
      val next = open.fold(Attempt.random(), "")
      same(next.number, base.number + 1)
      // Every third commit fails: its version is discarded, and the others are unchanged.
      if (random.nextInt(3) > 0) held = held :+ ((next, model))
      if (held.size > 8) held = held.patch(random.nextInt(held.size), Nil, 1)
      held.foreach { case (version, expected) =>
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
    val inOrder = expected.keys.map(_._2).toArray.sortWith((one, other) => java.util.Arrays.compareUnsigned(one.bytes, other.bytes) < 0)
    val bounds = Seq((null, null)) ++ Seq.fill(5) {
      val Array(from, to) = Array(Key(random.nextInt(3000)), Key(random.nextInt(3000)))
      if (java.util.Arrays.compareUnsigned(from.bytes, to.bytes) <= 0) (from, to) else (to, from)
    }
    bounds.foreach { case (from, to) =>
      val rows = open.scan(2, if (from == null) null else from.bytes, if (to == null) null else to.bytes)
      val found = mutable.ArrayBuffer.empty[Key]
      while (rows.advance()) found += Key.of(Row.root(rows.row))
      val within = inOrder.filter { key =>
        (from == null || java.util.Arrays.compareUnsigned(key.bytes, from.bytes) >= 0) && (to == null || java.util.Arrays.compareUnsigned(key.bytes, to.bytes) < 0)
      }
      require(found.toSeq == within.toSeq, s"a scan from $from to $to gives ${found.size} rows, not ${within.length}")
    }
  }

  private def limitOfBuckets(random: Random): Unit = {
    val limit = 60000L
    val memory = new InBuckets(limit)
    var (version, model) = filled(memory, random, 5000, 0)
    require(version.versions.stateBytes(version) > 4 * limit, s"state of ${version.versions.stateBytes(version)} bytes is not much more than the limit")
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
      memory.committed(version, next, model)
      version = next
      val there = version.versions.heapBytes(version)
      require(memory.cache.bytes <= limit && there > 0 && there <= limit, s"$there bytes of a version are in memory at turn $turn")
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
      new LoadingVersions(memory, each => require(whole.complete(each), "the load began twice")).begin(durable.number, durable.attempt, "", durable.keys, 4)
    val whole = new CompletableFuture[CompletableFuture[Version]]
    val version = begin(whole)
    require(!whole.isDone, "the load began before the first row was asked for")
    same((version.number, version.attempt, version.keys.toSeq), (durable.number, durable.attempt, durable.keys.toSeq))
    val open = new VersionOverlay(version, new Replay(model))
    var changed = model
    val reads = memory.reads
    (0 until 400).foreach { _ =>
      val key = Key(random.nextInt(3500))
      same(get(open, 0, key), changed.get((0, key)), s"get of $key")
      if (random.nextBoolean()) { put(open, 0, key, Array[Byte](9)); changed += (0, key) -> Seq[Byte](9) }
      else { remove(open, 0, key); changed -= ((0, key)) }
    }
    require(memory.reads - reads <= 16, s"${memory.reads - reads} reads of 16 buckets")
    require(version.versions.heapBytes(version) > 0, "what came is not counted")
    val tree = VersionTree.load(rowsOf(model), durable.number, durable.attempt, "")
    val late = new Thread(() => { Thread.sleep(300); whole.get.complete(tree); () })
    late.start()
    compare(open, changed, "while all rows come")
    late.join()
    open.flush()
    val next = open.fold(Attempt.random(), "")
    same(next.keys.sum, changed.size.toLong, "keys")
    val after = memory.reads
    compare(new VersionOverlay(next, new Replay(changed)), changed, "the next version")
    compare(new VersionOverlay(version, new Replay(model)), model, "the version, when it is there")
    same(memory.reads, after, "buckets that were read though all rows were there")
    val lost = new CompletableFuture[CompletableFuture[Version]]
    val failed = new VersionOverlay(begin(lost), new Replay(model))
    lost.thenAccept(each => { each.completeExceptionally(new IllegalStateException("the load failed")); () })
    mustFail("the load failed")(entries(failed, 0))
    same(get(failed, 0, Key(7)), model.get((0, Key(7))), "a single row all the same")
    put(failed, 0, Key(7), Array[Byte](1))
    failed.flush()
    mustFail("the load failed")(failed.fold(Attempt.random(), ""))
  }

  private def askedForTooMuch(random: Random): Unit = {
    val memory = new InBuckets(0L)
    val (durable, model) = filled(memory, random, 3000, 0)
    val whole = new CompletableFuture[CompletableFuture[Version]]
    val version = new LoadingVersions(memory, each => { whole.complete(each); () }).begin(durable.number, durable.attempt, "", durable.keys, 8)
    val before = memory.reads
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
    same(memory.reads - before, 16, "buckets that were read singly")
    whole.get.complete(VersionTree.load(rowsOf(model), durable.number, durable.attempt, ""))
    reader.join()
    wrong.foreach(throw _)
    same(memory.reads - before, 16, "buckets that were read in all")
  }

  private def heldChanges(random: Random): Unit = {
    def chunk(): ByteBuffer = {
      val out = new ByteArrayOutputStream
      (0 until 1 + random.nextInt(60)).foreach { _ =>
        val key = Key(random.nextInt(200))
        val operation = random.nextInt(3)
        val encoded = if (operation == 2) EncodedRow.delete(key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length) else key.put(randomBytes(random, 9))
        val tag = (if (operation == 1) 1 << 12 else 0) | random.nextInt(2)
        out.write(tag & 0xFF)
        out.write(tag >>> 8)
        out.write(encoded)
      }
      ByteBuffer.wrap(out.toByteArray).order(ByteOrder.LITTLE_ENDIAN)
    }
    def count(chunk: ByteBuffer): Int = {
      val records = new ChangeRecords(chunk.duplicate().order(ByteOrder.LITTLE_ENDIAN))
      Iterator.continually(records.advance()).takeWhile(identity).size
    }
    def add(collector: ChangeCollector, chunk: ByteBuffer): Unit = collector.add(count(chunk), chunk.duplicate().order(ByteOrder.LITTLE_ENDIAN))
    def textOf(rows: RowTables): Set[(Int, Seq[Seq[Byte]])] = {
      val found = mutable.HashSet.empty[(Int, Seq[Seq[Byte]])]
      rows.foreach { (family, table) =>
        val all = new SlotIterator(Array(table.share()), showDeletes = true)
        while (all.advance()) found += family -> (all.row match {
          case list: ValueList => list.first.toSeq +: list.valuesSince(null).map(_.toSeq).toSeq
          case encoded: Array[Byte] => Seq(encoded.toSeq)
        })
      }
      found.toSet
    }
    val (snapshot, before, after, last) = (Seq.fill(2)(chunk()), Seq.fill(5)(chunk()), Seq.fill(3)(chunk()), chunk())
    val bits = random.nextInt(4)
    val first = HeldChanges.after(3, bits)
    before.foreach(each => first.add(each.duplicate().order(ByteOrder.LITTLE_ENDIAN)))
    val (one, two) = (Attempt.random(), Attempt.random())
    val held = first.upTo(7, one)
    val more = held.builder
    after.foreach(each => more.add(each.duplicate().order(ByteOrder.LITTLE_ENDIAN)))
    val all = more.upTo(9, two)
    same((all.snapshot, all.version, all.attempt, all.isEmpty, HeldChanges.None.isEmpty), (3L, 9L, two, false, true))
    require(all.heapBytes > held.heapBytes && held.heapBytes > before.map(_.remaining).sum, "bytes of heap")
    Seq((held, before, 7L), (all, before ++ after, 9L)).foreach { case (each, changes, version) =>
      same(each.version, version)
      val readBits = bits + random.nextInt(3)
      val buckets = (0 until 1 << readBits).filter(_ => random.nextBoolean())
      def collector = new ChangeCollector(hash => buckets.contains(ChangedBuckets.bucketOf(hash, readBits)))
      val (expected, found) = (collector, collector)
      (snapshot ++ changes :+ last).foreach(add(expected, _))
      snapshot.foreach(add(found, _))
      each.addTo(found, readBits, buckets)
      add(found, last)
      same(textOf(found.asRows()), textOf(expected.asRows()), s"rows of $buckets of $readBits bits")
    }
  }

  private def severalAtOnce(random: Random): Unit = Seq(0L -> 64, (1L << 20) -> 2).foreach { case (limit, expected) =>
    val memory = new InBuckets(limit)
    val (durable, model) = filled(memory, random, 3000, 0)
    val tree = new BucketedVersions(memory.cache, memory, durable.number, 400L)
    val open = new VersionOverlay(tree.absent(durable.number, durable.attempt, "", durable.keys, 6), new Replay(model))
    (0 until 3000).foreach(each => put(open, 0, Key(each), Array[Byte](9)))
    open.flush()
    val before = memory.reads
    same(open.fold(Attempt.random(), "").keys.sum, 3000L, "keys")
    same(memory.reads - before, expected, s"requests for 64 buckets with room for $limit bytes")
  }

  private def rowsOf(model: Map[(Int, Key), Seq[Byte]]): RowTables = {
    val rows = new RowTables
    model.foreach { case ((family, key), value) => rows(family).put(key.hash, key.put(value.toArray)) }
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
    val after = model + ((0, Key(5)) -> Seq[Byte](1))
    memory.committed(version, next, after)
    compare(new VersionOverlay(next, new Replay(after)), after, "after the source was mended")
    same(next.keys.sum, after.size.toLong, "keys")
  }

  private def garbage(): Unit = {
    var version = next(VersionTree.empty(""), 0)
    val first = new java.lang.ref.WeakReference(version)
    (1 until 20).foreach(number => version = next(version, number))
    val deadline = System.nanoTime() + 10000000000L
    while (first.get != null && System.nanoTime() < deadline) System.gc()
    require(first.get == null, "a version without references is not garbage")
    same(version.number, 20L)
  }

  private def next(base: Version, number: Int): Version = {
    val open = new VersionOverlay(base, new Replay(Map.empty))
    put(open, 0, Key(number % 3), new Array[Byte](100))
    open.flush()
    open.fold(Attempt.random(), "")
  }

  /** One writer commits; readers of earlier versions must see each unchanged. */
  private def atTheSameTime(): Unit = {
    val rows = 2000
    def value(turn: Int, key: Int) = Array.tabulate[Byte](4)(byte => (turn * 31 + key * 7 + byte).toByte)
    def expected(version: Int, key: Int): Seq[Byte] = (0 to version).reverse.find(turn => key % (turn + 1) == 0).map(value(_, key).toSeq).get
    val versions = new java.util.concurrent.ConcurrentHashMap[Int, Version]
    val failures = new java.util.concurrent.ConcurrentLinkedQueue[Throwable]
    val turns = 12
    def write(turn: Int, base: Version): Version = {
      val open = new VersionOverlay(base, new Replay(Map.empty))
      (0 until rows).filter(_ % (turn + 1) == 0).foreach(key => put(open, 0, Key(key), value(turn, key)))
      open.flush()
      open.fold(Attempt.random(), "")
    }
    versions.put(0, write(0, VersionTree.empty("")))
    @volatile var done = false
    val readers = (0 until 3).map { reader =>
      val thread = new Thread(() => {
        val random = new Random(seed + reader)
        try while (!done) {
          val number = random.nextInt(versions.size)
          val open = new VersionOverlay(versions.get(number), new Replay(Map.empty))
          val found = entries(open, 0)
          same(found.size, rows)
          found.foreach { case (key, bytes) => same(bytes, expected(number, key.number), s"key ${key.number} of version $number") }
          (0 until 200).foreach { _ =>
            val key = random.nextInt(rows)
            same(get(open, 0, Key(key)), Some(expected(number, key)), s"get of key $key of version $number")
          }
        } catch { case e: Throwable => failures.add(e) }
      })
      thread.start()
      thread
    }
    try (1 until turns).foreach { turn =>
      versions.put(turn, write(turn, versions.get(turn - 1)))
      // A retry: from an older base, and discarded.
      write(turn + 50, versions.get(turn / 2))
    } finally done = true
    readers.foreach(_.join())
    if (!failures.isEmpty) throw failures.peek()
  }
}

object MemoryChecks {
  import Checks._

  /** Ids of column families: the first, some near it, and the largest possible. */
  val Families: Array[Int] = Array(0, 1, 2, 5, 4095)

  final case class Key(number: Int) {
    lazy val bytes: Array[Byte] = if (number == 0) Array.emptyByteArray else Array.fill[Byte](number % 13)(3) ++ BigInt(number).toByteArray

    lazy val hash: Int = EncodedRow.hash(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)

    def put(value: Array[Byte]): Array[Byte] =
      EncodedRow.put(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length, value, Platform.BYTE_ARRAY_OFFSET, value.length)
  }

  object Key {
    def of(encoded: Array[Byte]): Key = {
      val bytes = encoded.slice(EncodedRow.HeaderBytes, EncodedRow.HeaderBytes + EncodedRow.keyLength(encoded))
      if (bytes.isEmpty) Key(0)
      else {
        val found = (1 to 4).map(size => Key(BigInt(bytes.takeRight(size)).toInt)).find(_.bytes.sameElements(bytes))
        found.getOrElse(throw new AssertionError(s"no key has the bytes ${bytes.toSeq}"))
      }
    }
  }

  def randomBytes(random: Random, length: Int): Array[Byte] = {
    val bytes = new Array[Byte](length)
    random.nextBytes(bytes)
    bytes
  }

  def put(open: VersionOverlay, family: Int, key: Key, value: Array[Byte]): Unit =
    open.put(family, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length, value, Platform.BYTE_ARRAY_OFFSET, value.length)

  def remove(open: VersionOverlay, family: Int, key: Key): Unit = open.remove(family, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length)

  def get(open: VersionOverlay, family: Int, key: Key): Option[Seq[Byte]] =
    Option(open.get(family, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length)).map(row => valueOf(Row.root(row)))

  def valueOf(encoded: Array[Byte]): Seq[Byte] = {
    same(EncodedRow.valueLength(encoded), encoded.length - EncodedRow.HeaderBytes - EncodedRow.keyLength(encoded), "length of a value")
    encoded.drop(EncodedRow.HeaderBytes + EncodedRow.keyLength(encoded)).toSeq
  }

  def entries(open: VersionOverlay, family: Int): Map[Key, Seq[Byte]] = drain(open.rows(family))

  def drain(iterator: RowIterator): Map[Key, Seq[Byte]] = {
    val found = mutable.HashMap.empty[Key, Seq[Byte]]
    while (iterator.advance()) {
      val key = Key.of(Row.root(iterator.row))
      require(found.put(key, valueOf(Row.root(iterator.row))).isEmpty, s"$key came twice")
    }
    found.toMap
  }

  /** All rows of an overlay must be the model's. */
  def compare(open: VersionOverlay, model: Map[(Int, Key), Seq[Byte]], when: String): Unit = Families.foreach { family =>
    val expected = model.collect { case ((of, key), value) if of == family => key -> value }
    require(entries(open, family) == expected, s"family $family $when: the iterator gives other rows")
    expected.foreach { case (key, value) => require(get(open, family, key).contains(value), s"family $family $when: get of $key") }
    require(get(open, family, Key(1 << 20)).isEmpty, s"family $family $when: a key that was never put")
  }

  /** Applies sent changes to a base, and checks the rules of docs/storage-format.md. */
  final class Replay(base: Map[(Int, Key), Seq[Byte]]) extends ChangeSink {
    var state: Map[(Int, Key), Seq[Byte]] = base

    override def append(records: Int, hashMin: Int, hashMax: Int, run: Array[Byte], length: Int): Unit = {
      require(records > 0 && (length <= Chunks.Bytes || records == 1), s"a chunk of $length bytes and $records records")
      val seen = mutable.HashSet.empty[(Int, Key)]
      val hashes = mutable.ArrayBuffer.empty[Long]
      var order = (0, 0)
      var at = 0
      while (at < length) {
        val tag = (run(at) & 0xFF) | (run(at + 1) & 0xFF) << 8
        val keyLength = Platform.getInt(run, Platform.BYTE_ARRAY_OFFSET + at + 2L)
        val valueLength = Platform.getInt(run, Platform.BYTE_ARRAY_OFFSET + at + 6L)
        val end = at + 10 + keyLength + math.max(valueLength, 0)
        val encoded = run.slice(at + 2, end)
        val key = Key.of(encoded)
        same(tag >>> 12, 0, "operation")
        require(seen.add((tag, key)), s"$key comes twice in one chunk")
        hashes += key.hash & 0xFFFFFFFFL
        require(Ordering[(Int, Int)].lteq(order, (tag, key.hash >>> 24)), "keys are not in the order of families and hashes")
        order = (tag, key.hash >>> 24)
        if (valueLength == EncodedRow.DeleteMarker) state -= ((tag, key)) else state += (tag, key) -> valueOf(encoded)
        at = end
      }
      same(at, length, "end of the last record")
      same(seen.size, records, "records")
      same((hashMin & 0xFFFFFFFFL, hashMax & 0xFFFFFFFFL), (hashes.min, hashes.max), "bounds of hashes")
    }
  }

  /** The kind of versions under test. */
  trait Memory {
    def empty: Version

    /** Make a version durable, with these rows. */
    def committed(base: Version, next: Version, rows: Map[(Int, Key), Seq[Byte]]): Unit
  }

  object InTree extends Memory {
    override def empty: Version = VersionTree.empty("")

    override def committed(base: Version, next: Version, rows: Map[(Int, Key), Seq[Byte]]): Unit = base.versions.committed(base, next)
  }

  /** Buckets of few rows, with room for a number of bytes; durable rows are in a map, and only they can be read. */
  final class InBuckets(limit: Long) extends Memory with BucketSource {
    val cache = new BucketCache(limit)
    private val durable = new java.util.concurrent.ConcurrentHashMap[(Long, Attempt), Map[(Int, Key), Seq[Byte]]]
    @volatile var reads = 0
    var isBroken = false

    override def empty: Version = new BucketedVersions(cache, this, 0L, 400L).empty("")

    override def committed(base: Version, next: Version, rows: Map[(Int, Key), Seq[Byte]]): Unit = {
      durable.put((next.number, next.attempt), rows)
      base.versions.committed(base, next)
    }

    override def read(version: Version, bits: Int, buckets: Seq[Int]): RowTables = {
      if (isBroken) sys.error("the source is broken")
      reads += 1
      val rows = Option(durable.get((version.number, version.attempt))).getOrElse(throw new AssertionError(s"version $version is not durable"))
      val found = new RowTables
      rows.foreach { case ((family, key), value) =>
        if (buckets.contains(ChangedBuckets.bucketOf(key.hash, bits))) found(family).put(key.hash, key.put(value.toArray))
      }
      found
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
      memory.committed(version, next, model)
      version = next
    }
    (version, model)
  }

  /** Random operations on several overlays at once; each has its own model. */
  final class Play(random: Random, memory: Memory) {
    private final class Player(val open: VersionOverlay, val sink: Replay, var model: Map[(Int, Key), Seq[Byte]])
    private final class Reader(val iterator: RowIterator, val expected: Map[Key, Seq[Byte]], var left: Map[Key, Seq[Byte]])

    private var versions = Vector[(Version, Map[(Int, Key), Seq[Byte]])]((memory.empty, Map.empty))
    private val players = mutable.ArrayBuffer.empty[Player]
    private val readers = mutable.ArrayBuffer.empty[Reader]

    def run(steps: Int): Unit = {
      (0 until steps).foreach(_ => step())
      players.foreach(player => compare(player.open, player.model, "at the end"))
      readers.toList.foreach(finish)
      versions.foreach { case (version, model) => compare(new VersionOverlay(version, new Replay(model)), model, s"version $version at the end") }
    }

    private def step(): Unit = {
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
            memory.committed(player.open.version, version, player.model)
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
        val key = Key.of(Row.root(reader.iterator.row))
        require(reader.left.get(key).contains(valueOf(Row.root(reader.iterator.row))), s"an iterator gives $key, which it should not, or not any more")
        reader.left -= key
        at += 1
      }
      if (at < steps) finish(reader)
      else if (random.nextInt(20) == 0) { reader.iterator.close(); readers -= reader }
    }

    private def finish(reader: Reader): Unit = {
      while (reader.iterator.advance()) {
        val key = Key.of(Row.root(reader.iterator.row))
        require(reader.left.get(key).contains(valueOf(Row.root(reader.iterator.row))), s"an iterator gives $key, which it should not, or not any more")
        reader.left -= key
      }
      require(reader.left.isEmpty, s"an iterator did not give ${reader.left.keys}")
      readers -= reader
      ()
    }
  }
}
