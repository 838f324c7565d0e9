//! The rules for documentation pages: links have targets within the tree, README and benchmarks are short, decisions
//! have their parts, and the tests of invariants exist.

use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::{Finding, Tree};

/// Heading above the table of invariants, each with the tests that guard it.
const INVARIANTS: &str = "Invariants";

/// Folder of the decision records, and the page that lists them.
const DECISIONS: &str = "docs/decisions";
const DECISIONS_LIST: &str = "docs/decisions/README.md";

/// Headings of a decision record, in this order; others may stand between them.
const DECISION_PARTS: [&str; 3] = ["Context", "Decision", "Consequence"];

/// Pages with a limit, and most words of each.
const PAGE_WORDS_MAX: [(&str, usize); 2] = [("README.md", 900), ("docs/benchmarks.md", 3000)];

/// Returns the rules that the page at `path` breaks.
pub(super) fn check_page(path: &Path, text: &str, tree: &Tree) -> Vec<Finding> {
    let mut findings = check_links(path, text, tree);
    if path == Path::new("ARCHITECTURE.md") {
        findings.extend(check_invariants(path, text, tree));
    }
    if path == Path::new(DECISIONS_LIST) {
        findings.extend(check_list(path, text, tree));
    } else if path.starts_with(DECISIONS) {
        findings.extend(check_decision(path, text));
    }
    let limit = PAGE_WORDS_MAX.iter().find(|(page, _)| path == Path::new(page)).map(|(_, limit)| *limit);
    findings.extend(limit.and_then(|limit| check_length(path, text, limit)));
    findings
}

/// Returns a finding for a page with more words than `words_max`; the bars of tables are no words.
fn check_length(path: &Path, text: &str, words_max: usize) -> Option<Finding> {
    let n_words = text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count();
    (n_words > words_max).then(|| Finding::new(path, 0, format!("{n_words} words, more than {words_max}")))
}

/// Returns findings for the pages next to the list at `path` that it does not include.
fn check_list(path: &Path, text: &str, tree: &Tree) -> Vec<Finding> {
    let beside = tree.with_ending("md").filter(|(page, _)| page.parent() == path.parent() && *page != path);
    let names = beside.filter_map(|(page, _)| page.file_name()?.to_str());
    let missing = names.filter(|name| !text.contains(&format!("({name})")));
    missing.map(|name| Finding::new(path, 0, format!("does not list {name}"))).collect()
}

/// Returns a finding for a decision record that lacks a part.
fn check_decision(path: &Path, text: &str) -> Option<Finding> {
    let mut headings = text.lines().filter_map(|line| line.strip_prefix("## "));
    let missing = DECISION_PARTS.iter().find(|part| !headings.any(|heading| heading == **part))?;
    let parts = DECISION_PARTS.join(", ");
    Some(Finding::new(path, 0, format!("has no `{missing}`, or not in the order of {parts}")))
}

fn check_links(path: &Path, text: &str, tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let (Event::Start(Tag::Link { dest_url, .. }) | Event::Start(Tag::Image { dest_url, .. })) = event else {
            continue;
        };
        if dest_url.contains("://") || dest_url.starts_with("mailto:") {
            continue;
        }
        let line = text[..range.start].matches('\n').count() + 1;
        let (file, anchor) = dest_url.split_once('#').map_or((&*dest_url, None), |(file, anchor)| (file, Some(anchor)));
        let target = if file.is_empty() { Some(path.to_owned()) } else { resolve(path, file) };
        let Some(target) = target else {
            findings.push(Finding::new(path, line, format!("the link `{dest_url}` leaves the repository")));
            continue;
        };
        if tree.text(&target).is_none() && !tree.root.join(&target).exists() {
            findings.push(Finding::new(path, line, format!("the link `{dest_url}` leads nowhere")));
        } else if let Some(anchor) = anchor
            && let Some(page) = tree.text(&target)
            && !anchors(page).iter().any(|known_anchor| known_anchor == anchor)
        {
            findings.push(Finding::new(path, line, format!("`{}` has no heading `#{anchor}`", target.display())));
        }
    }
    findings
}

/// Returns the target of `link` on the page `from`, relative to the tree's root; `None` if it is above the root.
fn resolve(from: &Path, link: &str) -> Option<PathBuf> {
    let mut target = PathBuf::new();
    for part in from.parent().unwrap_or(Path::new("")).join(link).components() {
        match part {
            Component::ParentDir if !target.pop() => return None,
            Component::ParentDir => {}
            Component::CurDir => {}
            other => target.push(other),
        }
    }
    Some(target)
}

/// Returns the anchors of a page's headings, as GitHub makes them: lower case, dashes for spaces, no punctuation.
pub(super) fn anchors(text: &str) -> Vec<String> {
    let mut anchors = Vec::new();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => anchors.extend(heading.take().map(|text| anchor(&text))),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let kept_letters = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept_letters.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn check_invariants(path: &Path, text: &str, tree: &Tree) -> Vec<Finding> {
    let rows: Vec<(usize, Vec<String>)> = invariant_rows(text);
    if rows.is_empty() {
        return vec![Finding::new(path, 0, format!("has no table under a heading `{INVARIANTS}`"))];
    }
    let tests = tree.test_names();
    let mut findings = Vec::new();
    for (line, names) in rows {
        if names.is_empty() {
            findings.push(Finding::new(path, line, "the invariant names no test that guards it"));
        }
        let missing = names.iter().filter(|name| !tests.contains(name.as_str()));
        findings.extend(missing.map(|name| Finding::new(path, line, format!("there is no test `{name}`"))));
    }
    findings
}

/// Returns the rows of the table of invariants: line, and the code words of the last cell.
fn invariant_rows(text: &str) -> Vec<(usize, Vec<String>)> {
    let lines = text.lines().enumerate();
    let section =
        lines.skip_while(|(_, line)| !(line.starts_with('#') && line.trim_start_matches(['#', ' ']) == INVARIANTS));
    let section = section.skip(1).take_while(|(_, line)| !line.starts_with('#'));
    let rows = section.filter(|(_, line)| line.starts_with('|')).skip(2);
    rows.map(|(line_idx, row)| {
        let last = row.trim().trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        (line_idx + 1, code_words(last))
    })
    .collect()
}

/// Returns the texts between backquotes in `text`.
fn code_words(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
