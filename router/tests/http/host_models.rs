//! The models of hosts in lists, and loads and unloads by hand, as in llama-server's router mode.

use serde_json::{Value, json};
use warmpath_common::host::{
    DOWNLOAD_PATH, FetchedBytes, HostModel, LOAD_PATH, ModelState, RELOAD_PATH, REMOVE_PATH, UNLOAD_PATH,
};
use warmpath_common::model::ModelInfo;

use crate::support::host::{FakeHost, impossible, loadable, loaded, loading};
use crate::support::keys::{KeyFile, key};
use crate::support::worker::{FakeWorker, model};
use crate::support::{TestRouter, config, error_of, eventually};

async fn ready(hosts: &[&FakeHost], flags: &[&str]) -> TestRouter {
    let urls: Vec<String> = hosts.iter().map(|host| host.url()).collect();
    let hosts = urls.iter().flat_map(|url| ["--host", url]);
    let flags: Vec<&str> = hosts.chain(flags.iter().copied()).collect();
    TestRouter::start_with(config(&[], &flags)).await.wait_until_ready().await
}

async fn statuses(router: &TestRouter, path: &str) -> Vec<(String, Value)> {
    let (status, list) = router.get(path).await;
    assert_eq!(status, 200, "{list}");
    let models = list["data"].as_array().expect("a list").iter();
    models.map(|model| (model["id"].as_str().expect("a name").to_owned(), model["status"].clone())).collect()
}

