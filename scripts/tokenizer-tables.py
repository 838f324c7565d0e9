#!/usr/bin/env python3
"""Writes common/tokenizer/src/tables.rs from the pinned llama.cpp: classes of characters, and the splitters by name.

Run it after a change of llama-cpp-sys-2; with --check it fails if that is due, as a test does. A name whose regular
expressions are none of SPLITTERS is left out: llama.cpp then tokenizes its texts.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
TABLES = ROOT / "common/tokenizer/src/tables.rs"

CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"((?=[\p{L}])([^a-z]))", r"((?=[\p{L}])([^A-Z]))"


def words_by_case(end, digits):
    """Returns the expression that cuts words where lower case ends; `end` is what may follow a word."""
    word = r"[^\r\n\p{L}\p{N}]?"
    return f"{word}{UPPER}*{LOWER}+{end}|{word}{UPPER}+{LOWER}*{end}|{digits}" r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES


# llama.cpp's regular expressions for each variant of `Splitter`.
SPLITTERS = {
    "Gpt2": [GPT2],
    "DigitsThenGpt2": [r"\p{N}", GPT2],
    "Llama3": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES],
    "Qwen2": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES],
    "Qwen35": [
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES
    ],
    "Gpt4o": [words_by_case(CONTRACTIONS + "?", r"\p{N}{1,3}")],
    "Tekken": [words_by_case("", r"\p{N}")],
    "DeepSeek3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ],
    "KimiK2": [r"\p{Han}+"],
    "Default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}

# Bits of a class, by llama.cpp's flag. The order is that of the constants in classes.rs.
LETTER, NUMBER, SPACE, MARK, PUNCTUATION, SYMBOL, HAN, KANA_OR_HAN = (1 << bit for bit in range(8))
FLAGS = {0x0004: LETTER, 0x0002: NUMBER, 0x0010: MARK, 0x0020: PUNCTUATION, 0x0040: SYMBOL}
# The ranges of DeepSeek's second expression.
KANA_OR_HAN_RANGES = [("一", "龥"), ("\u3040", "\u309f"), ("\u30a0", "\u30ff")]

HEAD = """\
//! Tables that scripts/tokenizer-tables.py writes from llama.cpp's unicode-data.cpp, unicode.cpp and llama-vocab.cpp.

use crate::splitter::Splitter;

/// First character of each run of characters with one class, and the class, in ascending order.
///
/// Units: the bits of `classes`. Source: llama.cpp's `unicode_ranges_flags`, `unicode_set_whitespace` and
/// `unicode_cpt_is_han`.
#[rustfmt::skip]
pub(crate) const RUNS: &[(u32, u8)] = &[
"""

NAMES_HEAD = """\
];

