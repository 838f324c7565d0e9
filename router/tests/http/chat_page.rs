//! The chat page from outside: its files, and who gets them.
//!
//! Not here: the page as a reader uses it (`tests/tests/system/chat_page.rs`, in Chromium).

use crate::support::keys::{KeyFile, key};
use crate::support::worker::FakeWorker;
use crate::support::{TestRouter, fleet_of_one, header};

#[tokio::test(flavor = "multi_thread")]
async fn the_chat_page_is_served_without_a_key_and_may_load_nothing_from_elsewhere() {
    let worker = FakeWorker::start(1);
    let file = KeyFile::new(&key("a", "").1);
    let router = TestRouter::ready(&[&worker], &[&file.flags()[..], &["--ui"]].concat()).await;
    for (path, kind) in
        [("/", "text/html"), ("/chat", "text/html"), ("/chat.css", "text/css"), ("/chat.js", "text/javascript")]
    {
        let response = router.client.get(router.url(path)).send().await.expect("an answer");
        assert_eq!(response.status(), 200, "{path}");
        let policy = header(&response, "content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"),
            "{policy}"
        );
        assert!(header(&response, "content-type").starts_with(kind), "{path}");
        assert_eq!(header(&response, "x-content-type-options"), "nosniff", "{path}");
    }
    assert_eq!(router.get("/v1/models").await.0, 401, "its requests need a key");
    let request = router.client.get(router.url("/chat")).header("host", "attacker.example");
    let response = request.send().await.expect("an answer");
    assert_ne!(response.status(), 200, "another host's name");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_flag_there_is_no_chat_page() {
    let (_worker, router) = fleet_of_one().await;
    for path in ["/", "/chat", "/chat.css", "/chat.js"] {
        assert_eq!(router.get(path).await.0, 404, "{path}");
    }
}
