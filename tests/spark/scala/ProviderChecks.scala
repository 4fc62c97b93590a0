package io.dynastate.tests

import java.util.Random
import java.util.concurrent.ConcurrentLinkedQueue

import scala.collection.mutable

import io.dynastate.core.Entry
import io.dynastate.later._

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{LongType, NullType, StringType, StructField, StructType}
import org.apache.spark.unsafe.Platform

/** The provider through Spark's own traits, as operators use it, on a DynamoDB. */
final class ProviderChecks(checks: Checks, world: World, seed: Long) {
  import Checks._
  import World._
  import checks.check

  def run(): Unit = {
    reads()
    life()
    versions()
    cold()
    shapes()
    refusals()
    together()
  }

  private def reads(): Unit = {
    check("version 0 is empty, whatever the tables hold") {
      val id = world.freshStore()
      commit(world.provider(id), 0)(1L -> 1L)
      val store = world.provider(id).getStore(0)
      same(rows(store), Map.empty)
      same(get(store, 1), None)
      store.abort()
    }
    check("what is put and removed shows at once, and in the version that commit makes") {
      val provider = world.provider(world.freshStore())
      val ids = commit(provider, 0)(1L -> 10L, 2L -> 20L, 3L -> 30L)
      val store = provider.getStore(1, ids)
      put(store, 1, 11)
      put(store, 4, 40)
      remove(store, 2)
      remove(store, 99)
      remove(store, 4)
      put(store, 5, 50)
      put(store, 5, 51)
      val expected = Map(1L -> 11L, 3L -> 30L, 5L -> 51L)
      same(rows(store), expected, "before commit")
      same((1L to 6L).flatMap(each => get(store, each).map(each -> _)).toMap, expected, "gets before commit")
      same((1L to 6L).filter(each => store.keyExists(key(each), Family)).toSet, expected.keySet, "keyExists before commit")
      same(store.multiGet(Array(key(1).copy(), key(2).copy()), Family).map(row => Option(row).map(_.getLong(0))).toList, List(Some(11L), None))
      store.commit()
      same(rows(store), expected, "after commit")
      same(store.metrics.numKeys, 3L)
      same(rows(provider.getStore(2, store.getStateStoreCheckpointInfo().stateStoreCkptId)), expected, "reopened")
    }
    check("changes show to nobody else before commit, and to no open store after it") {
      val provider = world.provider(world.freshStore())
      val ids = commit(provider, 0)(1L -> 1L)
      val reader = provider.getReadStore(1, ids)
      val other = provider.getStore(1, ids)
      val writer = provider.getStore(1, ids)
      put(writer, 1, 2)
      put(writer, 2, 2)
      same(rows(reader), Map(1L -> 1L))
      same(rows(other), Map(1L -> 1L))
      writer.commit()
      same(rows(reader), Map(1L -> 1L), "a reader after the commit")
      same(rows(other), Map(1L -> 1L), "another writer after the commit")
      same(rows(provider.getStore(1, ids)), Map(1L -> 1L), "the base, opened after the commit")
      reader.release()
      reader.release()
      other.abort()
    }
    check("an iterator is stable while rows are put and removed") {
      val provider = world.provider(world.freshStore())
      val ids = commit(provider, 0)((0L until 500L).map(each => each -> each): _*)
      val store = provider.getStore(1, ids)
      put(store, 1000, 1)
      val seen = mutable.HashMap.empty[Long, Long]
      val pairs = store.iterator(Family)
      var at = 0
      pairs.foreach { pair =>
        val number = pair.key.getLong(1)
        require(seen.put(number, pair.value.getLong(0)).isEmpty, s"$number came twice")
        // As evictions and timeouts do: the row itself, another one, and new ones.
        remove(store, number)
        put(store, 2000L + at, 0)
        if (number % 3 == 0) put(store, (number + 1) % 500, -1)
        at += 1
      }
      same(seen.toMap, (0L until 500L).map(each => each -> each).toMap + (1000L -> 1L))
      store.commit()
      require(rows(store).keys.count(_ >= 2000) == 501, "rows put while iterating are lost")
    }
    check("two iterators of one store do not disturb each other") {
      val provider = world.provider(world.freshStore())
      val ids = commit(provider, 0)((0L until 50L).map(each => each -> each): _*)
      val store = provider.getStore(1, ids)
      val (one, two) = (store.iterator(Family), store.iterator(Family))
      val pairs = one.map(_.key.getLong(1)).zip(two.map(_.key.getLong(1))).toList
      same((pairs.map(_._1).toSet, pairs.map(_._2).toSet), ((0L until 50L).toSet, (0L until 50L).toSet))
      val third = store.iterator(Family)
      third.next()
      third.close()
      require(!third.hasNext, "an iterator that was closed goes on")
      store.abort()
    }
    check("a row that was handed out does not change, and one that was put is a copy") {
      val provider = world.provider(world.freshStore())
      val ids = commit(provider, 0)(1L -> 1L)
      val store = provider.getStore(1, ids)
      val held = store.get(key(1), Family)
      val putRow = value(2)
      store.put(key(1), putRow, Family)
      putRow.setLong(0, 77)
      same(held.getLong(0), 1L, "the row handed out before")
      same(get(store, 1), Some(2L), "the row that was put")
      val again = store.get(key(1), Family)
      store.get(key(2), Family)
      store.commit()
      same(again.getLong(0), 2L, "the row handed out before commit")
    }
  }