/// Names of pre-tokenizers, with their splitters, and whether a piece that is a token is never merged from parts.
///
/// Source: llama.cpp's `llama_vocab::impl::load` and `llm_tokenizer_bpe`.
#[rustfmt::skip]
pub(crate) const PRE_TOKENIZERS: &[(&str, Splitter, bool)] = &[
"""


def sources():
    """Returns the folder of the pinned llama.cpp's library."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    package = next(package for package in metadata["packages"] if package["name"] == "llama-cpp-sys-2")
    return pathlib.Path(package["manifest_path"]).parent / "llama.cpp/src"


def between(text, start, end):
    """Returns the part of a source text behind `start` and before the next `end`."""
    begin = text.index(start) + len(start)
    return text[begin : text.index(end, begin)]


def numbers(text, pattern):
    return [tuple(int(number, 16) for number in match) for match in re.findall(pattern, text)]


def runs(llama):
    """Returns the first character of each run of characters with one class, and the class."""
    data = (llama / "unicode-data.cpp").read_text()
    pair = r"\{0x([0-9A-F]+), 0x([0-9A-F]+)\}"
    ranges = numbers(between(data, "unicode_ranges_flags = {", "};"), pair)
    n_characters = ranges[-1][0]
    classes = bytearray(n_characters)
    for (first, flags), (end, _) in zip(ranges, ranges[1:]):
        assert flags != 0, "llama.cpp takes a character without flags for the end of the text"
        of_flags = FLAGS.get(flags & 0xFF, 0)
        classes[first:end] = bytes([of_flags]) * (end - first)
    for character in re.findall(r"0x([0-9A-F]+),", between(data, "unicode_set_whitespace = {", "};")):
        classes[int(character, 16)] |= SPACE
    lower = numbers(between(data, "unicode_map_lowercase = {", "};"), pair)
    assert all(upper < 128 for upper, letter in lower if chr(letter) in "stmdrevl"), "contractions fold ASCII only"

    han = between((llama / "unicode.cpp").read_text(), "bool unicode_cpt_is_han(uint32_t cpt) {", "return false;")
    han = numbers(han, r"cpt >= 0x([0-9A-F]+) && cpt <= 0x([0-9A-F]+)")
    kana_or_han = [(ord(first), ord(last)) for first, last in KANA_OR_HAN_RANGES]
    for bit, of_bit in ((HAN, han), (KANA_OR_HAN, kana_or_han)):
        for first, last in of_bit:
            for character in range(first, last + 1):
                classes[character] |= bit

    starts = [at for at in range(n_characters) if at == 0 or classes[at] != classes[at - 1]]
    return [(start, classes[start]) for start in starts]


def literals(text):
    """Returns the contents of C++ string literals, one text for each list element."""
    text = re.sub(r"(?m)^\s*//.*$", "", text)
    values = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    escapes = {"\\\\": "\\", '\\"': '"', "\\r": "\r", "\\n": "\n", "\\t": "\t"}
    return [re.sub(r"\\.", lambda escape: escapes[escape.group()], value) for value in values]


def pre_tokenizers(llama):
    """Returns name, splitter and `ignore_merges` of each pre-tokenizer that has one of our splitters."""
    vocab = (llama / "llama-vocab.cpp").read_text()

    of_types = {}
    cases = between(vocab, "switch (vocab.get_pre_type()) {", "std::vector<std::string> regex_exprs;")
    for case in cases.split("break;"):
        expressions = case.partition("regex_exprs = {")[2].partition("};")[0]
        types = re.findall(r"case LLAMA_VOCAB_PRE_TYPE_(\w+):", case) or ["DEFAULT"]
        splitter = next((name for name, ours in SPLITTERS.items() if ours == literals(expressions)), None)
        if expressions and "byte_encode = false" not in case:
            of_types.update((kind, splitter) for kind in types)
    assert set(SPLITTERS) == set(of_types.values()) - {None}, "llama.cpp has other expressions now"

    rows = []
    names = between(vocab, 'else if (tokenizer_pre == "default") {', "unknown pre-tokenizer type")
    for branch in ('tokenizer_pre == "default") {' + names).split("} else")[:-1]:
        conditions, _, body = branch.partition("{")
        splitter = of_types.get(re.search(r"LLAMA_VOCAB_PRE_TYPE_(\w+)", body).group(1))
        if splitter:
            ignores = "ignore_merges = true" in body
            rows += [(name, splitter, ignores) for name in re.findall(r'tokenizer_pre == "([^"]+)"', conditions)]
    return sorted(rows)


def tables():
    """Returns the text of tables.rs."""
    llama = sources()
    out = [HEAD]
    line = "   "
    for start, kind in runs(llama):
        run = f" (0x{start:x}, {kind}),"
        if len(line + run) > 120:
            out.append(line + "\n")
            line = "   "
        line += run
    out += [line + "\n", NAMES_HEAD]
    for name, splitter, ignores in pre_tokenizers(llama):
        out.append(f'    ("{name}", Splitter::{splitter}, {str(ignores).lower()}),\n')
    return "".join(out) + "];\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(TABLES.read_text() != tables())
    TABLES.write_text(tables())
