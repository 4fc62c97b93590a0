package org.apache.spark.sql.dynastate

import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/** A key of a family and its value, or the values of its list in order. They are valid until the next one is read. */
private[dynastate] final class StateEntry(val family: Int, val key: UnsafeRow, val values: Seq[UnsafeRow])
