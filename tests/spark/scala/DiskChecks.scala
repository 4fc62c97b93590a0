package io.dynastate.tests

import java.io.RandomAccessFile
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets.{ISO_8859_1, UTF_8}
import java.nio.file.{Files, Path}
import java.nio.file.attribute.PosixFilePermissions
import java.util.Random

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import io.dynastate.DynastateException
import io.dynastate.memory.{
  Attempt, ChangeCollector, Row, RowFile, RowIterator, RowStorage, Version, VersionOverlay, VersionTree
}

import org.apache.spark.unsafe.Platform

/** Rows on local disk: what the disk does wrong, and what no other process may read. */
final class DiskChecks(checks: Checks, seed: Long) {
  import Checks._
  import DiskChecks._
  import MemoryChecks.{Ignored, Key, Memory, compare, drain, get, put, randomBytes, remove, valueOf, valuesOf}
  import checks.check

  def run(): Unit = {
    check("disk: the file has no name, and only its user could have read it") {
      val folder = Files.createTempDirectory("dynastate-disk")
      val memory = new OnDisk(0, folder = folder)
      val (version, model) = filled(memory, new Random(seed), 2000)
      require(memory.storage.diskBytes > 0, "nothing is on disk")
      same(PosixFilePermissions.toString(Files.getPosixFilePermissions(fileIn(folder))), "rw-------")
      same(Files.list(folder).iterator.asScala.toList, Nil, "files")
      compare(new VersionOverlay(version, Ignored), model, "from a file without a name")
      Files.delete(folder)
    }
    check("disk: with encryption, the file has no row as it is") {
      Seq(false, true).foreach { isEncrypted =>
        val folder = Files.createTempDirectory("dynastate-disk")
        val memory = new OnDisk(0, isEncrypted = isEncrypted, folder = folder)
        val open = new VersionOverlay(memory.empty, Ignored)
        val secret = "the name of a customer"
        (0 until 1000).foreach(each => put(open, 0, Key(each), secret.getBytes(UTF_8)))
        open.flush()
        val version = open.fold(Attempt.random(), "")
        same(new String(Files.readAllBytes(fileIn(folder)), ISO_8859_1).contains(secret), !isEncrypted,
          "the file has the row")
        same(get(new VersionOverlay(version, Ignored), 0, Key(1)).map(each => new String(each.toArray, UTF_8)),
          Some(secret))
        Files.delete(folder)
      }
    }
    check("disk: with encryption, no 16 bytes of the file are like others, also where rows are alike") {
      def repeated(isEncrypted: Boolean): Int = {
        val folder = Files.createTempDirectory("dynastate-disk")
        val memory = new OnDisk(0, pageBytes = 4096, isEncrypted = isEncrypted, folder = folder)
        // The pages of one tree are those of the other.
        val versions = (0 until 2).map { _ =>
          val open = new VersionOverlay(memory.empty, Ignored)
          (0 until 500).foreach(each => put(open, 0, Key(each), new Array[Byte](100)))
          open.flush()
          open.fold(Attempt.random(), "")
        }
        val blocks = Files.readAllBytes(fileIn(folder)).grouped(16).map(_.toSeq).filter(_.exists(_ != 0)).toSeq
        require(blocks.size > 1000, s"${blocks.size} blocks are on disk")
        same(versions.map(_.keys.sum), Seq(500L, 500L), "keys")
        Files.delete(folder)
        blocks.size - blocks.distinct.size
      }
      require(repeated(isEncrypted = false) > 500, "rows are not alike")
      same(repeated(isEncrypted = true), 0, "blocks that are like others")
    }
    check("disk: a page that an iterator reads is not given to other rows") {
      val storage = DiskChecks.storage(0, pageBytes = 4096)
      // Who meets other rows reads on where the version is durable, and so hides that a page was released.
      val memory = new Memory {
        override def empty: Version = VersionTree.empty("", storage = storage,
          fallback = _ => throw new AssertionError("a page was released that is read"))
      }
      val random = new Random(seed + 13)
      var (version, model) = filled(memory, random, 2000)
      val iterators = (0 until 3).map { each =>
        val rows = new VersionOverlay(version, Ignored).rows(0)
        (0 to each).foreach(_ => require(rows.advance(), "there are no rows"))
        (rows, model, each + 1)
      }
      (0 until 3).foreach { turn =>
        val open = new VersionOverlay(version, Ignored)
        model.keys.foreach { case (family, key) => put(open, family, key, randomBytes(random, 50)) }
        open.flush()
        version = open.fold(Attempt.random(), "")
        // One after the other ends: the last one reads alone.
        val (rows, content, offset) = iterators(turn)
        var count = offset
        while (rows.advance()) {
          same(valueOf(rows.row).toSeq, content((0, Key.of(rows.row))), s"a row, by iterator $turn")
          count += 1
        }
        same(count, content.size, s"rows, by iterator $turn")
      }
    }
    check("disk: a full disk leaves pages on the heap") {
      val memory = new OnDisk(0, limitBytes = 5L * 256 * 1024)
      val (version, model) = filled(memory, new Random(seed + 1), 3000)
      require(memory.storage.diskBytes <= 5L * 256 * 1024, s"${memory.storage.diskBytes} bytes of disk")
      require(!memory.storage.hasRoom && memory.storage.heapBytes > 10000, "the disk is not full")
      compare(new VersionOverlay(version, Ignored), model, "beside a full disk")
      require(!version.versions.isUsable, "more rows are on the heap than there may be, and it is not said")
    }
    check("disk: a full disk is used again when it has room, and looked at once in a while only") {
      val memory = new OnDisk(0, limitBytes = 5L * 256 * 1024)
      def fill(memory: OnDisk): Unit =
        require(filled(memory, new Random(seed + 8), 3000)._1.number > 0, "there is no version")
      def empty(memory: OnDisk): Unit = {
        val deadline = System.nanoTime() + 50000000000L
        while (memory.storage.diskBytes > 0 && System.nanoTime() < deadline) System.gc()
        same(memory.storage.diskBytes, 0L, "bytes of disk")
      }
      fill(memory)
      empty(memory)
      require(!memory.storage.hasRoom, "the disk is looked at in the same minute")
      lookingOften {
        val disk = new OnDisk(0, limitBytes = 5L * 256 * 1024)
        (0 until 3).foreach { _ =>
          fill(disk)
          empty(disk)
          require(disk.storage.hasRoomFor(3L * 256 * 1024), "an empty disk is not used again")
          require(!disk.storage.hasRoomFor(4L * 256 * 1024), "there is more room than there is")
        }
        val (version, model) = filled(disk, new Random(seed + 9), 3000)
        require(disk.storage.diskBytes > 0, "nothing is on disk")
        require(!disk.storage.hasRoom, "there is room beside pages that have readers")
        compare(new VersionOverlay(version, Ignored), model, "on a disk that was full")
      }
    }
    check("disk: without a folder for the file, the error says what to set") {
      val file = Files.createTempFile("dynastate-disk", "")
      mustFail("set diskPath to a folder", "diskMb to 0")(new RowFile(file.resolve("below"), Long.MaxValue,
          isEncrypted = false))
      Files.delete(file)
    }
    check("disk: a file that has changed is an error, and its rows are not used again") {
      val folder = Files.createTempDirectory("dynastate-disk")
      val memory = new OnDisk(0, folder = folder)
      val (version, model) = filled(memory, new Random(seed + 2), 2000)
      require(version.versions.isUsable, "before")
      overwrite(folder)
      val open = new VersionOverlay(version, Ignored)
      var (heapReads, diskErrors) = (0, 0)
      model.foreach { case ((family, key), value) =>
        try {
          same(get(open, family, key), Some(value), "a row that is read beside others that cannot be")
          heapReads += 1
        } catch {
          case e: DynastateException =>
            require(e.getMessage.contains("rows on local disk cannot be read"), e.getMessage)
            diskErrors += 1
        }
      }
      require(heapReads > 0 && diskErrors > 0, s"$heapReads rows on the heap, $diskErrors on disk")
      mustFail("rows on local disk cannot be read")(compare(open, model, "read whole"))
      require(!version.versions.isUsable && !memory.storage.hasRoom, "the file is still used")
      Files.delete(folder)
    }
    check("disk: a load makes the rows of its changes, and reads none that it has written") {
      val random = new Random(seed + 8)
      val folder = Files.createTempDirectory("dynastate-disk")
      val puts = (0 until 2000).map(number => Put -> Key(number) -> randomBytes(random, 60))
      val changes =
        (2000 until 4000).map(_ => random.nextInt(3) -> Key(10000 + random.nextInt(300)) -> randomBytes(random, 9))
      Seq(Array.empty[Long], Array(2100L)).foreach { expected =>
        val memory = new OnDisk(0, folder = folder)
        val collector = new ChangeCollector(storage = memory.storage, expected = expected)
        collector.add(puts.size, encoded(puts))
        overwrite(folder)
        collector.markFromHere()
        changes.grouped(300).foreach(each => collector.add(each.size, encoded(each)))
        val version = VersionTree.load(collector.asRows, 1, Attempt.random(), "")
        val model = changes.foldLeft(Map.empty[Key, List[Seq[Byte]]]) {
          case (rows, ((Put, key), value)) => rows + (key -> List(value.toSeq))
          case (rows, ((Merge, key), value)) => rows + (key -> (rows.getOrElse(key, Nil) :+ value.toSeq))
          case (rows, ((_, key), _)) => rows - key
        }
        same(version.keys.toSeq, Seq(puts.size.toLong + model.size), "keys")
        // Of the changed rows some are on disk, but in pages that came after.
        val open = new VersionOverlay(version, Ignored)
        changes.map(_._1._2).distinct.foreach { key =>
          val row = open.get(0, key.bytes, Platform.BYTE_ARRAY_OFFSET, key.bytes.length)
          same(Option(row).map(valuesOf(_).toList), model.get(key), s"values of $key")
        }
      }
      Files.delete(folder)
    }
    check("disk: a load does not read the rows that it replaces, and takes no two keys for one")(replacingLoads())
    check("disk: an iterator that the disk fails gives every row once, also those whose hashes are equal")(
      failingIterators())
    check("disk: stores have equal shares of the heap, and a closed one leaves its own to others") {
      val limit = 400000L
      val memory = new OnDisk(limit, pageBytes = 8192)
      val (first, ofFirst) = filled(memory, new Random(seed + 6), 8000)
      require(first.versions.heapBytes(first) > limit / 4 * 3, "one store does not use the heap")
      var (second, ofSecond) = filled(memory, new Random(seed + 7), 8000)
      var last = first
      (0 until 30).foreach { turn =>
        def again(version: Version): Version = {
          val open = new VersionOverlay(version, Ignored)
          (0 until 500).foreach(each => put(open, 0, Key((turn * 500 + each) % 8000), ofFirst((0, Key(each))).toArray))
          open.flush()
          open.fold(Attempt.random(), "")
        }
        last = again(last)
        second = again(second)
      }
      val (one, other) = (last.versions.heapBytes(last), second.versions.heapBytes(second))
      require(one < other * 2 && other < one * 2, s"$one and $other bytes of heap")
      require(one + other <= limit / 5 * 6 && memory.storage.heapBytes <= limit / 5 * 6,
        s"${one + other} bytes of heap where $limit may be")
      last.versions.close()
      require(memory.storage.heapBytes <= other / 4 * 5, "a closed store still counts")
    }
    check("disk: the order of keys, and what leads back to earlier versions, count as heap; a limit below the index " +
      "is said to be too small") {
      val limit = 400000L
      val memory = new OnDisk(limit, pageBytes = 8192)
      val (first, rows) = filled(memory, new Random(seed + 11), 8000)
      first.versions.countUndo(first.versions.undoBytes(first))
      val heapBytes = memory.storage.heapBytes
      val all = new VersionOverlay(first, Ignored).scan(0, null, null)
      while (all.advance()) ()
      first.versions.countUndo(100000)
      val difference = memory.storage.heapBytes - heapBytes
      require(difference > 100000 + 8000 * 4, s"$difference bytes more are counted")
      val open = new VersionOverlay(first, Ignored)
      rows.take(1000).foreach { case ((family, key), value) => put(open, family, key, value.toArray) }
      open.flush()
      val next = open.fold(Attempt.random(), "")
      require(memory.storage.heapBytes <= limit / 16 * 18,
        s"${memory.storage.heapBytes} bytes of heap where $limit may be")
      next.versions.countUndo(0)
      next.versions.close()
      same(memory.storage.heapBytes, 0L, "bytes of heap after the end")
      filled(new OnDisk(1000, pageBytes = 8192), new Random(seed + 12), 1000)
      ()
    }
    check("disk: rows of a tree that is garbage are released") {
      val memory = new OnDisk(0)
      var tree = filled(memory, new Random(seed + 3), 2000)._1
      require(memory.storage.diskBytes > 0 && tree.number > 0, "nothing is on disk")
      tree = null
      val deadline = System.nanoTime() + 50000000000L
      while (memory.storage.diskBytes + memory.storage.heapBytes > 0 && System.nanoTime() < deadline) System.gc()
      same((memory.storage.diskBytes, memory.storage.heapBytes), (0L, 0L), "bytes of disk and heap")
    }
    check("disk: scanned rows lie together, and their places are found without the disk") {
      val memory = new OnDisk(0, pageBytes = 65536)
      val open = new VersionOverlay(memory.empty, Ignored)
      open.keepInOrder(0)
      val groups = 1000
      def key(group: Int, at: Int): Array[Byte] = ByteBuffer.allocate(12).putInt(7).putInt(group).putInt(at).array
      new scala.util.Random(seed + 8).shuffle((0 until groups * 20).toList).foreach(each =>
        putBytes(open, key(each / 20, each % 20), new Array[Byte](60)))
      open.flush()
      val version = open.fold(Attempt.random(), "")
      def scanned(from: Array[Byte], to: Array[Byte]): Seq[Seq[Byte]] = {
        val rows = new VersionOverlay(version, Ignored).scan(0, from, to)
        Iterator.continually(rows).takeWhile(_.advance()).map(_.row.key.toSeq).toList
      }
      def reads(use: => Unit): Long = {
        val count = version.versions.disk.reads
        use
        version.versions.disk.reads - count
      }
      val all = (0 until groups * 20).map(each => key(each / 20, each % 20).toSeq)
      same(scanned(null, null), all, "rows in order")
      val whole = reads(same(scanned(null, null), all, "rows in order, again"))
      require(whole > 20 && whole < 100, s"$whole reads of ${all.size} rows")
      val each = reads((0 until groups).foreach(group =>
          same(scanned(key(group, 0), key(group + 1, 0)), all.slice(group * 20, group * 20 + 20), s"group $group")))
      require(each < groups / 4 * 5, s"$each reads for $groups groups of neighbours")
      same(reads(
          (0 until groups).foreach(group => same(scanned(key(group, 20), key(group, 21)), Nil, s"after group $group"))),
        0L, "reads for no row")
    }
    check("disk: scans between any two keys, where many begin alike, read few rows beside those in the range") {
      Seq(0L, Long.MaxValue).foreach { heapLimit =>
        val random = new Random(seed + 10)
        def some(letters: Int, atMost: Int): Seq[Byte] =
          Seq.fill(random.nextInt(atMost + 1))(('a' + random.nextInt(letters)).toByte)
        // Runs of keys that differ first after more bytes than a mark has, from one key to whole blocks of them.
        val beginnings =
          (0 until 60).map(each => "key-".getBytes(UTF_8).toSeq ++ some(26, 3) ++ Seq.fill(each % 13)('x'.toByte))
        def any(): Seq[Byte] = beginnings(math.min(random.nextInt(60), random.nextInt(60))) ++ some(3, 6)
        val memory = new OnDisk(heapLimit, pageBytes = 4096)
        val open = new VersionOverlay(memory.empty, Ignored)
        open.keepInOrder(0)
        val keys = Seq.fill(6000)(any()).distinct
        keys.foreach(key => putBytes(open, key.toArray, new Array[Byte](40)))
        open.flush()
        val version = open.fold(Attempt.random(), "")
        def compare(one: Seq[Byte], other: Seq[Byte]): Int =
          java.util.Arrays.compareUnsigned(one.toArray, other.toArray)
        val sortedKeys = keys.sortWith(compare(_, _) < 0)
        same(new VersionOverlay(version, Ignored).scan(0, null, null).advance(), true, "the scan that makes the order")
        val count = version.versions.disk.reads
        var rows = 0L
        val scans = 500
        (0 until scans).foreach { _ =>
          val from = if (random.nextInt(8) == 0) null else any()
          val to =
            if (random.nextInt(8) == 0) null
            else if (random.nextBoolean() && from != null) from ++ some(3, 2)
            else any()
          val all = new VersionOverlay(version, Ignored).scan(
            0,
            if (from == null) null else from.toArray,
            if (to == null) null else to.toArray)
          val keysRead = Iterator.continually(all).takeWhile(_.advance()).map(_.row.key.toSeq).toList
          val expected = sortedKeys.filter(key =>
            (from == null || compare(key, from) >= 0) && (to == null || compare(key, to) < 0))
          same(keysRead, expected, s"seed $seed: from $from to $to")
          rows += keysRead.size
        }
        require(rows > 100L * scans, s"$rows rows in $scans scans")
        val reads = version.versions.disk.reads - count
        require(
          if (heapLimit == 0) reads > 0 && reads < rows + 20L * scans else reads == 0, s"$reads reads for $rows rows")
      }
    }
    check("disk: a pass reads each page once, and rows that it removes or puts are not read again") {
      Seq(false, true).foreach { isScan =>
        val memory = new OnDisk(0, pageBytes = 8192)
        val (version, model) = filled(memory, new Random(seed + 9), 4000)
        def reads: Long = version.versions.disk.reads
        def pass(open: VersionOverlay): RowIterator = if (isScan) open.scan(0, null, null) else open.rows(0)
        // The first scan makes the order.
        drain(pass(new VersionOverlay(version, Ignored)))
        val count = reads
        drain(pass(new VersionOverlay(version, Ignored)))
        val perPass = reads - count
        if (!isScan) same(perPass, version.versions.disk.spilled, "reads of pages")
        val open = new VersionOverlay(version, Ignored)
        val all = pass(open)
        val removals = mutable.Set.empty[Key]
        while (all.advance()) {
          val key = Key.of(all.row)
          if (key.number % 3 == 0) {
            remove(open, 0, key)
            removals += key
          } else if (key.number % 3 == 1) put(open, 0, key, valueOf(all.row).toArray)
        }
        open.flush()
        val next = open.fold(Attempt.random(), "")
        same(reads - count, 2 * perPass, s"reads of two passes, isScan $isScan")
        compare(new VersionOverlay(next, Ignored), model.filterNot { case ((_, key), _) => removals(key) },
          "after the eviction")
        compare(new VersionOverlay(version, Ignored), model, "before it")
        same((next.keys(0), removals.size), (model.size.toLong - removals.size, 1334), "keys")
      }
    }
    check("disk: rows that are read and then replaced are read once") {
      val memory = new OnDisk(0, pageBytes = 8192)
      val (version, model) = filled(memory, new Random(seed + 10), 4000)
      val open = new VersionOverlay(version, Ignored)
      model.foreach { case ((family, key), value) => same(get(open, family, key), Some(value)) }
      val count = version.versions.disk.reads
      require(count > 3500, s"$count rows were read from disk")
      model.foreach { case ((family, key), value) =>
        if (key.number % 2 == 0) remove(open, family, key) else put(open, family, key, value.reverse.toArray)
      }
      open.flush()
      val next = open.fold(Attempt.random(), "")
      // The last pages were on the heap when their rows were read.
      require(version.versions.disk.reads < count + 400, s"${version.versions.disk.reads} reads")
      compare(new VersionOverlay(next, Ignored),
        model.collect { case (of, value) if of._2.number % 2 == 1 => of -> value.reverse }, "after it")
      compare(new VersionOverlay(version, Ignored), model, "before it")
    }
    check("disk: an interrupted thread reads and writes on") {
      val memory = new OnDisk(0)
      val (version, model) = filled(memory, new Random(seed + 4), 1000)
      Thread.currentThread.interrupt()
      try {
        compare(new VersionOverlay(version, Ignored), model, "in an interrupted thread")
        filled(memory, new Random(seed + 5), 1000)
      } finally require(Thread.interrupted(), "the interrupt is lost")
      compare(new VersionOverlay(version, Ignored), model, "after it")
    }
  }

