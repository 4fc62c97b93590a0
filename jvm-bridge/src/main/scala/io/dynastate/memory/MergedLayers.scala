package io.dynastate.memory

/** A range of a table's rows, in order. */
private[memory] object RangeOf {
  def add(table: RowTable, from: Array[Byte], inclusive: Boolean, to: Array[Byte], layers: java.util.List[java.util.Iterator[AnyRef]]): Unit =
    if (table != null && table.size > 0) layers.add(rows(table, from, inclusive, to).iterator)

  def rows(table: RowTable, from: Array[Byte], inclusive: Boolean, to: Array[Byte]): java.util.NavigableSet[AnyRef] = {
    val all = table.inOrder
    if (from == null && to == null) all
    else if (from == null) all.headSet(to, false)
    else if (to == null) all.tailSet(from, inclusive)
    else if (Row.byKey.compare(from, to) >= 0) java.util.Collections.emptyNavigableSet[AnyRef]
    else all.subSet(from, inclusive, to, false)
  }
}

/** Ordered layers, merged: of rows with the same key, the topmost layer's. Delete markers are included. */
private[memory] final class MergedLayers(layers: java.util.List[java.util.Iterator[AnyRef]]) {
  private[this] val heads: Array[AnyRef] = Array.tabulate(layers.size)(layer => nextOf(layer))
  private[this] var current: AnyRef = _

  def row: AnyRef = current

  def advance(): Boolean = {
    var least = -1
    var layer = 0
    while (layer < heads.length) {
      if (heads(layer) != null && (least < 0 || Row.byKey.compare(heads(layer), heads(least)) < 0)) least = layer
      layer += 1
    }
    if (least < 0) return false
    current = heads(least)
    layer = least
    while (layer < heads.length) {
      if (heads(layer) != null && (layer == least || Row.byKey.compare(heads(layer), current) == 0)) heads(layer) = nextOf(layer)
      layer += 1
    }
    true
  }

  private def nextOf(layer: Int): AnyRef = if (layers.get(layer).hasNext) layers.get(layer).next() else null
}
