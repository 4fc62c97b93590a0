package io.dynastate.memory

/** Receives an attempt's changes for the engine, one chunk of whole records at a time. The array is reused. */
trait ChangeSink {
  def append(records: Int, hashMin: Int, hashMax: Int, chunk: Array[Byte], length: Int): Unit
}

/** Collects records into chunks, and sends each when it is full. A record larger than a chunk is sent alone. */
private[memory] final class Chunks(sink: ChangeSink, expectedBytes: Long) {
  private[this] val PutOrRemove = 0
  private[this] val Merge = 1
  private[this] var chunk = new Array[Byte](math.min(expectedBytes, Chunks.Bytes).toInt)
  private[this] var length, records, hashMin, hashMax = 0

  /** Add a put or remove: the record is the row of one value, after a tag. */
  def add(family: Int, hash: Int, row: Row): Unit = {
    val bytes = row.length
    begin(PutOrRemove, family, hash, bytes)
    System.arraycopy(row.bytes, row.at, chunk, length, bytes)
    length += bytes
  }

  /** Add values of a list from the `first`th on: all as merges, but the first of all as a put if `beginsWithPut`. */
  def addValues(family: Int, hash: Int, row: Row, values: ValueCursor, first: Int, beginsWithPut: Boolean): Unit = {
    val keyLength = row.keyLength
    var number = 0
    while (values.advance()) {
      if (number >= first) {
        begin(if (number == 0 && beginsWithPut) PutOrRemove else Merge, family, hash,
          EncodedRow.HeaderBytes + keyLength + values.length)
        EncodedRow.writeKey(chunk, length, values.length, row.bytes, row.keyOffset, keyLength)
        length += EncodedRow.HeaderBytes + keyLength
        System.arraycopy(values.bytes, values.at, chunk, length, values.length)
        length += values.length
      }
      number += 1
    }
  }

  /** Add a row with all its values: the first as a put, which replaces what was there, the others as merges. */
  def addRow(family: Int, hash: Int, row: Row): Unit =
    if (row.isList) addValues(family, hash, row, row.values, first = 0, beginsWithPut = true)
    else add(family, hash, row)

  /** Send what is left. */
  def end(): Unit = if (records > 0) {
    sink.append(records, hashMin, hashMax, chunk, length)
    length = 0
    records = 0
  }

  /** Make room for a record, and write its tag: operation << 12 | family. */
  private def begin(operation: Int, family: Int, hash: Int, bytes: Int): Unit = {
    val space = bytes + EncodedRow.TagBytes
    if (length + space > Chunks.Bytes) {
      end()
      // Discard the array of a large record.
      if (chunk.length > Chunks.Bytes) chunk = new Array[Byte](Chunks.Bytes)
    }
    if (length + space > chunk.length) chunk = java.util.Arrays.copyOf(chunk, math.max(length + space, Chunks.Bytes))
    val tag = operation << 12 | family
    chunk(length) = tag.toByte
    chunk(length + 1) = (tag >>> 8).toByte
    length += EncodedRow.TagBytes
    if (records == 0 || Integer.compareUnsigned(hash, hashMin) < 0) hashMin = hash
    if (records == 0 || Integer.compareUnsigned(hash, hashMax) > 0) hashMax = hash
    records += 1
  }
}

object Chunks {
  /** Limit of a chunk, unless it is one record (docs/storage-format.md). */
  val Bytes: Int = 256 * 1024
}
