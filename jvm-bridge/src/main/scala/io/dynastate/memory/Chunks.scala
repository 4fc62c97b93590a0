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

  /** Add a put or remove: the record is the encoded row after a tag. */
  def add(family: Int, hash: Int, encoded: Array[Byte]): Unit = {
    begin(PutOrRemove, family, hash, encoded.length)
    System.arraycopy(encoded, 0, chunk, length, encoded.length)
    length += encoded.length
  }

  /** Add a merge: a value appended to the list of the key of `first`. */
  def addMerge(family: Int, hash: Int, first: Array[Byte], value: Array[Byte]): Unit = {
    val keyLength = EncodedRow.keyLength(first)
    begin(Merge, family, hash, EncodedRow.HeaderBytes + keyLength + value.length)
    EncodedRow.writeHeader(chunk, length, keyLength, value.length)
    System.arraycopy(first, EncodedRow.HeaderBytes, chunk, length + EncodedRow.HeaderBytes, keyLength)
    System.arraycopy(value, 0, chunk, length + EncodedRow.HeaderBytes + keyLength, value.length)
    length += EncodedRow.HeaderBytes + keyLength + value.length
  }

  /** Add a row with all its values: the first as a put, which replaces what was there, the others as merges. */
  def addRow(family: Int, hash: Int, row: AnyRef): Unit = row match {
    case encoded: Array[Byte] => add(family, hash, encoded)
    case list: ValueList =>
      add(family, hash, list.first)
      list.valuesSince(null).foreach(addMerge(family, hash, list.first, _))
  }

  /** Send what is left. */
  def end(): Unit = if (records > 0) {
    sink.append(records, hashMin, hashMax, chunk, length)
    length = 0
    records = 0
  }

  /** Make room for a record, and write its tag: operation << 12 | family. */
  private def begin(operation: Int, family: Int, hash: Int, bytes: Int): Unit = {
    val needed = bytes + EncodedRow.TagBytes
    if (length + needed > Chunks.Bytes) {
      end()
      // Discard the array of a large record.
      if (chunk.length > Chunks.Bytes) chunk = new Array[Byte](Chunks.Bytes)
    }
    if (length + needed > chunk.length) chunk = java.util.Arrays.copyOf(chunk, math.max(length + needed, Chunks.Bytes))
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