  private def life(): Unit = {
    check("abort leaves the version as it was, and may come twice") {
      val provider = world.provider(world.freshStore())
      val ids = commit(provider, 0)(1L -> 1L)
      val store = provider.getStore(1, ids)
      put(store, 1, 2)
      remove(store, 1)
      store.abort()
      store.abort()
      require(!store.hasCommitted, "an aborted store says it has committed")
      same(rows(store), Map(1L -> 1L), "the aborted store shows its base")
      same(rows(provider.getStore(1, ids)), Map(1L -> 1L))
      mustFail("put")(put(store, 1, 3))
      mustFail("commit")(store.commit())
    }
    check("abort of an attempt whose changes were sent already") {
      val provider = world.provider(world.freshStore())
      val store = provider.getStore(0)
      (0L until 300L).foreach(each => store.put(key(each), value(each, "n" * 40000), Family))
      store.abort()
      same(commit(provider, 0)(7L -> 7L).isDefined, true)
      mustFail("does not exist")(world.provider(provider.stateStoreId, V1).getStore(2))
    }
    check("puts and removes after commit are refused, reads and abort are not") {
      val provider = world.provider(world.freshStore())
      val store = provider.getStore(0)
      put(store, 1, 1)
      store.commit()
      require(store.hasCommitted, "a committed store says it has not")
      mustFail("put")(put(store, 1, 2))
      mustFail("remove")(remove(store, 1))
      mustFail("commit")(store.commit())
      store.abort()
      require(store.hasCommitted, "abort took a commit back")
      same(rows(store), Map(1L -> 1L))
      same(get(store, 1), Some(1L))
      same(store.metrics.numKeys, 1L)
    }
    check("null keys and null values are refused") {
      val store = world.provider(world.freshStore()).getStore(0)
      mustFail("IllegalArgumentException", "Cannot put a null value")(store.put(key(1), null, Family))
      mustFail("IllegalStateException", "Key cannot be null")(store.put(null, value(1), Family))
      mustFail("IllegalStateException", "Key cannot be null")(store.get(null, Family))
      mustFail("IllegalStateException", "Key cannot be null")(store.remove(null, Family))
      store.abort()
    }
    check("a commit without changes makes a version, and writes no part") {
      val id = world.freshStore()
      val provider = world.provider(id)
      val first = provider.getStore(0)
      same(first.commit(), 1L)
      val ids = first.getStateStoreCheckpointInfo().stateStoreCkptId
      val second = provider.getStore(1, ids)
      same(second.commit(), 2L)
      same(metric(second, "dynastateParts"), 0L)
      same(metric(second, "dynastateRequests"), 1L, "requests of an empty commit")
      same(rows(world.provider(id).getStore(2, second.getStateStoreCheckpointInfo().stateStoreCkptId)), Map.empty)
    }
    check("checkpoint ids: ours after a commit in format 2, none in format 1, an error before") {
      val id = world.freshStore()
      val store = world.provider(id).getStore(0)
      mustFail("before commit")(store.getStateStoreCheckpointInfo())
      store.commit()
      val info = store.getStateStoreCheckpointInfo()
      same((info.partitionId, info.batchVersion, info.baseStateStoreCkptId), (id.partitionId, 1L, None))
      val next = world.provider(id).getStore(1, info.stateStoreCkptId)
      next.commit()
      same(next.getStateStoreCheckpointInfo().baseStateStoreCkptId, info.stateStoreCkptId)
      require(next.getStateStoreCheckpointInfo().stateStoreCkptId != info.stateStoreCkptId, "two attempts have one id")
      val old = world.provider(world.freshStore(), V1).getStore(0)
      old.commit()
      same(old.getStateStoreCheckpointInfo().stateStoreCkptId, None)
    }
    check("metrics: all custom metrics are announced, memory grows, keys are counted") {
      val provider = world.provider(world.freshStore())
      val announced = StateStoreProvider.create(ProviderClass).supportedCustomMetrics
      val store = provider.getStore(0)
      val before = store.metrics.memoryUsedBytes
      (0L until 1000L).foreach(each => put(store, each, each))
      store.commit()
      val after = store.metrics
      require(after.memoryUsedBytes > before + 1000 * 50, s"memory went from $before to ${after.memoryUsedBytes} bytes")
      same(after.numKeys, 1000L)
      same(after.customMetrics.keySet -- announced, Set.empty, "metrics that are not announced")
      require(metric(store, "dynastateWriteUnits") > 0 && metric(store, "dynastateParts") > 0, "a commit cost nothing")
      val next = provider.getStore(1, store.getStateStoreCheckpointInfo().stateStoreCkptId)
      (0L until 400L).foreach(remove(next, _))
      next.commit()
      same(next.metrics.numKeys, 600L)
    }
    check("maintenance does nothing yet, and close may come twice") {
      val provider = world.provider(world.freshStore())
      val ids = commit(provider, 0)(1L -> 1L)
      provider.doMaintenance()
      provider.doSnapshotMaintenance()
      provider.doCleanupMaintenance()
      same(rows(provider.getStore(1, ids)), Map(1L -> 1L))
      provider.close()
      provider.close()
    }
  }

