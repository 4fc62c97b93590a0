package io.dynastate.conformance

import java.net.URI
import java.nio.file.{Files, Path}
import java.util.{SplittableRandom, UUID}

import scala.collection.mutable
import scala.util.Random

import io.dynastate.compat
import io.dynastate.compat._
import io.dynastate.spark.ProviderInternals
import io.dynastate.tests.DiskChecks
import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.unsafe.types.UTF8String

/** Plays random histories of the provider, each from a seed of its own: `Histories root=URI seeds=SEED,SEED
 * NAME=VALUE…`. Prints a line for each, `ok` or `failed`, its seed, what happened. At the first failure it ends, after
 * the last steps and the error.
 */
object Histories {
  private val StepsShown = 40

  def main(arguments: Array[String]): Unit = {
    val words = arguments.map(_.split("=", 2)).map { case Array(name, value) => name -> value }.toMap
    val seeds = words("seeds").split(',').map(_.toLong)
    val hasFailure = seeds.iterator.map { seed =>
      val history = new History(seed, words - "root" - "seeds", words("root"))
      try {
        history.play()
        println(s"ok\t$seed\t${history.summary}")
        false
      } catch {
        case e: Throwable =>
          println(s"failed\t$seed\t${history.summary}\t${Scene.told(e)}")
          // One that is played alone shows all of its steps.
          println(history.journal(if (seeds.length == 1) Int.MaxValue else StepsShown).mkString("\n"))
          e.printStackTrace(System.out)
          true
      }
    }.contains(true)
    System.exit(if (hasFailure) 1 else 0)
  }
}

/** Where the rows of a history are: what decides how the provider reads them. */
sealed abstract class Tier(val conf: (String, String)*) {
  /** Whether rows go to a disk, if there are some megabytes of them. */
  def spills: Boolean = this != Tier.Heap && this != Tier.Buckets
}

object Tier {
  case object Heap extends Tier("memoryMb" -> "0")
  /** Without a disk: rows are read by buckets. */
  case object Buckets extends Tier("memoryMb" -> "1", "diskMb" -> "0")
  case object Disk extends Tier("memoryMb" -> "1")
  case object FullDisk extends Tier("memoryMb" -> "1", "diskMb" -> "1")
  /** A disk whose file is overwritten, or cut off, in the middle. */
  case object FailingDisk extends Tier("memoryMb" -> "1")
  /** Whatever the first seed is, this many in a row have each tier. */
  val All: Seq[Tier] = Seq(Buckets, Disk, FailingDisk, FullDisk, Buckets, Heap)
}

/** Several stores in one executor or two, beside a plain model of each: tasks that change, read, scan, commit, abort
 * and commit again; maintenance after every step; iterators that stay open; executors that start again; queries that go
 * back. Whatever is read is compared.
 *
 * One thread takes all steps, and waits for what others do, so that a seed gives the same history again. In some
 * histories it does not wait, or maintenance runs beside it.
 */
final class History(seed: Long, conf: Map[String, String], root: String) {
  import History._

  /** Seeds that follow each other begin nothing alike. */
  private val chance = new Random(new SplittableRandom(seed).nextLong())
  private val tier = Tier.All((seed % Tier.All.length).toInt)
  private val format = if (chance.nextInt(4) == 0) 1 else 2
  private val waits = chance.nextInt(4) > 0
  private val loadsBeside = chance.nextBoolean()
  private val folder = Files.createDirectories(Path.of(URI.create(s"$root/$seed/")))
  private val disk = Files.createDirectories(folder.resolve("disk"))
  private val families = StoreServer.Families
  /** One family has many rows: pages of it go to the disk, and are evacuated when its rows are replaced. */
  private val large = pick(families.filter(each =>
      chance.nextInt(3) == 0 || (if (tier.spills) Unordered(each.name) else each.multiple)) :+ families(3): _*)
  private val fewKeys = pick(40, 120)
  private val (manyKeys, textBytes) = if (tier.spills) (pick(1200, 2000), 1600) else (pick(200, 500), pick(300, 600))
  private val failsAt = if (tier == Tier.FailingDisk) Steps / 4 + chance.nextInt(Steps / 2) else -1
  private val confOfHistory: Map[String, String] = conf ++ Map(
    "providerClass" -> "io.dynastate.spark.DynamoDBStateStoreProvider", "checkpointFormatVersion" -> format.toString,
    "minDeltasForSnapshot" -> pick(1, 1, 3).toString, "dynastate.snapshotThreshold" -> pick("0", "0", "0.2", "1.25"),
    "dynastate.cacheMb" -> pick("0", "16"), "dynastate.diskPath" -> disk.toString).map { case (name, value) =>
    s"$Conf.$name" -> value
  } ++ tier.conf.map { case (name, value) => s"$Conf.dynastate.$name" -> value } ++
    Map("spark.sql.streaming.maxBatchesToRetainInMemory" -> pick("1", "2", "3"),
      "spark.sql.streaming.minBatchesToRetain" -> Retained.toString)
  /** Whether the engine makes a snapshot of each version that is offered and has changes. */
  private val isAlwaysDue = confOfHistory(s"$Conf.minDeltasForSnapshot") == "1" &&
    confOfHistory(s"$Conf.dynastate.snapshotThreshold") == "0"
  private val log = mutable.ListBuffer.empty[String]
  private val counts = mutable.TreeMap.empty[String, Int]
  private var numbers, iteratorsBegun = 0L