  private def replacingLoads(): Unit = {
    val random = new Random(seed + 9)
    val keys = (equalHashes.flatten ++ (400000 until 402000).map(Key(_))).toArray
    def load(changes: Seq[((Int, Key), Array[Byte])], expected: Long): Version = {
      val collector =
        new ChangeCollector(storage = new OnDisk(0).storage, expected = Array(expected), isLoad = true)
      changes.grouped(300).foreach(each => collector.add(each.size, encoded(each)))
      VersionTree.load(collector.asRows, 1, Attempt.random(), "")
    }
    Seq(false, true).foreach { hasLongRows =>
      def value() =
        randomBytes(random,
          if (hasLongRows && random.nextInt(20) == 0) 1900 + random.nextInt(900) else random.nextInt(80))
      val puts = keys.toSeq.map(key => Put -> key -> value())
      val changes =
        (0 until 6000).map(_ =>
          (if (random.nextInt(9) == 0) Remove else Put) -> keys(random.nextInt(keys.length)) -> value())
      val model = mutable.LinkedHashMap.empty[Key, Array[Byte]]
      (puts ++ changes).foreach { case ((operation, key), value) =>
        if (operation == Put) model(key) = value else model -= key
      }
      // With too few expected rows the slots grow.
      val version = load(puts ++ changes, if (hasLongRows) 20 else keys.length.toLong)
      val reads = version.versions.disk.reads
      if (hasLongRows) require(reads > 100, s"of long rows $reads were read") else require(reads < 20, s"$reads reads")
      val plain = load(model.toSeq.map { case (key, value) => Put -> key -> value }, keys.length.toLong)
      same(version.versions.stateBytes(version), plain.versions.stateBytes(plain), "bytes of rows and slots")
      compare(new VersionOverlay(version, Ignored), model.map { case (key, value) => (0, key) -> value.toSeq }.toMap,
        s"long rows: $hasLongRows")
    }
  }