  private def versions(): Unit = {
    check("a negative version is refused") {
      mustFail("UNEXPECTED_VERSION")(world.provider(world.freshStore()).getStore(-1))
      mustFail("UNEXPECTED_VERSION")(world.provider(world.freshStore()).getReadStore(-1))
    }
    check("a version that is not there is an error that names those that are") {
      val provider = world.provider(world.freshStore(), V1)
      (0L until 3L).foreach(version => commit(provider, version)(version -> version))
      mustFail("CANNOT_LOAD_STATE_STORE", "this version does not exist", "version=7", "versions=1-3")(provider.getStore(7))
      mustFail("no state of this store is in the tables", "dynastate.namespace")(world.provider(world.freshStore()).getStore(1))
    }
    check("an unknown checkpoint id is refused, and never replaced by another") {
      val provider = world.provider(world.freshStore())
      val ids = commit(provider, 0)(1L -> 1L)
      val unknown = "00010203-0405-4607-8809-0a0b0c0d0e0f"
      mustFail("CANNOT_LOAD_STATE_STORE", "not by that attempt", ids.get.replace("-", ""))(provider.getStore(1, Some(unknown)))
      mustFail("CANNOT_LOAD_STATE_STORE", "none of dynastate's")(provider.getStore(1, Some("1_abcdef")))
      same(rows(provider.getStore(1, ids)), Map(1L -> 1L))
    }
    check("a committed version is made again, format 1")(madeAgain(V1))
    check("a committed version is made again, format 2")(madeAgain(Map.empty))
    check("two stores of one version are open at once, and both commit") {
      val id = world.freshStore()
      val provider = world.provider(id)
      val base = commit(provider, 0)(1L -> 1L)
      val (zombie, retry) = (provider.getStore(1, base), provider.getStore(1, base))
      put(zombie, 2, 2)
      put(retry, 3, 3)
      retry.commit()
      remove(zombie, 1)
      zombie.commit()
      val (one, two) = (zombie.getStateStoreCheckpointInfo().stateStoreCkptId, retry.getStateStoreCheckpointInfo().stateStoreCkptId)
      Seq(provider, world.provider(id)).foreach { each =>
        same(rows(each.getStore(2, one)), Map(2L -> 2L))
        same(rows(each.getStore(2, two)), Map(1L -> 1L, 3L -> 3L))
      }
    }
    check("format 1: a version that another executor made again replaces the one in memory") {
      val id = world.freshStore()
      val run = "the same run"
      val (here, there) = (world.provider(id, V1, run), world.provider(id, V1, run))
      commit(here, 0)(1L -> 1L)
      commit(here, 1)(1L -> 2L)
      commit(there, 1)(1L -> 3L, 5L -> 5L)
      same(rows(here.getStore(2)), Map(1L -> 3L, 5L -> 5L))
      commit(there, 2)(6L -> 6L)
      same(rows(here.getStore(3)), Map(1L -> 3L, 5L -> 5L, 6L -> 6L))
    }
    check("format 1: a zombie of an earlier run changes nothing, and is refused where the later one was seen") {
      val id = world.freshStore()
      val early = world.provider(id, V1)
      commit(early, 0)(1L -> 1L)
      val late = world.provider(id, V1)
      commit(late, 1)(1L -> 2L)
      val zombie = early.getStore(1)
      put(zombie, 1, 666)
      mustFail("a newer run writes to this store", id.operatorId.toString)(zombie.commit())
      same(rows(world.provider(id, V1).getStore(2)), Map(1L -> 2L))
      same(rows(late.getStore(2)), Map(1L -> 2L))
    }
    check("a version by number where format 2 was switched on") {
      val id = world.freshStore()
      commit(world.provider(id, V1), 0)(1L -> 1L)
      val provider = world.provider(id)
      val next = commit(provider, 1)(2L -> 2L)
      same(rows(world.provider(id).getStore(2, next)), Map(1L -> 1L, 2L -> 2L))
    }
  }

