package org.apache.spark.sql.dynastate

import org.apache.spark.sql.SparkSessionExtensions

/** This Spark lets transformWithState run on any provider: there is nothing to do. `dynastate.configure` sets it all the same. */
class DynastateExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = ()
}
