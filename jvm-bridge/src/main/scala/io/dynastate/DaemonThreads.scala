package io.dynastate

import java.util.concurrent.ThreadFactory

/** Makes threads of a name that do not keep the JVM from its end. */
final class DaemonThreads(name: String) extends ThreadFactory {
  override def newThread(task: Runnable): Thread = {
    val thread = new Thread(task, name)
    thread.setDaemon(true)
    thread
  }
}
