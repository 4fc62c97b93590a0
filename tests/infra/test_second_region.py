"""The example for two Regions, as far as the AWS provider at hand goes: 5.100, where the example needs 6.

What that provider does not know is taken out of a copy: the kind of the replicas, their protection, and the witness.
Its expressions become outputs, which terraform evaluates: only the names of these arguments are not checked. The rest
is valid against the schema, and passes the example's own tests, also with the policies attached to a role as
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

#: A block that is made for each of a list: its name, the list, and its arguments.
DYNAMIC = r'  dynamic "{name}" \{{\n +for_each = ([^\n]*)\n\n +content \{{\n(.*?)\n    \}}\n  \}}'
#: What the output says of both kinds of block, with a witness and with a third replica.
EVALUATED = """mock_provider "aws" {}

variables {
  namespaces = { orders = ["orders"] }
}

run "a_witness" {
  assert {
    condition = output.replica == [{
      consistency_mode            = "STRONG"
      deletion_protection_enabled = true
      point_in_time_recovery      = true
      propagate_tags              = true
      region_name                 = "us-east-2"
    }]
    error_message = "One replica must be strongly consistent, and protected."
  }
  assert {
    condition     = output.global_table_witness == [{ region_name = "us-west-2" }]
    error_message = "The witness must be in the third Region."
  }
}

run "a_third_replica" {
  variables {
    third_is_witness    = false
    deletion_protection = false
  }
  assert {
    condition = [
      for each in output.replica : [each.region_name, each.consistency_mode, each.deletion_protection_enabled]
    ] == [["us-east-2", "STRONG", false], ["us-west-2", "STRONG", false]]
    error_message = "Two replicas must be strongly consistent."
  }
  assert {
    condition     = length(output.global_table_witness) == 0
    error_message = "With two replicas there is no witness."
  }
}
"""

#: A role of the user's.
ROLE = """resource "aws_iam_role" "orders" {
  assume_role_policy = "{}"
}
"""


def evaluated(text: str, name: str) -> str:
    """An output with the arguments of each of a dynamic block's."""
    ((each_of, arguments),) = re.findall(DYNAMIC.format(name=name), text, flags=re.DOTALL)
    blocks = f"for {name} in [for each in {each_of} : {{ value = each }}]"
    return f'output "{name}" {{\n  value = [{blocks} : {{\n{arguments}\n  }}]\n}}\n'


@pytest.mark.slow
def test_what_the_older_provider_knows_is_valid(terraform: Terraform, plugin_dir: str, module: Path) -> None:
    """Each of the parts that are taken out is there once, and has the right values; the rest passes all tests."""
    root = module / "examples" / "second-region"
    text = (root / "main.tf").read_text()
    outputs = "\n".join(evaluated(text, name) for name in ("replica", "global_table_witness"))
    for newer, older in NEWER:
        text, count = re.subn(newer, older, text, flags=re.DOTALL)
        assert count == 1, newer
    (policy,) = (body for language, body in code(DOCS / "second-region.md") if language == "hcl")
    (root / "main.tf").write_text(text)
    (root / "role.tf").write_text(f"{ROLE}\n{policy}")
    (root / "newer.tf").write_text(outputs)
    (root / "tests" / "newer.tftest.hcl").write_text(EVALUATED)
    terraform.succeed(root, "init", plugin_dir)
    terraform.succeed(root, "validate")
    output = terraform.succeed(root, "test", timeout_s=TEST_TIMEOUT_S)
    assert "7 passed, 0 failed" in output
