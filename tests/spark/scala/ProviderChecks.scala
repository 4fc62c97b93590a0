package io.dynastate.tests

import java.lang.management.{BufferPoolMXBean, ManagementFactory}
import java.net.URI
import java.nio.file.{Files, Path}
import java.util.{Random, UUID}
import java.util.concurrent.ConcurrentLinkedQueue

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import io.dynastate.memory.{BucketCache, EncodedRow}
import io.dynastate.compat._
import io.dynastate.spark.{DiskSettings, DynamoDBStateStoreProvider, MemorySettings, ProviderInternals}

import org.apache.spark.{SPARK_VERSION, SparkConf, SparkContext}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.dynastate.internals.SparkInternals
import org.apache.spark.sql.dynastate.tests.TestTask
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.unsafe.Platform

/** The provider through Spark's own traits: what the conformance suite (tests/contract/provider) cannot check on every
 * provider.
 */
final class ProviderChecks(checks: Checks, world: World, seed: Long) {
  import Checks._
  import World._
  import checks.{check, checkBothWays}

  def run(): Unit = {
    check("an iterator that is closed ends") {
      val provider = world.provider(world.freshStore())
      val store = provider.getStore(1, commit(provider, 0)(1L -> 1L, 2L -> 2L))
      val rows = store.iterator(Family)
      rows.next()
      rows.close()
      require(!rows.hasNext, "an iterator continues after close")
      store.abort()
    }
    check("an unknown checkpoint id is refused with the known ones") {
      needsIds()
      val provider = world.provider(world.freshStore())
      val ids = commit(provider, 0)(1L -> 1L)
      val unknown = "00010203-0405-4607-8809-0a0b0c0d0e0f"
      mustFail("CANNOT_LOAD_STATE_STORE", "not by that attempt", ids.get.replace("-", ""))(provider.getStore(1,
          Some(unknown)))
      mustFail("CANNOT_LOAD_STATE_STORE", "none of dynastate's")(provider.getStore(1, Some("1_abcdef")))
      same(rows(provider.getStore(1, ids)), Map(1L -> 1L))
    }
    check("a version in memory is opened without a request") {
      needsIds()
      val id = world.freshStore()
      val provider = world.provider(id)
      val ids = commit(provider, 0)(numbered(100): _*)
      val warm = provider.getStore(1, ids)
      same((metric(warm, "dynastateCacheHits"), metric(warm, "dynastateCacheMisses"),
          metric(warm, "dynastateRequests")), (1L, 0L, 0L))
      warm.abort()
      val cold = world.provider(id).getStore(1, ids)
      same((metric(cold, "dynastateCacheHits"), metric(cold, "dynastateCacheMisses")), (0L, 1L))
      require(metric(cold, "dynastateBytesRead") > 0, "a cold open read nothing")
      same((metric(cold, "dynastateItemCacheHits"), metric(cold, "dynastateItemCacheMisses")), (0L, 1L))
      cold.abort()
    }
    check("a version that this executor wrote or read is opened by another provider from the sidecar's cache") {
      needsIds()
      val id = world.freshStore()
      val conf = Map(s"$Prefix.dynastate.cacheMb" -> "16")
      val one = commit(world.provider(id, conf), 0)(numbered(100): _*)
      val two = commit(world.provider(id, conf), 1, one)(numbered(100) :+ (1L -> 7L): _*)
      Seq(2L -> two, 1L -> one, 2L -> two).foreach { case (version, ids) =>
        val store = world.provider(id, conf).getStore(version, ids)
        same((metric(store, "dynastateCacheMisses"), metric(store, "dynastateRequests")), (1L, 0L), s"version $version")
        same((metric(store, "dynastateItemCacheHits"), metric(store, "dynastateItemCacheMisses")), (version, 0L),
          s"version $version")
        same(get(store, 1), Some(if (version == 2) 7L else 1L))
        store.abort()
      }
    }
    checkBothWays("a large version is opened at once: needed rows first, all of them in the background")(inBackground)
    check("versions retained in memory: 0 (treated as 1), 1, 2 and 5")(Seq(0, 1, 2, 5).foreach(kept))
    checkBothWays("a newer version is loaded from the one in memory") { writes =>
      val id = world.freshStore()
      def provider() = world.provider(id, lists = true)
      val first = provider()
      val random = new Random(seed)
      val ids = World.write(first, 0)(store =>
        (0L until 2000L).foreach(each => writes.write(store, each, each, random.nextLong().toString * 3)))
      val next = World.write(provider(), 1, ids)(writes.write(_, 1, -1))
      val store = first.getStore(2, next)
      require(metric(store, "dynastateBytesRead") < 5000,
        s"${metric(store, "dynastateBytesRead")} bytes were read for one row")
      same(values(store, 1), writes.after(List(1), -1))
      same(store.metrics.numKeys, 2000L)
      same(values(first.getStore(1, ids), 1), List(1L), "the version it was built on")
    }
    check(
      "the largest row, from parts and from a snapshot, and no buffer of its size remains; a larger one is refused")(
      largest())
    checkBothWays("after an error within a fold its versions are loaded again") { writes =>
      halfChanged(writes, s"$Prefix.dynastate.memoryMb" -> "0") { reader =>
        mustFail("left half changed by an error", "out of bounds")(values(reader, 1))
        mustFail("left half changed by an error")(allValues(reader))
      }
    }
    checkBothWays("after an error within a fold other tasks read its versions by buckets") { writes =>
      halfChanged(writes) { reader =>
        same(values(reader, 1), List(1L))
        same(allValues(reader), numbered(100))
      }
    }
    checkBothWays("after the local disk failed, or is full, rows are read by buckets")(withoutDisk)
    check("the memory of a store includes what undoes its last changes") {
      val provider = world.provider(world.freshStore())
      def write(version: Long, ids: Option[String]): (Long, Option[String]) = {
        val store = provider.getStore(version, ids)
        (0L until 1000L).foreach(each => store.put(key(each), value(version, "n" * 100), Family))
        store.commit()
        (store.metrics.memoryUsedBytes, idOf(store))
      }
      val (bytes, ids) = write(0, None)
      val (twice, _) = write(1, ids)
      // Arrays of bytes are up to twice as long as their rows.
      require(twice > bytes * 1.4 && twice < bytes * 3,
        s"$bytes bytes, then $twice with the rows of the version before")
    }
    check("event-time eviction reads each page on disk once, and no row that it removes")(evicted())
    check("a wrong namespace, memoryMb, diskMb, diskPath or number of sidecars is refused") {
      val wrong =
        Seq("namespace" -> "a/b", "namespace" -> "n" * 129) ++ Seq("", "-1", "1g", "1048577").map("memoryMb" -> _) ++
          Seq("", "-1", "1.5", "16777217").map("diskMb" -> _) ++ Seq("", "0", "2.0", "65").map("sidecars" -> _) ++ Seq(
            "disk", "/a,b", "/a, /b", "/a,", "/a\u0000").map("diskPath" -> _)
      wrong.foreach { case (name, setting) =>
        mustFail(s"$Prefix.dynastate.$name must be ", s"got='$setting'")(world.provider(world.freshStore(),
            Map(s"$Prefix.dynastate.$name" -> setting)))
      }
    }
    check("memory and disk: defaults, edges, folders and encryption, of which the sidecar gets nothing")(
      memoryAndDisk())
    check("sidecars: their number by cores, and each store's own, which leaves no pattern")(numberOfSidecars())
    check("recovery falls back when a snapshot is found corrupt half-way")(corruptSnapshot())
    check("clean-up that failed or was limited continues at the next maintenance")(backlog())
    checkBothWays("a forced snapshot is made at the next maintenance, and counted")(forced)
    check("checksums of rows: a corrupt row is found when it is read, loaded or sent as a snapshot")(checksums())
    check("a version without rows is its own attempt also where its rows are read from DynamoDB")(emptied())
    checkBothWays("a history with restarts, other attempts and snapshots, in memory")(history(_)(_ => ()))
    checkBothWays("a history with restarts, other attempts and snapshots, by buckets")(history(_, "memoryMb" -> "3",
        "diskMb" -> "0")(_ => ()))
    checkBothWays("a history with restarts, other attempts and snapshots, on a disk that fills")(history(_,
        "memoryMb" -> "1", "diskMb" -> "3")(_ => ()))
    checkBothWays("a history with restarts, other attempts and snapshots, on a disk that fails") { writes =>
      val folder = Files.createTempDirectory("rows")
      history(writes, "memoryMb" -> "1", "diskPath" -> folder.toString)(turn =>
        if (turn == 2) DiskChecks.overwrite(folder))
    }
    check("many stores at once, each in its own thread")(together())
    check("the file that names the store is written by a commit, also after a failure, and by nothing else")(marked())
    check("two sets of stores of one operator in a task commit one by one")(joinedTwice())
    checkBothWays("the stores of one operator in a task commit together, those of another one do not")(joined)
  }

