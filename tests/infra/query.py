"""A streaming query for tables that Terraform made: it counts the rows of files by key, and prints the counts.

Run as `python query.py FILES CHECKPOINT ENDPOINT REGION NAMESPACE`, with Spark's conf in PYSPARK_SUBMIT_ARGS.
"""

import json
import sys

from pyspark.sql import SparkSession

import dynastate

files, checkpoint, endpoint, region, namespace = sys.argv[1:]
builder = SparkSession.builder.appName("infra")
spark = dynastate.configure(builder, endpoint=endpoint, region=region, namespace=namespace).getOrCreate()
counts = spark.readStream.schema("key string").json(files).groupBy("key").count()
writer = counts.writeStream.outputMode("complete").format("memory").queryName("counts").trigger(availableNow=True)
writer.option("checkpointLocation", checkpoint).start().awaitTermination()
sys.stdout.write(json.dumps(dict(spark.table("counts").collect())) + "\n")
spark.stop()
