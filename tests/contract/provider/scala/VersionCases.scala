package io.dynastate.conformance

import java.nio.file.{Files, Paths}
import java.util.concurrent.TimeUnit

import Rows.{v, Values}
import Shapes._
import io.dynastate.compat
import io.dynastate.compat._

import org.apache.spark.sql.execution.streaming.state._

/** The attempt that is read: retries, older versions, twins, checkpoint ids, upgraded read stores, replay and change
 * feed.
 */
final class VersionCases(scene: Scene) extends Cases {
  import scene._
  import Need.{Families, Ids}
  import Scene.OutOfOrder

  private val NotThere = "CANNOT_LOAD_STATE_STORE"

  private def one(value: Int): Seq[(Values, Values)] = Seq(v("a", 0) -> v(value))

  private def rowsOf(provider: StateStoreProvider, version: Long, id: Option[String]): Seq[(Values, Values)] = {
    val reader = provider.getReadStore(version, id)
    try table(reader).sorted
    finally reader.release()
  }

  testWithAppends("a-task-is-run-again-after-its-commit") {
    write(provider, 0)(_.put(v("a", 0), v(1)))
    for (attempt <- 2 to 4) {
      same(s"base of attempt $attempt", rowsAt(provider, 1), one(1))
      write(provider, 1) { t =>
        t.put(v("a", 0), v(attempt))
        t.put(v("only", attempt), v(0))
      }
    }
    val expected = Seq(v("a", 0) -> v(4), v("only", 4) -> v(0))
    same("the last is read", rowsAt(provider, 2), expected)
    same("the last is read by another instance", rowsAt(fresh(), 2), expected)
    write(provider, 2)(_.put(v("b", 0), v(5)))
    same("and is the base of the next version", rowsAt(fresh(), 3),
      Seq(v("a", 0) -> v(4), v("b", 0) -> v(5), v("only", 4) -> v(0)))
  }

  testWithAppends("run-again-by-another-executor") {
    val run = java.util.UUID.randomUUID().toString
    val first = fresh(run = run)
    write(first, 0)(_.put(v("a", 0), v(1)))
    write(first, 1)(_.put(v("a", 0), v(2)))
    val second = fresh(run = run)
    write(second, 1)(_.put(v("a", 0), v(3)))
    // The first still holds its own attempt at version 2 in memory.
    same("the first reads what the second committed", rowsAt(first, 2), one(3))
    write(first, 2)(_.put(v("b", 0), v(4)))
    same("and its next version is based on it", rowsAt(fresh(), 3), one(3) :+ (v("b", 0) -> v(4)))
  }

  testWithAppends("moved-to-another-executor-and-back") {
    val run = java.util.UUID.randomUUID().toString
    val (first, second) = (fresh(run = run), fresh(run = run))
    write(first, 0)(_.put(v("a", 0), v(1)))
    write(second, 1) { t =>
      t.put(v("a", 0), v(2))
      t.put(v("b", 0), v(2))
    }
    write(second, 2)(_.remove(v("b", 0)))
    write(second, 3)(_.put(v("c", 0), v(4)))
    val expected = one(2) :+ (v("c", 0) -> v(4))
    same("back, over three versions", rowsAt(first, 4), expected)
    write(first, 4)(_.put(v("d", 0), v(5)))
    same("and away again", rowsAt(second, 5), expected :+ (v("d", 0) -> v(5)))
    same("an older version here", rowsAt(first, 2), one(2) :+ (v("b", 0) -> v(2)))
  }