  private def memoryAndDisk(): Unit = {
    def memory(conf: (String, String)*): MemorySettings =
      world.settings(conf.map { case (name, value) => s"$Prefix.dynastate.$name" -> value }: _*).memory
    val half = Runtime.getRuntime.maxMemory / 2
    val temporary = Seq(Path.of(System.getProperty("java.io.tmpdir")))
    val unlimited = Some(DiskSettings(Nil, Long.MaxValue, isEncrypted = false))
    same(SparkInternals.localFolders, temporary)
    same(memory(), MemorySettings(half, isHeapGiven = false, unlimited))
    same(memory("diskPath" -> ""), memory())
    same(memory("memoryMb" -> "3"), MemorySettings(3L << 20, isHeapGiven = true, unlimited))
    same(memory("memoryMb" -> "1048576", "diskMb" -> "16777216", "diskPath" -> "/disk 1,/disk 2"),
      MemorySettings(1L << 40, isHeapGiven = true,
        Some(DiskSettings(Seq(Path.of("/disk 1"), Path.of("/disk 2")), 1L << 44, isEncrypted = false))))
    same(memory("memoryMb" -> "0", "diskMb" -> "1"), MemorySettings(0, isHeapGiven = true, None))
    same(memory("diskMb" -> "0", "diskPath" -> "/disk"), MemorySettings(half, isHeapGiven = false, None))

    val ours = Seq(
      "memoryMb" -> "1", "diskMb" -> "2", "diskPath" -> "/disk", "namespace" -> "n", "python" -> "p", "shards" -> "5")
    same(world.settings(ours.map { case (name, value) => s"$Prefix.dynastate.$name" -> value }: _*).engine,
      """{"shards":"5"}""")

    val folders = Seq("one", "two").map(name => Files.createDirectory(temporary.head.resolve(name)))
    val spark = new SparkContext(new SparkConf().setMaster("local[1]").setAppName("memory and disk").set(
        "spark.ui.enabled", "false").set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
        .set("spark.local.dir", folders.mkString(",")).set("spark.io.encryption.enabled", "true"))
    try {
      same(SparkInternals.localFolders.map(_.getParent), folders)
      same(SparkInternals.executorCores, 1)
      same(memory("diskPath" -> "/disk").disk,
        Some(DiskSettings(Seq(Path.of("/disk")), Long.MaxValue, isEncrypted = true)))
    } finally spark.stop()
  }

