package io.dynastate.tests

import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._
import scala.util.Try

import io.dynastate.bridge.Sidecar
import io.dynastate.compat._
import io.dynastate.spark.{DynamoDBStateStore, DynastatePlugin, ProviderSettings}
import org.apache.hadoop.conf.Configuration
import org.apache.spark.SparkConf
import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** Sidecars that die, and tasks that are killed while they talk to one. */
final class SidecarChecks(checks: Checks, world: World) {
  import Checks._
  import World._
  import checks.check

  def run(): Unit = {
    check("a sidecar that dies between batches is not noticed") {
      val id = world.freshStore()
      val provider = world.provider(id)
      val ids = commit(provider, 0)(1L -> 1L)
      kill()
      val next = commit(provider, 1, ids)(2L -> 2L)
      kill()
      same(rows(world.provider(id).getStore(2, next)), Map(1L -> 1L, 2L -> 2L))
    }
    check("a stopped sidecar is killed, its task fails with a message, and the next store starts another") {
      val id = world.freshStore()
      val provider = world.provider(id)
      val ids = commit(provider, 0)(1L -> 1L)
      val store = provider.getStore(1, ids)
      put(store, 2L, 2L)
      val old = sidecars()
      old.foreach(pid => new ProcessBuilder("sh", "-c", s"kill -STOP $pid").start().waitFor())
      mustFail("CANNOT_WRITE_STATE_STORE", "the sidecar is gone: it gave no sign of life for 20 s and was killed")(
        store.commit())
      store.abort()
      val next = commit(provider, 1, ids)(2L -> 2L)
      same(rows(world.provider(id).getStore(2, next)), Map(1L -> 1L, 2L -> 2L))
      require(sidecars().size == 1 && sidecars() != old, s"sidecars: $old, then ${sidecars()}")
    }
    check("with the plugin a sidecar is ready before the first task, which uses it and its connection") {
      val interpreter = world.interpreter()
      val others = sidecars()
      startWithExecutor(interpreter)
      val pids = sidecars() -- others
      same(pids.size, 1, "sidecars")
      val count = sockets()
      commit(world.provider(world.freshStore(), Map(s"$Prefix.dynastate.python" -> interpreter)), 0)(1L -> 1L)
      same(sidecars() -- others, pids)
      require(sockets() <= count,
        s"$count sockets were open, then ${sockets()}") // others may have been idle for long
    }
    check("the plugin starts no sidecar for another store") {
      val python = s"$Prefix.dynastate.python" -> world.interpreter()
      for (other <- Seq(Nil,
          Seq(s"$Prefix.providerClass" -> "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")))
        same(DynastatePlugin.startSidecar(new SparkConf(false).setAll(python +: other)), None)
    }
    check("an executor whose sidecar does not start is not disturbed, and its first task fails as without the plugin") {
      startWithExecutor("/no/such/python")
      val provider = world.provider(world.freshStore(), Map(s"$Prefix.dynastate.python" -> "/no/such/python"))
      mustFail("the interpreter of the sidecar cannot be run", "/no/such/python")(commit(provider, 0)(1L -> 1L))
    }
    check("the plugin takes interpreter and settings as tasks do") {
      val settings = Seq("region" -> "eu-west-1", "deltaTable" -> "mine", "namespace" -> "orders", "memoryMb" -> "64",
        "sidecars" -> "3")
        .map { case (name, setting) => s"$Prefix.dynastate.$name" -> setting }
      val python = s"$Prefix.dynastate.python"
      for (conf <- Seq(Nil, Seq(python -> "/a/python"), Seq("spark.pyspark.python" -> "/b/python"),
          Seq(python -> "", "spark.pyspark.python" -> "/b/python"))) {
        val ofTask = world.settings(settings ++ conf: _*)
        same(ProviderSettings.ofExecutor(new SparkConf(false).setAll(settings ++ conf)),
          (ofTask.python, ofTask.engine, 3))
      }
    }
    check("connections to a sidecar that dies are closed") {
      val sidecar = Sidecar.forPython(world.interpreter())
      def useAndKill(): Unit = {
        (1 to 8).map(_ => sidecar.lease(s"""{"endpoint": "${world.endpoint}", "region": "us-east-1"}""")).foreach(
          _.release())
        kill()
      }
      useAndKill()
      val count = sockets()
      (1 to 3).foreach(_ => useAndKill())
      waitUntil(s"as few sockets as before: $count, now ${sockets()}")(sockets() <= count)
    }
    check(
      "two sidecars share an executor's stores, always the same ones, and the death of one fails only tasks of its " +
        "own")(twoSidecars())
    check("stores of 400 namespaces share their connections") {
      val warm = world.provider(world.freshStore())
      warm.getStore(0, None).abort()
      val count = sockets()
      val hadoop = new Configuration // making one takes milliseconds
      (1 to 400).foreach { number =>
        world.provider(world.freshStore(), Map(s"$Prefix.dynastate.namespace" -> s"n$number"),
          hadoop = hadoop).getStore(0, None).abort()
      }
      require(sockets() <= count + 2, s"$count sockets were open, then ${sockets()}")
    }
    check("a connection that no task needs for a while is closed") {
      val sidecar = Sidecar.forPython(world.interpreter(), idleSeconds = 1)
      def use(): Unit = (1 to 8).map(_ =>
        sidecar.lease(s"""{"endpoint": "${world.endpoint}", "region": "us-east-1"}""")).foreach(_.release())
      val count = sockets()
      use()
      waitUntil(s"as few sockets as before: $count, now ${sockets()}")(sockets() <= count)
      use()
      kill()
    }
    check("an attempt that is aborted while another thread sends changes is over in the sidecar")(abortedWhileSending())
    check("a sidecar starts within two seconds") {
      def start(): Long = {
        val interpreter = world.interpreter()
        val startNanos = System.nanoTime()
        Sidecar.forPython(interpreter).lease(s"""{"endpoint": "${world.endpoint}", "region": "us-east-1"}""").release()
        (System.nanoTime() - startNanos) / 1000000
      }
      // One of ten, because the machine may be busy.
      val isQuick = Iterator.continually(start()).take(10).exists(_ < 2000)
      kill()
      require(isQuick, "ten took longer until there was a connection")
    }
    check("tasks that wait during a failed start share its error, and a later one starts again") {
      val times = Files.createTempFile("times", "")
      val interpreter = world.script(s"echo >> $times; sleep 2; exit 1")
      val threads = (1 to 6).map { _ =>
        val task = new Thread(() =>
          mustFail("the sidecar did not start", "exit code 1")(Sidecar.forPython(interpreter).lease("{}")))
        task.start()
        task
      }
      threads.foreach(_.join(30000))
      require(!threads.exists(_.isAlive), "a task never ends")
      same(Files.size(times), 1L, "starts")
      mustFail("the sidecar did not start")(Sidecar.forPython(interpreter).lease("{}"))
      same(Files.size(times), 2L, "starts")
      Files.delete(times)
    }
    check("a task that is killed while a sidecar fails to start leaves no folder")(killedWhileStarting())
    check("tasks that are killed while they commit or open do not disturb the next") {
      val id = world.freshStore()
      val run = "the same run"
      val provider = world.provider(id, run = run)
      val ids = commit(provider, 0)((0L until 3000L).map(each => each -> each): _*)
      (0 until 40).foreach { turn =>
        val task = new Thread(() =>
          try {
            val store =
              World.synchronized((if (turn % 2 == 0) world.provider(id, run = run) else provider).getStore(1, ids))
            World.synchronized((0L until 3000L).foreach(each => put(store, each, -turn.toLong)))
            store.commit()
          } catch { case _: Throwable => () })
        task.start()
        Thread.sleep(turn.toLong)
        task.interrupt()
        task.join(30000)
        require(!task.isAlive, "a task that was killed does not end")
        same(rows(world.provider(id).getStore(1, ids)).size, 3000, s"after task $turn")
      }
      val next = commit(provider, 1, ids)(5000L -> 1L)
      same(rows(world.provider(id).getStore(2, next)), (0L until 3000L).map(each => each -> each).toMap + (5000L -> 1L))
      same(sidecars().size, 1, "sidecars")
    }
  }

