package io.dynastate.memory

/**
 * Two or more values of one key, in the order in which they were appended, linked from the last to the first: an append is O(1), and
 * never changes a list that is visible elsewhere.
 *
 * @param previous the list before this value: an encoded row, or a ValueList
 */
final class ValueList(val previous: AnyRef, val value: Array[Byte]) {
  val first: Array[Byte] = Row.root(previous)
  val count: Int = Math.addExact(Row.valueCount(previous), 1)
  val heapBytes: Long = Row.heapBytes(previous) + 40 + ((16 + value.length + 7) & ~7)

  /** The values after `known`, an earlier state of this list or null; oldest first, without the root's. */
  def valuesSince(known: AnyRef): Array[Array[Byte]] = {
    val values = new Array[Array[Byte]](count - 1)
    var at: AnyRef = this
    var free = values.length
    while ((at ne known) && at.isInstanceOf[ValueList]) {
      val list = at.asInstanceOf[ValueList]
      free -= 1
      values(free) = list.value
      at = list.previous
    }
    if (free == 0) values else java.util.Arrays.copyOfRange[Array[Byte]](values, free, values.length)
  }

  /** Whether `known` is an earlier state of this list. */
  def continues(known: AnyRef): Boolean = known != null && {
    val length = Row.valueCount(known)
    var at: AnyRef = this
    while (at.isInstanceOf[ValueList] && Row.valueCount(at) > length) at = at.asInstanceOf[ValueList].previous
    at eq known
  }
}
