"""The Terraform module's README compared with its files, and its names with the package's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dynastate.format.keys import SPECS
from dynastate.settings import DELTA_TABLE, PREFIX, SNAPSHOT_TABLE, Settings
from tests.infra.conftest import INFRA

#: Where each root says which provider it takes.
FILES = ("versions.tf", "main.tf", "main.tf", "versions.tf")
README = (INFRA / "README.md").read_text()


def blocks(kind: str, file: str) -> Iterator[tuple[str, str]]:
    pairs = re.findall(rf'^{kind} "(\w+)" \{{\n(.*?)^\}}', (INFRA / file).read_text(), re.DOTALL | re.MULTILINE)
    assert pairs, (kind, file)
    yield from pairs


def said(body: str, name: str) -> str:
    match = re.search(rf"^  {name} += (.*)$", body, re.MULTILINE)
    assert match is not None, body
    return match[1]


def text(string: str) -> str:
    return string.removeprefix('"').removesuffix('"').replace('\\"', '"')


def section(title: str) -> list[str]:
    lines = README.split(f"## {title}\n")[1].split("\n## ")[0].splitlines()
    return [line for line in lines if line.startswith("|")][2:]


def test_the_readme_lists_the_variables_as_they_are() -> None:
    rows = []
    for name, body in blocks("variable", "variables.tf"):
        kind = (
            said(body, "type")
            .removesuffix("({")
            .replace("map(object({ kms_key_arn = optional(string) }))", "map(object)")
        )
        rows.append(f"| `{name}` | `{kind}` | `{said(body, 'default')}` | {text(said(body, 'description'))} |")
    assert section("Variables") == rows


def test_the_readme_lists_the_outputs_as_they_are() -> None:
    rows = [f"| `{name}` | {text(said(body, 'description'))} |" for name, body in blocks("output", "outputs.tf")]
    assert section("Outputs") == rows


def test_lock_files_name_the_provider_that_is_tested() -> None:
    """The module and its examples accept one major version, and lock the version that the README says."""
    roots = [INFRA, *(INFRA / root for root in ("examples/basic", "examples/production", "observability/cloudwatch"))]
    constraints = [
        re.findall(r'^ +version = "(.*)"', (root / file).read_text(), re.MULTILINE)
        for root, file in zip(roots, FILES, strict=True)
    ]
    locks = {(root / ".terraform.lock.hcl").read_text() for root in roots}
    assert constraints == 4 * [[">= 5.80, < 6.0"]]
    assert len(locks) == 1
    (lock,) = locks
    assert re.findall(r'constraints = "(.*)"', lock) == [">= 5.80.0, < 6.0.0"]
    (version,) = re.findall(r'  version += "(.*)"', lock)
    assert f"name {version}, with which everything is tested" in README


def test_the_restore_takes_tables_out_of_the_state_before_it_imports_others() -> None:
    """Terraform refuses to import into an address that its state has: the addresses are the module's."""
    steps = (INFRA.parent / "docs" / "backup-and-restore.md").read_text()
    (addresses,) = re.findall(r"terraform state rm (.*)", steps)
    imports = re.findall(r"terraform import ('.*') restored", steps)
    assert addresses.split() == imports
    assert steps.index("terraform state rm") < steps.index("terraform import")
    (tables,) = re.findall(r"  tables = \{\n(.*?)\n  \}", (INFRA / "main.tf").read_text(), re.DOTALL)
    names = re.findall(r"^    (\w+) = \{", tables, re.MULTILINE)
    assert imports == [f"""'module.dynastate.aws_dynamodb_table.state["{name}"]'""" for name in names]


def test_names_and_keys_are_the_packages() -> None:
    main, outputs = (INFRA / "main.tf").read_text(), (INFRA / "outputs.tf").read_text()
    defaults = {name: text(said(body, "default")) for name, body in blocks("variable", "variables.tf")}
    assert (defaults["delta_table_name"], defaults["snapshot_group_table_name"]) == (DELTA_TABLE, SNAPSHOT_TABLE)
    assert said(main, "hash_key") == f'"{SPECS["delta"].hash_key}"' == f'"{SPECS["snapshot"].hash_key}"'
    assert re.findall(r'range_key = "(\w+)"', main) == [SPECS["delta"].range_key, SPECS["snapshot"].range_key]
    conf = Settings(delta_table="other-delta", snapshot_table="other-snapshot", objects="s3://bucket").to_spark()
    assert re.findall(rf'"({re.escape(PREFIX)}\w+)"', outputs) == list(conf)
