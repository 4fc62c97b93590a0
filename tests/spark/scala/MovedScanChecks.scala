package io.dynastate.tests

import java.util.{Arrays, Random, TreeMap}

import io.dynastate.memory.{Attempt, ScanIterator, VersionOverlay}

/** A scan that is moved, as timers do it: against a sorted map, and the reads that it takes. */
final class MovedScanChecks(checks: Checks, seed: Long) {
  import Checks._
  import MemoryChecks._
  import MovedScanChecks._
  import checks.{check, rounds}

  def run(): Unit = {
    check("a scan that is moved: beside changes and commits, as a sorted map") {
      rounds(24).foreach { round =>
        val memory = round % 4 match {
          case 0 => new DiskChecks.OnDisk(0)
          case 1 => new InBuckets(Seq(0L, 800L, 20000L)(round % 3))
          case 2 => InTree
          case 3 => new DiskChecks.FailingDisk(0, failsAt = 2, round)
        }
        moves(new Random(seed + 3000 + round), memory)
      }
    }
    check("a scan that is moved: back to each row near the one that it is at, in memory and in buckets") {
      Seq((InTree, 1 to 130), (new InBuckets(0L), 1020 to 1030)).foreach { case (memory, counts) =>
        val rows = new Rows(memory)
        rows.fill(1200)
        for (count <- counts; back <- 0 to math.min(2, count)) {
          rows.moveTo(0, null).read(count)
          rows.moveTo(0, rows.key(count - back)).read(5)
        }
      }
    }
    check("a scan that is moved: moves among the same rows do not read them again, on disk and in buckets") {
      require(readsOnDisk(moves = 1) < 400, s"${readsOnDisk(moves = 1)} reads of the disk for 2,000 timers")
      same(readsOnDisk(moves = 30), readsOnDisk(moves = 1), "reads of the disk")
      same(readsOfBuckets(moves = 30), readsOfBuckets(moves = 1), "reads of buckets")
    }
    check("a scan that is moved: where no timer is due, few rows are read from disk") {
      val rows = new Rows(new DiskChecks.OnDisk(0, pageBytes = 4096))
      rows.fill(4000)
      rows.moveTo(0, null).read(1) // makes the order of all rows
      val before = rows.diskReads
      (0 until 100).foreach(_ => rows.moveTo(1, null).read(1))
      val reads = rows.diskReads - before
      require(reads <= 8, s"$reads reads of the disk")
    }
  }

  private def moves(random: Random, memory: Memory): Unit = {
    val rows = new Rows(memory)
    rows.fill(1500)
    (0 until 4).foreach { _ =>
      var at = 0
      (0 until 25).foreach { _ =>
        (0 until random.nextInt(30)).foreach { _ =>
          val key = if (random.nextBoolean()) rows.key(at + random.nextInt(20)) else Key(random.nextInt(2000))
          if (random.nextInt(3) == 0) rows.put(key, randomBytes(random, 3)) else rows.remove(key)
        }
        if (random.nextInt(8) == 0) rows.flush()
        at = random.nextInt(10) match {
          case 0 => random.nextInt(1500)
          case 1 => 0
          case _ => at + random.nextInt(40)
        }
        rows.moveTo(random.nextInt(2), if (at == 0) null else rows.key(at)).read(random.nextInt(60))
      }
      rows.moveTo(0, null).read(Int.MaxValue)
      rows.commit(showsIt = random.nextBoolean())
    }
  }

  private def readsOnDisk(moves: Int): Long = {
    val rows = new Rows(new DiskChecks.OnDisk(0, pageBytes = 4096))
    rows.fill(2000)
    val before = rows.diskReads
    timers(rows, moves)
    rows.diskReads - before
  }

  private def readsOfBuckets(moves: Int): Int = {
    val memory = new InBuckets(0L)
    val rows = new Rows(memory)
    rows.fill(2000)
    val before = memory.reads
    timers(rows, moves)
    memory.reads - before
  }

  /** Ten timers at a time are due and removed, after a number of moves. */
  private def timers(rows: Rows, moves: Int): Unit = {
    val due = rows.keys.grouped(10).toList
    due.foreach { some =>
      (0 until moves).foreach(_ => rows.moveTo(0, some.head).read(1))
      rows.moveTo(0, some.head).read(11)
      some.foreach(rows.remove)
    }
  }
}

private object MovedScanChecks {
  import Checks._
  import MemoryChecks._

  private val Family = 2

  /** The rows of a family, a sorted map of them, and two scans that are moved. */
  final class Rows(memory: Memory) {
    private type Model = TreeMap[Array[Byte], (Key, Seq[Byte])]
    private val expected = new Model((one: Array[Byte], other: Array[Byte]) => Arrays.compareUnsigned(one, other))
    private val scans = new Array[ScanIterator](2)
    private var version = memory.empty
    private var open = new VersionOverlay(version, Ignored)
    private var initial = Vector.empty[Key]

    /** Commit so many rows. */
    def fill(count: Int): Unit = {
      (0 until count).foreach(number => put(Key(number), Array(number.toByte)))
      commit(showsIt = false)
      initial = keys.toVector
    }

    /** All keys, in order. */
    def keys: Seq[Key] = expected.values.toArray(Array.empty[(Key, Seq[Byte])]).map(_._1).toSeq

    /** One of the keys that there were first. */
    def key(number: Int): Key = initial(number % initial.size)

    def put(key: Key, value: Array[Byte]): Unit = {
      MemoryChecks.put(open, Family, key, value)
      expected.put(key.bytes, key -> value.toSeq)
    }

    def remove(key: Key): Unit = {
      MemoryChecks.remove(open, Family, key)
      expected.remove(key.bytes)
    }

    def diskReads: Long = version.versions.disk.reads

    def flush(): Unit = open.flush()

    /** Move one of the scans to a key (null: the first), and expect the rows as they are now. */
    def moveTo(scan: Int, key: Key): View = {
      val from = if (key == null) null else key.bytes
      scans(scan) = open.scanFrom(Family, from, scans(scan))
      new View(scans(scan), if (from == null) new Model(expected) else new Model(expected.tailMap(from)))
    }

    final class View(scan: ScanIterator, left: Model) {
      def read(most: Int): Unit = {
        var count = 0
        while (count < most && scan.advance()) {
          val next = Option(left.pollFirstEntry()).map(entry => entry.getKey.toSeq -> entry.getValue._2)
          same(Option(scan.row.key.toSeq -> valueOf(scan.row)), next, s"a row at $version")
          count += 1
        }
        if (count < most) same(left.size, 0, s"rows that the scan lacks at $version")
      }
    }

    /** Make the changes a version, and show it in the same overlay or another. */
    def commit(showsIt: Boolean): Unit = {
      memory.pass()
      open.flush()
      version = open.fold(Attempt.random(), "")
      val rows = expected.values.toArray(Array.empty[(Key, Seq[Byte])])
      memory.committed(version, rows.map { case (key, value) => (Family, key) -> value }.toMap)
      if (showsIt) open.show(version) else open = new VersionOverlay(version, Ignored)
    }
  }
}
