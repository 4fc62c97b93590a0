"""The example for two Regions, as far as the AWS provider at hand goes: 5.100, where the example needs 6.

What that provider does not know is taken out of a copy: the kind of the replicas, their protection, and the witness.
The rest is valid against its schema, and passes the example's own tests, also with the policies attached to a role as
docs/second-region.md shows it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.infra.conftest import TEST_TIMEOUT_S, Terraform
from tests.support.pages import DOCS, code

#: What only the AWS provider 6 takes, each as it stands in the example, and what takes its place.
NEWER = (
    (r'version = ">= 6\.29, < 7\.0"', 'version = ">= 5.80, < 6.0"'),
    (r'\n {6}consistency_mode += "STRONG"', ""),
    (r"\n {6}deletion_protection_enabled += var\.deletion_protection", ""),
    (r'\n  dynamic "global_table_witness" \{\n.*?\n  \}\n', ""),
)

#: A role of the user's.
ROLE = """resource "aws_iam_role" "orders" {
  assume_role_policy = "{}"
}
"""


@pytest.mark.slow
def test_what_the_older_provider_knows_is_valid(terraform: Terraform, plugin_dir: str, module: Path) -> None:
    """Each of the parts that are taken out is there once; the rest passes the example's own tests, with the page's."""
    root = module / "examples" / "second-region"
    text = (root / "main.tf").read_text()
    for newer, older in NEWER:
        text, found = re.subn(newer, older, text, flags=re.DOTALL)
        assert found == 1, newer
    (attached,) = (body for language, body in code(DOCS / "second-region.md") if language == "hcl")
    (root / "main.tf").write_text(text)
    (root / "role.tf").write_text(f"{ROLE}\n{attached}")
    terraform.succeed(root, "init", plugin_dir)
    terraform.succeed(root, "validate")
    output = terraform.succeed(root, "test", timeout_s=TEST_TIMEOUT_S)
    assert "5 passed, 0 failed" in output
