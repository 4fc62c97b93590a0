package io.dynastate.conformance

import java.net.URI
import java.nio.file.{Files, Paths}
import java.util.UUID

import scala.collection.concurrent.TrieMap
import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import io.dynastate.compat._
import io.dynastate.spark.ColumnFamily
import io.dynastate.tests.World
import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkThrowable
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf

/** A check that did not hold: its label, and what was found instead. */
final case class Failure(label: String, message: String)

/** The environment of one case: its own checkpoint, and the checks. A check that does not hold is recorded and the case
 * continues, so that a provider's known difference in one of them does not hide the others.
 *
 * @param appends whether families of single values are kept as lists, see `AppendingTable`
 */
final class Scene(val subject: Subject, root: String, families: Boolean, appends: Boolean = false) {
  import Rows.Values

  private val providers = mutable.ListBuffer.empty[StateStoreProvider]
  private val log = mutable.ListBuffer.empty[Failure]
  /** The checkpoint id of the newest commit of each version, as the driver would pass it on. */
  private val newestIds = TrieMap.empty[Long, String]

  def failures: Seq[Failure] = log.toList

  // ----------------------------------------------------------------------------------------------------------
  // providers

  /** The first provider. */
  lazy val provider: StateStoreProvider = fresh()

  /** A provider as an executor makes it: a new instance, of a new run of the query if none is given. */
  def fresh(shape: Shape = Shapes.Plain, families: Boolean = families, conf: Map[String, String] = Map.empty,
      ids: Boolean = subject.ids, multiple: Boolean = appends, extra: Map[String, String] = Map.empty,
      run: String = UUID.randomUUID().toString, schemas: Option[StateSchemaProvider] = None): StateStoreProvider = {
    val format = "spark.sql.streaming.stateStore.checkpointFormatVersion" -> (if (ids) "2" else "1")
    val options =
      Map("spark.sql.streaming.stateStore.providerClass" -> subject.providerClass) ++ subject.conf + format ++ conf
    val provider =
      Scene.make(storeId, kept(shape), options, run, new Configuration(Scene.Hadoop), families, multiple, extra,
        schemas)
    providers += provider
    provider
  }

  def storeId: StateStoreId = StateStoreId(root, operatorId = 0, partitionId = 3)

  def close(): Unit = providers.foreach(each =>
    try each.close()
    catch { case NonFatal(_) => () })

  // -------------------------------------------------------------------------------------------------------------
  // stores

  /** The id of a version's newest commit, in checkpoint format v2. */
  def idOf(version: Long): Option[String] = if (subject.ids) newestIds.get(version) else None

  def open(provider: StateStoreProvider, version: Long): StateStore = provider.getStore(version, idOf(version))

  def read(provider: StateStoreProvider, version: Long): ReadStateStore = provider.getReadStore(version, idOf(version))

  def commit(store: StateStore): Long = {
    val version = store.commit()
    store.getStateStoreCheckpointInfo().stateStoreCkptId.foreach(newestIds.put(version, _))
    version
  }

  /** A column family of a store, made if need be, as every task makes it. */
  def table(store: ReadStateStore, shape: Shape = Shapes.Plain): Table = {
    val family = kept(shape)
    if (family.name != ColumnFamily.Default) {
      store.asInstanceOf[StateStore].createColFamilyIfAbsent(family.name, family.key, family.value, family.spec,
        family.multiple,
        family.internal)
    }
    known(store, shape)
  }

  /** A column family that is not made. */
  def known(store: ReadStateStore, shape: Shape): Table =
    if (appends && !shape.multiple) new AppendingTable(store, kept(shape)) else new Table(store, kept(shape))

  private def kept(shape: Shape): Shape = if (appends && !shape.multiple) shape.appended else shape

  /** Open a version, change it, commit. Returns the new version. */
  def write(provider: StateStoreProvider, version: Long, shape: Shape = Shapes.Plain)(change: Table => Unit): Long = {
    val store = open(provider, version)
    change(table(store, shape))
    commit(store)
  }

  /** Read a version, and abort. */
  def look[A](provider: StateStoreProvider, version: Long, shape: Shape = Shapes.Plain)(at: Table => A): A = {
    val store = open(provider, version)
    try at(table(store, shape))
    finally store.abort()
  }

  def rowsAt(provider: StateStoreProvider, version: Long, shape: Shape = Shapes.Plain): Seq[(Values, Values)] =
    look(provider, version, shape)(_.sorted)

