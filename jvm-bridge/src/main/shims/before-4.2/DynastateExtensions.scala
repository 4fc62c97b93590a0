package org.apache.spark.sql.dynastate

import org.apache.spark.sql.SparkSessionExtensions

/** Does nothing: this Spark runs transformWithState on any provider. `dynastate.configure` sets it for every Spark. */
class DynastateExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit = ()
}
