"""Language of the repository: phrases to avoid, headings, and short sentences, in Markdown one a line."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", ".github", "benchmarks", "docs", "examples", "infra", "jvm-bridge", "src", "tests")
SUFFIXES = {".hcl", ".md", ".py", ".scala", ".sh", ".tf", ".tftpl", ".toml", ".yaml", ".yml"}
TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "README.md", "SECURITY.md", "pyproject.toml")

#: Each phrase with what to write in its place; docs/glossary.md has the verbs.
PHRASES = {
    r"by heart": "rule of thumb",
    r"(?:go|goes|gone|going|went) (?:on )?round": "fall back, avoid",
    r"pass(?:es|ed|ing)? by\b(?! (?:name|value|reference|position|standard|sleeping)\b)": "skip",
    r"st(?:and|ands|ood|anding) (?:on|upon)": "depend on",
    r"st(?:and|ands|ood|anding) in for": "fall back to, replace",
    r"ke(?:ep|eps|pt) standing": "retain",
    r"(?:is|are|was|were|be|being|been) told": "is reported, is given",
    r"(?:is|are|was|were) no more\b(?! than)": "no longer",
    r"nobody": "no reader, no query, nothing",
    r"what is gone": "deleted items",
    r"(?:go|goes|gone|going|went) on (?:from|with|after)": "resume, continue",
    r"(?:new|second|earlier|old|former) life": "restart, run",
    r"of (?:its|their) own accord": "by itself",
    r"(?:so|as) many times": "that number of times",
    r"com(?:e|es|ing) to (?:an|its|their) end": "end",
    r"(?:give|gives|given|gave|giving) (?:\w+ )?free": "unpin, release",
    r"anew": "again",
    r"t(?:ake|akes|aken|ook|aking) away": "delete, remove",
    r"str(?:ike|ikes|uck|iking) off": "delete",
    r"(?:try|tries|tried) once more": "retry",
    r"(?<!there )(?:is|are) no (?:DynamoDB|JSON|UTF|HTTP|DDL|base64|texts?|dates?|errors?|findings)": "is not",
    r"but for": "except",
}
FORBIDDEN = re.compile(r"\b(?:" + "|".join(PHRASES) + r")\b", re.IGNORECASE)
#: A heading, and the first line of a docstring, is a noun phrase, or a verb and its object.
FREE_CLAUSE = re.compile(r"(?:What|Who|Whoever|Whatever|Where|Why|That|If)\b(?! to\b)")
SENTENCE_END = re.compile(r"(?:[a-z0-9)\"*]|[A-Z]{2})[.!?][)\"*]* +(?=[A-Z(\[*\"])")
ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|etc|vs)\. ")

#: The most words of a sentence, without code and the targets of links.
WORDS_MAX = 30
#: Records of what was decided stay as they were.
HISTORY = "docs/decisions/"

#: These name the phrases in order to forbid them.
ALLOWED = {"docs/glossary.md", "tests/docs/test_language.py"}


def texts() -> Iterator[tuple[str, str]]:
    """Every text file of the project with its path from the root."""
    paths = [ROOT / name for name in TOP]
    paths += [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and name not in ALLOWED and not {".terraform", "build"} & set(path.parts[len(ROOT.parts) :]):
            yield name, path.read_text()


TEXTS = dict(texts())
PAGES = {name: text for name, text in TEXTS.items() if name.endswith(".md")}


def running(text: str) -> str:
    """The text without line breaks and the marks of comments; the words of names count, too."""
    return re.sub(r"\s*\n\s*(?:#:?|//|\*|--)?\s*", " ", text).replace("_", " ")


def phrases(text: str) -> list[str]:
    plain = running(text)
    return [plain[max(0, each.start() - 30) : each.end() + 30] for each in FORBIDDEN.finditer(plain)]


def prose(page: str) -> Iterator[tuple[int, str]]:
    """The lines of a page that are running text, by number: no code, table or heading; code in a line is one word."""
    is_code = False
    for number, line in enumerate(page.splitlines(), 1):
        is_code ^= line.lstrip().startswith("```")
        if not is_code and not re.match(r"\s*(?:```|\||#|    \S|<|!!!)", line):
            yield number, re.sub(r"`[^`]*`", "code", re.sub(r"^\s*(?:[-*]|\d+\.) ", "", line))


def free_clauses(name: str, text: str) -> list[str]:
    """Headings of a page, or first lines of docstrings of the package, that are free clauses."""
    if name.endswith(".md"):
        prose_text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
        firsts = re.findall(r"^#+ (?:\d+\. )?(.*)$", prose_text, re.MULTILINE)
    elif name.startswith("src/") and name.endswith(".py"):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        firsts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    else:
        firsts = []
    return [first.partition("\n")[0] for first in firsts if FREE_CLAUSE.match(first)]


def test_plain_language() -> None:
    """No file has a phrase of the list, a heading that is a free clause, or a docstring that begins with one."""
    clauses = {name: phrases(text) + free_clauses(name, text) for name, text in TEXTS.items()}
    assert not {name: texts for name, texts in clauses.items() if texts}


@pytest.mark.parametrize("name", PAGES)
def test_one_sentence_a_line(name: str) -> None:
    """A line of a page holds one sentence, so that a diff shows the sentence that changed."""
    lines = [(number, ABBREVIATIONS.sub(" ", line)) for number, line in prose(PAGES[name])]
    assert not [each for each in lines if SENTENCE_END.search(each[1])]


def words(line: str) -> int:
    """The number of words in a line of prose; a link has those of its text."""
    return len([word for word in re.sub(r"\]\([^)]*\)", "]", line).split() if re.search(r"\w", word)])


@pytest.mark.parametrize("name", [name for name in PAGES if not name.startswith(HISTORY)])
def test_sentences_are_short(name: str) -> None:
    assert not [(number, line) for number, line in prose(PAGES[name]) if words(line) > WORDS_MAX]


def comments(code: str) -> Iterator[str]:
    """The comments of a module; lines one below the other are one comment, except behind code."""
    last, block = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 or token.line[: token.start[1]].strip():
                yield block
                block = ""
            last, block = token.start[0], f"{block}\n{token.string.lstrip('#: ')}"
    yield block


def texts_of(code: str) -> Iterator[str]:
    """The docstrings, comments and messages of a module, each paragraph and each item of a list by itself."""
    docstrings, messages = [], []
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                # Grammars and tables are indented, or have bars or columns; a section like Raises has an item a line.
                items = re.sub(r"\n    (?=[\w.]+: )|\n- |\n\d\. ", "\n\n", inspect.cleandoc(text))
                docstrings += re.split(r"(?m)\n\s*\n|^(?:    |\|).*|^\S.*  +\S.*", items)
            case ast.JoinedStr(values):
                text = "".join(str(each.value) if isinstance(each, ast.Constant) else "value" for each in values)
                messages += text.split("\n")
            case ast.Constant(str(text)):
                messages += text.split("\n")
    yield from (*docstrings, *comments(code), *messages)


def long_sentences(code: str) -> list[str]:
    """The sentences of a module's texts with too many words; code is a word, which may begin a sentence."""
    plain = (re.sub(r"`[^`]*`", "Code", re.sub(r"\s+", " ", text)) for text in texts_of(code))
    sentences = (each for text in plain for each in SENTENCE_END.sub("\n", ABBREVIATIONS.sub(" ", text)).split("\n"))
    return [each for each in sentences if words(each) > WORDS_MAX]