  private def numberOfSidecars(): Unit = {
    def settings(partition: Int, conf: (String, String)*) =
      world.settings(
        world.freshStore().copy(partitionId = partition),
        (("namespace" -> "n") +: conf).map { case (name, value) => s"$Prefix.dynastate.$name" -> value }: _*)
    same(settings(0, "sidecars" -> "1").engine, "{}")
    same(settings(0, "sidecars" -> "2", "shards" -> "5").engine, """{"shards":"5","sidecars":"2"}""")
    same((0 until 100).map(settings(_).sidecar).toSet.size, (Runtime.getRuntime.availableProcessors + 7) / 8,
      "sidecars by default")
    val of = (0 until 1200).map(settings(_, "sidecars" -> "4").sidecar)
    // An executor may have every fourth partition, or some that follow each other.
    ((0 to 3).map(first => of.drop(first).grouped(4).map(_.head).toSeq) :+ of.take(300)).foreach { some =>
      (0 to 3).foreach(number =>
        require(math.abs(some.count(_ == number) - 75) < 30,
          s"sidecar $number has ${some.count(_ == number)} of 300 stores"))
    }
    same(settings(7, "sidecars" -> "4").sidecar, of(7), "the sidecar of a store, asked for again")
    Seq("local" -> 1, "local[4]" -> 4, "local[99,4]" -> 32, "local[*]" -> Runtime.getRuntime.availableProcessors,
      "yarn" -> 16, "k8s://host" -> 16).foreach { case (master, cores) =>
      same(SparkInternals.coresOf(
          new SparkConf(false).setMaster(master).set("spark.executor.cores", "16"), processors = 32), cores, master)
    }
    same(SparkInternals.coresOf(new SparkConf(false).setMaster("spark://host"), processors = 32), 32)
  }

  /** A snapshot, and changes of its rows after it, which a look-up of a row and the load each apply once. */
  private def inBackground(writes: Writes): Unit = {
    val id = world.freshStore()
    val rows = 120000L
    val source = world.provider(id, Map(s"$Prefix.minDeltasForSnapshot" -> "1"), lists = true)
    val one = World.write(source, 0)(store => (0L until rows).foreach(each => writes.write(store, each, each)))
    world.snapshot(source, id, 1)
    val two =
      World.write(source, 1, one)(store => (0L until rows by 20).foreach(each => writes.write(store, each, -each)))
    def expected(id: Long): List[Long] = if (id % 20 == 0) writes.after(List(id), -id) else List(id)
    val sum = (0L until rows).map(expected(_).sum).sum
    Seq("2" -> two, "1" -> scala.None).foreach { case (format, known) =>
      val provider = world.provider(id, Map(Format -> format), lists = true)
      val store = provider.getStore(2, known)
      same((metric(store, "dynastateCacheMisses"), store.metrics.numKeys), (1L, rows))
      Seq(0L, 20L, 77777L, rows - 20).foreach(each => same(values(store, each), expected(each)))
      same(values(store, rows), Nil)
      writes.write(store, 20, 7)
      same(store.iteratorWithMultiValues(Family).map(_.value.getLong(0)).sum,
        sum - expected(20).sum + writes.after(expected(20), 7).sum)
      store.commit()
      val next = provider.getStore(3, idOf(store))
      same((values(next, 20), values(next, 40), next.metrics.numKeys),
        (writes.after(expected(20), 7), expected(40), rows))
      next.abort()
      // Opened again, it is the loaded version.
      val last = provider.getStore(2, known)
      same(values(last, 20), expected(20))
      last.abort()
    }
  }

  /** As Spark does it in deduplication, aggregation and session windows: all rows are looked at, and some removed
   * meanwhile.
   */
  private def evicted(): Unit = {
    val rows = 40000L
    val provider = world.provider(world.freshStore(), Map(s"$Prefix.dynastate.memoryMb" -> "1"))
    val id = commit(provider, 0)(numbered(rows): _*)
    val store = provider.getStore(1, id)
    val disk = metric(store, "dynastateDiskBytes")
    store.iterator(Family).foreach(pair => if (pair.value.getLong(0) < rows / 4) store.remove(pair.key, Family))
    store.commit()
    val (reads, pages) = (metric(store, "dynastateDiskReads"), disk / (256 << 10) + 1)
    require(disk > 1000000 && reads > 0 && reads <= pages, s"$reads reads of $pages pages")
    same(store.metrics.numKeys, rows * 3 / 4, "keys")
    val next = provider.getStore(2, idOf(store))
    same(World.rows(next), (rows / 4 until rows).map(each => each -> each).toMap)
    next.abort()
    provider.close()
  }

