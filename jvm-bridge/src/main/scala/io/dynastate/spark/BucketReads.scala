package io.dynastate.spark

import java.util.concurrent.ExecutorService
import java.util.concurrent.TimeUnit.NANOSECONDS
import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import io.dynastate.bridge.Deltas
import io.dynastate.memory.{BucketCache, BucketSource, ChangeCollector, ChangedBuckets, HeldChanges, RowTables, Version}
import org.slf4j.LoggerFactory

/** Reads buckets of a store's versions through the engine. Changes since the snapshot are read with each bucket, as far
 * as they may be of its rows. Where they are many, a thread reads all of them once, and they are held in memory, so
 * that from then on a read has only the rows of the snapshot and the newest changes (docs/decisions/0015). The engine
 * says with each answer whether they are applied: a change that is applied twice appends to a list twice. Safe for
 * threads.
 *
 * @param cache   which has the room for held changes, or None if none are held
 * @param counters of buckets
 */
private[spark] final class BucketReads(client: EngineClient, counters: PendingCounters, threads: ExecutorService,
    cache: Option[BucketCache])
  extends BucketSource {
  import BucketReads._
  import client.{deadlineSeconds, store}

  @volatile private[this] var latest = HeldChanges.None
  private[this] val isReading = new AtomicBoolean
  @volatile private[this] var isClosed = false
  /** The version whose changes could not be read. */
  @volatile private[this] var badVersion: Version = _

  override def read(version: Version, bits: Int, buckets: Seq[Int]): RowTables = {
    val isWanted = new Array[Boolean](1 << bits)
    buckets.foreach(isWanted(_) = true)
    val current = latest
    val usable = if (current.bits <= bits) current else HeldChanges.None
    def empty = new ChangeCollector(hash => isWanted(ChangedBuckets.bucketOf(hash, bits)))
    var collector = empty
    var last: Deltas = null
    val cost = client.converse(_.read(store, version, usable, bits, buckets, deadlineSeconds)(
        () => {
          collector = empty
          last = null
        },
        deltas => {
          last = deltas
          if (deltas.appliesHeld) usable.addTo(collector, bits, buckets)
        }, (records, changes) => collector.add(records, client.verified(changes))))
    require(last != null, s"an answer to READ has no DELTAS store=$store version=$version")
    counters.add(cost + ("bucketsRead" -> buckets.size.toLong))
    cache.foreach(hold(version, bits, last, usable, _))
    collector.asRows
  }

  override def close(): Unit = synchronized {
    isClosed = true
    discard()
  }

  /** Begin to hold the changes of a version, where they are many, and there is room. */
  private def hold(version: Version, bits: Int, deltas: Deltas, usable: HeldChanges, cache: BucketCache): Unit = {
    val isNewer = version.number > usable.version || deltas.snapshot > usable.snapshot
    if (isNewer && !isClosed && (version ne badVersion) && (latest eq usable) && isReading.compareAndSet(false, true)) {
      if (!deltas.appliesHeld) discard()
      val bytes = deltas.rawBytes * 5 / 4
      if (deltas.rawBytes >= math.min(BytesMin, cache.limit / 64) && cache.reserve(bytes)) threads.execute { () =>
        try readChanges(version, deltas.after,
            if (deltas.appliesHeld) usable.builder else HeldChanges.after(deltas.snapshot, bits), bytes, cache)
        finally isReading.set(false)
      }
      else isReading.set(false)
    }
  }

  private def readChanges(version: Version, after: Long, changes: HeldChanges.Builder, bytes: Long,
      cache: BucketCache): Unit = {
    val startNanos = System.nanoTime()
    try {
      counters.add(client.converse(_.readChanges(store, after + 1, version.number, version.attempt, deadlineSeconds)(
            (_, chunk) => changes.add(client.verified(chunk)))))
      val next = changes.upTo(version.number, version.attempt)
      synchronized {
        if (!isClosed) {
          cache.unreserve(latest.heapBytes - next.heapBytes)
          latest = next
          log.debug(s"holds changes store=$store version=$version snapshot=${next.snapshot} " +
            s"bytes=${next.heapBytes} ms=${NANOSECONDS.toMillis(System.nanoTime() - startNanos)}")
        }
      }
    } catch {
      // Buckets are read with their changes all the same, and report what is wrong.
      case NonFatal(e) =>
        log.info("changes are read with each bucket, since they could not be read at once " +
          s"store=$store version=$version: ${e.getMessage}")
        badVersion = version
    } finally cache.unreserve(bytes)
  }

  private def discard(): Unit = synchronized {
    cache.foreach(_.unreserve(latest.heapBytes))
    latest = HeldChanges.None
  }
}

private[spark] object BucketReads {
  private val log = LoggerFactory.getLogger("io.dynastate.Provider")
  /** Of fewer, those of a bucket are read about as fast as its rows; with little room buckets are read more often. */
  private val BytesMin = 4L << 20
}
