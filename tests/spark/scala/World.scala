package io.dynastate.tests

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.nio.file.attribute.PosixFilePermissions
import java.util.UUID

import io.dynastate.compat._
import io.dynastate.conformance.{Scene, Shape}
import io.dynastate.spark.{ColumnFamily, ProviderSettings}
import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{LongType, StringType, StructField, StructType}
import org.apache.spark.unsafe.types.UTF8String

/** Makes providers as executors make them, and rows as operators do. */
final class World(val endpoint: String, python: String, scratch: Path) {
  import World._

  private var stores = 0

  /** A store that was not used before. */
  def freshStore(): StateStoreId = synchronized {
    stores += 1
    StateStoreId(scratch.resolve("checkpoint").toUri.toString.stripSuffix("/") + "/state", operatorId = 0,
      partitionId = stores)
  }

  /** The name of a store in the tables. */
  def storeOf(id: StateStoreId): String = {
    val location = ProviderSettings.locationOf(id.checkpointRootLocation, new Configuration(false))
    s"${ProviderSettings.digest(location)}/${id.operatorId}/${id.partitionId}/${id.storeName}"
  }

  /** Read or damage the items of a store with tests/support/table_surgery.py; what it prints. */
  def onTables(id: StateStoreId, action: String*): String = {
    val command = Seq(python, "-m", "tests.support.table_surgery", endpoint, storeOf(id)) ++ action
    val process = new ProcessBuilder(command: _*).redirectError(ProcessBuilder.Redirect.INHERIT).start()
    val output = new String(process.getInputStream.readAllBytes(), UTF_8)
    Checks.same(process.waitFor(), 0, "exit code of Python")
    output.trim
  }

  /** Make a snapshot of the newest version, and demand that it was made: a check whose snapshot is not wanted checks
   * nothing.
   */
  def snapshot(provider: StateStoreProvider, id: StateStoreId, version: Long): Unit = {
    provider.doSnapshotMaintenance()
    Checks.same(onTables(id, "newest-snapshot"), version.toString,
      "the newest snapshot after a maintenance that should make one")
  }

  /** Path of a shell script, in the place of an interpreter. */
  def script(line: String): String = {
    val file = Files.createTempFile(scratch, "python", ".sh",
      PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")))
    Files.writeString(file, s"#!/bin/sh\n$line\n").toString
  }

  /** Path of an interpreter that was not used before. */
  def interpreter(): String = script(s"""exec $python "$$@"""")

  /** Conf of a session that keeps state here; with one sidecar and without its cache, unless a check sets them. */
  val conf: Map[String, String] = {
    val ours =
      Map("endpoint" -> endpoint, "region" -> "us-east-1", "python" -> python, "cacheMb" -> "0", "sidecars" -> "1")
    Map(s"$Prefix.providerClass" -> ProviderClass, Format -> (if (hasIds) "2" else "1")) ++ ours.map {
      case (name, setting) =>
        s"$Prefix.dynastate.$name" -> setting
    }
  }

  /** What a provider makes of conf. */
  def settings(conf: (String, String)*): ProviderSettings = settings(freshStore(), conf: _*)

  def settings(id: StateStoreId, conf: (String, String)*): ProviderSettings = {
    val session = new SQLConf
    conf.foreach { case (name, value) => session.setConfString(name, value) }
    val hadoop = new Configuration(false)
    conf.foreach { case (name, value) => hadoop.set(name, value) } // as Spark does
    hadoop.set("sql.streaming.runId", UUID.randomUUID().toString)
    ProviderSettings(id, new StateStoreConf(session), hadoop)
  }

  /** A provider of a new run of a query. `conf` overrides the session's. */
  def provider(id: StateStoreId, conf: Map[String, String] = Map.empty, run: String = UUID.randomUUID().toString,
      lists: Boolean = false, hadoop: Configuration = new Configuration): StateStoreProvider = {
    Scene.make(id, Rows, this.conf ++ conf, run, hadoop, families = lists, multiple = lists)
  }
}

object World {
  val ProviderClass = "io.dynastate.spark.DynamoDBStateStoreProvider"
  val Prefix = "spark.sql.streaming.stateStore"
  val Format: String = s"$Prefix.checkpointFormatVersion"
  val Family: String = ColumnFamily.Default

  val KeySchema: StructType = StructType(Seq(StructField("name", StringType), StructField("id", LongType)))
  val ValueSchema: StructType = StructType(Seq(StructField("count", LongType), StructField("note", StringType)))
  private val Rows = Shape(Family, KeySchema, ValueSchema, NoPrefixKeyStateEncoderSpec(KeySchema))

  private val keys = new UnsafeRowWriter(2, 64)
  private val values = new UnsafeRowWriter(2, 64)

  /** A row that is valid until the next call, as operators' rows are. */
  def key(id: Long): UnsafeRow = {
    keys.reset()
    keys.zeroOutNullBytes()
    if (id % 10 == 3) keys.setNullAt(0) else keys.write(0, UTF8String.fromString("ключ-" + "x" * (id % 20).toInt))
    keys.write(1, id)
    keys.getRow()
  }

  /** A row that is valid until the next call. */
  def value(count: Long, note: String = ""): UnsafeRow = {
    values.reset()
    values.zeroOutNullBytes()
    values.write(0, count)
    values.write(1, UTF8String.fromString(note))
    values.getRow()
  }

  def rows(pairs: Iterator[UnsafeRowPair]): Map[Long, Long] = {
    val rows = pairs.map(pair => pair.key.getLong(1) -> pair.value.getLong(0)).toList
    Checks.require(rows.map(_._1).distinct.size == rows.size, "an iterator gave a key twice")
    rows.toMap
  }

  def rows(store: ReadStateStore): Map[Long, Long] = rows(store.iterator(Family))

  def get(store: ReadStateStore, id: Long): Option[Long] = Option(store.get(key(id), Family)).map(_.getLong(0))

  /** The values of a key, of a store with lists; Nil: there is no such row. */
  def values(store: ReadStateStore, id: Long): List[Long] =
    store.valuesIterator(key(id), Family).map(_.getLong(0)).toList

  def put(store: StateStore, id: Long, count: Long): Unit = store.put(key(id), value(count), Family)

  /** The checkpoint id of a commit. */
  def idOf(store: StateStore): Option[String] = store.getStateStoreCheckpointInfo().stateStoreCkptId

  /** Change a version, and commit; the new version's checkpoint id. */
  def write(provider: StateStoreProvider, version: Long, checkpointId: Option[String] = None)(
      change: StateStore => Unit): Option[String] = {
    val store = provider.getStore(version, checkpointId)
    change(store)
    Checks.same(store.commit(), version + 1, "version that commit answered")
    idOf(store)
  }

  /** Put rows at a version, and commit. */
  def commit(provider: StateStoreProvider, version: Long, checkpointId: Option[String] = None)(
      changes: (Long, Long)*): Option[String] =
    write(provider, version, checkpointId)(store => changes.foreach { case (id, count) => put(store, id, count) })

  /** As many rows, each with its number as its count. */
  def numbered(rows: Long): Seq[(Long, Long)] = (0L until rows).map(each => each -> each)

  def metric(store: StateStore, name: String): Long =
    store.metrics.customMetrics.collectFirst { case (metric, value) if metric.name == name => value }
      .getOrElse(throw new AssertionError(s"there is no metric $name"))
}