  private def cold(): Unit = {
    check("a version in memory is opened without a request") {
      val id = world.freshStore()
      val provider = world.provider(id)
      val ids = commit(provider, 0)((0L until 100L).map(each => each -> each): _*)
      val warm = provider.getStore(1, ids)
      same((metric(warm, "dynastateCacheHits"), metric(warm, "dynastateCacheMisses"), metric(warm, "dynastateRequests")), (1L, 0L, 0L))
      warm.abort()
      val cold = world.provider(id).getStore(1, ids)
      same((metric(cold, "dynastateCacheHits"), metric(cold, "dynastateCacheMisses")), (0L, 1L))
      require(metric(cold, "dynastateBytesRead") > 0, "a cold open read nothing")
      same((metric(cold, "dynastateItemCacheHits"), metric(cold, "dynastateItemCacheMisses")), (0L, 1L))
      cold.abort()
    }
    check("a version that this executor wrote or read is opened by another provider without a request") {
      val id = world.freshStore()
      val conf = Map(s"$Prefix.dynastate.cacheMb" -> "16")
      val one = commit(world.provider(id, conf), 0)((0L until 100L).map(each => each -> each): _*)
      val two = commit(world.provider(id, conf), 1, one)(1L -> 7L)
      Seq(2L -> two, 1L -> one, 2L -> two).foreach { case (version, ids) =>
        val moved = world.provider(id, conf).getStore(version, ids)
        same((metric(moved, "dynastateCacheMisses"), metric(moved, "dynastateRequests")), (1L, 0L), s"version $version")
        same((metric(moved, "dynastateItemCacheHits"), metric(moved, "dynastateItemCacheMisses")), (version, 0L), s"version $version")
        same(get(moved, 1), Some(if (version == 2) 7L else 1L))
        moved.abort()
      }
    }
    check("a large version is opened at once: rows come as they are asked for, and all of them in the end") {
      val id = world.freshStore()
      val rows = 120000L
      val filled = world.provider(id, Map(s"$Prefix.minDeltasForSnapshot" -> "1"))
      val first = filled.getStore(0)
      (0L until rows).foreach(each => first.put(key(each), value(each, ""), Family))
      first.commit()
      filled.doMaintenance()
      val ids = first.getStateStoreCheckpointInfo().stateStoreCkptId
      Seq("2" -> ids, "1" -> scala.None).foreach { case (format, known) =>
        val provider = world.provider(id, Map(Format -> format))
        val store = provider.getStore(1, known)
        same((metric(store, "dynastateCacheMisses"), store.metrics.numKeys), (1L, rows))
        Seq(0L, 77777L, rows - 1).foreach(each => same(get(store, each), Some(each)))
        same(get(store, rows), None)
        store.put(key(5), value(-5, ""), Family)
        same(store.iterator(Family).map(_.value.getLong(0)).sum, rows * (rows - 1) / 2 - 10)
        store.commit()
        val next = provider.getStore(2, store.getStateStoreCheckpointInfo().stateStoreCkptId)
        same((get(next, 5), get(next, 6), next.metrics.numKeys), (Some(-5L), Some(6L), rows))
        next.abort()
        // The version that was loaded is the one to go on from now.
        val again = provider.getStore(1, known)
        same(get(again, 5), Some(5L))
        again.abort()
      }
    }
    check("versions kept in memory: 0, which is 1")(kept(0))
    check("versions kept in memory: 1")(kept(1))
    check("versions kept in memory: 2")(kept(2))
    check("versions kept in memory: 5")(kept(5))
    check("only what is missing is read") {
      val id = world.freshStore()
      val here = world.provider(id)
      val random = new Random(seed)
      val first = here.getStore(0)
      (0L until 2000L).foreach(each => first.put(key(each), value(each, random.nextLong().toString * 3), Family))
      first.commit()
      val ids = first.getStateStoreCheckpointInfo().stateStoreCkptId
      val next = commit(world.provider(id), 1, ids)(1L -> -1L)
      val store = here.getStore(2, next)
      require(metric(store, "dynastateBytesRead") < 5000, s"${metric(store, "dynastateBytesRead")} bytes were read for one row")
      same(get(store, 1), Some(-1L))
      same(rows(store).size, 2000)
      same(rows(here.getStore(1, ids))(1), 1L, "the version it was built on")
    }
    check("many rows, in many chunks and parts, come back from a cold open") {
      val id = world.freshStore()
      val random = new Random(seed + 1)
      val model = mutable.HashMap.empty[Long, Long]
      var ids = Option.empty[String]
      val provider = world.provider(id)
      (0L until 3L).foreach { version =>
        val store = provider.getStore(version, ids)
        (0 until 60000).foreach { _ =>
          val number = random.nextInt(50000).toLong
          if (random.nextInt(4) == 0) { remove(store, number); model -= number }
          else { val count = random.nextLong(); put(store, number, count); model += number -> count }
        }
        store.commit()
        same(store.metrics.numKeys, model.size.toLong)
        ids = store.getStateStoreCheckpointInfo().stateStoreCkptId
      }
      val cold = world.provider(id).getStore(3, ids)
      same(cold.metrics.numKeys, model.size.toLong)
      require(rows(cold) == model.toMap, "the cold open gives other rows")
    }
    check("a row larger than an item, and than a chunk, comes back from a cold open") {
      val id = world.freshStore()
      val random = new Random(seed + 2)
      val notes = Seq(0, 100000, 399000, 400000, 500000, 1300000, 3000000).map(size => random.ints(size.toLong, 33, 126).toArray.map(_.toChar).mkString)
      val store = world.provider(id).getStore(0)
      notes.zipWithIndex.foreach { case (note, number) => store.put(key(number.toLong), value(number.toLong, note), Family) }
      store.commit()
      val cold = world.provider(id).getStore(1, store.getStateStoreCheckpointInfo().stateStoreCkptId)
      notes.zipWithIndex.foreach { case (note, number) =>
        require(cold.get(key(number.toLong), Family).getString(1) == note, s"a note of ${note.length} characters came back as another")
      }
    }
    check("the largest row that there may be comes back from parts, and from a snapshot alone; a larger one is refused")(largest())
    check("a snapshot that turns out broken on the way is gone round")(brokenSnapshot())
    check("maintenance: clean-up that failed or was cut short goes on at the next one")(backlog())
    check("stores of other partitions, operators and names are others") {
      val id = world.freshStore()
      val others = Seq(id, id.copy(operatorId = 1), id.copy(partitionId = id.partitionId + 10000), id.copy(storeName = "left-keyToNumValues"),
        id.copy(checkpointRootLocation = id.checkpointRootLocation + "2"))
      others.zipWithIndex.foreach { case (each, number) => commit(world.provider(each, V1), 0)(1L -> number.toLong) }
      others.zipWithIndex.foreach { case (each, number) => same(rows(world.provider(each, V1).getStore(1)), Map(1L -> number.toLong)) }
    }
  }

