package io.dynastate.tests

import java.lang.management.ManagementFactory
import java.util.Random

import scala.collection.mutable

import io.dynastate.compat._
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreProvider}

/** State ten times as large as `memoryMb`: right, and within the bound, on disk or without it. In its own JVM. */
final class BoundChecks(checks: Checks, world: World, seed: Long, hasDisk: Boolean) {
  import Checks._
  import World._
  import checks.check

  private val boundMb = 10
  private val bound = boundMb.toLong << 20
  private val conf = Map(s"$Prefix.dynastate.memoryMb" -> boundMb.toString, s"$Prefix.dynastate.cacheMb" -> "64",
    s"$Prefix.minDeltasForSnapshot" -> "2") ++ (if (hasDisk) None else Some(s"$Prefix.dynastate.diskMb" -> "0"))
  private val rows = 26000
  private val perBatch = 2000
  private val valueBytes = 4000
  /** The batch that wrote each row last. */
  private val model = Array.fill(rows)(-1)
  private var ids: Option[String] = None
  private var baseline = 0L
  private var most = 0L

  def run(): Unit =
    if (hasDisk)
      check("on disk, state ten times the bound: every row is right, and the heap stays within the bound and a fifth")(
        batches())
    else
      check("state ten times the bound: every row is right, and the heap stays within the bound and a fifth")(batches())

  private def batches(): Unit = {
    val random = new Random(seed)
    warmUp()
    val id = world.freshStore()
    var provider = world.provider(id, conf)
    var version = 0L
    (0 until rows / perBatch).foreach { batch =>
      version = write(provider, version, batch * perBatch until (batch + 1) * perBatch, isNew = true)
      if (batch % 4 == 3) provider.doMaintenance()
    }
    val state = model.count(_ >= 0) * (valueBytes + 100L)
    require(state >= 10 * bound, s"state takes $state bytes of heap, which is not ten times the bound of $bound")
    // Batches of the same few rows, and of rows all over the state.
    val few = Seq.fill(12)(random.nextInt(rows))
    (0 until 6).foreach { turn =>
      version =
        write(provider, version, if (turn % 3 == 2) Seq.fill(60)(random.nextInt(rows)) else Seq.fill(10)(few).flatten)
    }
    version = removeSome(provider, version, random)
    provider.doMaintenance()
    compareAll(provider, version)
    // A restart: nothing is loaded before it is needed.
    provider.close()
    provider = world.provider(id, conf)
    val store = provider.getStore(version, ids)
    if (!hasDisk) require(metric(store, "dynastateItemCacheMisses") + metric(store, "dynastateItemCacheHits") == 0,
      "opening read parts")
    store.abort()
    compareAll(provider, version)
    version = write(provider, version, Seq.fill(40)(random.nextInt(rows)))
    compareAll(provider, version)
    provider.close()
    println(s"heap of rows at most ${most >> 10} KiB of ${bound >> 10} KiB, state of ${state >> 10} KiB")
    require(most <= bound * 6 / 5, s"$most bytes of heap, more than a fifth above the bound of $bound")
  }

  private def write(provider: StateStoreProvider, version: Long, keys: Iterable[Int], isNew: Boolean = false): Long = {
    val store = provider.getStore(version, ids)
    val atFirst = model.clone()
    val numbers = mutable.BitSet.empty
    keys.foreach { number =>
      if (!isNew) {
        val previous = Option(store.get(key(number), Family)).map(_.getLong(0).toInt).getOrElse(-1)
        same(previous, if (numbers(number)) version.toInt else atFirst(number), s"row $number at version $version")
      }
      numbers += number
      store.put(key(number), value(version, text(number, version)), Family)
      model(number) = version.toInt
    }
    commit(store)
  }

  private def removeSome(provider: StateStoreProvider, version: Long, random: Random): Long = {
    val store = provider.getStore(version, ids)
    // What leads back to the version before is beside the bound.
    (0 until 100).foreach { _ =>
      val number = random.nextInt(rows)
      store.remove(key(number), Family)
      model(number) = -1
    }
    commit(store)
  }

  private def commit(store: StateStore): Long = {
    val next = store.commit()
    ids = store.getStateStoreCheckpointInfo().stateStoreCkptId
    same(store.metrics.numKeys, model.count(_ >= 0).toLong, s"keys at version $next")
    val most = if (hasDisk) bound * 6 / 5 else bound
    require(store.metrics.memoryUsedBytes <= most, s"${store.metrics.memoryUsedBytes} bytes are said to be in use")
    if (next % 3 == 0) measure()
    next
  }

  private def compareAll(provider: StateStoreProvider, version: Long): Unit = {
    val store = provider.getReadStore(version, ids)
    val numbers = mutable.BitSet.empty
    val all = store.iterator(Family)
    all.foreach { pair =>
      val number = pair.key.getLong(1).toInt
      require(numbers.add(number), s"row $number came twice")
      same(pair.value.getLong(0).toInt, model(number), s"row $number")
      if (number % 100 == 0)
        same(pair.value.getUTF8String(1).toString, text(number, model(number).toLong), s"text of row $number")
      if (numbers.size % 10000 == 0) measure()
    }
    same(numbers.size, model.count(_ >= 0), "rows in all")
    store.abort()
    measure()
  }

  private def text(number: Int, version: Long): String =
    s"$number-$version-" * (valueBytes / s"$number-$version-".length)

  /** Heap before there is any state: classes, buffers, connections. */
  private def warmUp(): Unit = {
    val provider = world.provider(world.freshStore(), conf)
    val store = provider.getStore(0)
    (0 until 100).foreach(number => store.put(key(number), value(1, text(number, 1)), Family))
    store.commit()
    provider.doMaintenance()
    provider.getReadStore(1, store.getStateStoreCheckpointInfo().stateStoreCkptId).iterator(Family).foreach(_ => ())
    provider.close()
    baseline = used()
  }

  private def measure(): Unit = most = math.max(most, used() - baseline)

  /** Bytes of heap in use after garbage collection. */
  private def used(): Long = {
    System.gc()
    ManagementFactory.getMemoryMXBean.getHeapMemoryUsage.getUsed
  }
}
