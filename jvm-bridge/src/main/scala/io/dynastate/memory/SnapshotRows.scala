package io.dynastate.memory

import scala.collection.mutable

/** Receives rows bucket by bucket: `bucket`, then the chunks of its rows, of which there may be none. */
trait BucketSink extends ChangeSink {
  def bucket(number: Int): Unit
}

/** A version's rows by their hashes, for a snapshot. They are gathered in one pass over the version's tables (over one
 * bucket after the other, if the version has buckets), and ordered by a counting sort. The tree is not locked while
 * they are sent, so that commits continue. Takes 16 bytes a row of a pass until the end; rows on disk are read when
 * they are sent.
 */
private[memory] final class SnapshotRows(version: Version, bucketBits: Int, isWanted: Array[Boolean]) {
  private[this] val buckets = isWanted.length
  require(bucketBits >= 0 && bucketBits <= ChangedBuckets.HashBits && buckets == 1 << bucketBits,
    s"$buckets buckets of $bucketBits bits")
  private[this] val shift = ChangedBuckets.HashBits - bucketBits
  private[this] val ownBits = version.versions.bucketBits(version)
  /** A pass covers one value of this many first bits: whole buckets of the snapshot and of the version. */
  private[this] val passBits = math.min(bucketBits, ownBits)
  private[this] val families = version.keys.length
  /** The rows of a pass: their hashes, and where they are: the address in one of `layers`. */
  private[this] var hashes, addresses, layerOf = new Array[Int](expectedRows)
  /** The layers of a pass, each with those that belong together. */
  private[this] val layers = mutable.ArrayBuffer.empty[(Slots, Array[Slots])]
  private[this] val current = new Row
  private[this] var count = 0
  /** Index after the last row of each family: rows are gathered family by family. */
  private[this] val familyEnds = new Array[Int](families)

  def send(sink: BucketSink): Unit = {
    val chunks = new Chunks(sink, Chunks.Bytes.toLong)
    val perPass = buckets >> passBits
    (0 until 1 << passBits).foreach { pass =>
      val range = pass * perPass until (pass + 1) * perPass
      if (range.exists(isWanted(_))) sendPass(pass, range, chunks, sink)
    }
  }

  private def sendPass(pass: Int, range: Range, chunks: Chunks, sink: BucketSink): Unit = {
    val perPass = 1 << (ownBits - passBits)
    val shared = (pass * perPass until (pass + 1) * perPass).map(version.versions.share(version, _))
    count = 0
    try {
      (0 until families).foreach { family =>
        shared.foreach(each => gather(each(family)))
        familyEnds(family) = count
      }
      sendGathered(range, chunks, sink)
    } finally {
      layers.foreach(_._1.release())
      layers.clear()
    }
  }

  private def sendGathered(range: Range, chunks: Chunks, sink: BucketSink): Unit = {
    val cellEnds = new Array[Int](1 << ChangedBuckets.HashBits)
    val positions = order(cellEnds)
    var at = 0
    range.foreach { bucket =>
      if (isWanted(bucket)) {
        sink.bucket(bucket)
        val end = cellEnds(((bucket + 1) << shift) - 1)
        var familyAt = 0
        while (at < end) {
          val row = positions(at)
          if (familyAt > 0 && row < familyEnds(familyAt - 1)) familyAt = 0
          while (row >= familyEnds(familyAt)) familyAt += 1
          read(row)
          chunks.addRow(familyAt, hashes(row), current)
          at += 1
        }
        chunks.end()
      }
    }
  }

  private def gather(some: List[Slots]): Unit = {
    val firstLayer = layers.size
    // The iterator releases them, too.
    some.foreach(_.retain())
    val group = some.toArray
    layers ++= group.map((_, group))
    val all = new SlotIterator(group, showAll = false)
    try while (all.advance()) {
        if (isWanted(ChangedBuckets.cellOf(all.hash) >>> shift)) {
          if (count == hashes.length) {
            val length = Math.addExact(count, count / 4 + 16)
            hashes = java.util.Arrays.copyOf(hashes, length)
            addresses = java.util.Arrays.copyOf(addresses, length)
            layerOf = java.util.Arrays.copyOf(layerOf, length)
          }
          hashes(count) = all.hash
          addresses(count) = group(all.layer).addressAt(all.slot)
          layerOf(count) = firstLayer + all.layer
          count += 1
        }
      }
    finally all.close()
  }

  private def read(row: Int): Unit = {
    val (layer, group) = layers(layerOf(row))
    layer.readRow(addresses(row), current)
    Slots.findSegments(current, hashes(row), group, Slots.Nothing)
  }

  /** The rows' indexes in the order of their cells, within one of families. Fills `cellEnds` with the cells' ends. */
  private def order(cellEnds: Array[Int]): Array[Int] = {
    var row = 0
    while (row < count) {
      cellEnds(ChangedBuckets.cellOf(hashes(row))) += 1
      row += 1
    }
    val free = new Array[Int](cellEnds.length)
    var cell = 1
    while (cell < cellEnds.length) {
      free(cell) = cellEnds(cell - 1)
      cellEnds(cell) += cellEnds(cell - 1)
      cell += 1
    }
    val result = new Array[Int](count)
    row = 0
    while (row < count) {
      val of = ChangedBuckets.cellOf(hashes(row))
      result(free(of)) = row
      free(of) += 1
      row += 1
    }
    result
  }

  /** All rows if all buckets are wanted, else a little more than their share: hashes are spread evenly. */
  private def expectedRows: Int = {
    val all = version.keys.sum
    val share = if (passBits > 0) buckets.toLong >> passBits else isWanted.count(identity).toLong
    Math.toIntExact(if (share == buckets) all else math.min(all, all / buckets * share * 9 / 8 + 1024))
  }
}

object SnapshotRows {
  /** Send the wanted ones of a version's 2^bucketBits buckets, in ascending order, with the rows of all families. */
  def send(version: Version, bucketBits: Int, isWanted: Array[Boolean], sink: BucketSink): Unit =
    new SnapshotRows(version, bucketBits, isWanted).send(sink)
}