  def summary: String = {
    val totals = counts.map { case (what, count) => s"$what=$count" }.mkString(" ")
    s"tier=$tier format=$format waits=$waits loadsBeside=$loadsBeside large=${large.name} keys=$fewKeys/$manyKeys " +
      s"bytes=$textBytes $totals"
  }

  def journal(steps: Int): Seq[String] = log.takeRight(steps).toSeq

  def play(): Unit = ProviderInternals.loadingBeside(if (loadsBeside) 1 else Long.MaxValue) {
    if (chance.nextBoolean()) DiskChecks.lookingOften(steps()) else steps()
  }

  private def steps(): Unit = {
    ProviderInternals.takeFailures()
    val stores = (0 until pick(1, 2, 3)).map(new Partition(_))
    stores.foreach(_.fill())
    (0 until Steps).foreach { step =>
      if (step == failsAt) breakDisk(stores)
      val store = stores(chance.nextInt(stores.length))
      val thread = if (!waits && chance.nextInt(4) == 0) store.maintainBeside() else null
      store.step()
      if (thread != null) thread.join()
      store.maintain()
      requireMaintained()
      if (waits) awaitLoads()
      if (chance.nextInt(3) == 0) store.advanceIterators()
    }
    stores.foreach(_.end())
    // Else a fault of the disk tier would be hidden by DynamoDB.
    if ((tier == Tier.Disk || tier == Tier.Heap) && !loadsBeside) {
      require(counts.getOrElse("bucketsRead", 0) == 0, "buckets were read, though disk and memory have room")
    }
  }

  /** A snapshot that is refused leaves no other trace: every read is right, and a check that needs one checks nothing.
   */
  private def requireMaintained(): Unit = {
    val failures = ProviderInternals.takeFailures()
    require(failures.isEmpty, failures.mkString("; "))
  }

  private def breakDisk(stores: Seq[Partition]): Unit = {
    stores.foreach(_.beginIterators())
    note("the disk fails")
    DiskChecks.overwrite(disk, isTruncated = chance.nextBoolean())
  }

  private def pick[A](of: A*): A = of(chance.nextInt(of.length))

  private def keysOf(family: Shape): Int = if (family eq large) manyKeys else fewKeys

  private def anyOf(family: Shape): Int = chance.nextInt(keysOf(family))

  private def note(what: String): Unit = log += what

  private def count(what: String, more: Int = 1): Unit = counts(what) = counts.getOrElse(what, 0) + more

  private def require(condition: Boolean, message: => String): Unit = if (!condition) throw new AssertionError(message)

  private def fresh(): Long = {
    numbers += 1
    numbers
  }

  /** What is stored of a number: no two are alike, and few are long. */
  private def text(number: Long): UTF8String =
    UTF8String.fromString((s"$number " * (textBytes / 2 + 1)).take((number % 7 * textBytes / 6).toInt))

  private def valueOf(number: Long): Seq[Any] = Seq(number, text(number))

  /** The number that was stored in a row. */
  private def numberOf(row: org.apache.spark.sql.catalyst.expressions.UnsafeRow): Long = {
    val number = row.getLong(0)
    require(row.getUTF8String(1) == text(number),
      s"a broken text of $number: ${Scene.cut(row.getUTF8String(1).toString, 80)}")
    number
  }

  /** Wait for what the provider loads in the background. */
  private def awaitLoads(): Unit = while (ProviderInternals.isLoading) Thread.sleep(1)

