package io.dynastate.memory

import java.io.ByteArrayOutputStream
import java.nio.{ByteBuffer, ByteOrder}

/** The changes after one version of a store, that of a snapshot or 0, up to another, as encoded records by 2^bits
 * buckets. With them only the rows of the snapshot have to be read for a bucket. Never changes.
 */
final class HeldChanges private (val snapshot: Long, val version: Long, val attempt: Attempt, val bits: Int,
    val heapBytes: Long, runs: Array[List[HeldChanges.Run]]) {
  import HeldChanges._

  def isEmpty: Boolean = version == 0

  /** Add the changes of some of at least 2^bits buckets to those collected; those of others may be added, too. */
  def addTo(collector: ChangeCollector, bucketBits: Int, buckets: Seq[Int]): Unit =
    buckets.map(_ >>> bucketBits - bits).distinct.foreach { bucket =>
      runs(bucket).reverse.foreach(run =>
        collector.add(run.records, ByteBuffer.wrap(run.bytes).order(ByteOrder.LITTLE_ENDIAN)))
    }

  /** Begin the changes up to a later version with these. */
  def builder: Builder = new Builder(snapshot, bits, heapBytes, runs.clone())
}

object HeldChanges {
  val None: HeldChanges = new HeldChanges(0L, 0L, Attempt.None, 0, 0L, Array(Nil))
  /** Heap that a run takes beside its bytes, about. */
  private val RunBytes = 80L

  /** Records of one bucket in one chunk. */
  private final class Run(val records: Int, val bytes: Array[Byte])

  def after(snapshot: Long, bits: Int): Builder = new Builder(snapshot, bits, 0L, Array.fill(1 << bits)(Nil))

  /** Divides chunks into buckets; oldest first. */
  final class Builder private[HeldChanges] (snapshot: Long, bits: Int, heapBytesBefore: Long, runs: Array[List[Run]]) {
    private[this] var heapBytes = heapBytesBefore
    private[this] val outs = new Array[ByteArrayOutputStream](runs.length)
    private[this] val counts = new Array[Int](runs.length)

    def add(encodedChanges: ByteBuffer): Unit = {
      val changes = new ChangeRecords(encodedChanges)
      var least = runs.length
      var most = -1
      while (changes.advance()) {
        val bucket = ChangedBuckets.bucketOf(changes.hash, bits)
        if (outs(bucket) == null) outs(bucket) = new ByteArrayOutputStream
        changes.writeTo(outs(bucket))
        counts(bucket) += 1
        least = math.min(least, bucket)
        most = math.max(most, bucket)
      }
      // Chunks are nearly in the order of hashes.
      while (least <= most) {
        if (counts(least) > 0) {
          val bytes = outs(least).toByteArray
          runs(least) = new Run(counts(least), bytes) :: runs(least)
          heapBytes += bytes.length + RunBytes
          outs(least).reset()
          counts(least) = 0
        }
        least += 1
      }
    }

    def upTo(version: Long, attempt: Attempt): HeldChanges =
      new HeldChanges(snapshot, version, attempt, bits, heapBytes, runs)
  }
}
