package org.apache.spark.sql.dynastate

import io.dynastate.{DynastateException, ErrorKind}
import io.dynastate.spark.ColumnFamily

import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.catalyst.plans.physical.HashPartitioning
import org.apache.spark.sql.execution.streaming.operators.stateful.StatePartitionKeyExtractorFactory
import org.apache.spark.sql.execution.streaming.state.DropLastNFieldsStatePartitionKeyExtractor

/** Sorts the entries of a store, or of one of its old partitions, by their new partitions. A packet is `family, length
 * and bytes of the key, number of values, length and bytes of each` for one entry after another; the last one for each
 * partition is `-1, rows, bytes, digest` of all that were sent there.
 */
private[dynastate] final class Router(shape: StoreShape, old: Option[Int], partitions: Int) {
  private val limit = math.min(Router.PacketBytes, Router.PendingBytes / partitions)
  private val pending = Array.fill(partitions)(new Packet)
  private val contents = Array.fill(partitions)(new Content)
  private val names = shape.families.map(_.name).toArray
  /** By family; one without rows need not be one that Spark can place. */
  private val placements = new Array[Placement](names.length)

  def packets(entries: Iterator[StateEntry]): Iterator[(Int, Array[Byte])] = entries.flatMap { entry =>
    val partition = partitionOf(entry)
    contents(partition).add(names(entry.family), entry)
    val packet = pending(partition)
    packet.add(entry)
    if (packet.size < limit) None else Some(partition -> packet.take())
  } ++ (0 until partitions).iterator.flatMap { partition =>
    val last = Option.when(pending(partition).size > 0)(partition -> pending(partition).take())
    last.iterator ++ Iterator.single(partition -> Packet.end(contents(partition)))
  }

  private def partitionOf(entry: StateEntry): Int =
    if (shape.isSingle) 0
    else {
      if (placements(entry.family) == null) placements(entry.family) = new Placement(shape.families(entry.family))
      placements(entry.family).of(entry.key)
    }

  /** The partition of a row of state: that of its grouping key, which is a part of the state's key. */
  private final class Placement(family: ColumnFamily) {
    private val extractor =
      // Spark 4.3 takes the whole keys of this format for join keys, although a time comes after them.
      if (shape.isJoinByTime) new DropLastNFieldsStatePartitionKeyExtractor(family.keySchema, 1)
      else StatePartitionKeyExtractorFactory.create(shape.operatorName, family.keySchema, shape.name, family.name,
        Some(shape.joinFormat), shape.variable(family.name))
    private val projection = {
      val fields = extractor.partitionKeySchema.fields.zipWithIndex.toSeq
      val columns = fields.map { case (field, at) => BoundReference(at, field.dataType, field.nullable) }
      val oldPartitions = if (old.isEmpty) partitions else shape.partitions
      UnsafeProjection.create(Seq(oldPartitions, partitions).map(HashPartitioning(columns, _).partitionIdExpression))
    }

    def of(key: UnsafeRow): Int = {
      val places = projection(extractor.partitionKey(key))
      if (old.exists(_ != places.getInt(0))) throw new DynastateException(ErrorKind.Configuration,
        "a row is not in the partition that Spark's hash of its key names, so the operator was not partitioned by " +
          s"its key, and cannot be repartitioned; nothing was written operator=${shape.operator} " +
          s"partition=${old.mkString} store=${shape.name} family=${family.name} hash=${places.getInt(0)}")
      places.getInt(1)
    }
  }
}

private object Router {
  private val PacketBytes = 256 * 1024
  private val PendingBytes = 32 * 1024 * 1024
}
