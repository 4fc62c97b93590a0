package io.dynastate.tests

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.UTF_8
import java.util.{Arrays, Random, TreeSet}

import io.dynastate.memory.{Attempt, ChangeSink, VersionOverlay}

import org.apache.spark.unsafe.Platform

/** Scans in the order of keys, which blocks of neighbouring rows give: against a sorted set. */
final class OrderChecks(checks: Checks, seed: Long) {
  import Checks._
  import OrderChecks._
  import checks.{check, rounds}

  def run(): Unit = {
    check("order of keys: the first row of a block is removed, the block grows, and the row is put again") {
      Seq(new DiskChecks.OnDisk(0), MemoryChecks.InTree).foreach { memory =>
        val rows = new Rows(memory)
        (0 until 192).foreach(number => rows.put(key("group-A", number)))
        rows.put(key("group-AX", 10))
        (1 until 191).foreach(number => rows.put(key("group-B", number)))
        rows.put(key("group-C", 1))
        rows.commit() // its first scan makes blocks of 192 rows
        rows.remove(key("group-AX", 10))
        rows.commit()
        (191 until 256).foreach(number => rows.put(key("group-B", number)))
        rows.commit()
        rows.put(key("group-AX", 20))
        rows.commit()
        rows.compare("group-AX".getBytes(UTF_8), "group-AY".getBytes(UTF_8))
        rows.remove(key("group-AX", 20))
        rows.commit()
      }
    }
    check("order of keys: groups that grow, and lose and get again their first rows, as a sorted set") {
      rounds(6).foreach { round =>
        val memory = if (round % 3 == 2) new DiskChecks.OnDisk(0) else MemoryChecks.InTree
        growing(new Random(seed + 1000 + round), new Rows(memory))
      }
    }
    check("order of keys: views stay as they were, beside changes") {
      rounds(6).foreach { round =>
        val memory = if (round % 3 == 2) new DiskChecks.OnDisk(0) else MemoryChecks.InTree
        views(new Random(seed + 2000 + round), new Rows(memory))
      }
    }
  }

  /** Iterators that are moved while keys come and go: each shows what there was when it was moved. */
  private def views(random: Random, rows: Rows): Unit = {
    (0 until 300).foreach(_ => rows.put(key("base", random.nextInt(3000))))
    rows.commit()
    var open = List.empty[Rows#View]
    (0 until 200).foreach { _ =>
      (0 until random.nextInt(40)).foreach { _ =>
        val one = key("base", random.nextInt(3000))
        if (random.nextInt(3) == 0) rows.remove(one) else rows.put(one)
      }
      if (random.nextInt(8) == 0) rows.flush()
      val from = if (random.nextInt(5) == 0) null else key("base", random.nextInt(3000))
      open ::= new rows.View(from)
      open.foreach(_.read(random.nextInt(30)))
      if (open.size > 4) {
        open.last.read(Int.MaxValue)
        open = open.init
      }
    }
    rows.commit()
    open.foreach(_.read(Int.MaxValue))
  }

  /** Groups of keys that are alike in their first bytes. Each turn one group grows at its end, another loses or gets
   * its first keys.
   */
  private def growing(random: Random, rows: Rows): Unit = {
    val groups = Vector.tabulate(6)(number => s"${"group" * (number % 3)}-${"ABAXB".substring(number % 5)}$number")
    val next = Array.fill(groups.size)(100)
    (0 until 250).foreach { _ =>
      val at = random.nextInt(groups.size)
      (0 until random.nextInt(60)).foreach { _ =>
        rows.put(key(groups(at), next(at)))
        next(at) += 1 + random.nextInt(3)
      }
      val group = groups(random.nextInt(groups.size))
      val bounds = (key(group, 0), key(group, Int.MaxValue))
      rows.firstFrom(bounds._1).filter(Arrays.compareUnsigned(_, bounds._2) < 0).foreach { first =>
        (0 until random.nextInt(3)).foreach(_ => rows.firstFrom(first).foreach(rows.remove))
        if (random.nextInt(2) == 0) rows.put(key(group, math.max(0, numberOf(first) - random.nextInt(3))))
      }
      rows.commit()
      rows.compare(bounds._1, key(group, 40 + random.nextInt(200)))
    }
    rows.compare(null, null)
  }
}

object OrderChecks {
  import Checks._

  private val Unread: ChangeSink = new ChangeSink {
    override def append(records: Int, hashMin: Int, hashMax: Int, changes: Array[Byte], length: Int): Unit = ()
  }

  private def key(group: String, number: Int): Array[Byte] = {
    val name = group.getBytes(UTF_8)
    ByteBuffer.allocate(name.length + 8).put(name).putLong(number.toLong).array
  }

  private def numberOf(key: Array[Byte]): Int = ByteBuffer.wrap(key, key.length - 8, 8).getLong.toInt

  /** The rows of one column family, and a sorted set of their keys. */
  private final class Rows(memory: MemoryChecks.Memory) {
    private val expected = new TreeSet[Array[Byte]]((one: Array[Byte], other: Array[Byte]) =>
      Arrays.compareUnsigned(one, other))
    private var version = memory.empty
    private var open = new VersionOverlay(version, Unread)

    def put(key: Array[Byte]): Unit = {
      open.put(0, key, Platform.BYTE_ARRAY_OFFSET, key.length, key, Platform.BYTE_ARRAY_OFFSET, 8)
      expected.add(key)
    }

    def remove(key: Array[Byte]): Unit = {
      open.remove(0, key, Platform.BYTE_ARRAY_OFFSET, key.length)
      expected.remove(key)
    }

    def firstFrom(key: Array[Byte]): Option[Array[Byte]] = Option(expected.ceiling(key))

    def flush(): Unit = open.flush()

    /** All keys from one on (null: all), as they are now, read some at a time. */
    final class View(from: Array[Byte]) {
      private val left = new TreeSet[Array[Byte]](if (from == null) expected else expected.tailSet(from))
      private val found = open.scanFrom(0, from)

      def read(most: Int): Unit = {
        var count = 0
        while (count < most && found.advance()) {
          same(found.row.key.toSeq, Option(left.pollFirst()).map(_.toSeq).orNull, s"a key of a view at $version")
          count += 1
        }
        if (count < most) same(left.size, 0, s"keys that a view lacks at $version")
      }
    }

    /** Make the changes a version, which keeps its rows in order from the first scan on. */
    def commit(): Unit = {
      open.flush()
      version = open.fold(Attempt.random(), "")
      open.show(version)
      open = new VersionOverlay(version, Unread)
      if (version.number == 1) compare(null, null)
    }

    /** Scan from a key up to another, exclusive; null: from the first, to the end. */
    def compare(from: Array[Byte], to: Array[Byte]): Unit = {
      val all = if (from == null) expected else expected.subSet(from, to)
      val iterator = open.scan(0, from, to)
      val found = Iterator.continually(iterator).takeWhile(_.advance()).map(_.row.key.toSeq).toList
      iterator.close()
      same(found, all.toArray(Array.empty[Array[Byte]]).map(_.toSeq).toList, s"keys at $version")
    }
  }
}