  testWithAppends("an-older-version-is-opened-again") {
    for (version <- 0 to 4) {
      write(provider, version) { t =>
        t.put(v("a", 0), v(version + 1))
        t.put(v("v", version + 1), v(0))
      }
    }
    // Offset and commit log were deleted down to batch 1: the query resumes from version 2.
    write(provider, 2)(_.put(v("a", 0), v(30)))
    write(provider, 3)(_.put(v("a", 0), v(40)))
    val expected = Seq(v("a", 0) -> v(40), v("v", 1) -> v(0), v("v", 2) -> v(0))
    same("in memory", rowsAt(provider, 4), expected)
    same("reloaded", rowsAt(fresh(), 4), expected)
    same("version 3, reloaded", rowsAt(fresh(), 3), one(30) ++ expected.tail)
    same("version 1, reloaded", rowsAt(fresh(), 1), Seq(v("a", 0) -> v(1), v("v", 1) -> v(0)))
    write(fresh(), 1)(_.put(v("b", 0), v(20)))
    same("version 2 by another instance", rowsAt(fresh(), 2),
      Seq(v("a", 0) -> v(1), v("b", 0) -> v(20), v("v", 1) -> v(0)))
    same("version 1 after it", rowsAt(fresh(), 1), Seq(v("a", 0) -> v(1), v("v", 1) -> v(0)))
  }

  testWithAppends("started-over-at-version-0") {
    val first = fresh()
    for (version <- 0 to 2) write(first, version)(_.put(v("old", version), v(version)))
    val second = fresh()
    same("version 0 is empty", rowsAt(second, 0), Nil)
    write(second, 0)(_.put(v("a", 0), v(1)))
    same("version 1", rowsAt(second, 1), one(1))
    write(second, 1)(_.put(v("b", 0), v(2)))
    same("version 2, reloaded", rowsAt(fresh(), 2), one(1) :+ (v("b", 0) -> v(2)))
  }

  testWithAppends("every-version-by-a-fresh-instance") {
    for (version <- 0 until 23) {
      write(provider, version) { t =>
        t.put(v("a", version), v(version))
        t.remove(v("a", version - 3))
      }
    }
    val other = fresh()
    for (version <- Seq(23, 9, 10, 11, 20, 1, 19, 23)) {
      same(s"version $version", rowsAt(other, version).map(_._1(1)).toSet,
        (math.max(0, version - 3) until version).toSet)
    }
  }

  testWithAppends("stores-side-by-side") {
    for (version <- 0 to 3) write(provider, version)(_.put(v("a", 0), v(version + 1)))
    val readers = (1L to 4L).map(version => read(provider, version))
    val writers = Seq(open(provider, 2), open(provider, 4))
    writers.foreach(store => table(store).put(v("a", 0), v(-1)))
    def seen = readers.map(store => table(store).sorted)
    same("readers", seen, (1 to 4).map(one))
    same("writers", writers.map(store => table(store).sorted), Seq(one(-1), one(-1)))
    commit(writers(1))
    same("readers after a commit", seen, (1 to 4).map(one))
    commit(writers.head)
    same("readers after a commit in the past", seen, (1 to 4).map(one))
    readers.foreach(_.release())
  }

  testWithAppends("a-zombie-commits-last") {
    write(provider, 0)(_.put(v("a", 0), v(1)))
    val zombie = open(provider, 1)
    table(zombie).put(v("zombie", 0), v(1))
    val retry = open(provider, 1)
    table(retry).put(v("retry", 0), v(1))
    retry.commit()
    val id = retry.getStateStoreCheckpointInfo().stateStoreCkptId
    zombie.commit()
    // By number the last commit is read; by id the one that the driver names, whichever was last.
    val expected = if (subject.ids) "retry" else "zombie"
    same("in memory", rowsOf(provider, 2, id).map(_._1.head), Seq("a", expected))
    same("reloaded", rowsOf(fresh(), 2, id).map(_._1.head), Seq("a", expected))
  }

  testWithAppends("twins-on-two-executors") {
    val (first, second) = (fresh(), fresh())
    write(first, 0)(_.put(v("a", 0), v(1)))
    val stores = Seq(first, second).map(open(_, 1))
    stores.zipWithIndex.foreach { case (store, at) => table(store).put(v("twin", at), v(at)) }
    stores.foreach(commit)
    same("one of them is read", rowsAt(fresh(), 2), one(1) :+ (v("twin", 1) -> v(1)))
    same("by the other too", rowsAt(first, 2), one(1) :+ (v("twin", 1) -> v(1)))
  }

