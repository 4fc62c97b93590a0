package org.apache.spark.sql.dynastate

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.spark.ColumnFamily
import org.json4s.JsonAST._

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow, XXH64}
import org.apache.spark.sql.catalyst.types.DataTypeUtils
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorsUtils
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate._
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.timers.TimerStateUtils
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{NullType, StructField, StructType}

/**
 * A store of an operator, the same in each partition. Without column families it has the default one only.
 *
 * @param schemas all that its rows were written with, where their encoding is Avro
 */
private[dynastate] final case class StoreShape(
    operator: Long,
    operatorName: String,
    name: String,
    partitions: Int,
    isSingle: Boolean,
    described: Seq[ColumnFamily],
    variables: List[TransformWithStateVariableInfo],
    schemas: Option[StateSchemaProvider],
    isNew: Boolean = false) {
  private val Default = StateStore.DEFAULT_COL_FAMILY_NAME

  def path: String = s"$operator/$name"

  val others: Seq[ColumnFamily] = described.filter(_.name != Default)

  def usesFamilies: Boolean = others.nonEmpty

  /** The default family of an operator that does not describe it, and has no rows in it. */
  def default: ColumnFamily = described.find(_.name == Default).getOrElse {
    val none = StructType(Array(StructField("__dummy__", NullType)))
    ColumnFamily(Default, NoPrefixKeyStateEncoderSpec(none), none, multipleValues = false, internal = false)
  }

  def families: Seq[ColumnFamily] = default +: others

  def repartitioned(partitions: Int): StoreShape = if (isSingle) this else copy(partitions = partitions)

  /** With rows that come from elsewhere; a schema of the same types keeps its nullability, which Spark compares. */
  def withRows(key: StructType, value: StructType): StoreShape = {
    def either(own: StructType, other: StructType) = if (DataTypeUtils.sameType(own, other)) own else other
    val keys = either(default.keySchema, key)
    val spec = default.spec match {
      case prefix: PrefixKeyScanStateEncoderSpec => prefix.copy(keySchema = keys)
      case _ => NoPrefixKeyStateEncoderSpec(keys)
    }
    copy(described = Seq(default.copy(spec = spec, valueSchema = either(default.valueSchema, value))), isNew = true)
  }

  /** The state format of a join, which its stores and families show: 1 and 2 have stores of their own, 3 and 4 have families. */
  def joinFormat: Int = if (!usesFamilies) 2 else if (isJoinByTime) 4 else 3

  /** A join of state format 4, whose keys end with a time. */
  def isJoinByTime: Boolean =
    operatorName == StatefulOperatorsUtils.SYMMETRIC_HASH_JOIN_EXEC_OP_NAME && others.exists(_.name.endsWith("-keyWithTsToValues"))

  /** The state variable that a family of transformWithState belongs to; families of timers have one of their own. */
  def variable(family: String): Option[TransformWithStateVariableInfo] =
    if (TimerStateUtils.isTimerCFName(family)) Some(TransformWithStateVariableInfo(family, StateVariableType.TimerState, ttlEnabled = false))
    else variables.find(_.stateName == StateStoreColumnFamilySchemaUtils.getBaseStateName(family))
}

/** One store of one partition, and the id of its version in the checkpoint, if that has ids. */
private[dynastate] final case class StoreAt(shape: StoreShape, partition: Int, id: Option[String]) {
  override def toString: String = s"operator=${shape.operator} partition=$partition store=${shape.name}"
}

/** A key of a family and its value, or the values of its list in order. They are valid until the next one is read. */
private[dynastate] final class StateEntry(val family: Int, val key: UnsafeRow, val values: Seq[UnsafeRow])

/** Content of a store: values, their bytes with those of their keys, and a digest that does not depend on the order of keys. */
private[dynastate] final class Content(var rows: Long = 0, var bytes: Long = 0, var digest: Long = 0) {

  def add(family: String, entry: StateEntry): Unit = {
    val key = entry.key
    entry.values.zipWithIndex.foreach { case (value, place) =>
      rows += 1
      bytes += key.getSizeInBytes + value.getSizeInBytes
      val ofKey = XXH64.hashUnsafeBytes(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes, family.hashCode.toLong << 32 | place)
      digest += XXH64.hashUnsafeBytes(value.getBaseObject, value.getBaseOffset, value.getSizeInBytes, ofKey)
    }
  }

  def add(other: Content): Unit = {
    rows += other.rows
    bytes += other.bytes
    digest += other.digest
  }

  def mustBe(other: Content, store: StoreAt, step: String): Unit =
    if ((rows, bytes, digest) != (other.rows, other.bytes, other.digest)) {
      throw new DynastateException(ErrorKind.Corrupt, s"$step is not what was written; nothing was moved $store written=$rows found=${other.rows}")
    }
}

/** Writes the struct in a column of a frame as a row of state. */
private final class RowWriter(shape: StoreShape, column: Int, schema: StructType) {
  // A projection of a column that has no nulls would not look for one.
  private val projection = UnsafeProjection.create(schema.asNullable)
  private val never = schema.fields.indices.filterNot(schema(_).nullable)

