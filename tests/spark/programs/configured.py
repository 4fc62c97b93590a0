"""A user's program that configures dynastate itself, and is run by spark-submit with a jar of the user's own.

Run as `spark-submit --jars USERS_JAR … configured.py FILES CHECKPOINT ANSWER SETTINGS`.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import dynastate

files, checkpoint, answer, settings = sys.argv[1:]
spark = dynastate.configure(SparkSession.builder.appName("configured"), **json.loads(settings)).getOrCreate()
rows = spark.readStream.schema("key string, amount long").json(files)
sums = rows.groupBy("key").agg(f.count("*").alias("rows"), f.sum("amount").alias("amount"))
writer = sums.writeStream.outputMode("complete").format("memory").queryName("sums").trigger(availableNow=True)
writer.option("checkpointLocation", checkpoint).start().awaitTermination()
result = {"rows": [list(row) for row in spark.table("sums").collect()], "jars": spark.conf.get("spark.jars")}
Path(answer).write_text(json.dumps(result))
spark.stop()