  private def withoutDisk(writes: Writes): Unit = {
    val rows = 6000L
    val folder = Files.createTempDirectory("rows")
    def filled(of: Map[String, String]): (StateStoreProvider, Map[Long, Option[String]]) = {
      val conf = Map("memoryMb" -> "1", "diskPath" -> folder.toString) ++ of
      val provider = world.provider(
        world.freshStore(),
        conf.map { case (name, value) =>
          s"$Prefix.dynastate.$name" -> value
        } + (s"$Prefix.minDeltasForSnapshot" -> "1"),
        lists = true)
      var ids = Map(0L -> Option.empty[String])
      // Beyond the bound in the second batch.
      (0L until 2L).foreach { version =>
        ids += (version + 1) -> write(provider, version, ids(version)) { store =>
          (version * rows / 2 until (version + 1) * rows / 2).foreach(each =>
            writes.write(store, each, each, "n" * 1000))
        }
      }
      (provider, ids)
    }
    def right(store: StateStore): Unit = {
      same(Seq(0L, 1L, rows / 2, rows - 1).map(values(store, _)), Seq(0L, 1L, rows / 2, rows - 1).map(List(_)))
      same(sum(store), rows * (rows - 1) / 2)
      store.abort()
    }

    val (failing, ids) = filled(Map.empty)
    val reader = failing.getStore(2, ids(2))
    require(metric(reader, "dynastateDiskBytes") > 1000000,
      s"${metric(reader, "dynastateDiskBytes")} bytes are on disk")
    right(reader)
    DiskChecks.overwrite(folder)
    // The task that meets the error goes on, and commits.
    val failure = failing.getStore(2, ids(2))
    val all = failure.iteratorWithMultiValues(Family)
    val some = 0L until rows by 50
    same(some.map(values(failure, _)), some.map(List(_)))
    same(all.map(_.value.getLong(0)).sum, rows * (rows - 1) / 2)
    (0L until 5L).foreach(each => writes.write(failure, each, rows + each))
    val expected =
      rows * (rows - 1) / 2 + (0L until 5L).map(each => writes.after(List(each), rows + each).sum - each).sum
    same(sum(failure), expected)
    same(failure.commit(), 3L)
    same(values(failure, 3), writes.after(List(3), rows + 3))
    right(failing.getStore(2, ids(2)))
    val third = failing.getStore(3, idOf(failure))
    same(third.metrics.numKeys, rows)
    same(sum(third), expected)
    third.abort()
    failing.doMaintenance()

    DiskChecks.lookingOften {
      // Room for some pages only.
      val (full, ids) = filled(Map("diskMb" -> "2"))
      val store = full.getStore(2, ids(2))
      same(metric(store, "dynastateDiskBytes"), 0L, "bytes on disk of a version that is read by buckets")
      right(store)
      val next = write(full, 2, ids(2))(writes.write(_, 1, 7))
      same(values(full.getStore(3, next), 1), writes.after(List(1), 7))
      // When few rows are left, and the pages of the tree are garbage, the disk is used again.
      val lastId = write(full, 3, next) { store =>
        // Bucket after bucket.
        val keys = store.iteratorWithMultiValues(Family).map(_.key.copy()).toList
        keys.filter(_.getLong(1) >= 500).foreach(store.remove(_, Family))
      }
      full.doMaintenance()
      waitUntil("a disk that has room again is used") {
        System.gc()
        metric(full.getStore(4, lastId), "dynastateCacheMisses") == 1
      }
      val more =
        write(full, 4, lastId)(store => (500L until 1500L).foreach(each => writes.write(store, each, each, "n" * 1000)))
      val last = full.getStore(5, more)
      require(metric(last, "dynastateDiskBytes") > 0, "nothing is on the disk that has room again")
      same(sum(last), 1500L * 1499 / 2 + writes.after(List(1), 7).sum - 1)
      last.abort()
    }
  }

  /** Without their parts, versions can be read from a snapshot only. */
  private def forced(writes: Writes): Unit = {
    val id = world.freshStore()
    val provider =
      world.provider(id, lists = true).asInstanceOf[DynamoDBStateStoreProvider] // older Sparks have no such argument
    val ids = (0L to 1L).foldLeft(Option.empty[String]) { (ids, version) =>
      val read = provider.getReadStore(version, ids)
      val store = provider.upgradeReadStoreToWriteStore(read, version, ids, forceSnapshotOnCommit = version == 1)
      writes.write(store, 0, version)
      (100L until 200L).foreach(each => put(store, each, each)) // else there are no parts
      store.commit()
      same(metric(store, "forceSnapshotCount"), version, "forced snapshots")
      idOf(store)
    }
    world.snapshot(provider, id, 2)
    world.onTables(id, "delete-parts")
    val store = world.provider(id, lists = true).getStore(2, ids)
    same(values(store, 0), writes.after(List(0), 1))
    store.abort()
  }