  /** Start the sidecar as the plugin does, with the settings of the world's stores, and wait until that has ended. */
  private def startWithExecutor(interpreter: String, sidecars: Int = 1): Unit = {
    val options = Map(s"$Prefix.dynastate.python" -> interpreter, s"$Prefix.dynastate.sidecars" -> sidecars.toString)
    val thread = DynastatePlugin.startSidecar(new SparkConf(false).setAll(world.conf ++ options))
    thread.get.join(60000)
    require(!thread.get.isAlive, "the start of a sidecar never ends")
  }

  /** Number of sockets that this JVM has open. */
  private def sockets(): Int = Path.of("/proc/self/fd").toFile.listFiles().count { file =>
    try Files.readSymbolicLink(file.toPath).toString.startsWith("socket:")
    catch { case _: java.nio.file.NoSuchFileException => false }
  }

  private def twoSidecars(): Unit = {
    val interpreter = world.interpreter()
    val conf = Map("namespace" -> "two", "sidecars" -> "2", "python" -> interpreter).map { case (name, set) =>
      s"$Prefix.dynastate.$name" -> set
    }
    val checkpoint = world.freshStore()
    val stores = (0 until 6).map(partition => checkpoint.copy(partitionId = partition))
    val others = sidecars()
    def own(): Set[Long] = sidecars() -- others
    startWithExecutor(interpreter, sidecars = 2)
    val first = own()
    same(first.size, 2, "sidecars")
    val ids = stores.map(id => id -> commit(world.provider(id, conf), 0)(1L -> 1L)).toMap
    // Smaller changes would wait for the commit.
    val row = Array[Byte](0, 0) ++ MemoryChecks.Key(1).put(new Array[Byte](32 * 1024))

    /** The stores whose tasks fail when a sidecar dies while all write; all commit afterwards. */
    def failing(sidecar: Long): Set[StateStoreId] = {
      val tasks = stores.map(id => id -> world.provider(id, conf).getStore(1, ids(id)).asInstanceOf[DynamoDBStateStore])
      def send(store: DynamoDBStateStore): Unit = store.append(1, 0, 0, row, row.length)
      tasks.foreach { case (_, store) => send(store) }
      ProcessHandle.of(sidecar).ifPresent { process =>
        process.destroyForcibly()
        process.onExit().get()
      }
      val failures = tasks.filter { case (_, store) =>
        Try(send(store)).failed.toOption.exists(_.getMessage.contains("the sidecar is gone"))
      }
      tasks.foreach(_._2.abort())
      stores.foreach { id =>
        val next = commit(world.provider(id, conf), 1, ids(id))(2L -> sidecar)
        same(rows(world.provider(id, conf).getStore(2, next)), Map(1L -> 1L, 2L -> sidecar))
      }
      failures.map(_._1).toSet
    }

    same(own(), first, "sidecars once all stores have written")
    val parts = first.toSeq.map(failing)
    require(parts.forall(_.nonEmpty) && parts.flatten.size == stores.size && parts.flatten.toSet == stores.toSet,
      s"stores of the two sidecars: $parts")
    val second = own()
    require(second.size == 2 && (second & first).isEmpty, s"sidecars: $first, then $second")
    val part = failing(second.head)
    require(parts.contains(part),
      s"stores of the two sidecars: $parts; of one that replaced the first or second: $part")
    own().foreach(ProcessHandle.of(_).ifPresent(_.destroyForcibly()))
  }

