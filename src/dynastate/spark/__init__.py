"""The only package that imports pyspark: `configure`, the jar, the import of checkpoints, the export of metrics."""

from dynastate.errors import ConfigurationError

try:
    import pyspark  # noqa: F401  # for the message
except ImportError as missing:
    raise ConfigurationError("pyspark is not installed here; pip install 'pyspark>=3.5,!=4.0.0,<4.4'") from missing