  /** One store, its providers, and its model. */
  private final class Partition(number: Int) {
    private val id = StateStoreId(s"$root/$seed/state", operatorId = 0, partitionId = number)
    private var run = UUID.randomUUID().toString
    /** Also those that are closed: iterators outlive them. */
    private val allProviders = mutable.ListBuffer.empty[StateStoreProvider]
    private val providers = Array.fill(Executors)(provider())
    /** The newest version and those that it continues, oldest first. */
    private var chain = Vector(Commit(0, None, families.map(_.name -> Map.empty[Int, Vector[Long]]).toMap))
    /** The oldest version that clean-up must have left. */
    private var oldest = 1L
    /** The task that is at work; null: none. */
    private var task: Task = _
    private val iterators = mutable.ListBuffer.empty[OpenIterator]

    private def newest: Commit = chain.last

    def fill(): Unit = {
      begin()
      families.foreach(family =>
        (0 until keysOf(family)).foreach(key => if (chance.nextInt(8) > 0) task.change(family, key, isAdded = true)))
      commit()
    }

    def step(): Unit = {
      count("steps")
      val turn = chance.nextInt(100)
      if (task != null) {
        if (turn < 45) change()
        else if (turn < 58) task.read()
        else if (turn < 66) iterators += task.iterator()
        else if (turn < 88) commit()
        else if (turn < 92) abort()
        else if (turn < 96) commitTwice()
        else readSome()
      } else if (turn < 55) begin()
      else if (turn < 78) readSome()
      else if (turn < 80) beginIterators()
      else if (turn < 88) reopen(chance.nextInt(Executors))
      else if (turn < 92) restart()
      else if (turn < 96) goBack()
      else readAfresh()
    }

    def maintain(): Unit = providers.foreach { each =>
      val turn = chance.nextInt(4)
      if (turn == 0) each.doSnapshotMaintenance()
      else if (turn == 1) each.doCleanupMaintenance()
      else if (turn == 2) each.doMaintenance()
    }

    def maintainBeside(): Thread = {
      val provider = pick(providers.toSeq: _*)
      val thread = new Thread(() => provider.doMaintenance())
      thread.start()
      thread
    }

    /** Continue some of the iterators, each by some rows. */
    def advanceIterators(): Unit = iterators --= iterators.toList.filterNot(each =>
      chance.nextInt(3) > 0 || !each.advance(chance.nextInt(manyKeys / 8)))

    /** Begin to iterate all families of the newest version. */
    def beginIterators(): Unit = {
      val reader = new Task(newest, providers.head.getReadStore(newest.version, newest.id))
      families.foreach { family =>
        val iterator = reader.iterator(family, All)
        iterator.advance(anyOf(family))
        iterators += iterator
      }
    }

    def end(): Unit = {
      if (task != null) commit()
      iterators.foreach(_.finish())
      promised.foreach(check(_, provider(), "at the end"))
      providers.foreach(_.close())
      allProviders.foreach(each => count("bucketsRead", ProviderInternals.takeCounter(each, "bucketsRead").toInt))
    }

    // -------------------------------------------------------------------------------------------------------------
    // steps

    private def begin(on: Int = chance.nextInt(Executors)): Unit = {
      say(s"opens ${newest.version} on $on, numbers from $numbers")
      task = new Task(newest, providers(on).getStore(newest.version, newest.id))
    }

    private def change(): Unit = {
      if (chance.nextInt(if (tier.spills) 2 else 4) == 0) {
        val family = if (chance.nextInt(4) > 0) large else pick(families: _*)
        say(s"changes all of ${family.name}")
        (0 until keysOf(family)).foreach(task.change(family, _, isAdded = false))
      } else {
        val many = pick(3, 30, 100)
        say(s"$many changes")
        (0 until many).foreach { _ =>
          val family = pick(families: _*)
          task.change(family, anyOf(family), isAdded = false)
        }
      }
      count("changes")
    }

    private def commit(): Unit = {
      finishOld(newest.version + 1)
      chain :+= committed()
      oldest = math.max(oldest, newest.version - Retained + 1)
      if (chance.nextInt(if (tier.spills) 6 else 2) == 0) readAgain()
    }

    /** Commit what the task has. */
    private def committed(): Commit = {
      val commit = task.commit()
      say(s"commits ${commit.version}")
      task = null
      count("commits")
      allProviders.foreach(each => count("bucketsRead", ProviderInternals.takeCounter(each, "bucketsRead").toInt))
      commit
    }

