package io.dynastate.conformance

import scala.collection.mutable

import io.dynastate.compat
import io.dynastate.compat._
import io.dynastate.spark.ColumnFamily

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{
  BoundReference, InterpretedUnsafeProjection, UnsafeProjection, UnsafeRow
}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/** A column family: its name, its schemas, how its keys are encoded, whether a key has a list of values. */
final case class Shape(name: String, key: StructType, value: StructType, spec: KeyStateEncoderSpec,
    multiple: Boolean = false, internal: Boolean = false) {
  def named(other: String): Shape = copy(name = other)

  def lists: Shape = copy(multiple = true)

  /** The family in which an `AppendingTable` keeps rows of this one. */
  def appended: Shape = copy(value = value.add(AppendingTable.Place, IntegerType), multiple = true)
}

object Shapes {
  val WordAndNumber: StructType = schema("word" -> StringType, "number" -> IntegerType)
  val OneInt: StructType = schema("value" -> IntegerType)
  val OneString: StructType = schema("value" -> StringType)
  val WordAndTime: StructType = schema("word" -> StringType, "time" -> LongType)

  /** The shape of most cases, and of Spark's own suites: (string, int) -> int. */
  val Plain: Shape =
    Shape(ColumnFamily.Default, WordAndNumber, OneInt, NoPrefixKeyStateEncoderSpec(WordAndNumber))
  val Prefixed: Shape = Plain.copy(spec = PrefixKeyScanStateEncoderSpec(WordAndNumber, 1))
  lazy val TimeFirst: Shape = Plain.copy(key = WordAndTime, spec = timeFirst(WordAndTime))
  lazy val TimeLast: Shape = Plain.copy(key = WordAndTime, spec = timeLast(WordAndTime))

  /** Keys of these columns, c0, c1, …, ordered by all of them, and a string after them that is not part of the order.
   */
  def ranged(types: DataType*): Shape = {
    val key = schema(types.zipWithIndex.map { case (kind, at) => s"c$at" -> kind } :+ ("rest" -> StringType): _*)
    Plain.copy(key = key, spec = RangeKeyScanStateEncoderSpec(key, types.indices))
  }

  def schema(columns: (String, DataType)*): StructType = StructType(columns.map { case (name, kind) =>
    StructField(name, kind)
  })
}

/** Rows from plain values, and back. */
object Rows {
  type Values = Seq[Any]

  private val projections = mutable.HashMap.empty[StructType, UnsafeProjection]

  def v(values: Any*): Values = values

  /** A new row, which no later call changes. */
  def row(schema: StructType, values: Values): UnsafeRow = synchronized {
    require(values.length == schema.length, s"$values are not the columns of $schema")
    // Interpreted, to save the Java compiler's time for a hundred schemas.
    val projection = projections.getOrElseUpdate(
      schema,
      InterpretedUnsafeProjection.createProjection(schema.fields.toSeq.zipWithIndex.map { case (field, at) =>
        BoundReference(at, field.dataType, nullable = true)
      }))
    projection(InternalRow.fromSeq(values.map {
      case text: String => UTF8String.fromString(text)
      case other => other
    })).copy()
  }

  /** Plain values of a row; null of null. */
  def values(schema: StructType, row: UnsafeRow): Values =
    if (row == null) null
    else row.toSeq(schema).map {
      case text: UTF8String => text.toString
      case bytes: Array[Byte] => bytes.toSeq
      case other => other
    }
}

/** One column family of an open store, in plain values. */
class Table(val store: ReadStateStore, val shape: Shape) {
  import Rows.{row, values, Values}

  def get(key: Values): Values = values(shape.value, store.get(keyRow(key), shape.name))

  def getAll(keys: Values*): Seq[Values] =
    store.multiGet(keys.map(keyRow).toArray, shape.name).map(row => values(shape.value, row)).toList

  def has(key: Values): Boolean = store.keyExists(keyRow(key), shape.name)

  def list(key: Values): Seq[Values] = store.valuesIterator(keyRow(key), shape.name).map(values(shape.value, _)).toList

  def put(key: Values, value: Values): Unit = writable.put(keyRow(key), valueRow(value), shape.name)

  def putList(key: Values, all: Values*): Unit = writable.putList(keyRow(key), all.map(valueRow).toArray, shape.name)

