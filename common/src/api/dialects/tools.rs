//! The tools of a dialect as functions of a chat, and the map from a function's name back to the tool that the client
//! knows.
//!
//! Each tool that the client runs becomes a function with a unique name. A tool that only the API's owner runs is left
//! out by its kind, because agents list such tools in every request.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::DialectError;
use super::field::{Object, unsupported, wrong};
use crate::api::openai::deferred_tools::{DEFER_LOADING, is_deferred};
use crate::api::openai::tool_kinds::TOOL_SEARCH;

/// Text between a namespace and a name in a function's name.
///
/// Source: the names that agents give to the tools of MCP servers (`mcp__SERVER__TOOL`).
const JOINT: &str = "__";

/// A tool as its client knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tool {
    /// Group that the tool belongs to.
    pub namespace: Option<String>,
    /// Name within the group.
    pub name: String,
    /// Form of its calls.
    pub form: CallForm,
}

/// Form of the calls of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallForm {
    /// Arguments as a JSON object.
    Function,
    /// One free text, which the chat's function takes as its argument
    /// [`FREE_TEXT`](crate::api::openai::custom_tools::FREE_TEXT).
    Custom,
    /// A search for tools that the client runs, with arguments as a JSON object.
    ToolSearch,
}

/// Time from which on a tool is offered to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loading {
    /// The start of the conversation.
    Immediate,
    /// The place where the conversation loads it.
    Deferred,
}

/// Tools of a request, by the names of their functions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolNames {
    by_function: HashMap<String, Tool>,
    left_out: Vec<&'static str>,
}

impl ToolNames {
    /// Returns the tool whose function has this name.
    pub fn tool(&self, function: &str) -> Option<&Tool> {
        self.by_function.get(function)
    }

    /// Returns the kinds of tools that were left out, without duplicates.
    pub fn left_out(&self) -> &[&'static str] {
        &self.left_out
    }
}

/// Tools of a request while they are read.
#[derive(Debug, Default)]
pub(super) struct Listing {
    functions: Vec<Value>,
    origins: Vec<String>,
    names: ToolNames,
    function_names: HashMap<Tool, String>,
    /// Number of its first functions that are in the request's list; the conversation brings all others.
    n_listed: usize,
    is_search_left_out: bool,
}

/// Definition of a tool in a request.
pub(super) enum Definition {
    /// Its kind is left out.
    LeftOut(&'static str),
    /// A tool that the client runs: a function with these fields beside its name. `path` is its place in the body.
    Function { tool: Tool, loading: Loading, fields: Map<String, Value>, path: String },
}

impl Listing {
    /// Adds a tool of the request's list.
    pub fn list(&mut self, definition: Definition) {
        match definition {
            Definition::LeftOut(kind) => {
                self.is_search_left_out |= kind == TOOL_SEARCH;
                self.leave_out(kind);
            }
            Definition::Function { tool, loading, fields, path } => self.add(tool, loading, fields, path),
        }
    }

    /// Adds a tool that the conversation brings and returns the name of its function; `None` if it is left out. A later
    /// definition replaces an earlier one, but not one of the request's list.
    pub fn define(&mut self, definition: Definition) -> Option<String> {
        match definition {
            Definition::LeftOut(kind) => {
                self.leave_out(kind);
                None
            }
            Definition::Function { tool, fields, path, .. } => Some(self.define_function(tool, fields, path)),
        }
    }

    /// Adds a tool as a function with these fields beside its name; `origin` is its path in the body.
    fn add(&mut self, tool: Tool, loading: Loading, fields: Map<String, Value>, origin: String) {
        let name = self.function_name(&tool);
        self.functions.push(function(&name, loading, fields));
        self.origins.push(origin);
        self.names.by_function.insert(name.clone(), tool.clone());
        self.function_names.insert(tool, name);
        self.n_listed = self.functions.len();
    }

    fn define_function(&mut self, tool: Tool, fields: Map<String, Value>, origin: String) -> String {
        let name = self.function_name(&tool);
        let place = self.functions.iter().position(|function| function["function"]["name"] == name.as_str());
        match place {
            Some(idx) if idx < self.n_listed => {}
            Some(idx) => self.functions[idx] = function(&name, Loading::Deferred, fields),
            None => {
                let n_listed = self.n_listed;
                self.add(tool, Loading::Deferred, fields, origin);
                self.n_listed = n_listed;
            }
        }
        name
    }

    /// Returns whether tools of the list wait until the conversation loads them. They do not if the request lists a
    /// search that its API's owner runs, since nobody would load them here.
    pub fn has_waiting(&self) -> bool {
        !self.is_search_left_out && self.functions[..self.n_listed].iter().any(is_deferred)
    }

    /// Returns whether the list has tools, and all of them wait.
    pub fn is_all_deferred(&self) -> bool {
        let listed_functions = &self.functions[..self.n_listed];
        self.names.left_out.is_empty() && !listed_functions.is_empty() && listed_functions.iter().all(is_deferred)
    }