  /** By its number alone it would be whatever attempt at the version counts. */
  private def emptied(): Unit = {
    needsIds()
    val provider = world.provider(world.freshStore())
    val two = write(provider, 1, commit(provider, 0)(1L -> 1L))(_.remove(key(1), Family))
    provider.getStore(2, two).abort()
    val attempts = ProviderInternals.attempts(provider)
    same(attempts.map(_._1.checkpointId).contains(two.get), true, "whether the version without rows is in memory")
    attempts.foreach { case (attempt, durable) =>
      same(durable, attempt, "the attempt that is read where it is durable")
    }
  }

  /** Rows are corrupted in the provider's own memory, to which the rows that `get` returns point. */
  private def checksums(): Unit = if (SPARK_VERSION >= "4.2") {
    val Failed = "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"
    val ids = world.freshStore()
    def provider(enabled: Boolean, ratio: Int, id: StateStoreId = ids) = world.provider(id,
      Map(s"$Prefix.rowChecksum.enabled" -> enabled.toString,
        s"$Prefix.rowChecksum.readVerificationRatio" -> ratio.toString, s"$Prefix.minDeltasForSnapshot" -> "1"),
      lists = true)
    def corrupt(row: UnsafeRow): Unit = Platform.putLong(row.getBaseObject, row.getBaseOffset + 8, -1L)
    def filled(store: StateStore): StateStore = {
      store.put(key(1), value(1), Family)
      Seq(2L, 3L).foreach(each => store.merge(key(2), value(each), Family))
      store
    }

    val read = filled(provider(enabled = true, ratio = 1).getStore(0))
    same(get(read, 1), Some(1L))
    corrupt(read.get(key(1), Family))
    mustFail(Failed)(read.get(key(1), Family))
    mustFail(Failed)(read.iterator(Family).foreach(_ => ()))
    same(read.valuesIterator(key(2), Family).map(_.getLong(0)).toList, List(2L, 3L))
    read.valuesIterator(key(2), Family).drop(1).foreach(corrupt)
    mustFail(Failed)(read.valuesIterator(key(2), Family).foreach(_ => ()))
    read.abort()

    // It is sent as it is in memory; whoever loads it finds it, except one without the setting.
    val store = filled(provider(enabled = true, ratio = 0).getStore(0))
    corrupt(store.get(key(1), Family))
    store.commit()
    mustFail(Failed)(provider(enabled = true, ratio = 0).getStore(1, idOf(store)))
    val second = provider(enabled = false, ratio = 1).getStore(1, idOf(store))
    same(get(second, 1), Some(-1L))
    second.abort()

    // Of two snapshots the first has a corrupt row, and is not made: what is loaded is from parts.
    val other = world.freshStore()
    val writer = provider(enabled = true, ratio = 0, other)
    val first = filled(writer.getStore(0))
    first.commit()
    corrupt(first.get(key(1), Family))
    writer.doSnapshotMaintenance()
    val third = provider(enabled = true, ratio = 1, other).getStore(1, idOf(first))
    same(get(third, 1), Some(1L))
    third.put(key(1), value(5), Family)
    third.commit()
    // Rows with and without checksums can be read by either.
    val plain = provider(enabled = false, ratio = 0, other).getStore(2, idOf(third))
    plain.merge(key(2), value(6), Family)
    plain.commit()
    val all = provider(enabled = true, ratio = 1, other).getStore(3, idOf(plain))
    same(get(all, 1), Some(5L))
    same(all.valuesIterator(key(2), Family).map(_.getLong(0)).toList, List(2L, 3L, 6L))
    all.abort()
  }

  /** 30 versions of which the last 5 are retained; 10 may pile up before a clean-up, which takes 4 at most. */
  private def backlog(): Unit = {
    val id = world.freshStore()
    val conf = Map("spark.sql.streaming.minBatchesToRetain" -> "5",
      "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint" -> "2.0",
      s"$Prefix.maxVersionsToDeletePerMaintenance" -> "4", s"$Prefix.minDeltasForSnapshot" -> "1")
    val provider = world.provider(id, conf)
    (0L until 30L).foldLeft(Option.empty[String]) { (ids, version) =>
      val next = commit(provider, version, ids)(version % 7 -> version)
      if (version == 19) world.snapshot(provider, id, 20)
      next
    }
    // None of the 20 versions that could be deleted is, while a version list cannot be read.
    world.onTables(id, "format", "99")
    provider.doMaintenance()
    world.onTables(id, "format", "3")
    same(world.onTables(id, "oldest"), "1", "the oldest version, where clean-up failed")
    val versions = (1 to 5).map { _ =>
      provider.doMaintenance()
      world.onTables(id, "oldest")
    }
    // The snapshot at 20, and all after it, are needed by the 5 that are retained.
    val expected = if (hasMaxVersionsToDeletePerMaintenance) Seq("5", "9", "13", "13", "13") else Seq.fill(5)("21")
    same(versions, expected, "the oldest version after each maintenance: fewer than 10 are left to pile up")
  }