    private def abort(): Unit = {
      say("aborts")
      task.store.abort()
      task = null
      count("aborts")
    }

    /** The task fails after its commit, or has a twin; the driver takes either, which without ids have the same
     * changes.
     */
    private def commitTwice(): Unit = {
      finishOld(newest.version + 1)
      val changes = task.changes.toList
      val first = committed()
      begin()
      if (format == 1) changes.foreach(task.apply) else change()
      if (chance.nextBoolean()) maintain()
      val second = committed()
      chain :+= (if (format == 1 || chance.nextBoolean()) second else first)
      oldest = math.max(oldest, newest.version - Retained + 1)
      count("twins")
    }

    /** Read an older version or the newest, in a read store, some rows or all. */
    private def readSome(): Unit = if (promised.nonEmpty) {
      val commit = if (chance.nextBoolean()) newest else pick(promised: _*)
      val on = chance.nextInt(Executors)
      say(s"reads ${commit.version} on $on")
      val reader = new Task(commit, providers(on).getReadStore(commit.version, commit.id))
      val turn = chance.nextInt(3)
      if (turn == 0) reader.readAll() else reader.read()
      if (turn == 1) iterators += reader.iterator()
      count("reads")
    }

    /** Read a version with many changes before and after a snapshot of it, in each executor; one of them made it. */
    private def readAgain(): Unit = {
      begin()
      (0 until keysOf(large)).foreach(task.change(large, _, isAdded = false))
      finishOld(newest.version + 1)
      chain :+= committed()
      oldest = math.max(oldest, newest.version - Retained + 1)
      def read(): Unit =
        providers.foreach(each => new Task(newest, each.getReadStore(newest.version, newest.id)).readAll())
      read()
      if (waits) awaitLoads()
      providers.foreach(ProviderInternals.takeMaintained)
      providers.foreach(_.doSnapshotMaintenance())
      requireMaintained()
      val items = providers.map(ProviderInternals.takeMaintained(_).getOrElse("itemsWritten", 0L)).sum
      require(items > 0 || !isAlwaysDue, s"no snapshot was made of ${newest.version}")
      if (items > 0) count("snapshots")
      read()
      count("readsAgain")
    }

    private def readAfresh(): Unit = if (promised.nonEmpty) check(pick(promised: _*), provider(), "afresh")

    private def check(commit: Commit, from: StateStoreProvider, when: String): Unit = {
      say(s"reads ${commit.version} $when")
      new Task(commit, from.getReadStore(commit.version, commit.id)).readAll()
      from.close()
    }

    private def reopen(on: Int): Unit = {
      say(s"starts executor $on again")
      providers(on).close()
      providers(on) = provider()
      count("reopens")
    }

    private def restart(): Unit = {
      run = UUID.randomUUID().toString
      say("a new run of the query")
      providers.indices.foreach(reopen)
    }

    /** A query that is started again from an older version, and continues from there. */
    private def goBack(): Unit = if (promised.nonEmpty) {
      val to = pick(promised: _*)
      iterators.foreach(_.finish())
      iterators.clear()
      chain = chain.take(chain.indexOf(to) + 1)
      restart()
      begin()
      change()
      commit()
      count("rollbacks")
    }

    private def promised: Seq[Commit] = chain.takeRight(Retained).filter(_.version >= oldest)

    /** Finish the iterators over versions that may be cleaned up after the commit of another. */
    private def finishOld(version: Long): Unit =
      iterators --= iterators.toList.filterNot(each => each.version > version - Retained || ! { each.finish(); true })

    private def say(what: String): Unit = note(s"store $number $what")

    private def provider(): StateStoreProvider = {
      val provider =
        Scene.make(id, Shapes.Plain, confOfHistory, run, new Configuration(Hadoop), families = true, multiple = false)
      allProviders += provider
      val empty = provider.getStore(0, None)
      families.foreach(tableOf(empty, _))
      empty.abort()
      provider
    }
  }

  private def tableOf(store: ReadStateStore, family: Shape): Table = {
    store match {
      case writable: StateStore => writable.createColFamilyIfAbsent(family.name, family.key, family.value, family.spec,
          family.multiple, family.internal)
      case _ =>
    }
    new Table(store, family)
  }

