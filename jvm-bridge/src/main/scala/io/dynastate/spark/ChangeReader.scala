package io.dynastate.spark

import java.nio.ByteBuffer

import scala.util.control.NonFatal

import io.dynastate.memory.{Attempt, ChangeRecords}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.dynastate.internals.ChangeIterator
import org.apache.spark.sql.execution.streaming.state.RecordType

/** The changes of a column family, version by version; the number beside each change is its batch, version - 1. */
private[spark] final class ChangeReader(client: EngineClient, families: FamilyRegistry, familyName: String, first: Long,
    last: Long, attempt: Attempt) extends ChangeIterator {
  private[this] val connection = client.lease()
  private[this] var version = first
  private[this] var changes = new ChangeRecords(ByteBuffer.allocate(0))
  private[this] val family =
    try {
      val answer = connection.changes(client.store, first, last, attempt, client.deadlineSeconds)
      families.open("changes", familyName, StateSchema.parse(answer.schema), isForWriter = false)
    } catch { case NonFatal(e) => connection.close(); throw e }
  private[this] val key = new UnsafeRow(family.keyColumns)
  private[this] val value = new UnsafeRow(family.valueColumns)

  override def getNext(): (RecordType.Value, UnsafeRow, UnsafeRow, Long) = {
    while (!finished) {
      while (changes.advance()) if (changes.family == family.id) return current()
      connection.nextChanges(client.deadlineSeconds)(version = _) match {
        case Some(more) => changes = new ChangeRecords(client.verified(more))
        case None => finished = true
      }
    }
    null
  }

  /** A reader that stops early leaves half a conversation, which cannot be continued. */
  override def close(): Unit = if (finished) connection.release() else connection.close()

  private def current(): (RecordType.Value, UnsafeRow, UnsafeRow, Long) = {
    val row = changes.row
    val changedKey = family.keyOf(row, key)
    if (row.isDelete) (RecordType.DELETE_RECORD, changedKey, null, version - 1)
    else {
      val newValue = family.valueOf(row.value, value)
      (if (changes.isMerge) RecordType.MERGE_RECORD else RecordType.PUT_RECORD, changedKey, newValue, version - 1)
    }
  }
}
