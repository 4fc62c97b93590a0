"""The only package that imports pyspark: `configure`, the jar, the import of checkpoints, the export of metrics."""

from importlib.util import find_spec

from dynastate.errors import ConfigurationError

# The import itself takes long, and the path of the jar does not need it.
_SPEC = find_spec("pyspark")
if _SPEC is None or not _SPEC.submodule_search_locations:
    raise ConfigurationError("pyspark is not installed here; pip install 'pyspark>=3.5,!=4.0.0,<4.4'")
