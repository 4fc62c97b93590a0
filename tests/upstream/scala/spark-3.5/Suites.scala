package org.apache.spark.sql.dynastate.upstream

import org.apache.spark.sql.streaming.StreamingSessionWindowSuite

// Suites that take the session's provider need no subclass.

class SessionWindow extends StreamingSessionWindowSuite with OnDynamoDB
