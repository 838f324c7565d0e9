#!/usr/bin/env python3
"""Prints figures of the tree's Rust code: size, signatures, names of locals, comments, repetition, circles, folders.

They are for a reviewer and for a closing note; nothing fails when they grow. Source is read as text, so that a figure
is off by a little and the same on every machine.

    scripts/figures.py                  the whole tree
    scripts/figures.py router common    these folders
    scripts/figures.py --list worker    also each place behind a figure
"""

import argparse
import collections
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Strings, characters and comments, the longest first; lifetimes are no characters.
LEXEME = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)'
    r'|(?P<text>r(?P<h>#*)".*?"(?P=h)|"(?:\\.|[^"\\])*"|\'(?:\\.[^\']*|[^\'\\\n])\')',
    re.S,
)
# Participles and adjectives that say nothing of the thing they name; nouns that end alike are not among them.
BARE = set(
    """begun asked told given wanted held rest own known made kept left sent seen taken found read chosen written drawn
    spent gone shown bound built least most due late early open whole full empty free bad good alone spare past fresh
    stale hot cold""".split()
)
ED_NOUNS = {"need", "seed", "speed", "feed", "embed", "bed", "shed", "red", "expected"}
WINDOW = 6
WORD = re.compile(r"\b(?!(?:fn|let|if|for|match|impl|struct|enum|use|mod|pub|else|return)\b)\w+")


def blank(source):
    """Returns the source without texts and comments, line by line, and the inner comments of each line."""
    inner = collections.Counter()

    def replace(found):
        whole = found.group(0)
        if found.group("comment"):
            line = source.count("\n", 0, found.start()) + 1
            if not whole.startswith(("///", "//!", "/**", "/*!")):
                inner[line] += 1
            return re.sub(r"[^\n]", " ", whole)
        return '"' + re.sub(r"[^\n]", "_", whole[1:-1]) + '"'

    return LEXEME.sub(replace, source), inner


def closing(code, start):
    """Returns the index of the bracket that closes the one at `start`."""
    depth = 0
    for at in range(start, len(code)):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(code[at], 0)
        if depth == 0:
            return at
    return len(code) - 1