  private def failingIterators(): Unit = {
    val byHash = equalHashes
    val keys = byHash.map(_.head) ++ (400000 until 402000).map(Key(_)) ++ byHash.map(_.last)
    val model = keys.map(each => (0, each) -> each.bytes.toSeq).toMap
    Seq(0, 1, 20, 500, 1500, keys.size - 200).foreach { count =>
      val memory = new FailingDisk(0, failsAt = 0, count, pageBytes = 2048)
      val open = new VersionOverlay(memory.empty, Ignored)
      keys.foreach(each => put(open, 0, each, each.bytes))
      open.flush()
      val version = open.fold(Attempt.random(), "")
      memory.committed(version, model)
      val rows = new VersionOverlay(version, Ignored).rows(0)
      val keysRead = mutable.ArrayBuffer.empty[Key]
      (0 until count).foreach { _ =>
        require(rows.advance(), "there are few rows")
        keysRead += Key.of(rows.row)
      }
      memory.fail()
      while (rows.advance()) keysRead += Key.of(rows.row)
      require(!memory.storage.isUsable, "the disk did not fail")
      same(keysRead.size, keys.size, s"rows, of which $count came before the disk failed")
      same(keysRead.toSet, keys.toSet, s"keys, of which $count came before the disk failed")
    }
  }
}