  def merge(key: Values, value: Values): Unit = writable.merge(keyRow(key), valueRow(value), shape.name)

  def mergeList(key: Values, all: Values*): Unit =
    writable.mergeList(keyRow(key), all.map(valueRow).toArray, shape.name)

  def remove(key: Values): Unit = writable.remove(keyRow(key), shape.name)

  def deleteRange(from: Values, until: Values): Unit = writable.deleteRange(keyRow(from), keyRow(until), shape.name)

  /** All pairs, in the order of the store. */
  def rows: Seq[(Values, Values)] = drain(store.iterator(shape.name))

  /** All pairs, in a fixed order. */
  def sorted: Seq[(Values, Values)] = rows.sortBy(_.toString)

  def allValues: Seq[(Values, Values)] = drain(store.iteratorWithMultiValues(shape.name))

  def prefixed(prefix: Values): Seq[(Values, Values)] = drain(store.prefixScan(prefixRow(prefix), shape.name))

  def allPrefixed(prefix: Values): Seq[(Values, Values)] =
    drain(store.prefixScanWithMultiValues(prefixRow(prefix), shape.name))

  def range(from: Option[Values], until: Option[Values]): Seq[(Values, Values)] = drain(scan(from, until))

  def scan(from: Option[Values], until: Option[Values]): StateStoreIterator[UnsafeRowPair] =
    compat.rangeScan(store, shape.spec, shape.value, from.map(keyRow), until.map(keyRow), shape.name)

  def allInRange(from: Option[Values], until: Option[Values]): Seq[(Values, Values)] = drain(
    compat.rangeScanWithMultiValues(store, shape.spec, shape.value, from.map(keyRow), until.map(keyRow), shape.name))

  def keyRow(key: Values): UnsafeRow = row(shape.key, key)

  def valueRow(value: Values): UnsafeRow = row(shape.value, value)

  def prefixRow(prefix: Values): UnsafeRow = row(prefixSchema, prefix)

  def pairOf(pair: UnsafeRowPair): (Values, Values) = (values(shape.key, pair.key), values(shape.value, pair.value))

  private def writable: StateStore = store.asInstanceOf[StateStore]

  private def prefixSchema: StructType = shape.spec match {
    case PrefixKeyScanStateEncoderSpec(_, columns) => StructType(shape.key.take(columns))
    case RangeKeyScanStateEncoderSpec(_, ordinals) => StructType(ordinals.map(shape.key(_)))
    case spec if isTimeLast(spec) => StructType(shape.key.init)
    case _ => StructType(shape.key.take(1))
  }

  private def drain(pairs: StateStoreIterator[UnsafeRowPair]): Seq[(Values, Values)] =
    try pairs.map(pairOf).toList
    finally pairs.close()
}

/** A family of single values in one of lists, whose `shape` is `appended`: a put appends to the list of the key, and
 * the last value counts. Each has its place in the list, so that whatever is read shows whether values are missing, or
 * come twice.
 */
final class AppendingTable(store: ReadStateStore, shape: Shape) extends Table(store, shape) {
  import Rows.Values

  override def get(key: Values): Values = last(key, list(key)).orNull

  override def put(key: Values, value: Values): Unit = merge(key, value :+ (list(key).length + 1))

  override def rows: Seq[(Values, Values)] = lastOfEach(allValues)

  override def prefixed(prefix: Values): Seq[(Values, Values)] = lastOfEach(allPrefixed(prefix))

  override def range(from: Option[Values], until: Option[Values]): Seq[(Values, Values)] =
    lastOfEach(allInRange(from, until))

  /** In the order of the first values. */
  private def lastOfEach(pairs: Seq[(Values, Values)]): Seq[(Values, Values)] = {
    val lists = mutable.LinkedHashMap.empty[Values, Vector[Values]]
    pairs.foreach { case (key, value) => lists(key) = lists.getOrElse(key, Vector.empty) :+ value }
    lists.toSeq.flatMap { case (key, values) => last(key, values).map(key -> _) }
  }

  private def last(key: Values, values: Seq[Values]): Option[Values] = {
    val places = values.map(_.last)
    if (places != (1 to values.length)) throw new AssertionError(s"the list of $key has the places $places")
    values.lastOption.map(_.init)
  }
}

object AppendingTable {
  val Place = "place"
}