  testWithAppends("a-commit-that-fails") {
    val shape = Plain.copy(value = OneString)
    // Large enough that ours has sent some of it before commit.
    val large = v("x" * (5 << 20))
    val provider = fresh(shape)
    write(provider, 0, shape)(_.put(v("a", 0), v("1")))
    val store = open(provider, 1)
    table(store, shape).put(v("b", 0), large)
    val mend = break()
    refuses("commit", "CANNOT_WRITE_STATE_STORE")(commit(store))
    mend()
    holds("it has not committed", !store.hasCommitted)()
    refuses("a second commit", "CANNOT_WRITE_STATE_STORE" +: OutOfOrder: _*)(commit(store))
    allows("abort")(store.abort())
    same("the base", rowsAt(provider, 1, shape), Seq(v("a", 0) -> v("1")))
    write(provider, 1, shape)(_.put(v("c", 0), v("3")))
    same("the next attempt, reloaded", rowsAt(fresh(shape), 2, shape), Seq(v("a", 0) -> v("1"), v("c", 0) -> v("3")))
  }

  /** Break what a commit needs; returns how to repair it. */
  private def break(): () => Unit =
    if (subject.kind == "dynastate") {
      // The sidecar is this process's only child. The next task starts another.
      ProcessHandle.current().children().forEach { sidecar =>
        sidecar.destroyForcibly()
        sidecar.onExit().get(30, TimeUnit.SECONDS)
      }
      () => ()
    } else {
      // A file where the partition's folder should be.
      val folder = Paths.get(java.net.URI.create(storeId.storeCheckpointLocation().toString))
      val backup = folder.resolveSibling("aside")
      Files.move(folder, backup)
      Files.createFile(folder)
      () => {
        Files.delete(folder)
        Files.move(backup, folder)
      }
    }

  testWithAppends("checkpoint-ids", Ids) {
    val store = open(provider, 0)
    commit(store)
    val first = store.getStateStoreCheckpointInfo()
    val next = provider.getStore(1, first.stateStoreCkptId)
    table(next).put(v("a", 0), v(1))
    next.commit()
    val second = next.getStateStoreCheckpointInfo()
    same("the base is the id that was given", second.baseStateStoreCkptId, first.stateStoreCkptId)
    val other = provider.getStore(1, first.stateStoreCkptId)
    table(other).put(v("a", 0), v(2))
    other.commit()
    val third = other.getStateStoreCheckpointInfo()
    same("ids are fresh", Seq(first, second, third).flatMap(_.stateStoreCkptId).distinct.length, 3)
    for ((when, from) <- Seq("in memory" -> provider, "reloaded" -> fresh())) {
      same(s"the first attempt, $when", rowsOf(from, 2, second.stateStoreCkptId), one(1))
      same(s"the second attempt, $when", rowsOf(from, 2, third.stateStoreCkptId), one(2))
    }
  }

  testWithAppends("unknown-checkpoint-ids", Ids) {
    for (version <- 0 to 1) write(provider, version)(_.put(v("a", 0), v(version + 1)))
    val ids = Seq("of no attempt" -> "6f9619ff-8b86-4011-b42d-00c04fc964ff", "of another version" -> idOf(1).get,
      "of no form at all" -> "nonsense", "of zeros" -> "00000000-0000-0000-0000-000000000000")
    for ((what, id) <- ids; (when, from) <- Seq("warm" -> provider, "cold" -> fresh())) {
      refuses(s"$what, $when, to write", NotThere)(from.getStore(2, Some(id)).abort())
      refuses(s"$what, $when, to read", NotThere)(from.getReadStore(2, Some(id)).release())
    }
    same("the known one", rowsAt(provider, 2), one(2))
  }