object DiskChecks {
  import Checks.same
  import MemoryChecks.{Ignored, InBuckets, Key, Memory, put, randomBytes}

  private lazy val temporary = Path.of(System.getProperty("java.io.tmpdir"))

  def storage(heapLimit: Long, pageBytes: Int, limitBytes: Long = Long.MaxValue, isEncrypted: Boolean = false,
      folder: Path = temporary): RowStorage =
    new RowStorage(heapLimit, new RowFile(folder, limitBytes, isEncrypted), pageBytes)

  /** Trees whose full pages go to disk, beyond a limit of heap. */
  final class OnDisk(heapLimit: Long, pageBytes: Int = 512, limitBytes: Long = Long.MaxValue,
      isEncrypted: Boolean = false, folder: Path = temporary) extends Memory {
    val storage: RowStorage = DiskChecks.storage(heapLimit, pageBytes, limitBytes, isEncrypted, folder)

    override def empty: Version = VersionTree.empty("", storage = storage)
  }

  /** The same on a disk that fails after a number of operations; from then on rows are read from where they are
   * durable.
   */
  final class FailingDisk(heapLimit: Long, failsAt: Int, round: Int, pageBytes: Int = 512) extends Memory {
    private val folder = Files.createTempDirectory("dynastate-disk")
    private val source = new InBuckets(Seq(0L, 800L, 20000L)(round % 3))
    private var count = 0
    val storage: RowStorage = DiskChecks.storage(heapLimit, pageBytes, folder = folder)