fn order(model: &str) -> String {
    json!({"model": model}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_every_model_of_the_catalogues_with_its_state_and_no_path() {
    let worker = FakeWorker::start(1);
    let mut tiny = HostModel::new("tiny", loaded(worker.url()));
    tiny.aliases = vec!["alias".to_owned()];
    let broken = impossible("failed to open /home/ann/c.gguf");
    let models =
        vec![tiny, HostModel::new("a", loadable()), HostModel::new("b", loading(None)), HostModel::new("c", broken)];
    let host = FakeHost::start(models);
    let router = ready(&[&host], &[]).await;
    eventually("it serves", || async { router.state_of(0).await == "ready" }).await;
    let value = |value: &str| json!({"value": value});
    let expected = [
        ("tiny", value("loaded")),
        ("alias", value("loaded")),
        ("a", value("unloaded")),
        ("b", json!({"value": "loading", "progress": 0.4})),
        ("c", json!({"value": "unloaded", "failed": true})),
    ];
    for path in ["/v1/models", "/models"] {
        let statuses = statuses(&router, path).await;
        assert_eq!(statuses, expected.clone().map(|(name, status)| (name.to_owned(), status)), "{path}");
    }
    assert!(!router.get("/models").await.1.to_string().contains("/home"));
    let (status, model) = router.get("/v1/models/a").await;
    assert_eq!((status, &model["id"], &model["status"]), (200, &json!("a"), &value("unloaded")));
    let (_, model) = router.get("/v1/models/b").await;
    assert_eq!(model["status"]["progress"], 0.4, "the chat page shows it");
    assert_eq!(router.get("/v1/models/x").await.0, 404);
    host.with(|script| script.summary.models_max = 3);
    eventually("it is told", || async { router.get("/props").await.1["max_instances"] == 3 }).await;
    assert_eq!(router.get("/props").await.1["models_autoload"], true);
    // Operators see what the host says.
    let fleet = router.fleet().await;
    assert_eq!(fleet["hosts"][0]["state"], "live");
    assert_eq!(fleet["hosts"][0]["models"][3]["reason"], "failed to open /home/ann/c.gguf");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_not_loaded_sleeps_and_a_look_at_its_properties_does_not_load_it() {
    let worker = FakeWorker::start(1);
    let host = FakeHost::start(vec![HostModel::new("tiny", loadable())]);
    let router = ready(&[&host], &["--wait", "600"]).await;
    for path in ["/props", "/props?model=tiny"] {
        let (status, props) = router.get(path).await;
        assert_eq!((status, &props["is_sleeping"], &props["model_alias"]), (200, &json!(true), &json!("tiny")));
    }
    assert!(host.demands().is_empty());
    host.set("tiny", loading(None));
    eventually("it wakes up", || async { router.get("/props").await.1["is_sleeping"] == false }).await;
    host.set("tiny", loaded(worker.url()));
    eventually("it serves", || async { router.get("/props?model=tiny").await.1["total_slots"] != 0 }).await;
    host.set("tiny", ModelState::Unloading { worker_url: worker.url() });
    eventually("it sleeps again", || async { router.get("/props").await.1["is_sleeping"] == true }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_sets_parameters_of_its_requests_at_the_worker_of_its_model() {
    let worker = FakeWorker::start(1);
    let names = vec!["tiny".to_owned(), "tiny:high".to_owned()];
    worker.with(|script| script.summary.snapshot.model = ModelInfo { names, ..model() });
    let fields = |fields: Value| fields.as_object().expect("fields").clone();
    let of_high = fields(json!({"temperature": 0.1, "seed": null, "chat_template_kwargs": {"effort": "high"}}));
    let set_params = [("tiny".to_owned(), fields(json!({"seed": 5}))), ("tiny:high".to_owned(), of_high)].into();
    let aliases = vec!["tiny:high".to_owned()];
    let tiny = HostModel { aliases, set_params, ..HostModel::new("tiny", loaded(worker.url())) };
    let host = FakeHost::start(vec![tiny]);
    let router = ready(&[&host], &[]).await;
    eventually("it serves", || async { router.state_of(0).await == "ready" }).await;
    let sent = async |path: &str, name: Option<&str>| {
        let mut body = json!({"messages": [{"role": "user", "content": "hello"}], "temperature": 0.9, "seed": 7});
        if let Some(name) = name {
            body["model"] = json!(name);
        }
        assert_eq!(router.post(path, body.to_string()).await.status(), 200);
        let seen = worker.seen().pop().expect("the worker was asked");
        serde_json::from_slice::<Value>(&seen.body).expect("JSON")
    };
    for path in ["/v1/chat/completions", "/v1/messages/count_tokens"] {
        let body = sent(path, Some("tiny:high")).await;
        assert_eq!((&body["temperature"], &body["model"]), (&json!(0.1), &json!("tiny:high")), "{path}");
        assert_eq!(body.get("seed"), None, "{path}");
        assert_eq!(body["chat_template_kwargs"]["effort"], "high", "{path}");
        assert_eq!(body["messages"][0]["content"], "hello", "{path}");
        for name in [Some("tiny"), None] {
            let body = sent(path, name).await;
            assert_eq!((&body["temperature"], &body["seed"]), (&json!(0.9), &json!(5)), "{path} {name:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_of_a_model_s_worker_needs_the_model_loaded_and_does_not_load_it_by_itself() {
    let worker = FakeWorker::start(1);
    let models = vec![HostModel::new("tiny", loaded(worker.url())), HostModel::new("a", loadable())];
    let host = FakeHost::start(models);
    let router = ready(&[&host], &["--wait", "600"]).await;
    eventually("it serves", || async { router.state_of(0).await == "ready" }).await;
    assert_eq!(router.get("/slots?model=tiny").await, (200, json!({"answer": 42})));
    let seen = worker.seen().pop().expect("the worker was asked");
    assert_eq!((seen.target.as_str(), seen.body.len()), ("/slots?model=tiny", 0));
    for (path, status, code) in [
        ("/slots?model=a", 400, "model_not_loaded"),
        ("/metrics?model=a", 400, "model_not_loaded"),
        ("/slots", 400, "model_required"),
        ("/slots?model=x", 404, "model_not_found"),
    ] {
        let (found, body) = router.get(path).await;
        assert_eq!((found, &body["error"]["code"]), (status, &json!(code)), "{path}");
    }
    assert!(host.demands().is_empty());
    let held = tokio::spawn(router.client.get(router.url("/slots?model=a&autoload=true")).send());
    eventually("it is demanded", || async { !host.demands().is_empty() }).await;
    held.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_loaded_and_unloaded_by_hand_at_their_hosts() {
    let worker = FakeWorker::start(1);
    let mut by_hand = HostModel::new("a", loadable());
    by_hand.is_autoloaded = false;
    let hosts = [
        FakeHost::start(vec![
            by_hand,
            HostModel::new("tiny", loaded(worker.url())),
            HostModel::new("c", impossible("no memory")),
        ]),
        FakeHost::start(vec![HostModel::new("tiny", loadable())]),
    ];
    let router = ready(&hosts.each_ref(), &[]).await;
    let post = async |path: &str, model: &str| router.post(path, order(model)).await;
    for (path, model, host_path) in [("/models/load", "a", LOAD_PATH), ("/models/unload", "tiny", UNLOAD_PATH)] {
        let response = post(path, model).await;
        assert_eq!(
            (response.status().as_u16(), response.text().await.expect("text").as_str()),
            (200, r#"{"success":true}"#)
        );
        assert_eq!(hosts[0].orders().last(), Some(&(host_path.to_owned(), order(model))));
    }
    assert!(hosts[1].orders().is_empty());
    for (path, model, status, message) in [
        ("/models/load", "tiny", 400, "the model `tiny` is already running"),
        ("/models/unload", "a", 400, "the model `a` is not running"),
        ("/models/load", "x", 404, "the model `x` does not exist"),
        ("/models/unload", "x", 404, "the model `x` does not exist"),
        ("/models/load", "c", 503, "no host can load the model `c`: no memory"),
    ] {
        let error = error_of(post(path, model).await, status).await;
        assert!(error["message"].as_str().is_some_and(|text| text.starts_with(message)), "{error}");
    }
    assert_eq!(error_of(router.post("/models/load", "{}").await, 400).await["param"], "model");
    // A host's refusal reaches the client without paths.
    hosts[0].with(|script| (script.refuses, script.reason) = (Some(500), "cannot start /opt/bin/worker"));
    let error = error_of(post("/models/load", "a").await, 502).await;
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!("host_failed"), &json!("the host refused: cannot start \u{2026}/worker"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_has_the_hosts_read_their_catalogues_before_the_list_is_made() {
    let host = FakeHost::start(vec![HostModel::new("a", loadable())]);
    let router = ready(&[&host], &[]).await;
    host.with(|script| script.reloaded = Some(vec![HostModel::new("b", loadable())]));
    assert_eq!(statuses(&router, "/models").await[0].0, "a");
    assert_eq!(statuses(&router, "/models?reload=1").await[0].0, "b");
    assert_eq!(host.orders(), [(RELOAD_PATH.to_owned(), String::new())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_downloaded_and_removed_by_a_host_and_listed_meanwhile() {
    let host = FakeHost::start(vec![HostModel::new("a", loadable())]);
    let router = ready(&[&host], &[]).await;
    let (name, bytes) = ("org/m:Q8_0", FetchedBytes { done_bytes: 3, total_bytes: 9 });
    let model = |state| HostModel { is_removable: true, ..HostModel::new(name, state) };
    let listed = vec![HostModel::new("a", loadable()), model(ModelState::Downloading(bytes))];
    host.with(|script| script.reloaded = Some(listed));
    let response = router.post("/models", order(name)).await;
    assert_eq!((response.status().as_u16(), response.text().await.expect("text")), (200, r#"{"success":true}"#.into()));
    assert_eq!(host.orders(), [(DOWNLOAD_PATH.to_owned(), order(name))]);
    let progress = json!({"value": "downloading", "progress": {name: {"done": 3, "total": 9}}});
    assert_eq!(statuses(&router, "/models").await[1], (name.to_owned(), progress));
    assert_eq!(router.get("/v1/models/org/m:Q8_0").await.1["can_remove"], true);
    assert_eq!(router.get("/v1/models/a").await.1["can_remove"], false);

    let remove = async |name: &str| router.client.delete(router.url(&format!("/models?model={name}"))).send().await;
    for (name, status, message) in [
        ("a", 400, "the model `a` cannot be removed: no order has downloaded it"),
        ("x", 404, "the model `x` does not exist"),
    ] {
        let error = error_of(remove(name).await.expect("the router answers"), status).await;
        assert!(error["message"].as_str().is_some_and(|text| text.starts_with(message)), "{error}");
    }
    host.with(|script| script.reloaded = Some(vec![HostModel::new("a", loadable())]));
    assert_eq!(remove(name).await.expect("the router answers").status(), 200);
    assert_eq!(host.orders().last(), Some(&(REMOVE_PATH.to_owned(), order(name))));
    assert_eq!(statuses(&router, "/models").await.len(), 1);
    // A host's refusal that is about the request is the client's.
    host.with(|script| (script.refuses, script.reason) = (Some(400), "`m` cannot be downloaded"));
    let error = error_of(router.post("/models", order("m")).await, 400).await;
    assert_eq!(error["message"], "the host refused: `m` cannot be downloaded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_has_events_for_its_progress_and_its_end() {
    let host = FakeHost::start(vec![HostModel::new("a", loadable())]);
    let router = ready(&[&host], &[]).await;
    let mut response = router.client.get(router.url("/models/sse")).send().await.expect("an answer");
    let mut text = String::new();
    let mut next = async || event(&mut response, &mut text).await;
    assert_eq!(next().await["model"], "a");
    let model = |name: &str, state| HostModel { is_removable: true, ..HostModel::new(name, state) };
    let at = |done_bytes| ModelState::Downloading(FetchedBytes { done_bytes, total_bytes: 9 });
    let progress =
        |done: u64| json!({"model": "m", "event": "download_progress", "data": {"m": {"done": done, "total": 9}}});
    let status = |model: &str, data: Value| json!({"model": model, "event": "model_status", "data": data});
    host.with(|script| script.summary.models.push(model("m", at(0))));
    assert_eq!(next().await, status("m", json!({"status": "downloading"})));
    assert_eq!(next().await, progress(0));
    assert_eq!(next().await["event"], "models_reload");
    host.set("m", at(5));
    assert_eq!(next().await, progress(5));
    host.set("m", loadable());
    assert_eq!(next().await, json!({"model": "m", "event": "download_finished"}));
    assert_eq!(next().await, status("m", json!({"status": "unloaded"})));
    // One that is over before it was seen, and one that fails.
    host.with(|script| script.summary.models.push(model("n", loadable())));
    assert_eq!(next().await, json!({"model": "n", "event": "download_finished"}));
    assert_eq!(next().await, status("n", json!({"status": "unloaded"})));
    assert_eq!(next().await["event"], "models_reload");
    host.set("n", at(1));
    assert_eq!(next().await["data"]["status"], "downloading");
    assert_eq!(next().await["event"], "download_progress");
    host.set("n", impossible("no such repository"));
    assert_eq!(next().await, json!({"model": "n", "event": "download_failed"}));
    assert_eq!(next().await["data"]["failed"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_key_with_admin_or_the_admin_listener_gives_orders() {
    let host = FakeHost::start(vec![HostModel::new("a", loadable())]);
    let ((plain, first), (boss, second)) = (key("plain", ""), key("boss", "admin = true"));
    let file = KeyFile::new(&(first + &second));
    let router = ready(&[&host], &file.flags()).await;
    let send = async |method: reqwest::Method, path: &str, key: &str| {
        let request = router.client.request(method, router.url(path)).bearer_auth(key).body(order("a"));
        request.send().await.expect("the router answers")
    };
    for (method, path) in [
        (reqwest::Method::POST, "/models/load"),
        (reqwest::Method::POST, "/models/unload"),
        (reqwest::Method::GET, "/models?reload=1"),
        (reqwest::Method::POST, "/models"),
        (reqwest::Method::DELETE, "/models?model=a"),
        (reqwest::Method::GET, "/slots?model=a"),
    ] {
        let error = error_of(send(method, path, &plain).await, 403).await;
        assert_eq!(error["code"], "admin_key_required", "{path}");
    }
    assert!(host.orders().is_empty());
    assert_eq!(send(reqwest::Method::GET, "/models", &plain).await.status(), 200);
    assert_eq!(send(reqwest::Method::POST, "/models/load", &boss).await.status(), 200);
    let admin = format!("http://{}/models/load", router.server.admin_address);
    let response = router.client.post(admin).body(order("a")).send().await.expect("the router answers");
    assert_eq!(response.status(), 200);
    assert_eq!(host.orders().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_limited_to_models_sees_and_loads_no_other() {
    let host = FakeHost::start(vec![HostModel::new("a", loadable()), HostModel::new("b", loadable())]);
    let (limited, entry) = key("limited", "models = [\"a\"]\nadmin = true");
    let file = KeyFile::new(&entry);
    let router = ready(&[&host], &file.flags()).await;
    let get = async |path: &str| {
        router.client.get(router.url(path)).bearer_auth(&limited).send().await.expect("the router answers")
    };
    let post = async |path: &str, body: Value| {
        let request = router.client.post(router.url(path)).bearer_auth(&limited).body(body.to_string());
        request.send().await.expect("the router answers")
    };
    let list: Value = get("/v1/models").await.json().await.expect("JSON");
    let ids: Vec<_> = list["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["a"]);

    let chat = |model: &str| json!({"model": model, "messages": [{"role": "user", "content": "hello"}]});
    for response in [
        get("/v1/models/b").await,
        get("/props?model=b").await,
        post("/models/load", json!({"model": "b"})).await,
        post("/models", json!({"model": "b"})).await,
        get("/slots?model=b").await,
        post("/v1/chat/completions", chat("b")).await,
        post("/v1/chat/completions", chat("nowhere")).await,
        post("/v1/embeddings", json!({"model": "b", "input": "hello"})).await,
        post("/tokenize", json!({"model": "b", "content": "hello"})).await,
    ] {
        let error = error_of(response, 403).await;
        assert_eq!(error["code"], "model_forbidden", "{error}");
    }
    let nameless = json!({"messages": [{"role": "user", "content": "hello"}]});
    let error = error_of(post("/v1/chat/completions", nameless).await, 400).await;
    assert!(error["message"].as_str().is_some_and(|message| message.ends_with(": `a`")), "{error}");
    assert!(host.orders().is_empty(), "nothing is loaded: {:?}", host.orders());

    assert_eq!(post("/models/load", json!({"model": "a"})).await.status(), 200);
}

/// Returns the next event of a stream, without comments.
async fn event(response: &mut reqwest::Response, text: &mut String) -> Value {
    loop {
        if let Some((event, rest)) = text.clone().split_once("\n\n") {
            *text = rest.to_owned();
            if let Some(data) = event.strip_prefix("data: ") {
                return serde_json::from_str(data).expect("JSON");
            }
            continue;
        }
        let piece = response.chunk().await.expect("the stream goes on").expect("it has not ended");
        text.push_str(std::str::from_utf8(&piece).expect("text"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_states_begins_with_all_of_them_and_ends_with_the_router() {
    let host = FakeHost::start(vec![HostModel::new("a", loadable()), HostModel::new("b", loadable())]);
    let router = ready(&[&host], &["--drain-timeout", "600"]).await;
    let mut response = router.client.get(router.url("/models/sse")).send().await.expect("an answer");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    let mut next = async || event(&mut response, &mut text).await;
    let status = |model: &str, data: Value| json!({"model": model, "event": "model_status", "data": data});
    assert_eq!(next().await, status("a", json!({"status": "unloaded"})));
    assert_eq!(next().await, status("b", json!({"status": "unloaded"})));
    host.set("a", loading(None));
    let progress = json!({"stages": ["text_model"], "current": "text_model", "value": 0.4});
    assert_eq!(next().await, status("a", json!({"status": "loading", "progress": progress})));
    host.set("a", loaded("http://127.0.0.1:9".to_owned()));
    assert_eq!(next().await, status("a", json!({"status": "loaded"})));
    host.set("a", impossible("no"));
    assert_eq!(next().await, status("a", json!({"status": "unloaded", "failed": true})));
    host.with(|script| drop(script.summary.models.remove(1)));
    assert_eq!(next().await, json!({"model": "b", "event": "model_remove"}));
    assert_eq!(next().await, json!({"model": "*", "event": "models_reload"}));
    router.server.stop().await;
    assert!(response.chunk().await.expect("it ends well").is_none());
}
