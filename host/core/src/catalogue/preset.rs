//! The text of a preset file: sections of keys and values, as llama.cpp's INI files have them.
//!
//! A comment begins with `;` or `#`, at the start of a line or after white space. A value is the rest of its line.

use super::CatalogueError;

/// Section whose keys count for every model.
pub const EVERY_MODEL: &str = "*";

/// Only version of the format. Source: llama.cpp's README.
const VERSION: &str = "1";

/// Section of a preset file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Name of a model, or [`EVERY_MODEL`].
    pub name: String,
    /// Its lines.
    pub settings: Vec<Setting>,
}

impl Section {
    /// Returns the value of a key.
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|setting| setting.key == key).map(|setting| setting.value.as_str())
    }
}

/// Line of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Flag without its dashes, or the name of one of llama-server's variables.
    pub key: String,
    /// Value.
    pub value: String,
}

/// Returns the sections of a preset file, in its order.
///
/// Errors: `Syntax`, `SectionTwice`, `Version`, and `Setting` for a key that is set twice.
pub fn parse(file: &str, text: &str) -> Result<Vec<Section>, CatalogueError> {
    let mut sections: Vec<Section> = Vec::new();
    for (line_idx, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = without_comment(line).trim();
        let wrong = || CatalogueError::Syntax { file: file.to_owned(), line: line_idx + 1 };
        if line.is_empty() {
            continue;
        }
        // `[NAME]` begins a section.
        if let Some(name) = line.strip_prefix('[') {
            let name = name.strip_suffix(']').map(str::trim).filter(|name| !name.is_empty()).ok_or_else(wrong)?;
            if sections.iter().any(|section| section.name == name) {
                return Err(CatalogueError::SectionTwice { file: file.to_owned(), section: name.to_owned() });
            }
            sections.push(Section { name: name.to_owned(), settings: Vec::new() });
            continue;
        }
        // `KEY = VALUE` belongs to the section that began last; before the first one stands only the version.
        let (key, value) = line.split_once('=').ok_or_else(wrong)?;
        let (key, value) = (key.trim().trim_start_matches('-'), value.trim());
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(wrong());
        }
        match sections.last_mut() {
            Some(Section { name, settings }) => {
                if settings.iter().any(|setting| setting.key == key) {
                    let reason = "it is set twice; several values stand on one line, with commas".to_owned();
                    let (file, section, key) = (file.to_owned(), name.clone(), key.to_owned());
                    return Err(CatalogueError::Setting { file, section, key, reason });
                }
                settings.push(Setting { key: key.to_owned(), value: value.to_owned() });
            }
            None if key == "version" && value == VERSION => {}
            None if key == "version" => return Err(CatalogueError::Version { file: file.to_owned() }),
            None => return Err(wrong()),
        }
    }
    Ok(sections)
}

fn without_comment(line: &str) -> &str {
    let mut previous_char = ' ';
    for (at, character) in line.char_indices() {
        if [';', '#'].contains(&character) && previous_char.is_whitespace() {
            return &line[..at];
        }
        previous_char = character;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sections_comments_and_values_with_equals_signs() {
        let text = "version = 1\n; comment\n[*]\nc = 8192\n# comment\n[a/b:Q8_0]\n--jinja=true\nx = a=b#c;d ; e\n";
        let sections = parse("p.ini", text).expect("a preset");
        let setting = |key: &str, value: &str| Setting { key: key.to_owned(), value: value.to_owned() };
        let every = Section { name: "*".to_owned(), settings: vec![setting("c", "8192")] };
        let settings = vec![setting("jinja", "true"), setting("x", "a=b#c;d")];
        assert_eq!(sections, [every, Section { name: "a/b:Q8_0".to_owned(), settings }]);
        assert_eq!(parse("p.ini", "").expect("an empty preset"), []);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let check = |text: &str, expected: &str| {
            let error = parse("p.ini", text).expect_err("no preset").to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        };
        check("[a]\nc 8192", "p.ini, line 2: ");
        check("[]", "p.ini, line 1: ");
        check("[a", "p.ini, line 1: ");
        check("[a]\n= 3", "p.ini, line 2: ");
        check("c = 3\n[a]", "p.ini, line 1: ");
        check("version = 2", "p.ini: ");
        check("[a]\n[b]\n[a]", "p.ini: section [a] ");
        check("[a]\nc = 1\nc = 2", "p.ini, section [a], key `c`: it is set twice");
    }
}