  /** A version that is open, with the model of what it has. */
  private final class Task(base: Commit, reader: ReadStateStore) {
    private val tables = families.map(family => family.name -> tableOf(reader, family)).toMap
    private var state = base.state
    /** Family, key, values; what is done with them by `apply`. */
    val changes = mutable.ListBuffer.empty[Change]

    def store: StateStore = reader.asInstanceOf[StateStore]

    /** One change of any kind, or one that adds a row. */
    def change(family: Shape, key: Int, isAdded: Boolean): Unit = {
      val turn = chance.nextInt(100)
      val kind =
        if (isAdded && !family.multiple) Put
        else if (turn < 20 && !isAdded) Remove
        else if (!family.multiple) Put
        else if (turn < 80) Merge
        else if (turn < 90) MergeList
        else PutList
      apply(
        Change(kind, family, key, Seq.fill(if (kind == Put || kind == Merge) 1 else chance.nextInt(4) + 1)(fresh())))
    }

    def apply(change: Change): Unit = {
      val Change(kind, family, key, values) = change
      val table = tables(family.name)
      val row = keyOf(family, key)
      val rows = state(family.name)
      state += family.name -> (kind match {
        case Put =>
          table.put(row, valueOf(values.head))
          rows + (key -> values.toVector)
        case PutList =>
          table.putList(row, values.map(valueOf): _*)
          rows + (key -> values.toVector)
        case Merge =>
          table.merge(row, valueOf(values.head))
          rows + (key -> (rows.getOrElse(key, Vector.empty) ++ values))
        case MergeList =>
          table.mergeList(row, values.map(valueOf): _*)
          rows + (key -> (rows.getOrElse(key, Vector.empty) ++ values))
        case Remove =>
          table.remove(row)
          rows - key
      })
      changes += change
    }

    /** Read some rows, and scan some. */
    def read(): Unit = {
      (0 until pick(1, 10, 40)).foreach { _ =>
        val family = pick(families: _*)
        get(family, anyOf(family))
      }
      iterator().finish()
    }

    def readAll(): Unit = families.foreach { family =>
      iterator(family, All).finish()
      ScansOf.get(family.name).foreach(iterator(family, _).finish())
    }

    private def get(family: Shape, key: Int): Unit = {
      val table = tables(family.name)
      val row = table.keyRow(keyOf(family, key))
      val expected = state(family.name).getOrElse(key, Vector.empty)
      val first = Option(reader.get(row, family.name)).map(numberOf)
      require(first == expected.headOption, s"get of $key of $family at ${base.version}: $first, expected $expected")
      if (family.multiple) {
        val values = reader.valuesIterator(row, family.name).map(numberOf).toVector
        require(values == expected,
          s"the list of $key of ${family.name} at ${base.version}: $values, expected $expected")
      }
    }

    /** An iterator of any kind over a family, as of now. */
    def iterator(): OpenIterator = {
      val family = if (chance.nextInt(3) == 0) large else pick(families: _*)
      iterator(family, ScansOf.get(family.name).filter(_ => chance.nextInt(3) > 0).getOrElse(All))
    }

    def iterator(family: Shape, scan: Scan): OpenIterator = {
      val table = tables(family.name)
      val rows = state(family.name)
      val (low, high) = (anyOf(family), anyOf(family))
      val (pairs, expected) = scan match {
        case All =>
          (if (family.multiple) reader.iteratorWithMultiValues(family.name) else reader.iterator(family.name), rows)
        case Prefix =>
          val prefix = table.prefixRow(keyOf(family, low).take(1))
          (if (family.multiple) reader.prefixScanWithMultiValues(prefix, family.name)
            else reader.prefixScan(prefix, family.name), rows.filter { case (key, _) => wordOf(key) == wordOf(low) })
        case Range =>
          val ends = Seq(low, high).map(key => Some(table.keyRow(keyOf(family, key))))
          val ranks = Seq(low, high, 0).map(rankOf(family, _))
          (compat.rangeScan(reader, family.spec, family.value, ends(0), ends(1), family.name),
            rows.filter { case (key, _) => rankOf(family, key) >= ranks(0) && rankOf(family, key) < ranks(1) })
      }
      count(s"$scan")
      iteratorsBegun += 1
      val what = s"iterator $iteratorsBegun, $scan from $low to $high of ${family.name} at ${base.version}"
      note(what)
      new OpenIterator(base.version, pairs, family, what, expected)
    }