  /** The version of the newest snapshot, wherever the provider writes them; 0: there is none. */
  def newestSnapshot: Long =
    if (subject.kind == "dynastate") {
      val ours = Seq("endpoint", "python").map(name => subject.conf(s"spark.sql.streaming.stateStore.dynastate.$name"))
      new World(ours.head, ours(1), Paths.get(URI.create(root))).onTables(storeId, "newest-snapshot").toLong
    } else {
      val files = Files.list(Paths.get(URI.create(storeId.storeCheckpointLocation().toString)))
      try files.iterator.asScala.map(_.getFileName.toString).collect { case Scene.SnapshotFile(version) =>
          version.toLong
        }.foldLeft(0L)(math.max)
      finally files.close()
    }

  // -------------------------------------------------------------------------------------------------------------
  // checks

  def same(label: String, actual: Any, expected: Any): Unit =
    holds(label, actual == expected)(s"found ${shown(actual)}, expected ${shown(expected)}")

  /** In a Spark that has the call. */
  def sameFamilies(label: String, store: ReadStateStore, expected: Set[String]): Unit =
    namesOfFamilies(store).foreach(same(label, _, expected))

  def holds(label: String, condition: Boolean)(message: => String = "it does not hold"): Unit =
    if (!condition) log += Failure(label, message)

  /** The body must fail, with one of these: names of exception classes, or beginnings of Spark's error conditions. */
  def refuses(label: String, kinds: String*)(body: => Any): Unit =
    try {
      val answer = body
      log += Failure(label, s"it was allowed, and answered ${shown(answer)}")
    } catch {
      case absent: Absent => throw absent
      case NonFatal(e) =>
        val expected = kinds ++ kinds.flatMap(olderNames)
        holds(label, Scene.names(e).exists(name => expected.exists(name.startsWith)))(
          s"it was refused otherwise: ${Scene.told(e)}")
    }

  /** The body must not fail. */
  def allows(label: String)(body: => Any): Unit =
    try body
    catch {
      case absent: Absent => throw absent
      case NonFatal(e) => log += Failure(label, s"it was refused: ${Scene.told(e)}")
    }

  private def shown(value: Any): String = Scene.cut(String.valueOf(value), 400)
}

object Scene {
  /** Of the HDFS-backed store, and of RocksDB's. */
  private val SnapshotFile = """(\d+)(?:_.*)?\.(?:snapshot|zip)""".r

  /** A provider in a run of a query. `conf` names its class. */
  def make(id: StateStoreId, shape: Shape, conf: Map[String, String], run: String, hadoop: Configuration,
      families: Boolean, multiple: Boolean, extra: Map[String, String] = Map.empty,
      schemas: Option[StateSchemaProvider] = None): StateStoreProvider = {
    val session = new SQLConf
    // There is no driver to report a commit to.
    (conf + ("spark.sql.streaming.stateStore.commitValidation.enabled" -> "false")).foreach { case (name, value) =>
      session.setConfString(name, value)
      hadoop.set(name, value)
    }
    hadoop.set("sql.streaming.runId", run)
    val provider = StateStoreProvider.create(conf("spark.sql.streaming.stateStore.providerClass"))
    initialize(provider, id, shape.key, shape.value, shape.spec, families, new StateStoreConf(session, extra), hadoop,
      multiple, schemas)
    provider
  }

  /** Hadoop's defaults, read once: without them files are not replaced by a rename. */
  private val Hadoop = new Configuration

  /** Errors of a store that was committed or aborted. */
  val OutOfOrder: Seq[String] =
    Seq("STATE_STORE_OPERATION_OUT_OF_ORDER", "STATE_STORE_INVALID_STAMP", "IllegalStateException")

  /** Class names and error conditions of an exception and its causes. */
  def names(e: Throwable): Seq[String] = chain(e).flatMap { each =>
    val condition = each match {
      case spark: SparkThrowable => Option(conditionOf(spark))
      case _ => None
    }
    condition.toSeq :+ each.getClass.getSimpleName
  }

  /** An exception and its causes, on one line. */
  def told(e: Throwable): String =
    cut(
      chain(e).map(each =>
        s"${each.getClass.getSimpleName}: ${String.valueOf(each.getMessage).replace('\n', ' ')}").mkString(" <- "),
      1000)

  def cut(text: String, length: Int): String = if (text.length <= length) text else text.take(length) + "…"

  private def chain(e: Throwable): Seq[Throwable] = Iterator.iterate(e)(_.getCause).takeWhile(_ != null).take(8).toList
}