  testWithAppends("from-v1-to-v2", Ids) {
    val v1 = fresh(ids = false)
    for (version <- 0 to 1) {
      val store = v1.getStore(version)
      table(store).put(v("a", 0), v(version + 1))
      store.commit()
      same("no id in v1", store.getStateStoreCheckpointInfo().stateStoreCkptId, None)
    }
    val v2 = fresh()
    // The commit log of v1 has no ids to give.
    val store = v2.getStore(2, None)
    same("by number", table(store).sorted, one(2))
    table(store).put(v("b", 0), v(3))
    store.commit()
    val info = store.getStateStoreCheckpointInfo()
    same("no base id", info.baseStateStoreCkptId, None)
    val expected = one(2) :+ (v("b", 0) -> v(3))
    for ((when, from) <- Seq("in memory" -> v2, "reloaded" -> fresh()))
      same(s"by id, $when", rowsOf(from, 3, info.stateStoreCkptId), expected)
  }

  testWithAppends("from-v2-to-v1", Ids) {
    write(fresh(), 0)(_.put(v("a", 0), v(1)))
    val v1 = fresh(ids = false)
    val store = v1.getStore(1)
    same("by number", table(store).sorted, one(1))
    table(store).put(v("a", 0), v(2))
    store.commit()
    same("reloaded", rowsOf(fresh(ids = false), 2, None), one(2))
  }

  test("checkpoint-info-before-commit") {
    val store = open(fresh(), 0)
    refuses("before commit", OutOfOrder: _*)(store.getStateStoreCheckpointInfo())
    store.commit()
    val info = store.getStateStoreCheckpointInfo()
    same("partition and version", (info.partitionId, info.batchVersion), (3, 1L))
    same("an id in v2 only", info.stateStoreCkptId.isDefined, subject.ids)
    same("no base", info.baseStateStoreCkptId, None)
  }

  testWithAppends("a-reader-becomes-a-writer") {
    val first = provider.upgradeReadStoreToWriteStore(read(provider, 0), 0, None)
    table(first).put(v("a", 0), v(1))
    commit(first)
    same("of version 0, reloaded", rowsAt(fresh(), 1), one(1))
    val reader = read(provider, 1)
    same("read", table(reader).get(v("a", 0)), v(1))
    val writer = provider.upgradeReadStoreToWriteStore(reader, 1, idOf(1))
    val t = table(writer)
    same("rows of the base", t.sorted, one(1))
    t.put(v("b", 0), v(2))
    same("commit answers", commit(writer), 2L)
    val expected = one(1) :+ (v("b", 0) -> v(2))
    same("in memory", rowsAt(provider, 2), expected)
    same("reloaded", rowsAt(fresh(), 2), expected)
    same("base id", writer.getStateStoreCheckpointInfo().baseStateStoreCkptId, idOf(1))
  }

  testWithAppends("an-upgraded-store-is-aborted") {
    write(provider, 0)(_.put(v("a", 0), v(1)))
    val reader = read(provider, 1)
    val writer = provider.upgradeReadStoreToWriteStore(reader, 1, idOf(1))
    table(writer).put(v("b", 0), v(2))
    writer.abort()
    same("nothing of it is left", rowsAt(provider, 1), one(1))
    val store = read(provider, 1)
    commit(provider.upgradeReadStoreToWriteStore(store, 1, idOf(1)))
    same("the next one commits", rowsAt(fresh(), 2), one(1))
  }

  testWithAppends("upgraded-by-another-instance") {
    val first = fresh()
    write(first, 0)(_.put(v("a", 0), v(1)))
    val reader = read(first, 1)
    // The provider was unloaded between the two operators of the task.
    val second = fresh()
    val writer = second.upgradeReadStoreToWriteStore(reader, 1, idOf(1))
    table(writer).put(v("b", 0), v(2))
    commit(writer)
    same("reloaded", rowsAt(fresh(), 2), one(1) :+ (v("b", 0) -> v(2)))
  }

  test("upgraded-at-another-version") {
    for (version <- 0 to 1) write(provider, version)(_.put(v("a", 0), v(version + 1)))
    val reader = read(provider, 1)
    refuses("it is not what was read", "IllegalArgumentException", "AssertionError", "STATE_STORE", "INTERNAL_ERROR") {
      provider.upgradeReadStoreToWriteStore(reader, 2, idOf(2))
    }
    reader.release()
  }