  /** 30 versions of which the last 5 are retained; 10 may pile up before a clean-up, which takes 4 at most. */
  private def backlog(): Unit = {
    val id = world.freshStore()
    val conf = Map(
      "spark.sql.streaming.minBatchesToRetain" -> "5", "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint" -> "2.0",
      s"$Prefix.maxVersionsToDeletePerMaintenance" -> "4", s"$Prefix.minDeltasForSnapshot" -> "1")
    val provider = world.provider(id, conf)
    (0L until 30L).foldLeft(Option.empty[String]) { (ids, version) =>
      val next = commit(provider, version, ids)(version % 7 -> version)
      if (version == 19) provider.doSnapshotMaintenance()
      next
    }
    // Of the 20 versions that could go, nothing can while the list of some cannot be read.
    format(id, 99)
    provider.doCleanupMaintenance()
    format(id, 1)
    same(oldest(id), 1L, "the oldest version, where clean-up failed")
    val after = (1 to 5).map { _ =>
      provider.doCleanupMaintenance()
      oldest(id)
    }
    same(after, Seq(5L, 9L, 13L, 13L, 13L), "the oldest version after each maintenance: fewer than 10 wait for more")
  }

  /** Say that the list of the first versions is of another format. */
  private def format(id: StateStoreId, format: Int): Unit = world.onTables(id,
    s"""make_client(settings).update_item(
       |    TableName="dynastate-snapshot-group", Key=to_wire(item_key(group_key(store, 1))), UpdateExpression="SET #f = :f",
       |    ExpressionAttributeNames={"#f": "format"}, ExpressionAttributeValues=to_wire({":f": $format}),
       |)""")

  private def oldest(id: StateStoreId): Long = world.onTables(id,
    """found = tables.query("snapshot", store_shard(store, 0), *history_range(0, 1000), Meter())
      |print(History(store, found).versions()[0])""").trim.toLong