  /** Spark's rows have a multiple of 8 bytes. A part of this one does not compress, so that it takes several parts. */
  private def largest(): Unit = {
    val id = world.freshStore()
    val most =
      (EncodedRow.RecordBytesMax - EncodedRow.TagBytes - EncodedRow.HeaderBytes - key(1).getSizeInBytes) / 8 * 8
    def noted(bytes: Int): UnsafeRow = {
      val raw = new Array[Byte](bytes)
      System.arraycopy(MemoryChecks.randomBytes(new Random(seed + 4), 3000000), 0, raw, 24, 3000000)
      Platform.putLong(raw, Platform.BYTE_ARRAY_OFFSET + 8L, 7L)
      Platform.putLong(raw, Platform.BYTE_ARRAY_OFFSET + 16L, 24L << 32 | (bytes - 24))
      val row = new UnsafeRow(2)
      row.pointTo(raw, bytes)
      row
    }
    val buffers =
      ManagementFactory.getPlatformMXBeans(classOf[BufferPoolMXBean]).asScala.find(_.getName == "direct").get
    val used = buffers.getMemoryUsed
    val expected = noted(most)
    val provider = world.provider(id, Map(s"$Prefix.minDeltasForSnapshot" -> "1"))
    val store = provider.getStore(0)
    mustFail(s"at most ${EncodedRow.RecordBytesMax} bytes")(store.put(key(1), noted(most + 8), Family))
    store.put(key(1), expected, Family)
    put(store, 2, 2)
    store.commit()
    val ids = idOf(store)
    def compare(when: String): Unit = {
      val cold = world.provider(id).getStore(1, ids)
      require(cold.get(key(1), Family) == expected, s"$when, the largest row came back as another")
      same(get(cold, 2), Some(2L), when)
      cold.abort()
    }
    compare("from parts")
    world.snapshot(provider, id, 1)
    val parts = world.onTables(id, "delete-parts").toInt
    require(parts > 5, s"the largest row takes $parts parts")
    compare("from a snapshot")
    require(buffers.getMemoryUsed < used + 4000000,
      s"direct buffers took $used bytes, and now ${buffers.getMemoryUsed}")
  }

  /** The header of a changed row is corrupted, so that its fold fails after others were changed. */
  private def halfChanged(writes: Writes, conf: (String, String)*)(read: StateStore => Unit): Unit = {
    val provider = world.provider(world.freshStore(), conf.toMap, lists = true)
    val ids = write(provider, 0)(store => (0L until 100L).foreach(each => writes.write(store, each, each)))
    val reader = provider.getStore(1, ids)
    val store = provider.getStore(1, ids)
    (0L until 100L).foreach(writes.write(store, _, -1L))
    // The length of a row of the base, which the fold copies to undo its change.
    val row = reader.valuesIterator(key(50), Family).next()
    val distance = writes match {
      case Writes.Puts => key(50).getSizeInBytes + 4
      case Writes.Appends => EncodedRow.ListHeaderBytes + EncodedRow.EntryHeaderBytes
    }
    Platform.putInt(row.getBaseObject, row.getBaseOffset - distance, 1 << 21)
    mustFail("out of bounds")(store.commit())
    read(reader)
    reader.abort()
    val third = provider.getStore(1, ids)
    same(metric(third, "dynastateCacheMisses"), 1L)
    same(allValues(third), numbered(100))
    third.abort()
    val last = provider.getStore(2, write(provider, 1, ids)(writes.write(_, 7, -7)))
    same(allValues(last),
      (0L until 100L).flatMap(each => (if (each == 7) writes.after(List(7), -7) else List(each)).map(each -> _)))
  }

  /** The keys of a store with lists, in order, with each of their values. */
  private def allValues(store: StateStore): Seq[(Long, Long)] =
    store.iteratorWithMultiValues(Family).map(pair => pair.key.getLong(1) -> pair.value.getLong(0)).toList.sortBy(_._1)

  private def sum(store: StateStore): Long = store.iteratorWithMultiValues(Family).map(_.value.getLong(0)).sum

  /** The last bucket is missing, which is found after lists of the first ones were sent: no value may come twice. */
  private def corruptSnapshot(): Unit = {
    val id = world.freshStore()
    val random = new Random(seed + 3)
    def lists(conf: (String, String)*) = world.provider(id, conf.toMap, lists = true)
    val provider = lists(s"$Prefix.minDeltasForSnapshot" -> "1")
    val first = (0L until 7000L).map(each => each -> random.nextLong()).toMap
    def text = random.ints(1000, 33, 126).toArray.map(_.toChar).mkString
    val one = write(provider, 0)(store =>
      first.foreach { case (each, count) => store.merge(key(each), value(count, text), Family) })
    world.snapshot(provider, id, 1)
    val ids = write(provider, 1, one) { store =>
      (0L until 7000L by 7).foreach(each => store.merge(key(each), value(-each), Family))
      store.remove(key(2), Family)
    }
    val buckets = world.onTables(id, "delete-last-bucket").toInt
    require(buckets > 25, s"there are $buckets items of buckets, which one request brings together")
    Seq(lists(), lists(s"$Prefix.dynastate.memoryMb" -> "64", s"$Prefix.dynastate.diskMb" -> "0")).foreach { cold =>
      val store = cold.getStore(2, ids)
      first.foreach { case (each, count) =>
        val expected = if (each == 2) Nil else if (each % 7 == 0) List(count, -each) else List(count)
        same(store.valuesIterator(key(each), Family).map(_.getLong(0)).toList, expected, s"the list of key $each")
      }
    }
  }