  testWithAppends("upgraded-with-families", Families) {
    val shape = Prefixed.named("sessions")
    write(provider, 0, shape)(_.put(v("a", 0), v(1)))
    val writer = provider.upgradeReadStoreToWriteStore(read(provider, 1), 1, idOf(1))
    val t = table(writer, shape)
    t.put(v("a", 1), v(2))
    same("prefix scan", t.prefixed(v("a")).sortBy(_.toString), Seq(v("a", 0) -> v(1), v("a", 1) -> v(2)))
    commit(writer)
    same("reloaded", rowsAt(fresh(), 2, shape), Seq(v("a", 0) -> v(1), v("a", 1) -> v(2)))
  }

  // ------------------------------------------------------------------------------------------------ replay and change
  // feed

  private def replay(provider: StateStoreProvider): SupportsFineGrainedReplay = replayable(provider)

  private type Change = (String, Values, Values, Long)

  private def feed(provider: StateStoreProvider, first: Long, last: Long, shape: Shape = Plain,
      family: Option[String] = None): Seq[Change] = {
    val reader = compat.changes(replay(provider), first, last, family, idOf(last))
    try {
      reader.map { case (kind, key, value, batch) =>
        (kind.toString, Rows.values(shape.key, key), Rows.values(shape.value, value), batch)
      }.toList
    } finally reader.closeIfNeeded()
  }

  private def put(key: Values, value: Int, batch: Long): Change = ("put_record", key, v(value), batch)

  test("change-feed") {
    write(provider, 0) { t =>
      t.put(v("a", 0), v(1))
      t.put(v("b", 0), v(1))
    }
    write(provider, 1) { t =>
      t.put(v("a", 0), v(2))
      t.remove(v("b", 0))
    }
    write(provider, 2)(_ => ())
    write(provider, 3)(_.put(v("c", 0), v(4)))
    val expected: Seq[Seq[Change]] = Seq(Seq(put(v("a", 0), 1, 0), put(v("b", 0), 1, 0)),
      Seq(put(v("a", 0), 2, 1), ("delete_record", v("b", 0), null, 1L)), Nil, Seq(put(v("c", 0), 4, 3)))
    def of(changes: Seq[Change]) = changes.sortBy(change => (change._4, change._2.toString))
    val reader = fresh()
    same("all", of(feed(reader, 1, 4)), expected.flatten)
    same("one version", of(feed(reader, 2, 2)), expected(1))
    same("a version without changes", of(feed(reader, 3, 3)), Nil)
    same("the rest", of(feed(reader, 2, 4)), expected.tail.flatten)
    same("by the instance that wrote", of(feed(provider, 1, 4)), expected.flatten)
    refuses("from version 0", "UNEXPECTED_STATE_STORE_VERSION", "CANNOT_LOAD_STATE_STORE")(feed(reader, 0, 4))
    refuses("the end before the start", "UNEXPECTED_STATE_STORE_VERSION", "CANNOT_LOAD_STATE_STORE")(feed(reader, 3, 2))
    refuses("a version to come", "CANNOT_LOAD_STATE_STORE", "FileNotFoundException")(feed(reader, 1, 9))
    same("it is of use afterwards", rowsAt(reader, 4), Seq(v("a", 0) -> v(2), v("c", 0) -> v(4)))
  }

  test("change-feed-left-early") {
    for (version <- 0 to 2) write(provider, version)(t => for (number <- 1 to 100) t.put(v("a", number), v(version)))
    for (_ <- 1 to 3) {
      val reader = compat.changes(replay(provider), 1, 3, None, idOf(3))
      holds("there are changes", reader.hasNext)()
      reader.next()
      reader.closeIfNeeded()
    }
    same("what was written", rowsAt(fresh(), 3).map(_._2.head).distinct, Seq(2))
  }

