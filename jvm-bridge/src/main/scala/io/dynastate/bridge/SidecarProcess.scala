package io.dynastate.bridge

import java.io.{BufferedReader, InputStream, InputStreamReader, IOException, OutputStream}
import java.net.UnixDomainSocketAddress
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.nio.file.attribute.PosixFilePermissions
import java.security.SecureRandom
import java.util.HexFormat
import java.util.concurrent.{CompletableFuture, ConcurrentLinkedDeque, TimeoutException, TimeUnit}
import java.util.concurrent.atomic.AtomicLong

import io.dynastate.{DaemonThreads, DynastateException, ErrorKind}
import org.slf4j.LoggerFactory

/** One process of the sidecar. Its standard input stays open as long as this JVM lives, so that it ends with this JVM.
 * On its standard output it gives signs of life, and is killed when they stop. Every wait for it has a deadline
 * (docs/protocol.md).
 */
private[bridge] final class SidecarProcess private (os: Process, stdin: OutputStream, folder: Path, socket: Path,
    token: Array[Byte], idleSeconds: Long) {
  import SidecarProcess._

  val pool = new ConnectionPool(idleSeconds)
  private[this] val lastLines = new ConcurrentLinkedDeque[String]
  private[this] val firstLine = new CompletableFuture[String]
  private[this] val signsOfLife = new AtomicLong
  private[this] var logCopier: Thread = _
  @volatile private[this] var silence = ""

  def isAlive: Boolean = os.isAlive

  def pid: Long = os.pid

  /** The user that this JVM runs as: the owner of the folder that it made. */
  val user: String = Files.getOwner(folder).getName

  /** How it ended, with the last lines of its log, for an error message. */
  def exitReport: String = {
    val hasEnded = os.waitFor(2, TimeUnit.SECONDS)
    val how = if (hasEnded) s"exit code ${os.exitValue}" else "it is alive but does not answer"
    if (hasEnded) logCopier.join(LastLinesDeadlineMillis)
    s"$silence$how; last lines of its log: ${if (lastLines.isEmpty) "none" else lastLines.toArray.mkString(" | ")}"
  }

  def connect(settings: String): Connection =
    pool.take(settings).getOrElse(Connection.connect(this, UnixDomainSocketAddress.of(socket), token, settings))

  /** End the process by closing its standard input, kill it, and delete the files it may have left. */
  def end(): Unit = {
    try stdin.close()
    catch { case _: IOException => () } // it ended already
    kill()
    removeSocket()
  }

  private def removeSocket(): Unit = {
    Files.deleteIfExists(socket)
    Files.deleteIfExists(folder)
  }

  /** Kill it, even if it is stopped, and the processes that a script in the interpreter's place has started. */
  private def kill(): Unit = {
    val descendants = os.descendants.toList
    os.destroyForcibly()
    descendants.forEach(_.destroyForcibly())
  }

  /** Copy its log into ours, and read its standard output, until it ends. */
  private def readOutput(): Unit = {
    os.onExit.thenRun { () =>
      firstLine.complete("")
      pool.close()
      removeSocket()
    }
    eachLine("dynastate-sidecar-life", os.getInputStream) { line =>
      firstLine.complete(line)
      signsOfLife.incrementAndGet()
    }
    logCopier = eachLine("dynastate-sidecar-log", os.getErrorStream) { line =>
      lastLines.addLast(line)
      if (lastLines.size > 8) lastLines.pollFirst()
      if (line.startsWith("INFO") || line.startsWith("DEBUG")) log.info(line) else log.warn(line)
    }
  }

  /** Read lines in a thread of its own: nothing can end a read from a pipe that stays open. */
  private def eachLine(name: String, from: InputStream)(use: String => Unit): Thread = {
    val reader = new BufferedReader(new InputStreamReader(from, UTF_8))
    val thread = new DaemonThreads(name).newThread { () =>
      try Iterator.continually(reader.readLine()).takeWhile(_ != null).foreach(use)
      catch { case _: IOException => () } // the process ended
    }
    thread.start()
    thread
  }

  private def awaitReady(python: String): Unit = {
    var isReady = false
    try {
      val first =
        try firstLine.get(StartDeadlineSeconds, TimeUnit.SECONDS)
        catch {
          case _: TimeoutException => throw new DynastateException(
              ErrorKind.Unavailable, s"the sidecar did not start within $StartDeadlineSeconds s: $exitReport")
        }
      isReady = first == "ready"
      if (!isReady) throw new DynastateException(ErrorKind.Configuration,
        s"the sidecar did not start with the interpreter $python; install dynastate ${Sidecar.packageVersion} " +
          "there, from the driver's wheel, or set spark.sql.streaming.stateStore.dynastate.python to one that has " +
          s"it: $exitReport")
      lookAfter()
    } finally {
      // Spark may kill the task while it waits.
      if (!isReady) end()
    }
  }

  /** Kill it when signs of life stop, and close idle connections. Looks are counted: a pause of this JVM is one. */
  private def lookAfter(): Unit = {
    var previous = signsOfLife.get
    var silent = 0
    val task = Connection.deadlines.scheduleWithFixedDelay(() => {
        silent = if (signsOfLife.get == previous) silent + 1 else 0
        previous = signsOfLife.get
        if (silent == SilenceDeadlineSeconds / LookSeconds) {
          silence = s"it gave no sign of life for $SilenceDeadlineSeconds s and was killed, "
          log.warn(s"sidecar gives no sign of life for $SilenceDeadlineSeconds s and is killed pid=$pid")
          kill()
        }
        try pool.closeIdle()
        catch { case _: IOException => () } // or this was the last look
      }, LookSeconds, LookSeconds, TimeUnit.SECONDS)
    os.onExit.thenRun(() => task.cancel(false))
  }
}