  /** A history of a store against a model: commits, other attempts, snapshots, an older version in memory, restarts.
   * `disturb` is called before each turn. Snapshots are made of the version that was read last, up to which changes may
   * be held, and of later ones.
   */
  private def history(writes: Writes, conf: (String, String)*)(disturb: Int => Unit): Unit = {
    val random = new Random(seed + 60)
    val id = world.freshStore()
    val all = (conf ++ Seq("snapshotThreshold" -> "0")).map { case (name, value) =>
      s"$Prefix.dynastate.$name" -> value
    }.toMap + (s"$Prefix.minDeltasForSnapshot" -> "1")
    def fresh() = world.provider(id, all, lists = true)
    var model = Map.empty[Long, List[Long]]
    var version = 0L
    var ids = Option.empty[String]
    var provider = fresh()
    /** Change some rows, and remove one; returns the checkpoint id and the rows after it. */
    def write(on: StateStoreProvider, keys: Seq[Long]): (Option[String], Map[Long, List[Long]]) = {
      val store = on.getStore(version, ids)
      var rows = model
      keys.foreach { each =>
        val count = random.nextLong()
        writes.write(store, each, count, s"$count ".repeat(50))
        rows += each -> writes.after(rows.getOrElse(each, Nil), count)
      }
      store.remove(key(keys.head), Family)
      same(store.commit(), version + 1)
      same(store.metrics.numKeys, rows.size - 1L, "keys")
      (idOf(store), rows - keys.head)
    }
    def goOn(on: StateStoreProvider, keys: Seq[Long]): Unit = {
      val (next, rows) = write(on, keys)
      ids = next
      model = rows
      version += 1
    }
    def some(count: Int): Seq[Long] = Seq.fill(count)(random.nextInt(4000).toLong)
    def read(when: String): Unit = {
      val store = provider.getReadStore(version, ids)
      some(12).foreach { each =>
        same(values(store, each), model.getOrElse(each, Nil), s"row $each, $when")
        Thread.sleep(5)
      }
      store.abort()
    }
    goOn(provider, 0L until 4000L)
    world.snapshot(provider, id, version)
    (0 until 3).foreach(_ => goOn(provider, some(150)))
    provider.close()
    provider = fresh()
    (0 until 7).foreach { turn =>
      disturb(turn)
      read(s"in turn $turn")
      // Another attempt at the version, which nothing continues from.
      if (turn == 3 || turn == 4) write(provider, some(150))
      if (turn == 2 || turn == 5) {
        world.snapshot(provider, id, version)
        read(s"after the snapshot in turn $turn")
      }
      // Another executor, so that the next version is loaded onto an older one in memory.
      if (turn == 6) {
        val other = fresh()
        goOn(other, some(80))
        other.close()
      } else goOn(provider, some(80))
    }
    Seq(provider, fresh()).foreach { each =>
      val last = each.getReadStore(version, ids)
      val rows = mutable.Map.empty[Long, List[Long]]
      last.iteratorWithMultiValues(Family).foreach { pair =>
        val row = pair.key.getLong(1)
        rows(row) = rows.getOrElse(row, Nil) :+ pair.value.getLong(0)
      }
      same((0L until 4000L).filter(row => rows.get(row) != model.get(row)), Nil, "rows of the iterator that are wrong")
      same(some(400).filter(row => values(last, row) != model.getOrElse(row, Nil)), Nil, "rows that are wrong")
      last.abort()
      each.close()
    }
    same(BucketCache.of(3L << 20).bytes, 0L, "bytes after the end")
  }

  private def together(): Unit = {
    val failures = new ConcurrentLinkedQueue[Throwable]
    val run = UUID.randomUUID().toString // one query's stores: other runs would contend for the record of the namespace
    val threads = (0 until 24).map { number =>
      val id = world.freshStore()
      val thread = new Thread(() =>
        try {
          val random = new Random(seed + number)
          var ids = Option.empty[String]
          val model = mutable.HashMap.empty[Long, Long]
          (0L until 4L).foreach { version =>
            val changes = Seq.fill(200)((random.nextInt(300).toLong, random.nextLong()))
            // A new provider for every version, which opens it cold. Rows are made by one writer for all threads.
            ids = write(world.provider(id, run = run), version, ids)(store =>
              changes.foreach { case (row, count) => World.synchronized(put(store, row, count)) })
            model ++= changes
          }
          same(rows(world.provider(id, run = run).getStore(4, ids)), model.toMap)
        } catch { case e: Throwable => failures.add(e) })
      thread.start()
      thread
    }
    threads.foreach(_.join())
    if (!failures.isEmpty) throw failures.peek()
  }