    override def empty: Version = VersionTree.empty("", storage = storage, fallback = source.absent)

    override def durable(next: Version, lists: Map[(Int, Key), List[Seq[Byte]]]): Unit = source.durable(next, lists)

    override def pass(): Unit = {
      count += 1
      if (count == failsAt) fail()
    }

    def fail(): Unit = {
      overwrite(folder, isTruncated = round % 2 == 0)
      Files.delete(folder)
    }
  }

  private val Put = 0
  private val Merge = 1
  private val Remove = 2

  /** Keys whose hashes are equal. */
  private def equalHashes: Seq[Seq[Key]] = {
    val byHash = (0 until 400000).map(Key(_)).groupBy(_.hash).values.filter(_.size > 1).toSeq
    require(byHash.size > 5, s"${byHash.size} pairs of keys with equal hashes")
    byHash
  }

  /** Changes as the engine sends them. */
  private def encoded(changes: Seq[((Int, Key), Array[Byte])]): ByteBuffer = {
    val out = ByteBuffer.allocate(changes.map(_._2.length + 200).sum).order(ByteOrder.LITTLE_ENDIAN)
    changes.foreach { case ((operation, key), value) =>
      out.putShort((if (operation == Merge) 1 << 12 else 0).toShort).put(if (operation > Merge)
          Row.probe(key.bytes).bytes
        else key.put(value))
    }
    out.flip()
  }

