//! Tests of the document alone; `worker/tests/http/document.rs` compares it with a worker.

use super::*;

/// Returns the paths that a file's routes name, as a document spells them.
fn routes(source: &str) -> Vec<String> {
    let literals = source.split(".route(").skip(1).filter_map(|rest| rest.split([',', ')']).next());
    let path = |literal: &str| match literal.trim() {
        "SNAPSHOT_PATH" => warmpath_common::summary::SNAPSHOT_PATH.to_owned(),
        "STREAM_PATH" => warmpath_common::summary::STREAM_PATH.to_owned(),
        "VOCABULARY_PATH" => warmpath_common::summary::VOCABULARY_PATH.to_owned(),
        "MEDIA_LAYOUT_PATH" => warmpath_common::media::MEDIA_LAYOUT_PATH.to_owned(),
        "KV_PATH" => warmpath_common::summary::KV_PATH.to_owned(),
        quoted => quoted.trim_matches('"').replace("{*", "{"),
    };
    let mut paths: Vec<String> = literals.map(path).collect();
    paths.sort();
    paths
}

#[test]
fn every_route_is_in_the_document() {
    let document = document(DescribedServer::Worker);
    let mut described: Vec<String> = document["paths"].as_object().expect("paths").keys().cloned().collect();
    described.sort();
    let found = routes(include_str!("../../http.rs"));
    assert!(found.len() > 20, "{found:?}");
    assert_eq!(described, found);
}

#[test]
fn every_reference_has_a_target_and_ids_are_unique() {
    for server in [DescribedServer::Worker, DescribedServer::Router] {
        let document = document(server);
        for name in references(&document) {
            assert!(document["components"]["schemas"][&name].is_object(), "{name}");
        }
        let paths = document["paths"].as_object().expect("paths");
        let operations = paths.values().flat_map(|path| path.as_object().expect("a path").values());
        let mut ids: Vec<&str> =
            operations.map(|operation| operation["operationId"].as_str().expect("an id")).collect();
        let n = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), n);
    }
}
