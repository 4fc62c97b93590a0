package io.dynastate.spark

import org.apache.spark.sql.execution.streaming.state._

/** Spark's traits as they are since 4.2. */
private[spark] trait ReadStateStore42 extends ReadStateStore41

private[spark] trait StateStore42 extends StateStore41 with ReadStateStore42

private[spark] trait StateStoreProvider42 extends StateStoreProvider41

private[spark] object Spark42 {
  def supportsRangeScan(spec: KeyStateEncoderSpec, encoder: RocksDBKeyStateEncoder): Boolean = encoder.supportsRangeScan

  def supportsDeleteRange(spec: KeyStateEncoderSpec, encoder: RocksDBKeyStateEncoder): Boolean =
    encoder.supportsDeleteRange
}
