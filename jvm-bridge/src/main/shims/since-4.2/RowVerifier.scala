package io.dynastate.spark

import java.nio.{ByteBuffer, ByteOrder}

import io.dynastate.memory.{ChangeRecords, EncodedRow, RowChecksum}

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.unsafe.Platform

/** Verifies the checksums of rows, if they have one, by Spark's own verifier: its count, its log line, its error. */
private[spark] final class RowVerifier private (private[spark] val verifier: KeyValueIntegrityVerifier) {
  /** Verify the value of an encoded row. */
  def verify(encoded: Array[Byte]): Unit =
    verify(encoded, encoded, EncodedRow.HeaderBytes + EncodedRow.keyLength(encoded), EncodedRow.valueLength(encoded))

  /** Verify a later value of a list that begins with an encoded row. */
  def verify(first: Array[Byte], value: Array[Byte]): Unit = verify(first, value, 0, value.length)

  /** Verify all encoded changes that remain in a buffer, which stays as it is. */
  def verifyAll(changes: ByteBuffer): Unit = {
    val records = new ChangeRecords(changes.duplicate().order(ByteOrder.LITTLE_ENDIAN))
    while (records.advance()) verify(records.encodedRow)
  }

  private def verify(keyed: Array[Byte], in: Array[Byte], from: Int, length: Int): Unit = if (RowChecksum.isIn(length)) {
    val until = from + RowChecksum.rowLength(length)
    val key = ArrayIndexRange(keyed, EncodedRow.HeaderBytes, EncodedRow.HeaderBytes + EncodedRow.keyLength(keyed))
    verifier.verify(key, Some(ArrayIndexRange(in, from, until)), Platform.getInt(in, Platform.BYTE_ARRAY_OFFSET + until))
  }
}

private[spark] object RowVerifier {
  def isEnabled(conf: StateStoreConf): Boolean = conf.rowChecksumEnabled

  /** For what is loaded and what snapshots write: every row. Safe for threads, since it need not count. Null: not enabled. */
  def ofAll(id: StateStoreId, conf: StateStoreConf): RowVerifier = of(id, conf, 1)

  /** For what one store reads: as often as `rowChecksum.readVerificationRatio` says. Null: never. */
  def ofReads(id: StateStoreId, conf: StateStoreConf): RowVerifier = of(id, conf, conf.rowChecksumReadVerificationRatio)

  private def of(id: StateStoreId, conf: StateStoreConf, ratio: Long): RowVerifier =
    if (!isEnabled(conf)) null
    else {
      // As RocksDB's provider names itself in the error.
      val name = s"StateStoreId(opId=${id.operatorId},partId=${id.partitionId},name=${id.storeName})"
      KeyValueIntegrityVerifier.create(name, rowChecksumEnabled = true, ratio).map(new RowVerifier(_)).orNull
    }
}
