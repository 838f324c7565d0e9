//! Kinds of tools by who runs them: functions and custom tools are the client's, all others are left out of a chat.

use serde_json::Value;

use super::custom_tools::CUSTOM;

/// Kinds of tools that neither router nor worker runs, and kinds whose calls have a form that only the API owner's
/// models know.
///
/// Source: the tools in OpenAI's and Anthropic's API references, without versions (`web_search_20250305`) and variants
/// (`web_search_preview`). `local_shell`, `shell`, `apply_patch` and `computer` may be run by the client, but have
/// their own types of call items. Of `tool_search`, the one that the client runs is a function.
pub const LEFT_OUT_KINDS: &[&str] = &[
    "advisor",
    "apply_patch",
    "browser_toolset",
    "code_execution",
    "code_interpreter",
    "computer",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "program",
    "programmatic_tool_calling",
    "shell",
    TOOL_SEARCH,
    "web_fetch",
    "web_search",
];

/// Kind of the tools that find others.
pub const TOOL_SEARCH: &str = "tool_search";

/// Kind of all other tools that are left out. Their types are open-ended, and so is what clients write.
pub(crate) const OTHER_KIND: &str = "other";

/// Returns the left-out kind to which the type of a tool or an item belongs; `None` where it belongs to none.
pub(crate) fn left_out_kind(name: &str) -> Option<&'static str> {
    let is_of =
        |kind: &&&str| name.strip_prefix(**kind).is_some_and(|version| version.is_empty() || version.starts_with('_'));
    LEFT_OUT_KINDS.iter().find(is_of).copied()
}

/// Returns the kind to which the type of a tool or an item belongs if it is left out.
pub(crate) fn kind_left_out(name: &str) -> &'static str {
    left_out_kind(name).unwrap_or(OTHER_KIND)
}

/// Returns the kind of a chat's tool if it is left out: neither a function nor a custom tool.
pub fn left_out_of_chat(tool: &Value) -> Option<&'static str> {
    let kind = tool.get("type")?.as_str()?;
    (kind != "function" && kind != CUSTOM).then(|| kind_left_out(kind))
}

/// Makes a chat's tool of another type a function if it has a function's schema: its client runs it.
pub(crate) fn name_function(tool: &mut Value) {
    let has_schema = tool.get("function").is_some_and(|function| function["parameters"].is_object());
    if has_schema && left_out_of_chat(tool).is_some() {
        tool["type"] = "function".into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_are_found_with_any_version_or_variant() {
        for (name, kind) in [
            ("web_search", Some("web_search")),
            ("web_search_preview_2025_03_11", Some("web_search")),
            ("web_search_20250305", Some("web_search")),
            ("computer_use_preview", Some("computer")),
            ("mcp_toolset", Some("mcp")),
            ("local_shell_call_output", Some("local_shell")),
            ("tool_search_tool_bm25_20251119", Some("tool_search")),
            ("web_searcher", None),
            ("function", None),
            ("custom", None),
            ("program_output", Some("program")),
            ("", None),
        ] {
            assert_eq!(left_out_kind(name), kind, "{name}");
        }
    }

    #[test]
    fn a_chat_s_tool_of_another_type_is_a_function_if_it_has_a_schema_and_else_left_out() {
        let mut tool = json!({"type": "web_search_20990101", "function": {"name": "f"}});
        name_function(&mut tool);
        assert_eq!(left_out_of_chat(&tool), Some("web_search"));
        assert_eq!(left_out_of_chat(&json!({"type": "unheard_of"})), Some("other"));
        tool["function"]["parameters"] = json!({"type": "object"});
        name_function(&mut tool);
        assert_eq!((&tool["type"], left_out_of_chat(&tool)), (&json!("function"), None));
        assert_eq!(left_out_of_chat(&json!({"type": "custom"})), None);
        assert_eq!([json!({}), json!({"type": 1}), json!("web_search")].each_ref().map(left_out_of_chat), [None; 3]);
    }
}
