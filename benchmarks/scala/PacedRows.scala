package io.dynastate.benchmarks

import java.lang.{Long => JLong}
import java.util.{Map => JMap, Set => JSet}
import java.util.concurrent.locks.LockSupport

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow
import org.apache.spark.sql.connector.catalog.{SupportsRead, Table, TableCapability, TableProvider}
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.streaming._
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead.RecordStatus
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** A source for real-time mode, in the JVM of the sink: each second `rate` rows become due, evenly, in one partition.
 * A row has its key, one of `keys`, and the time at which it was due, by System.nanoTime, doubled, plus one if the
 * source had caught up when it came. While Spark ends an interval, rows wait.
 */
final class PacedRows extends TableProvider {
  private val schema = StructType.fromDDL("key long, due long")

  override def inferSchema(options: CaseInsensitiveStringMap): StructType = schema

  override def getTable(schema: StructType, partitioning: Array[Transform], properties: JMap[String, String]): Table =
    new Table with SupportsRead {
      override def name: String = "paced rows"

      override def schema: StructType = PacedRows.this.schema

      override def capabilities: JSet[TableCapability] = JSet.of(TableCapability.MICRO_BATCH_READ)

      override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder = () =>
        new Scan {
          override def readSchema: StructType = PacedRows.this.schema

          override def toMicroBatchStream(checkpoint: String): MicroBatchStream =
            new PacedStream(options.getLong("rate", 1000), options.getLong("keys", 100000))
        }
    }
}

final case class PacedOffset(next: Long) extends Offset with PartitionOffset {
  override def json: String = next.toString
}

final case class PacedPartition(next: Long, startNanos: Long, rate: Long, keys: Long) extends InputPartition

private final class PacedStream(rate: Long, keys: Long) extends MicroBatchStream with SupportsRealTimeMode {
  private val startNanos = System.nanoTime()

  override def initialOffset: Offset = PacedOffset(0)

  override def latestOffset: Offset = PacedOffset(((System.nanoTime() - startNanos) / (1e9 / rate)).toLong)

  override def planInputPartitions(start: Offset): Array[InputPartition] =
    Array(PacedPartition(start.asInstanceOf[PacedOffset].next, startNanos, rate, keys))

  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] =
    throw new UnsupportedOperationException("rows come in real-time mode only")

  override def mergeOffsets(offsets: Array[PartitionOffset]): Offset = offsets.head.asInstanceOf[PacedOffset]

  override def deserializeOffset(json: String): Offset = PacedOffset(json.toLong)

  override def createReaderFactory: PartitionReaderFactory = PacedReaders

  override def commit(end: Offset): Unit = ()

  override def stop(): Unit = ()
}

private object PacedReaders extends PartitionReaderFactory {
  override def createReader(partition: InputPartition): PartitionReader[InternalRow] =
    new PacedReader(partition.asInstanceOf[PacedPartition])
}

private final class PacedReader(partition: PacedPartition) extends SupportsRealTimeRead[InternalRow] {
  private var number = partition.next - 1
  private var isSteady = false

  override def nextWithTimeout(nowMs: JLong, timeoutMs: JLong): RecordStatus = {
    val dueNanos = due(number + 1)
    val waitNanos = dueNanos - System.nanoTime()
    if (waitNanos > timeoutMs * 1000000L) {
      LockSupport.parkNanos(timeoutMs * 1000000L)
      RecordStatus.newStatusWithoutArrivalTime(false)
    } else {
      if (waitNanos > 0) isSteady = true
      while (System.nanoTime() < dueNanos) LockSupport.parkNanos(dueNanos - System.nanoTime())
      number += 1
      RecordStatus.newStatusWithoutArrivalTime(true)
    }
  }

  override def next(): Boolean = throw new UnsupportedOperationException("rows come in real-time mode only")

  /** Keys are scattered, and the same in each run. */
  override def get(): InternalRow =
    new GenericInternalRow(Array[Any](math.floorMod(number * 2654435761L, partition.keys),
        2 * due(number) + (if (isSteady) 1 else 0)))

  override def getOffset: PartitionOffset = PacedOffset(number + 1)

  override def close(): Unit = ()

  private def due(row: Long): Long = partition.startNanos + (row * (1e9 / partition.rate)).toLong
}
