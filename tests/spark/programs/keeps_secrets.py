"""A query on an executor in a process of its own, with all of Spark's logs; it is controlled by standard input.

Run as `python …/keeps_secrets.py FOLDER ENDPOINT NAMESPACE`, from any folder. For each line on standard input, the
name of a checkpoint, it runs the query, and prints one line of JSON: its progress, and the error it ended with. It ends
at the end of standard input.
"""

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import dynastate
from tests.spark.conftest import spark_conf
from tests.spark.operators import sums
from tests.spark.streams import open_stream

LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex
"""


def say(**answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def run(frame: DataFrame, checkpoint: Path) -> None:
    writer = frame.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    failure = ""
    try:
        query.awaitTermination(120)
    except StreamingQueryException as error:
        failure = str(error)
    say(progress=[progress.json for progress in query.recentProgress], failed=failure)


def main(folder: Path, endpoint: str, namespace: str) -> None:
    log4j, temporary = folder / "log4j2.properties", folder / "tmp"
    log4j.write_text(LOG4J)
    (folder / "events").mkdir()
    java = f"-Djava.io.tmpdir={temporary} -Dlog4j2.configurationFile={log4j} -XX:-UsePerfData -XX:TieredStopAtLevel=1"
    conf = spark_conf(folder) | {
        "spark.driver.extraJavaOptions": java,
        "spark.driver.memory": "1g",
        "spark.executor.extraJavaOptions": java,
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.executor.memory": "1g",
        "spark.files": str(folder / "lz4.py"),
        "spark.task.maxFailures": "1",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    builder = SparkSession.builder.master("local-cluster[1,2,1024]").config(map=dict(conf))
    spark = dynastate.configure(builder, endpoint=endpoint, region="us-east-1", namespace=namespace).getOrCreate()
    say(ui=spark.sparkContext.uiWebUrl, application=spark.sparkContext.applicationId)
    for line in sys.stdin:
        run(sums(open_stream(spark, folder), "key"), folder / line.strip())
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