    /// Returns the search for tools that the client runs, if the list has one.
    pub fn client_search(&self) -> Option<&Tool> {
        self.names.by_function.values().find(|tool| tool.form == CallForm::ToolSearch)
    }

    /// Records a tool that is left out.
    pub fn leave_out(&mut self, kind: &'static str) {
        if !self.names.left_out.contains(&kind) {
            self.names.left_out.push(kind);
        }
    }

    /// Returns the unique name of a tool's function, whether or not the tool is listed.
    pub fn function_name(&self, tool: &Tool) -> String {
        if let Some(name) = self.function_names.get(tool) {
            return name.clone();
        }
        let mut name = match &tool.namespace {
            None => tool.name.clone(),
            Some(namespace) if namespace.ends_with(JOINT) => format!("{namespace}{}", tool.name),
            Some(namespace) => format!("{namespace}{JOINT}{}", tool.name),
        };
        while self.names.by_function.contains_key(&name) {
            name.push('_');
        }
        name
    }

    /// Refuses a choice that requires a call if every tool was left out.
    ///
    /// Errors: `Unsupported`.
    pub fn check_any(&self, path: &str) -> Result<(), DialectError> {
        if self.functions.is_empty() && !self.names.left_out.is_empty() {
            return Err(unsupported(path, format!("requires a call, but {}", self.absence())));
        }
        Ok(())
    }

    /// Refuses a choice that names an unlisted tool if any tool was left out, since it may be one of those.
    ///
    /// Errors: `Unsupported`.
    pub fn check_named(&self, tool: &Tool, path: &str) -> Result<(), DialectError> {
        if !self.function_names.contains_key(tool) && !self.names.left_out.is_empty() {
            return Err(unsupported(path, format!("names a tool that is not listed: {}", self.absence())));
        }
        Ok(())
    }

    /// Returns the functions, the path of each in the body, and the map back from their names.
    pub fn finish(mut self) -> (Vec<Value>, Vec<String>, ToolNames) {
        if self.is_search_left_out {
            for function in &mut self.functions[..self.n_listed] {
                function.as_object_mut().map(|function| function.shift_remove(DEFER_LOADING));
            }
        }
        (self.functions, self.origins, self.names)
    }

    fn absence(&self) -> String {
        format!("tools of these types are not run here and were left out: {}", self.names.left_out.join(", "))
    }
}

/// Returns the chat's tool for a function with these fields beside its name.
fn function(name: &str, loading: Loading, fields: Map<String, Value>) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    function.extend(fields);
    let mut tool = json!({"type": "function", "function": function});
    if loading == Loading::Deferred {
        tool[DEFER_LOADING] = true.into();
    }
    tool
}

/// Takes out whether a tool waits.
pub(super) fn take_loading(tool: &mut Object) -> Result<Loading, DialectError> {
    match tool.take(DEFER_LOADING).map(|field| (field.value, field.path)) {
        None | Some((Value::Bool(false), _)) => Ok(Loading::Immediate),
        Some((Value::Bool(true), _)) => Ok(Loading::Deferred),
        Some((_, path)) => Err(wrong(&path, "must be true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(namespace: Option<&str>, name: &str) -> Tool {
        Tool { namespace: namespace.map(str::to_owned), name: name.to_owned(), form: CallForm::Function }
    }

    fn listing(tools: &[Tool]) -> Listing {
        let mut listing = Listing::default();
        tools.iter().for_each(|tool| listing.add(tool.clone(), Loading::Immediate, Map::new(), String::new()));
        listing
    }

    #[test]
    fn each_tool_has_a_unique_name_and_is_found_by_it() {
        let tools = [
            tool(None, "a__b"),
            tool(Some("a"), "b"),
            tool(Some("a__"), "b"),
            tool(Some("mcp__x__"), "f"),
            tool(Some("y"), "f"),
            tool(None, "f"),
            Tool { form: CallForm::Custom, ..tool(None, "f") },
        ];
        let listing = listing(&tools);
        let names: Vec<_> = tools.iter().map(|tool| listing.function_name(tool)).collect();
        assert_eq!(names, ["a__b", "a__b_", "a__b__", "mcp__x__f", "y__f", "f", "f_"]);
        assert_eq!(listing.function_name(&tool(Some("z"), "f")), "z__f", "a tool that is no longer listed");
        let (functions, _, found) = listing.finish();
        for ((name, tool), function) in names.iter().zip(&tools).zip(functions) {
            assert_eq!((found.tool(name), &function["function"]["name"]), (Some(tool), &json!(name)));
        }
        assert_eq!(found.tool("z__f"), None);
    }

    #[test]
    fn a_tool_that_is_listed_twice_keeps_its_name() {
        let (functions, _, _) = listing(&[tool(None, "f"), tool(None, "f")]).finish();
        assert_eq!(functions[0], functions[1], "so that the chat's own check finds it");
    }
}