    def commit(): Commit = {
      val expected = base.version + 1
      val version = store.commit()
      require(version == expected, s"commit answered $version, expected $expected")
      val metrics = store.metrics
      val size = state.valuesIterator.map(_.size).sum
      require(metrics.numKeys == size, s"${metrics.numKeys} keys at $version, expected $size")
      def metric(name: String): Int =
        metrics.customMetrics.collectFirst { case (metric, value) if metric.name == name => value.toInt }.get
      count("pagesSpilled", metric("dynastatePagesSpilled"))
      Commit(version, store.getStateStoreCheckpointInfo().stateStoreCkptId, state)
    }
  }

  /** An iterator, and the values that it has to give; it may stay open while other things happen. */
  private final class OpenIterator(val version: Long, pairs: StateStoreIterator[UnsafeRowPair], family: Shape,
      what: String, values: Map[Int, Vector[Long]]) {
    private val rest = mutable.HashMap.empty[Int, Vector[Long]] ++ values
    private val isOrdered = Ordered(family.name)
    private var lastRank = Double.NegativeInfinity
    private var isOver = false

    /** Take some rows, and compare them. Whether it is over. */
    def advance(rows: Int): Boolean = {
      var number = 0
      while (!isOver && number < rows) {
        if (pairs.hasNext) take(pairs.next()) else end()
        number += 1
      }
      isOver
    }

    def finish(): Unit = {
      advance(Int.MaxValue)
      ()
    }

    private def take(pair: UnsafeRowPair): Unit = {
      val key = numberOfKey(family, pair.key)
      val number = numberOf(pair.value)
      val expected = rest.getOrElse(key,
        throw new AssertionError(s"$what gave $number of $key, and no such value is left of ${values.get(key)}"))
      require(number == expected.head, s"$what gave $number of $key, expected ${expected.head} of ${values(key)}")
      if (expected.tail.isEmpty || !family.multiple) rest -= key else rest(key) = expected.tail
      if (isOrdered) {
        val rank = rankOf(family, key)
        require(rank >= lastRank, s"$what gave $key after rank $lastRank")
        lastRank = rank
      }
    }

    private def end(): Unit = {
      isOver = true
      pairs.close()
      require(rest.isEmpty, s"$what did not give ${rest.size} keys: ${rest.take(5)}")
      count("iterators")
    }
  }
}

object History {
  private val Conf = "spark.sql.streaming.stateStore"
  private val Executors = 2
  private val Steps = 90
  /** Versions that clean-up leaves. */
  private val Retained = 4
  private val Hadoop = new Configuration

  private final case class Commit(version: Long, id: Option[String], state: Map[String, Map[Int, Vector[Long]]])

  private sealed trait Kind
  private case object Put extends Kind
  private case object PutList extends Kind
  private case object Merge extends Kind
  private case object MergeList extends Kind
  private case object Remove extends Kind
  private final case class Change(kind: Kind, family: Shape, key: Int, values: Seq[Long])

  private sealed trait Scan
  private case object All extends Scan
  private case object Prefix extends Scan
  private case object Range extends Scan
  /** Beside all rows. */
  private val ScansOf = Map("prefix" -> Prefix, "range" -> Range, "times" -> Prefix, "index" -> Range)
  private val Ordered = Set("range", "index")
  /** Their rows are iterated as they lie in memory and on disk. */
  private val Unordered = Set("hash", "prefix", "lists")

  private def wordOf(key: Int): String = s"word-${key % 20}"

  /** A key of a family by its number. */
  private def keyOf(family: Shape, key: Int): Seq[Any] = family.name match {
    case "range" => Seq((key % 40 - 20).toLong, key / 8.0, if (key % 3 == 0) "x" else "")
    case "times" | "index" => Seq(wordOf(key), key.toLong - 50)
    case _ => Seq(wordOf(key), key)
  }

  private def numberOfKey(family: Shape, row: org.apache.spark.sql.catalyst.expressions.UnsafeRow): Int = {
    val key = family.name match {
      case "range" => (row.getDouble(1) * 8).toInt
      case "times" | "index" => row.getLong(1).toInt + 50
      case _ => row.getInt(1)
    }
    val values = Rows.values(family.key, row)
    if (values != keyOf(family, key)) throw new AssertionError(s"no key is $values")
    key
  }

  /** By what the rows of a family that is scanned are ordered. */
  private def rankOf(family: Shape, key: Int): Double = family.name match {
    case "range" => (key % 40) * 1e6 + key
    case _ => key.toDouble
  }
}