  /** Look at a full disk again at once. */
  def lookingOften(body: => Unit): Unit = {
    val previous = RowFile.lookAgainNanos
    RowFile.lookAgainNanos = 0
    try body
    finally RowFile.lookAgainNanos = previous
  }

  private def putBytes(open: VersionOverlay, key: Array[Byte], value: Array[Byte]): Unit =
    open.put(0, key, Platform.BYTE_ARRAY_OFFSET, key.length, value, Platform.BYTE_ARRAY_OFFSET, value.length)

  /** The open file of a folder, which has no name. */
  private def fileIn(folder: Path): Path = Files.list(Path.of("/proc/self/fd")).iterator.asScala.find { each =>
    try Files.readSymbolicLink(each).startsWith(folder)
    catch { case _: java.io.IOException => false }
  }.getOrElse(throw new AssertionError(s"no file of $folder is open"))

  /** Overwrite the file that this process has in a folder, although it has no name. */
  def overwrite(folder: Path, isTruncated: Boolean = false): Unit = {
    val file = new RandomAccessFile(fileIn(folder).toFile, "rw")
    try if (isTruncated) file.setLength(0) else file.write(new Array[Byte](file.length.toInt))
    finally file.close()
  }

  /** Commit rows, a hundred a version. */
  def filled(memory: Memory, random: Random, keys: Int): (Version, Map[(Int, Key), Seq[Byte]]) = {
    var version = memory.empty
    var model = Map.empty[(Int, Key), Seq[Byte]]
    (0 until keys).grouped(100).foreach { some =>
      val open = new VersionOverlay(version, Ignored)
      some.foreach { number =>
        val value = randomBytes(random, random.nextInt(100))
        put(open, 0, Key(number), value)
        model += (0, Key(number)) -> value.toSeq
      }
      open.flush()
      version = open.fold(Attempt.random(), "")
    }
    (version, model)
  }
}
