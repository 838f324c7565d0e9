//! `/openapi.json` of both listeners.
//!
//! The clients' document is made from the worker's types: a test of the worker writes it to
//! `router/openapi/clients.json` (`make pages`) and compares. The operators' document is written by hand.

use axum::http::header;
use axum::response::IntoResponse;

const CLIENTS: &str = include_str!("../../openapi/clients.json");
const OPERATORS: &str = include_str!("../../openapi/operators.json");
const JSON: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

/// Responds with the document for clients.
pub async fn clients() -> impl IntoResponse {
    (JSON, CLIENTS)
}

/// Responds with the document for operators.
pub async fn operators() -> impl IntoResponse {
    (JSON, OPERATORS)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Returns the paths of a function's routes, with those of health, in the document's spelling.
    fn routes(function: &str) -> Vec<String> {
        let body = |source: &str, name: &str| {
            let (_, rest) = source.split_once(&format!("fn {name}(")).expect("the function is there");
            rest.split_once("\n}\n").expect("it ends").0.to_owned()
        };
        let both = body(include_str!("../http.rs"), function) + &body(include_str!("health.rs"), "routes");
        let literals = both.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next());
        let mut paths: Vec<String> = literals.map(|path| path.replace("{*", "{")).collect();
        paths.sort();
        paths
    }

    #[test]
    fn every_route_is_in_a_document() {
        for (function, document) in [("client_routes", CLIENTS), ("admin_routes", OPERATORS)] {
            let document: Value = serde_json::from_str(document).expect("the document is JSON");
            let mut described: Vec<String> = document["paths"].as_object().expect("paths").keys().cloned().collect();
            // The catch-all's parameter has different names.
            described.iter_mut().for_each(|path| *path = path.replace("{model}", "{name}"));
            described.sort();
            let found = routes(function);
            assert!(found.len() > 4, "{found:?}");
            assert_eq!(described, found, "{function}");
        }
    }
}