private[bridge] object SidecarProcess {
  private val log = LoggerFactory.getLogger("io.dynastate.Sidecar")
  private val StartDeadlineSeconds = 60L
  /** It gives a sign of life every 2 seconds; one that gives none for so long hangs. */
  private val SilenceDeadlineSeconds = 20L
  private val LookSeconds = 2L
  private val LastLinesDeadlineMillis = 1000L
  /** A socket's path may have 106 bytes in Java, our own names take up to 38; YARN's temporary folders are longer. */
  private val FolderBytesMax = 106 - 38

  private def makeFolder(): Path = {
    val usual = Path.of(System.getProperty("java.io.tmpdir"))
    val parent = if (usual.toString.getBytes(UTF_8).length <= FolderBytesMax) usual else Path.of("/tmp")
    val onlyOurs = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
    Files.createTempDirectory(parent, "dynastate-", onlyOurs)
  }

  def start(python: String, idleSeconds: Long): SidecarProcess = {
    val startNanos = System.nanoTime()
    val folder = makeFolder()
    val socket = folder.resolve("socket")
    val token = new Array[Byte](Protocol.TokenBytes)
    new SecureRandom().nextBytes(token)
    val builder = new ProcessBuilder(python, "-m", "dynastate.sidecar")
    builder.environment.put("MALLOC_ARENA_MAX", "2") // else each of a dozen threads keeps freed memory
    builder.environment.put("PYTHONSAFEPATH", "1") // import no module from the executor's working directory
    val os =
      try builder.start()
      catch {
        case e: IOException =>
          Files.delete(folder)
          throw new DynastateException(ErrorKind.Configuration,
            "the interpreter of the sidecar cannot be run; set spark.sql.streaming.stateStore.dynastate.python, or " +
              s"spark.pyspark.python: ${e.getMessage}", e)
      }
    val stdin = os.getOutputStream
    val process = new SidecarProcess(os, stdin, folder, socket, token, idleSeconds)
    process.readOutput()
    try {
      // Of this JSON, only the folder's name may need escapes.
      val path = socket.toString.replace("\\", "\\\\").replace("\"", "\\\"")
      stdin.write(s"""{"socket": "$path", "token": "${HexFormat.of().formatHex(token)}"}\n""".getBytes(UTF_8))
      stdin.flush()
    } catch { case _: IOException => () } // it ended at once; awaitReady says why
    process.awaitReady(python)
    log.info(s"sidecar started pid=${process.pid} python=$python " +
      s"ms=${TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - startNanos)}")
    process
  }
}
