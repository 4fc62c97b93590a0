package org.apache.spark.sql.dynastate

import io.dynastate.{DynastateException, ErrorKind}
import org.json4s.JsonAST._

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

/** Data that the tasks of a transfer share: both ends, and the versions that are read and written. */
private[dynastate] final case class StateTransferTask(source: StoreEnd, target: StoreEnd, from: Long, version: Long) {

  /** Move a store to the same partition. */
  def copy(store: StoreAt): JValue = {
    var result: JValue = JNothing
    source.reading(store, from) { rows => result = write(store, entriesOf(rows, store.shape), _ => ()) }
    result
  }

  /** The rows of an old store in packets, each with the number of its new store: `first` is that of partition 0. */
  def send(store: StoreAt, first: Int, partitions: Int): Iterator[(Int, Array[Byte])] = {
    val state = source.open(store, from)
    numbered(first,
      new Router(store.shape, Some(store.partition), partitions).packets(entriesOf(state.rows, store.shape)))
  }

  /** The same of rows from elsewhere, with a key and a value each. */
  def bring(
      shape: StoreShape, rows: Iterator[InternalRow], first: Int, partitions: Int): Iterator[(Int, Array[Byte])] = {
    val (keys, values) =
      (new RowWriter(shape, 0, shape.default.keySchema), new RowWriter(shape, 1, shape.default.valueSchema))
    val entries = rows.map(row => new StateEntry(0, keys.write(row), Seq(values.write(row))))
    numbered(first, new Router(shape, None, partitions).packets(entries))
  }

  private def numbered(first: Int, packets: Iterator[(Int, Array[Byte])]): Iterator[(Int, Array[Byte])] =
    packets.map { case (partition, packet) => (first + partition, packet) }

  /** Write a new store from packets of all the old ones. */
  def receive(store: StoreAt, packets: Iterator[(Int, Array[Byte])]): JValue = {
    val entries = new ArrivedEntries(store.shape, packets.map(_._2))
    write(store, entries, entries.mustBeWhole(store, _))
  }

  /** 1. Write the entries into an empty store. (Crash: orphans.)
   * 2. Commit it, as an imported version. (Crash: a version that no checkpoint names.)
   * 3. Read it back, and compare.
   */
  private def write(store: StoreAt, entries: Iterator[StateEntry], check: Content => Unit): JValue = {
    val startNanos = System.nanoTime()
    val (names, content) = (store.shape.families.map(_.name).toArray, new Content)
    val result = target.writing(store, version) { rows =>
      entries.foreach { entry =>
        val family = names(entry.family)
        content.add(family, entry)
        if (store.shape.isNew && rows.keyExists(entry.key, family)) {
          val key = entry.key.toSeq(store.shape.default.keySchema).mkString(",")
          throw new DynastateException(ErrorKind.Configuration,
            s"two rows have the same key; nothing was written $store key=$key")
        }
        rows.put(entry.key, entry.values.head, family)
        entry.values.tail.foreach(rows.merge(entry.key, _, family)) // 1
      }
      check(content)
    } // 2
    val copy = new Content
    target.reading(store.copy(id = result.id), version) { rows =>
      entriesOf(rows, store.shape).foreach(entry => copy.add(names(entry.family), entry))
    } // 3
    content.mustBe(copy, store, "what was read back")
    JObject("operator" -> JInt(store.shape.operator), "partition" -> JInt(store.partition),
      "name" -> JString(store.shape.name), "rows" -> JInt(content.rows), "bytes" -> JInt(content.bytes),
      "write_units" -> JInt(result.metric("dynastateWriteUnits")),
      "bytes_written" -> JInt(result.metric("dynastateBytesWritten")),
      "ms" -> JInt((System.nanoTime() - startNanos) / 1000000), "id" -> result.id.fold[JValue](JNull)(JString(_)))
  }

  /** Every key of every family; the values of a list come one after another. */
  private def entriesOf(store: ReadStateStore, shape: StoreShape): Iterator[StateEntry] =
    shape.families.iterator.zipWithIndex.flatMap { case (family, number) =>
      val pairs = if (family.multipleValues) store.iteratorWithMultiValues(family.name) else store.iterator(family.name)
      val entries =
        if (family.multipleValues) lists(number, pairs)
        else pairs.map(pair => new StateEntry(number, pair.key, Seq(pair.value)))
      entries ++ { pairs.close(); Iterator.empty[StateEntry] }
    }

  private def lists(number: Int, pairs: Iterator[UnsafeRowPair]): Iterator[StateEntry] = new Iterator[StateEntry] {
    private def copied = { val pair = pairs.next(); (pair.key.copy(), pair.value.copy()) }
    private var nextPair = if (pairs.hasNext) Some(copied) else None

    override def hasNext: Boolean = nextPair.nonEmpty

    override def next(): StateEntry = {
      val (key, first) = nextPair.get
      val values = Seq.newBuilder[UnsafeRow] += first
      def advance() = nextPair = if (pairs.hasNext) Some(copied) else None
      advance()
      while (nextPair.exists(_._1 == key)) {
        values += nextPair.get._2
        advance()
      }
      new StateEntry(number, key, values.result())
    }
  }
}