def without_tests(code):
    """Returns the code with every `#[cfg(test)] mod … { }` blanked, and the number of its lines of test code."""
    lines = 0
    module = r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([a-z]+\))?\s+)?mod\s+\w+\s*\{"
    for found in list(re.finditer(module, code)):
        end = closing(code, found.end() - 1) + 1
        block = code[found.start() : end]
        lines += sum(1 for line in block.splitlines() if line.strip())
        code = code[: found.start()] + re.sub(r"[^\n]", " ", block) + code[end:]
    return code, lines


def split(parameters):
    """Returns the parameters of a list, divided at its own commas."""
    depth, start, parts = 0, 0, []
    for at, letter in enumerate(parameters):
        depth += {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1}.get(letter, 0)
        if letter == ">" and parameters[at - 1] != "-":
            depth -= 1
        if letter == "," and depth == 0:
            parts.append(parameters[start:at])
            start = at + 1
    return [part for part in [*parts, parameters[start:]] if part.strip()]


def signatures(code):
    """Yields the position and the parameters of each function."""
    for found in re.finditer(r"\bfn\s+\w+\s*(?:<[^(]*>)?\s*\(", code):
        yield found.start(), split(code[found.end() : closing(code, found.end() - 1)])


def bindings(code):
    """Yields the position and name of each local: `let`, `for`, patterns, parameters of functions and closures."""
    name = r"(?:ref\s+)?(?:mut\s+)?([a-z_][a-z0-9_]*)"
    for pattern in (
        r"\blet\s+" + name + r"\s*[:=;]",
        r"\bfor\s+" + name + r"\s+in\b",
        r"\b(?:Some|Ok|Err)\(" + name + r"\)\s*(?:=>|=[^=]|if\b)",
    ):
        for found in re.finditer(pattern, code):
            yield found.start(), found.group(1)
    for start, parameters in signatures(code):
        for parameter in parameters:
            found = re.match(r"\s*" + name + r"\s*:", parameter)
            if found:
                yield start, found.group(1)
    for found in re.finditer(r"(?:[(,=]|\bmove|\breturn)\s*\|([^|\n]*)\|", code):
        for parameter in split(found.group(1)):
            inner = re.match(r"\s*&?" + name + r"\s*(?::|$)", parameter)
            if inner:
                yield found.start(), inner.group(1)


def is_bare(name):
    return name in BARE or (re.fullmatch(r"[a-z]{3,}ed", name) is not None and name not in ED_NOUNS)


def has_tuple(parameter):
    kind = re.sub(r"\b(?:Fn|FnMut|FnOnce|fn)\s*\([^)]*\)", "", parameter.partition(":")[2])
    return re.search(r"(?<![\w>)])\((?!\)|dyn |impl )", kind) is not None


def module_files(crate_src):
    """Returns the file of each module path of a crate."""
    files = {}
    for path in sorted(crate_src.rglob("*.rs")):
        parts = list(path.relative_to(crate_src).with_suffix("").parts)
        if parts[-1] in ("lib", "main", "mod"):
            parts.pop()
        files[tuple(parts)] = path
    return files


def imports(code, module):
    """Yields the module paths that a file names by `crate::` or `super::`, groups in braces opened."""
    for found in re.finditer(r"\b(crate|super(?:::super)*)((?:::\w+)*)(::\{)?", code):
        if code[found.start() - 4 : found.start()] == "pub(":
            continue
        root = [] if found.group(1) == "crate" else list(module[: max(len(module) - found.group(1).count("super"), 0)])
        path = root + [part for part in found.group(2).split("::") if part]
        if found.group(3):
            group = code[found.end() : closing(code, found.end() - 1)]
            for part in split(group):
                yield tuple(path + re.findall(r"\w+", part.partition("{")[0]))
        else:
            yield tuple(path)


def circles(crate_src, sources):
    """Returns the groups of files of a crate that import each other, parents that only declare their children aside."""
    files = module_files(crate_src)
    edges = collections.defaultdict(set)
    for module, path in files.items():
        if path not in sources:
            continue
        for target in imports(sources[path], module):
            while target and target not in files:
                target = target[:-1]
            if files.get(target) not in (None, path) and files[target] in sources:
                edges[path].add(files[target])
    # Tarjan's strongly connected components, with a stack of its own.
    index, low, stack, groups = {}, {}, [], []

    def visit(path):
        index[path] = low[path] = len(index)
        stack.append(path)
        for target in edges[path]:
            if target not in index:
                visit(target)
                low[path] = min(low[path], low[target])
            elif target in stack:
                low[path] = min(low[path], index[target])
        if low[path] == index[path]:
            group = []
            while not group or group[-1] != path:
                group.append(stack.pop())
            if len(group) > 1:
                groups.append(sorted(group))

    for path in list(sources):
        if path.is_relative_to(crate_src) and path not in index:
            visit(path)
    return groups


def repeats(sources):
    """Returns the pairs of files that share a run of six lines of one shape: names, numbers and texts replaced."""
    places = collections.defaultdict(set)
    for path, code in sources.items():
        lines = []
        for line in code.splitlines():
            shape = WORD.sub("x", line.strip())
            if len(shape) > 3 and not shape.startswith(("use ", "pub use", "mod ")):
                lines.append(shape)
        for start in range(len(lines) - WINDOW + 1):
            run = "\n".join(lines[start : start + WINDOW])
            if len(run) > 100:
                places[run].add(path)
    pairs = set()
    for shared in places.values():
        if 2 <= len(shared) <= 8:
            paths = sorted(shared)
            pairs.update((one, two) for at, one in enumerate(paths) for two in paths[at + 1 :])
    return pairs


def returns_of_walk(page):
    """Returns how often walk 1 of ARCHITECTURE.md names a file again after another one."""
    walk = page.partition("## Walk 1")[2].partition("## Walk 2")[0]
    names = [name.rsplit("/", 1)[-1] for name in re.findall(r"`[\w/]*?([\w]+\.rs)`", walk)]
    return sum(1 for at, name in enumerate(names) if at and names[at - 1] != name and name in names[:at])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", help="folders to read; the whole tree without")
    parser.add_argument("--list", action="store_true", help="print each place behind a figure")
    options = parser.parse_args()
    listing = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, check=True, capture_output=True, text=True)
    folders = tuple(folder.rstrip("/") + "/" for folder in options.folders) or ("",)
    names = [name for name in listing.stdout.split() if name.startswith(folders) and (ROOT / name).exists()]
    counts, listed, sources, tests = collections.Counter(), [], {}, {}
    for name in names:
        path = ROOT / name
        code, inner = blank(path.read_text())
        is_test = "/tests/" in name and not name.startswith("tests/src") or name.endswith("tests.rs")
        code, test_lines = without_tests(code)
        lines = [at for at, line in enumerate(code.splitlines(), 1) if line.strip()]
        counts["test"] += test_lines + (len(lines) if is_test else 0)
        if is_test:
            tests[path] = code
            continue
        sources[path] = code
        counts["code"] += len(lines)
        kept = code.splitlines()
        # Comments within blanked tests do not count.
        counts["inner"] += sum(
            number for at, number in inner.items() if any(line.strip() for line in kept[max(at - 3, 0) : at + 2])
        )
        for start, parameters in signatures(code):
            counts["functions"] += 1
            for parameter in parameters:
                if has_tuple(parameter):
                    counts["tuples"] += 1
                    listed.append(f"{name}:{code.count(chr(10), 0, start) + 1}: tuple: {' '.join(parameter.split())}")
        for start, local in bindings(code):
            counts["bindings"] += 1
            if is_bare(local):
                counts["bare"] += 1
                listed.append(f"{name}:{code.count(chr(10), 0, start) + 1}: name: {local}")
    roots = {path.parent for path in sources if path.name in ("lib.rs", "main.rs")}
    crates = sorted(root for root in roots if root.name == "src")
    groups = [group for crate in crates for group in circles(crate, sources)]
    sizes = collections.Counter(path.parent for path in sources)
    crowded = {folder: number for folder, number in sizes.items() if number > 10}
    pairs = repeats(sources | tests)
    tuples_per_thousand = 1000 * counts["tuples"] / max(counts["functions"], 1)
    bare_per_thousand = 1000 * counts["bare"] / max(counts["bindings"], 1)
    print(f"code lines {counts['code']}, test lines {counts['test']}")
    print(f"parameters that are tuples: {counts['tuples']} ({tuples_per_thousand:.0f} of 1,000 functions)")
    bare = f"{counts['bare']} ({bare_per_thousand:.0f} of 1,000 bindings)"
    print(f"locals named by a bare participle or adjective: {bare}")
    print(f"inner comments for each code line: {counts['inner'] / max(counts['code'], 1):.3f}")
    print(f"pairs of files that share {WINDOW} lines of one shape: {len(pairs)}")
    print(f"circles of files that import each other: {len(groups)}, files in them {sum(map(len, groups))}")
    print(f"folders with more than ten files: {len(crowded)}")
    if not options.folders:
        print(f"returns to a file already left in walk 1: {returns_of_walk((ROOT / 'ARCHITECTURE.md').read_text())}")
    if options.list:
        print("\n".join(listed))
        for group in groups:
            print("circle: " + " ".join(str(path.relative_to(ROOT)) for path in group))
        for folder, number in sorted(crowded.items()):
            print(f"folder: {folder.relative_to(ROOT)} {number}")
        for one, two in sorted(pairs):
            print(f"repeat: {one.relative_to(ROOT)} ~ {two.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