  private def marked(): Unit = {
    val id = world.freshStore()
    val folder = Path.of(URI.create(id.checkpointRootLocation)).resolve("0").resolve(id.partitionId.toString)
    val marker = folder.resolve("dynastate")
    Files.createDirectories(folder.getParent)
    Files.writeString(folder, "no folder")
    val provider = world.provider(id)
    mustFail(folder.toString)(commit(provider, 0)(1L -> 1L))
    Files.delete(folder)
    val ids = commit(provider, 0)(1L -> 1L)
    require(Files.readString(marker).contains(world.storeOf(id)), "the file names another store")
    // Of a checkpoint that was copied from elsewhere. Who reads it, or fails to open it, leaves its file.
    Files.writeString(marker, "state of this partition is in DynamoDB store=other/0/1/default\n")
    Files.delete(folder.resolve(".dynastate.crc")) // Hadoop's checksum
    val other = world.provider(id)
    other.getStore(1, ids).abort()
    other.getReadStore(1, ids).abort()
    mustFail("CANNOT_LOAD_STATE_STORE")(other.getStore(7, None))
    require(Files.readString(marker).contains("store=other/"), "a reader wrote the file")
    commit(other, 1, ids)(2L -> 2L)
    require(Files.readString(marker).contains(world.storeOf(id)), "the file names the store that it was copied from")
  }

  private def storesOfJoin(id: StateStoreId): Seq[StateStoreId] =
    Seq(id, id.copy(storeName = "second"), id.copy(storeName = "third"))

  private def newestVersion(id: StateStoreId): String = world.onTables(id, "newest")

  private def joined(writes: Writes): Unit = {
    val id = world.freshStore()
    val ids = storesOfJoin(id) :+ id.copy(operatorId = 1)
    val providers = ids.map(world.provider(_, lists = true))
    def opened(): Seq[StateStore] = {
      val stores = providers.map(_.getStore(0, None))
      stores.foreach(store => (0L until 2000L).foreach(each => writes.write(store, each, each)))
      stores
    }
    val versions = TestTask.run {
      val Seq(first, second, third, other) = opened()
      first.commit()
      same((second.hasCommitted, third.hasCommitted, other.hasCommitted), (false, false, false))
      waitUntil("a version before its own store commits")(newestVersion(ids(2)) == "1")
      same(newestVersion(ids(3)), "0", "of another operator")
      mustFail("put after a commit that began")(put(second, 1, 1))
      same(get(second, 1), Some(1L), "a row of its own, before its commit")
      second.commit()
      writes.write(other, 7, -7)
      other.commit()
      mustFail("commit after commit")(first.commit())
      Seq(first, second, other).map(idOf)
    }
    Seq(ids(0), ids(1), ids(3)).zip(versions).foreach { case (id, version) =>
      val store = world.provider(id, lists = true).getStore(1, version)
      same(values(store, 7), if (id == ids(3)) writes.after(List(7), -7) else List(7L), id.toString)
      same(store.metrics.numKeys, 2000L)
      store.abort()
    }
    // The third store did not commit, and its task is tried again: with whatever is left of the first try.
    val stores = TestTask.run {
      val stores = opened().take(3)
      stores.foreach(writes.write(_, 7, -7))
      stores.foreach(_.commit())
      stores
    }
    stores.zip(ids).foreach { case (retried, id) =>
      val store = world.provider(id, lists = true).getStore(1, idOf(retried))
      same(values(store, 7), writes.after(List(7), -7), id.toString)
      store.abort()
    }
  }

  /** A join of a batch with itself may compute its state twice in one task: Spark opens both before it reads either. */
  private def joinedTwice(): Unit = {
    val ids = storesOfJoin(world.freshStore())
    val providers = ids.map(world.provider(_))
    TestTask.run {
      val sets = Seq.fill(2)(providers.map(_.getStore(0, None)))
      sets.head.foreach(put(_, 1, 1))
      sets.head.head.commit()
      same(ids.map(newestVersion), Seq("1", "0", "0"), "versions after the first commit")
      sets(1).foreach(put(_, 2, 2))
      sets.flatten.tail.foreach(_.commit())
      sets(1).zip(ids).foreach { case (store, id) =>
        same(rows(world.provider(id).getReadStore(1, idOf(store))), Map(2L -> 2L))
      }
    }
  }

  private def kept(most: Int): Unit = {
    val id = world.freshStore()
    val provider = world.provider(id, Map("spark.sql.streaming.maxBatchesToRetainInMemory" -> most.toString))
    val ids = mutable.ArrayBuffer[Option[String]](None)
    (0L until 6L).foreach(version =>
      ids += commit(provider, version, ids(version.toInt))(version -> version, 100L -> version))
    def expected(version: Long) = (0L until version).map(each => each -> each).toMap + (100L -> (version - 1))
    // The newest is always retained: otherwise every batch would load all state.
    val newer = math.max(1, most)
    (6L to 1L by -1L).foreach { version =>
      val fresh = world.provider(id).getStore(version, ids(version.toInt))
      same(rows(fresh), expected(version), s"version $version, cold")
    }
    val newest = provider.getStore(6, ids(6))
    same(metric(newest, "dynastateCacheMisses"), 0L, "loads of the newest version")
    same(rows(newest), expected(6))
    if (newer < 6) {
      val old = provider.getStore(6L - newer, ids(6 - newer))
      same(metric(old, "dynastateCacheMisses"), 1L, "loads of a version that is not kept")
      same(rows(old), expected(6L - newer))
    }
    commit(provider, 6, ids(6))(7L -> 7L)
  }
}