  /** Rows of Spark have a multiple of 8 bytes. Some of this one does not compress, so that it takes several parts. */
  private def largest(): Unit = {
    val id = world.freshStore()
    val most = (Entry.RecordBytesMax - Entry.TagBytes - Entry.HeaderBytes - key(1).getSizeInBytes) / 8 * 8
    def noted(bytes: Int): UnsafeRow = {
      val raw = new Array[Byte](bytes)
      System.arraycopy(MemoryChecks.randomBytes(new Random(seed + 4), 3000000), 0, raw, 24, 3000000)
      Platform.putLong(raw, Platform.BYTE_ARRAY_OFFSET + 8L, 7L)
      Platform.putLong(raw, Platform.BYTE_ARRAY_OFFSET + 16L, 24L << 32 | (bytes - 24))
      val row = new UnsafeRow(2)
      row.pointTo(raw, bytes)
      row
    }
    val expected = noted(most)
    val provider = world.provider(id, Map(s"$Prefix.minDeltasForSnapshot" -> "1"))
    val store = provider.getStore(0)
    mustFail(s"at most ${Entry.RecordBytesMax} bytes")(store.put(key(1), noted(most + 8), Family))
    store.put(key(1), expected, Family)
    put(store, 2, 2)
    store.commit()
    val ids = store.getStateStoreCheckpointInfo().stateStoreCkptId
    def compare(when: String): Unit = {
      val cold = world.provider(id).getStore(1, ids)
      require(cold.get(key(1), Family) == expected, s"$when, the largest row came back as another")
      same(get(cold, 2), Some(2L), when)
      cold.abort()
    }
    compare("from parts")
    provider.doSnapshotMaintenance()
    val parts = world.onTables(id,
      """parts = keys("delta", "0", "~")
        |tables.delete(parts, Meter())
        |print(len(parts))""").trim.toInt
    require(parts > 5, s"the largest row takes $parts parts")
    compare("from a snapshot")
  }

  /** Its last bucket is lost, and lists of the first ones are on their way when that is found out: none may come twice. */
  private def brokenSnapshot(): Unit = {
    val id = world.freshStore()
    val random = new Random(seed + 3)
    def lists(conf: (String, String)*) = world.provider(id, conf.toMap, columnFamilies = true, multipleValues = true)
    val provider = lists(s"$Prefix.minDeltasForSnapshot" -> "1")
    val store = provider.getStore(0)
    val first = (0L until 7000L).map(each => each -> random.nextLong()).toMap
    first.foreach { case (each, count) =>
      store.merge(key(each), value(count, random.ints(1000, 33, 126).toArray.map(_.toChar).mkString), Family)
    }
    store.commit()
    provider.doSnapshotMaintenance()
    val next = provider.getStore(1, store.getStateStoreCheckpointInfo().stateStoreCkptId)
    (0L until 7000L by 7).foreach(each => next.merge(key(each), value(-each), Family))
    next.remove(key(2), Family)
    next.commit()
    val ids = next.getStateStoreCheckpointInfo().stateStoreCkptId
    val buckets = world.onTables(id,
      """buckets = keys("snapshot", "bucket/", "bucket/~")
        |tables.delete([max(buckets, key=lambda key: key.sort)], Meter())
        |print(len(buckets))""").trim.toInt
    require(buckets > 25, s"there are $buckets items of buckets, which one request brings together")
    Seq(lists(), lists(s"$Prefix.dynastate.memoryMb" -> "64")).foreach { cold =>
      val found = cold.getStore(2, ids)
      first.foreach { case (each, count) =>
        val expected = if (each == 2) Nil else if (each % 7 == 0) List(count, -each) else List(count)
        same(found.valuesIterator(key(each), Family).map(_.getLong(0)).toList, expected, s"the list of key $each")
      }
    }
  }

