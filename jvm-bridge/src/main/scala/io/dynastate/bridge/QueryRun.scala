package io.dynastate.bridge

/** A run of a query: Spark's ids of the run and of the query, and the location of its checkpoint's state. */
final case class QueryRun(id: String, queryId: String, checkpoint: String)
