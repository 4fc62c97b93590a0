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
    var made: JValue = JNothing
    source.reading(store, from) { rows => made = write(store, entriesOf(rows, store.shape), _ => ()) }
    made
  }

  /** The rows of an old store in packets, each with the number of its new store: `first` is that of partition 0. */
  def send(store: StoreAt, first: Int, partitions: Int): Iterator[(Int, Array[Byte])] = {
    val opened = source.open(store, from)
    numbered(first,
      new Router(store.shape, Some(store.partition), partitions).packets(entriesOf(opened.rows, store.shape)))
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
    val arrived = new ArrivedEntries(store.shape, packets.map(_._2))
    write(store, arrived, arrived.mustBeWhole(store, _))
  }

  /** 1. Write the entries into an empty store. (Crash: orphans.)
   * 2. Commit it, as an imported version. (Crash: a version that no checkpoint names.)
   * 3. Read it back, and compare.
   */
  private def write(store: StoreAt, entries: Iterator[StateEntry], check: Content => Unit): JValue = {
    val started = System.nanoTime()
    val (names, written) = (store.shape.families.map(_.name).toArray, new Content)
    val made = target.writing(store, version) { rows =>
      entries.foreach { entry =>
        val family = names(entry.family)
        written.add(family, entry)
        if (store.shape.isNew && rows.keyExists(entry.key, family)) {
          val key = entry.key.toSeq(store.shape.default.keySchema).mkString(",")
          throw new DynastateException(ErrorKind.Configuration,
            s"two rows have the same key; nothing was written $store key=$key")
        }
        rows.put(entry.key, entry.values.head, family)
        entry.values.tail.foreach(rows.merge(entry.key, _, family)) // 1
      }
      check(written)
    } // 2
    val found = new Content
    target.reading(store.copy(id = made.id), version) { rows =>
      entriesOf(rows, store.shape).foreach(entry => found.add(names(entry.family), entry))
    } // 3
    written.mustBe(found, store, "what was read back")
    JObject("operator" -> JInt(store.shape.operator), "partition" -> JInt(store.partition),
      "name" -> JString(store.shape.name), "rows" -> JInt(written.rows), "bytes" -> JInt(written.bytes),
      "write_units" -> JInt(made.metric("dynastateWriteUnits")),
      "bytes_written" -> JInt(made.metric("dynastateBytesWritten")),
      "ms" -> JInt((System.nanoTime() - started) / 1000000), "id" -> made.id.fold[JValue](JNull)(JString(_)))
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
    private var ahead = if (pairs.hasNext) Some(copied) else None

    override def hasNext: Boolean = ahead.nonEmpty

    override def next(): StateEntry = {
      val (key, first) = ahead.get
      val values = Seq.newBuilder[UnsafeRow] += first
      def advance() = ahead = if (pairs.hasNext) Some(copied) else None
      advance()
      while (ahead.exists(_._1 == key)) {
        values += ahead.get._2
        advance()
      }
      new StateEntry(number, key, values.result())
    }
  }
}