  test("change-feed-of-a-family", Families) {
    val (a, lists) = (Plain.named("a"), Plain.named("lists").lists)
    val store = open(provider, 0)
    table(store, a).put(v("k", 0), v(1))
    table(store, lists).merge(v("l", 0), v(2))
    commit(store)
    write(provider, 1, lists)(_.merge(v("l", 0), v(3)))
    val reader = fresh()
    // The state reader registers families on a store that it opens before.
    look(reader, 2, a)(t => table(t.store, lists))
    same("of a", feed(reader, 1, 2, a, Some("a")).map(change => (change._2, change._3, change._4)),
      Seq((v("k", 0), v(1), 0L)))
    same("of lists", feed(reader, 1, 2, lists, Some("lists")).map(change => (change._2, change._3, change._4)),
      Seq((v("l", 0), v(2), 0L), (v("l", 0), v(3), 1L)))
    same("what was appended is a merge", feed(reader, 2, 2, lists, Some("lists")).map(_._1), Seq("merge_record"))
  }

  test("change-feed-of-lists", Families) {
    val lists = Plain.named("lists").lists
    val key = v("l", 0)
    write(provider, 0, lists) { t =>
      t.merge(key, v(1))
      t.merge(key, v(2))
    }
    write(provider, 1, lists) { t =>
      t.merge(key, v(3))
      t.remove(key)
      t.put(key, v(3))
    }
    write(provider, 2, lists) { t =>
      t.remove(key)
      t.merge(key, v(4))
      t.put(key, v(5))
      t.merge(key, v(6))
    }
    val reader = fresh()
    look(reader, 3, lists)(t => same("the list", t.list(key), Seq(v(5), v(6))))
    same("every write, in order",
      feed(reader, 1, 3, lists, Some("lists")).map(change => (change._1, change._3, change._4)),
      Seq(("merge_record", v(1), 0L), ("merge_record", v(2), 0L), ("merge_record", v(3), 1L),
        ("delete_record", null, 1L), ("put_record", v(3), 1L), ("delete_record", null, 2L), ("merge_record", v(4), 2L),
        ("put_record", v(5), 2L), ("merge_record", v(6), 2L)))
  }

  testWithAppends("replay-from-a-snapshot") {
    val conf = Map("spark.sql.streaming.stateStore.minDeltasForSnapshot" -> "2")
    val provider = fresh(conf = conf)
    for (version <- 0 until 8) {
      write(provider, version)(_.put(v("a", version), v(version)))
      provider.doMaintenance()
    }
    holds("a snapshot was made", newestSnapshot > 0)()
    val other = fresh(conf = conf)
    // The shipped providers need a snapshot at that version, ours does not.
    def replayed(from: Long, to: Long): Option[Seq[Int]] =
      try {
        val store = replayReadState(replay(other), from, to, idOf(from), idOf(to))
        try Some(table(store).sorted.map(_._2.head.asInstanceOf[Int]))
        finally store.abort()
      } catch {
        case e: Exception
            if Scene.names(e).exists(name =>
              name.startsWith("CANNOT_LOAD_STATE_STORE") || name.contains("FileNotFound")) => None
      }
    val replays = (1L to 7L).map(replayed(_, 7))
    holds("from one version at least", replays.exists(_.isDefined))()
    same("always to the same rows", replays.flatten.distinct, Seq(0 until 7))
    val from = 1L + replays.indexWhere(_.isDefined)
    val store = replayState(replay(other), from, 8, idOf(from), idOf(8))
    same("version", store.version, 8L)
    same("to write", table(store).sorted.map(_._2.head), 0 until 8)
    store.abort()
    refuses("from version 0", "UNEXPECTED_STATE_STORE_VERSION", "CANNOT_LOAD_STATE_STORE")(replayState(replay(other), 0,
        8, None, idOf(8)).abort())
    refuses("the end before the start", "UNEXPECTED_STATE_STORE_VERSION", "CANNOT_LOAD_STATE_STORE") {
      replayState(replay(other), 5, 4, idOf(5), idOf(4)).abort()
    }
  }
}