  def write(row: InternalRow): UnsafeRow = {
    val struct = if (row.isNullAt(column)) null else row.getStruct(column, schema.length)
    if (struct == null || never.exists(struct.isNullAt)) {
      val columns = if (struct == null) Seq("key", "value")(column) else never.filter(struct.isNullAt).map(schema(_).name).mkString(",")
      throw new DynastateException(ErrorKind.Configuration,
        s"a row has a null where the state has none; nothing was written operator=${shape.operator} store=${shape.name} columns=$columns")
    }
    projection(struct)
  }
}

/** Data that the tasks of a transfer share: both ends, and the versions that are read and written. */
private[dynastate] final case class StateTransferTask(source: StoreEnd, target: StoreEnd, from: Long, version: Long) {

  /** Move a store to the same partition. */
  def copy(store: StoreAt): JValue = {
    var made: JValue = JNothing
    source.reading(store, from) { rows => made = write(store, entriesOf(rows, store.shape), _ => ()) }
    made
  }

  /** The rows of an old store in packets, each with the number of its new store: `first` is that of partition 0. */
  def send(store: StoreAt, first: Int, partitions: Int): Iterator[(Int, Array[Byte])] = {
    val opened = source.open(store, from)
    numbered(first, new Router(store.shape, Some(store.partition), partitions).packets(entriesOf(opened.rows, store.shape)))
  }

  /** The same of rows from elsewhere, with a key and a value each. */
  def bring(shape: StoreShape, rows: Iterator[InternalRow], first: Int, partitions: Int): Iterator[(Int, Array[Byte])] = {
    val (keys, values) = (new RowWriter(shape, 0, shape.default.keySchema), new RowWriter(shape, 1, shape.default.valueSchema))
    val entries = rows.map(row => new StateEntry(0, keys.write(row), Seq(values.write(row))))
    numbered(first, new Router(shape, None, partitions).packets(entries))
  }

  private def numbered(first: Int, packets: Iterator[(Int, Array[Byte])]): Iterator[(Int, Array[Byte])] =
    packets.map { case (partition, packet) => (first + partition, packet) }

  /** Write a new store from packets of all the old ones. */
  def receive(store: StoreAt, packets: Iterator[(Int, Array[Byte])]): JValue = {
    val arrived = new ArrivedEntries(store.shape, packets.map(_._2))
    write(store, arrived, arrived.mustBeWhole(store, _))
  }

  /**
   * 1. Write the entries into an empty store. (Crash: orphans.)
   * 2. Commit it, as an imported version. (Crash: a version that no checkpoint names.)
   * 3. Read it back, and compare.
   */
  private def write(store: StoreAt, entries: Iterator[StateEntry], check: Content => Unit): JValue = {
    val started = System.nanoTime()
    val (names, written) = (store.shape.families.map(_.name).toArray, new Content)
    val made = target.writing(store, version) { rows =>
      entries.foreach { entry =>
        val family = names(entry.family)
        written.add(family, entry)
        if (store.shape.isNew && rows.keyExists(entry.key, family)) {
          throw new DynastateException(ErrorKind.Configuration,
            s"two rows have the same key; nothing was written $store key=${entry.key.toSeq(store.shape.default.keySchema).mkString(",")}")
        }
        rows.put(entry.key, entry.values.head, family)
        entry.values.tail.foreach(rows.merge(entry.key, _, family)) // 1
      }
      check(written)
    } // 2
    val found = new Content
    target.reading(store.copy(id = made.id), version) { rows =>
      entriesOf(rows, store.shape).foreach(entry => found.add(names(entry.family), entry))
    } // 3
    written.mustBe(found, store, "what was read back")
    JObject(
      "operator" -> JInt(store.shape.operator), "partition" -> JInt(store.partition), "name" -> JString(store.shape.name),
      "rows" -> JInt(written.rows), "bytes" -> JInt(written.bytes),
      "write_units" -> JInt(made.metric("dynastateWriteUnits")), "bytes_written" -> JInt(made.metric("dynastateBytesWritten")),
      "ms" -> JInt((System.nanoTime() - started) / 1000000), "id" -> made.id.fold[JValue](JNull)(JString(_)))
  }

  /** Every key of every family; the values of a list come one after another. */
  private def entriesOf(store: ReadStateStore, shape: StoreShape): Iterator[StateEntry] =
    shape.families.iterator.zipWithIndex.flatMap { case (family, number) =>
      val pairs = if (family.multipleValues) store.iteratorWithMultiValues(family.name) else store.iterator(family.name)
      val entries = if (family.multipleValues) lists(number, pairs) else pairs.map(pair => new StateEntry(number, pair.key, Seq(pair.value)))
      entries ++ { pairs.close(); Iterator.empty[StateEntry] }
    }

  private def lists(number: Int, pairs: Iterator[UnsafeRowPair]): Iterator[StateEntry] = new Iterator[StateEntry] {
    private def copied = { val pair = pairs.next(); (pair.key.copy(), pair.value.copy()) }
    private var ahead = if (pairs.hasNext) Some(copied) else None

    override def hasNext: Boolean = ahead.nonEmpty

    override def next(): StateEntry = {
      val (key, first) = ahead.get
      val values = Seq.newBuilder[UnsafeRow] += first
      def advance() = ahead = if (pairs.hasNext) Some(copied) else None
      advance()
      while (ahead.exists(_._1 == key)) {
        values += ahead.get._2
        advance()
      }
      new StateEntry(number, key, values.result())
    }
  }
}
