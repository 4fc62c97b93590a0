package io.dynastate.benchmarks

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter
import org.apache.spark.sql.types.{DoubleType, LongType, StringType, StructField, StructType}
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.types.UTF8String

private[benchmarks] object Rows {

  val KeySchema: StructType =
    StructType(Seq(StructField("name", StringType), StructField("id", LongType)))

  val ValueSchema: StructType =
    StructType(Seq(StructField("count", LongType), StructField("amount", DoubleType), StructField("note", StringType)))

  /** 8 null bits, two fields of 8, a name of 16. */
  val KeyBytes = 40

  /** 8 null bits, three fields of 8, a note of 40. With the key: 112 bytes a row. The least a value may have. */
  val ValueBytes = 72

  /** The value's field that counts the updates of the row. */
  val Count = 0
}

/** Makes the key and the value of row number `id`: always the same for the same arguments. */
private[benchmarks] final class RowMaker(valueBytes: Int = Rows.ValueBytes) {
  private val NoteBytes = 40
  private val notes = (valueBytes - Rows.ValueBytes) / NoteBytes + 1
  require(valueBytes == Rows.ValueBytes + (notes - 1) * NoteBytes,
    s"a value has ${Rows.ValueBytes} bytes, or more in steps of $NoteBytes")
  private val keyWriter = new UnsafeRowWriter(2, 64)
  private val valueWriter = new UnsafeRowWriter(3, valueBytes)

  /** The row is valid until the next call. */
  def key(id: Int): UnsafeRow = {
    keyWriter.reset()
    keyWriter.zeroOutNullBytes()
    keyWriter.write(0, UTF8String.fromString("%016x".format(mixed(id))))
    keyWriter.write(1, id.toLong)
    keyWriter.getRow()
  }

  /** The row is valid until the next call. Its text compresses about as well as real text of that length. */
  def value(id: Int, count: Long): UnsafeRow = {
    val mix = mixed(id + count * 0x632be59bL)
    valueWriter.reset()
    valueWriter.zeroOutNullBytes()
    valueWriter.write(0, count)
    valueWriter.write(1, (mix >>> 11).toDouble / (1L << 53))
    valueWriter.write(
      2,
      UTF8String.fromString((0 until notes).map(note => sentence(if (note == 0) mix else mixed(mix + note))).mkString))
    valueWriter.getRow()
  }

  private def sentence(mix: Long): String =
    "order %010d shipped from depot %04d".format((mix >>> 1) % 10000000000L, (mix >>> 20) % 10000L)

  /** The finisher of SplitMix64: scatters consecutive numbers over all longs. */
  private def mixed(number: Long): Long = {
    var z = number + 0x9e3779b97f4a7c15L
    z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L
    z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL
    z ^ (z >>> 31)
  }
}

/** Rows of one size, end to end in one byte array, read through one row object that moves over them, as Spark's
 * operators pass rows: a store that keeps the object instead of a copy fails here.
 */
private[benchmarks] final class RowPage(capacity: Int, fields: Int, rowBytes: Int) {
  private val bytes = new Array[Byte](Math.multiplyExact(capacity, rowBytes))
  private val row = new UnsafeRow(fields)

  def set(index: Int, source: UnsafeRow): Unit = {
    require(source.getSizeInBytes == rowBytes, s"a row of ${source.getSizeInBytes} bytes, expected $rowBytes")
    Platform.copyMemory(source.getBaseObject, source.getBaseOffset, bytes,
      Platform.BYTE_ARRAY_OFFSET + index.toLong * rowBytes, rowBytes)
  }

  /** The row is valid until the next call. */
  def at(index: Int): UnsafeRow = {
    row.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET + index.toLong * rowBytes, rowBytes)
    row
  }
}