  /** PySpark's state server changes a store in a thread of its own, which does not end with the task. */
  private def abortedWhileSending(): Unit = {
    val provider = world.provider(world.freshStore())
    val ids = commit(provider, 0)(1L -> 1L)
    def open() = provider.getStore(1, ids).asInstanceOf[DynamoDBStateStore]
    open().abort()
    val count = sockets()
    val row = Array[Byte](0, 0) ++ MemoryChecks.Key(1).put(Array[Byte](1))
    val store = open()
    def send(): Unit = store.append(1, 0, 0, row, row.length)
    send()
    store.abort()
    mustFail("after its attempt has ended")(send())
    waitUntil(s"as few sockets as before: $count, now ${sockets()}")(sockets() <= count)
    (0 until 20).foreach { turn =>
      val store = open()
      val thread = new Thread(() =>
        try { (0L until 300L).foreach(each => store.put(key(each), value(each, "n" * 40000), Family)) }
        catch { case _: Exception => () })
      thread.start()
      Thread.sleep(turn.toLong)
      store.abort()
      thread.join(30000)
      require(!thread.isAlive, "a thread whose attempt was aborted does not end")
    }
    waitUntil(s"as few sockets as before: $count, now ${sockets()}")(sockets() <= count)
    same(rows(provider.getStore(1, ids)), Map(1L -> 1L))
  }

  /** Kill a task that waits for an interpreter which does not start, and closes its output before it ends. */
  private def killedWhileStarting(): Unit = {
    val script = world.script("sleep 1; exec >&-; sleep 1; exit 1")
    val id = world.freshStore()
    val folders = socketFolders()
    val task = new Thread(() =>
      try commit(world.provider(id, Map(s"$Prefix.dynastate.python" -> script)), 0)()
      catch { case _: Throwable => () })
    task.start()
    Thread.sleep(300)
    task.interrupt()
    task.join(30000)
    same(socketFolders(), folders, "folders of sockets")
  }

  private def socketFolders(): Set[String] =
    Path.of(System.getProperty("java.io.tmpdir")).toFile.list().filter(_.startsWith("dynastate-")).toSet

  def longFolder(): Unit = check("a sidecar starts where the folder for temporary files has a long name") {
    commit(world.provider(world.freshStore()), 0)(1L -> 1L)
  }

  private def sidecars(): Set[Long] =
    ProcessHandle.current().children().iterator.asScala.toList.filter(_.isAlive).map(_.pid).toSet

  /** Kill all sidecars (SIGKILL); their process ids. */
  private def kill(): Set[Long] = {
    val all = ProcessHandle.current().children().iterator.asScala.toList
    all.foreach { process =>
      process.destroyForcibly()
      process.onExit().get()
    }
    all.map(_.pid).toSet
  }
}