  private def shapes(): Unit = {
    check("a key without columns: a global aggregation") {
      val id = world.freshStore()
      val none = StructType(Nil)
      val empty = new UnsafeRow(0)
      empty.pointTo(Array.emptyByteArray, 0)
      def open(version: Long, ids: Option[String]) = world.provider(id, key = none).getStore(version, ids)
      val store = open(0, None)
      same(Option(store.get(empty, Family)), None)
      store.put(empty, value(1), Family)
      store.put(empty, value(2), Family)
      store.commit()
      val next = open(1, store.getStateStoreCheckpointInfo().stateStoreCkptId)
      same(next.get(empty, Family).getLong(0), 2L)
      same(next.iterator(Family).map(_.value.getLong(0)).toList, List(2L))
      next.remove(empty, Family)
      next.commit()
      same(next.metrics.numKeys, 0L)
      same(open(2, next.getStateStoreCheckpointInfo().stateStoreCkptId).iterator(Family).toList, Nil)
    }
    check("keys and values of null type: limit and dropDuplicates") {
      val id = world.freshStore()
      val schema = StructType(Seq(StructField("none", NullType)))
      val writer = new UnsafeRowWriter(1)
      writer.resetRowWriter()
      writer.setNullAt(0)
      val row = writer.getRow()
      val store = world.provider(id, key = schema, value = schema).getStore(0)
      store.put(row, row, Family)
      store.commit()
      val cold = world.provider(id, key = schema, value = schema).getStore(1, store.getStateStoreCheckpointInfo().stateStoreCkptId)
      require(cold.keyExists(row, Family) && cold.get(row, Family).isNullAt(0), "the row is not there")
    }
    check("a read store becomes a write store") {
      val provider = world.provider(world.freshStore())
      val ids = commit(provider, 0)(1L -> 1L)
      val reader = provider.getReadStore(1, ids)
      same(get(reader, 1), Some(1L))
      val writer = provider.upgradeReadStoreToWriteStore(reader, 1, ids)
      put(writer, 1, 2)
      same(get(reader, 1), Some(1L), "the read store")
      same(get(writer, 1), Some(2L), "the write store")
      writer.commit()
      same(get(reader, 1), Some(1L), "the read store after the commit")
      same(writer.getStateStoreCheckpointInfo().baseStateStoreCkptId, ids)
      mustFail("cannot be written")(provider.upgradeReadStoreToWriteStore(reader, 2, ids))
    }
    check("a read store of a provider that was unloaded becomes a write store of the next") {
      val id = world.freshStore()
      val first = world.provider(id)
      val ids = commit(first, 0)(1L -> 1L)
      val reader = first.getReadStore(1, ids)
      first.close()
      val writer = world.provider(id).upgradeReadStoreToWriteStore(reader, 1, ids)
      put(writer, 2, 2)
      writer.commit()
      same(rows(world.provider(id).getStore(2, writer.getStateStoreCheckpointInfo().stateStoreCkptId)), Map(1L -> 1L, 2L -> 2L))
    }
    check("state of another schema is noticed at the first row") {
      val id = world.freshStore()
      val ids = commit(world.provider(id), 0)(1L -> 1L)
      val other = StructType(Seq(StructField("a", StringType), StructField("b", StringType), StructField("c", LongType), StructField("d", LongType)))
      mustFail("STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE")(world.provider(id, value = other).getStore(1, ids).get(key(1), Family))
    }
    check("operations of groups with state: get, update, remove and time-outs by a scan of all") {
      val id = world.freshStore()
      val random = new Random(seed + 3)
      val model = mutable.HashMap.empty[Long, Long]
      var ids = Option.empty[String]
      val provider = world.provider(id)
      (0L until 15L).foreach { version =>
        val store = provider.getStore(version, ids)
        (0 until 30).foreach { _ =>
          val group = random.nextInt(60).toLong
          same(get(store, group), model.get(group), s"group $group at version $version")
          if (random.nextInt(4) == 0) { remove(store, group); model -= group }
          else { put(store, group, version); model += group -> version }
        }
        // Groups that were idle for three batches time out; of them some start anew while the scan goes on.
        store.iterator(Family).filter(_.value.getLong(0) < version - 3).foreach { pair =>
          val group = pair.key.getLong(1)
          same(get(store, group), model.get(group), s"group $group in the scan")
          remove(store, group)
          model -= group
          if (group % 5 == 0) { put(store, group, version); model += group -> version }
        }
        store.commit()
        ids = store.getStateStoreCheckpointInfo().stateStoreCkptId
        same(rows(store), model.toMap, s"after version ${version + 1}")
      }
      same(rows(world.provider(id).getStore(15, ids)), model.toMap, "cold")
    }
  }

