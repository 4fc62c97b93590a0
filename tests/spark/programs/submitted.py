"""A user's program that knows nothing of dynastate: spark-submit's conf says where its state goes.

Run as `spark-submit --jars … --conf … submitted.py FILES CHECKPOINT ANSWER`.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

files, checkpoint, answer = sys.argv[1:]
spark = SparkSession.builder.appName("submitted").getOrCreate()
rows = spark.readStream.schema("key string, amount long").option("maxFilesPerTrigger", 1).json(files)
sums = rows.groupBy("key").agg(f.count("*").alias("rows"), f.sum("amount").alias("amount"))
writer = sums.writeStream.outputMode("complete").format("memory").queryName("sums").trigger(availableNow=True)
query = writer.option("checkpointLocation", checkpoint).start()
query.awaitTermination()
metrics = query.recentProgress[-1].stateOperators[0].customMetrics
found = {"rows": [list(row) for row in spark.table("sums").collect()], "metrics": dict(metrics)}
Path(answer).write_text(json.dumps(found))
spark.stop()
