//! Map from the field names of a chat back to those that the client wrote.
//!
//! The conversions in the parent module changed the names. The checks of a chat know no dialects; their messages are
//! rewritten with the client's field names, so each check is written once.

/// Map from the field names of a chat to those of a dialect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spelling {
    /// Fields with another name in the dialect; longer names come before their own prefixes.
    renamed: &'static [RenamedField],
    /// Name that the dialect gives to the schema of a tool's arguments; empty if it writes tools as a chat does.
    tool_schema: &'static str,
    /// Path of each of the chat's messages in the dialect's body.
    messages: Vec<String>,
    /// Path of each of the chat's tools in the dialect's body.
    tools: Vec<String>,
}

/// A field of a chat that has another name in a dialect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RenamedField {
    pub chat: &'static str,
    pub dialect: &'static str,
}

/// Returns the field that a chat calls `chat` and the dialect calls `dialect`.
pub(super) const fn renamed(chat: &'static str, dialect: &'static str) -> RenamedField {
    RenamedField { chat, dialect }
}

/// Paths in a dialect's body that a chat's messages and tools come from.
#[derive(Debug, Default)]
pub(super) struct Origins {
    pub messages: Vec<String>,
    pub tools: Vec<String>,
}

impl Spelling {
    /// Returns the map of a dialect for a chat whose messages and tools come from these paths.
    pub(super) fn new(renamed_fields: &'static [RenamedField], tool_schema: &'static str, origins: Origins) -> Self {
        let Origins { messages, tools } = origins;
        Self { renamed: renamed_fields, tool_schema, messages, tools }
    }

    /// Returns the dialect's name of a chat's field.
    pub fn param(&self, param: &str) -> String {
        if let Some(origin) = self.message(param) {
            return origin.to_owned();
        }
        if let Some(tool) = self.tool(param) {
            return tool;
        }
        let dialect_name =
            self.renamed.iter().find_map(|field| Some(format!("{}{}", field.dialect, below(param, field.chat)?)));
        dialect_name.unwrap_or_else(|| param.to_owned())
    }

    /// Returns an error message about a chat's field with the dialect's names.
    pub fn text(&self, text: &str, param: &str) -> String {
        let name = self.param(param);
        if name == param {
            return text.to_owned();
        }
        let text = text.replace(&format!("`{param}`"), &format!("`{name}`"));
        match text.strip_prefix(param) {
            Some(behind) if behind.starts_with(':') => format!("{name}{behind}"),
            _ => text,
        }
    }

    fn message(&self, param: &str) -> Option<&str> {
        let (idx, _) = param.strip_prefix("messages[")?.split_once(']')?;
        self.messages.get(idx.parse::<usize>().ok()?).map(String::as_str)
    }

    /// Returns the path of a tool's field. Messages and responses write a tool's name and schema without OpenAI's
    /// `function` around them.
    fn tool(&self, param: &str) -> Option<String> {
        if self.tool_schema.is_empty() {
            return None;
        }
        let (idx, field) = param.strip_prefix("tools[")?.split_once(']')?;
        let field = below(field, ".function").unwrap_or(field);
        let field = match below(field, ".parameters") {
            Some(field) => format!(".{}{field}", self.tool_schema),
            None => field.to_owned(),
        };
        let origin = idx.parse::<usize>().ok().and_then(|idx| self.tools.get(idx));
        Some(origin.map_or_else(|| format!("tools[{idx}]{field}"), |origin| format!("{origin}{field}")))
    }
}

/// Returns the part of a path after the field `name`; `None` where the path leads elsewhere.
fn below<'p>(path: &'p str, name: &str) -> Option<&'p str> {
    path.strip_prefix(name).filter(|behind| behind.is_empty() || behind.starts_with(['.', '[']))
}