def test_sentences_of_code_are_short() -> None:
    """A sentence of a docstring, comment or message has at most 30 words."""
    sentences = {name: long_sentences(text) for name, text in TEXTS.items() if name.endswith(".py")}
    assert not {name: texts for name, texts in sentences.items() if texts}


def test_a_long_sentence_is_found() -> None:
    """Code counts as one word, and the target of a link as none."""
    page = "- A `b c` [d e](https://example.org/f) - g.\n" + "`a b` " + "word " * 30
    assert [words(line) for _, line in prose(page)] == [5, 31]
    code = f'"""{"word " * 20}\n{"word " * 11}"""\n# {"one " * 16}\n# {"one " * 15}\nerror = f"{"two " * 30}{{code}}"\n'
    assert [words(each) for each in long_sentences(code)] == [31, 31, 31]
    table = f'"""Table.\n\na  {"word " * 16}\nb  {"word " * 16}"""\none = 1  # {"one " * 16}\ntwo = 2  # {"a " * 16}\n'
    assert not long_sentences(table)


def test_a_phrase_of_the_list_is_found() -> None:
    """In names, comments of several lines and running text, whatever the case."""
    for text in ("def test_a_new_life_begins", "# version 3 stands\n    # on version 2", "By heart: four units"):
        assert phrases(text), text
    assert not phrases("no more than 25 items, the other way round, arguments passed by name")