  private def refusals(): Unit = {
    def init(body: => Any)(says: String*): Unit = mustFail(says :+ "is not supported by dynastate" :+ "RocksDB": _*)(body)
    check("several values a key need column families") {
      mustFail("column families")(world.provider(world.freshStore(), multipleValues = true))
    }
    check("Avro encoding is refused") {
      init(world.provider(world.freshStore(), Map(s"$Prefix.encodingFormat" -> "avro")))("encodingFormat=avro")
    }
    check("operations of column families are refused on a store") {
      val store = world.provider(world.freshStore()).getStore(0)
      mustFail("STATE_STORE_UNSUPPORTED_OPERATION")(store.createColFamilyIfAbsent("x", KeySchema, ValueSchema, NoPrefixKeyStateEncoderSpec(KeySchema)))
      mustFail("STATE_STORE_UNSUPPORTED_OPERATION")(store.removeColFamilyIfExists("x"))
      mustFail("STATE_STORE_UNSUPPORTED_OPERATION_ON_MISSING_COLUMN_FAMILY")(store.get(key(1), "x"))
      mustFail("STATE_STORE_UNSUPPORTED_OPERATION_ON_MISSING_COLUMN_FAMILY")(store.put(key(1), value(1), "x"))
      mustFail("STATE_STORE_UNSUPPORTED_OPERATION_ON_MISSING_COLUMN_FAMILY")(store.iterator("x"))
      mustFail("multiple values")(store.merge(key(1), value(1), Family))
      mustFail("multiple values")(store.valuesIterator(key(1), Family))
      mustFail("Prefix scan requires setting prefix key")(store.prefixScan(key(1), Family))
      namesOfFamilies(store).foreach(same(_, Set(Family)))
      store.abort()
    }
    check("an empty store above version 0 is written whole, and leaves what is held as it was") {
      val provider = world.provider(world.freshStore())
      (0L until 3L).foreach { version =>
        val store = provider.getStore(version)
        put(store, version, version)
        store.commit()
      }
      val store = openEmpty(provider, 2)
      same(store.iterator(Family).size, 0)
      put(store, 9, 9)
      store.commit()
      same(provider.getReadStore(2, None).iterator(Family).size, 2)
      same(provider.getReadStore(3, None).iterator(Family).size, 1)
    }
  }

  private def together(): Unit = {
    check("many stores at once, each in a thread of its own") {
      val failures = new ConcurrentLinkedQueue[Throwable]
      val threads = (0 until 24).map { number =>
        val id = world.freshStore()
        val thread = new Thread(() => try {
          val random = new Random(seed + number)
          var ids = Option.empty[String]
          val model = mutable.HashMap.empty[Long, Long]
          (0L until 4L).foreach { version =>
            // A provider of its own for every version: each of them is opened cold.
            val store = world.provider(id).getStore(version, ids)
            val changes = Seq.fill(200)((random.nextInt(300).toLong, random.nextLong()))
            // Rows are made by one writer for all threads.
            changes.foreach { case (row, count) => World.synchronized(put(store, row, count)); model += row -> count }
            store.commit()
            ids = store.getStateStoreCheckpointInfo().stateStoreCkptId
          }
          same(rows(world.provider(id).getStore(4, ids)), model.toMap)
        } catch { case e: Throwable => failures.add(e) })
        thread.start()
        thread
      }
      threads.foreach(_.join())
      if (!failures.isEmpty) throw failures.peek()
    }
  }

  /** The task failed after its commit, and is tried again: from the same base, with other changes. */
  private def madeAgain(conf: Map[String, String]): Unit = {
    val id = world.freshStore()
    val provider = world.provider(id, conf)
    def named(ids: Option[String]) = if (conf.isEmpty) ids else None
    val base = commit(provider, 0)(1L -> 1L, 2L -> 2L)
    val first = commit(provider, 1, named(base))(1L -> 100L, 3L -> 3L)
    val again = provider.getStore(1, named(base))
    same(rows(again), Map(1L -> 1L, 2L -> 2L), "the base of the second attempt")
    remove(again, 2)
    put(again, 1, 200)
    again.commit()
    val second = again.getStateStoreCheckpointInfo().stateStoreCkptId
    same(rows(provider.getStore(2, named(second))), Map(1L -> 200L), "the second attempt")
    same(rows(world.provider(id, conf).getStore(2, named(second))), Map(1L -> 200L), "the second attempt, cold")
    if (conf.isEmpty) {
      same(rows(provider.getStore(2, first)), Map(1L -> 100L, 2L -> 2L, 3L -> 3L), "the first attempt")
      same(rows(world.provider(id).getStore(2, first)), Map(1L -> 100L, 2L -> 2L, 3L -> 3L), "the first attempt, cold")
    }
    same(rows(provider.getStore(1, named(base))), Map(1L -> 1L, 2L -> 2L), "the base")
    commit(provider, 2, named(second))(4L -> 4L)
    same(rows(world.provider(id, V1).getStore(3)), Map(1L -> 200L, 4L -> 4L), "what stands on the second attempt")
  }

  private def kept(most: Int): Unit = {
    val id = world.freshStore()
    val provider = world.provider(id, Map("spark.sql.streaming.maxBatchesToRetainInMemory" -> most.toString))
    val ids = mutable.ArrayBuffer[Option[String]](None)
    (0L until 6L).foreach(version => ids += commit(provider, version, ids(version.toInt))(version -> version, 100L -> version))
    def expected(version: Long) = (0L until version).map(each => each -> each).toMap + (100L -> (version - 1))
    // The newest is there even where none shall be kept: every batch would load all state otherwise.
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
