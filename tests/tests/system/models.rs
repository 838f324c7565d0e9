//! `warmpath host`, and `warmpath serve` with several models: two models on one machine, with room for one.
//!
//! Not here: what is loaded when (`swaps` in the core).

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use warmpath_bench::client::{Answer, ChatClient, Message};
use warmpath_bench::fleet::free_addresses;
use warmpath_bench::model::Preset;
use warmpath_common::host::{
    DEMAND_PATH, Demand, EVENTS_PATH, HostModel, HostSummary, LOAD_PATH, MemoryProjection, ModelName, ModelState, RAM,
    RELOAD_PATH, SUMMARY_PATH, UNLOAD_PATH,
};
use warmpath_tests::rig::{bin_dir, made_model, poll_until};

/// Longest time until a host reaches the state for which a test waits.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A running host of the models `a` and `b`, of which one is loaded at a time.
pub struct Host {
    child: Child,
    pub url: String,
    http: reqwest::Client,
    pub dir: tempfile::TempDir,
}

impl Host {
    pub async fn start(further_preset: &str) -> anyhow::Result<Self> {
        Self::start_with(tempfile::tempdir()?, further_preset, &[]).await
    }

    /// Starts a host with the KV state of an earlier one.
    async fn start_in(dir: tempfile::TempDir, further_preset: &str) -> anyhow::Result<Self> {
        Self::start_with(dir, further_preset, &[]).await
    }

    /// Starts a host in a folder with these environment variables.
    pub async fn start_with(
        dir: tempfile::TempDir,
        further_preset: &str,
        variables: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let listen = free_addresses::<1>()?[0].to_string();
        let mut command = warmpath("host", dir.path(), further_preset)?;
        command.args(["--host-listen", &listen]).envs(variables.iter().copied());
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).spawn()?;
        let http = reqwest::Client::builder().no_proxy().timeout(DEADLINE).build()?;
        let host = Self { child, url: format!("http://{listen}"), http, dir };
        host.until("it answers", async |_| Some(())).await?;
        Ok(host)
    }

    pub async fn summary(&self) -> anyhow::Result<HostSummary> {
        Ok(self.http.get(format!("{}{SUMMARY_PATH}", self.url)).send().await?.error_for_status()?.json().await?)
    }

    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<reqwest::Response> {
        Ok(self.http.post(format!("{}{path}", self.url)).json(body).send().await?)
    }

    /// Waits until the summary has what is looked for.
    pub async fn until<T>(&self, what: &str, look: impl AsyncFn(&HostSummary) -> Option<T>) -> anyhow::Result<T> {
        let found = poll_until(DEADLINE, async || look(&self.summary().await.ok()?).await).await;
        found.with_context(|| format!("{what} never happened"))
    }

    pub async fn state(&self, model: &str) -> anyhow::Result<ModelState> {
        Ok(self.summary().await?.model(model).context("it is listed")?.state.clone())
    }

    /// Demands a model, as a router does, until it is loaded; returns its worker's URL.
    async fn loaded(&self, model: &str) -> anyhow::Result<String> {
        let demand = demand(model);
        let demand = async |_: &HostSummary| {
            let model: HostModel = self.post(DEMAND_PATH, &demand).await.ok()?.json().await.ok()?;
            match model.state {
                ModelState::Loaded { worker_url, .. } => Some(worker_url),
                _ => None,
            }
        };
        self.until("the load", demand).await
    }

    pub async fn ask(&self, model: &str, messages: &[Message]) -> anyhow::Result<Answer> {
        let client = ChatClient::new(&self.loaded(model).await?, Some(model.to_owned()))?;
        client.ask(messages, 8).await
    }

    /// Kills a worker, as a crash would.
    async fn crash(&self, model: &str) -> anyhow::Result<()> {
        let id = self.child.id().context("it has ended")?.to_string();
        let listed = Command::new("ps").args(["-o", "pid=", "--ppid", &id]).output().await?;
        let pid = String::from_utf8(listed.stdout)?.trim().to_owned();
        ensure!(pid.parse::<u32>().is_ok(), "one worker: {pid}");
        ensure!(Command::new("kill").args(["-KILL", &pid]).status().await?.success());
        let is_gone = async |summary: &HostSummary| summary.model(model)?.state.worker_url().is_none().then_some(());
        self.until("the end of the worker", is_gone).await
    }

    /// Sends the host a signal.
    pub async fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let id = self.child.id().context("it has ended")?.to_string();
        ensure!(Command::new("kill").args([signal, &id]).status().await?.success());
        Ok(())
    }

    /// Kills the host; returns its folder.
    async fn kill(mut self) -> anyhow::Result<tempfile::TempDir> {
        self.child.kill().await?;
        Ok(self.dir)
    }

    /// Ends the host; returns its log.
    pub async fn end(mut self) -> anyhow::Result<String> {
        self.signal("-TERM").await?;
        let mut log = String::new();
        self.child.stderr.take().context("a stderr")?.read_to_string(&mut log).await?;
        let status = tokio::time::timeout(DEADLINE, self.child.wait()).await??;
        ensure!(status.success(), "{status}: {log}");
        Ok(log)
    }
}

/// Flags of every worker here.
const FLAGS: [(&str, &str); 5] =
    [("threads", "1"), ("ctx-size", "4096"), ("parallel", "1"), ("flash-attn", "off"), ("cache-ram", "64")];

/// Returns the memory that a model takes of the machine. Units: bytes.
fn memory_of(model: &Path) -> anyhow::Result<u64> {
    let mut command = std::process::Command::new(bin_dir()?.join("warmpath-worker"));
    command.args(FLAGS.map(|(flag, value)| format!("--{flag}={value}"))).arg("--print-memory").arg("-m").arg(model);
    let projection: MemoryProjection = serde_json::from_slice(&command.output()?.stdout)?;
    let ram = projection.devices.iter().find(|device| device.device == RAM);
    Ok(ram.context("the machine's memory")?.bytes)
}

/// Returns a command with the models `a` and `b`, memory for one of them, and their files in a folder.
fn warmpath(command: &str, dir: &Path, further_preset: &str) -> anyhow::Result<Command> {
    let (a, b) = (made_model(Preset::Tiny, 1)?, made_model(Preset::TinyKeys, 1)?);
    let flags = FLAGS.map(|(flag, value)| format!("{flag} = {value}\n")).concat();
    let preset = format!(
        "version = 1\n[*]\n{flags}[a]\nmodel = {}\nalias = first\n[b]\nmodel = {}\n{further_preset}",
        a.display(),
        b.display()
    );
    std::fs::write(dir.join("models.ini"), preset)?;
    let mut warmpath = Command::new(bin_dir()?.join("warmpath"));
    // Each of them fits, and both together do not.
    let memory_mib = (memory_of(&a)?.max(memory_of(&b)?) * 3 / 2) >> 20;
    warmpath.args([command, "--models-memory", &memory_mib.to_string(), "--models-preset"]).arg(dir.join("models.ini"));
    warmpath.arg("--models-cache").arg(dir.join("kv"));
    Ok(warmpath)
}

/// Returns the demand of a router with one request.
fn demand(model: &str) -> Value {
    json!(Demand { model: model.to_owned(), router: "test".to_owned(), n_waiting: 1, oldest_wait_ms: 0 })
}

/// Returns a conversation that begins with about a thousand tokens.
pub fn conversation(topic: &str) -> Vec<Message> {
    let text = (0..120).map(|n| format!("{topic} number {n} is one of many.")).collect::<Vec<_>>().join(" ");
    vec![Message::new("user", text)]
}

fn has_temporary_files(folder: &Path) -> bool {
    let name = |entry: walkdir::DirEntry| entry.file_name().to_string_lossy().into_owned();
    walkdir::WalkDir::new(folder).into_iter().flatten().map(name).any(|name| name.ends_with(".tmp"))
}

#[tokio::test]
async fn a_conversation_is_warm_after_its_model_has_left_for_another() -> anyhow::Result<()> {
    let host = Host::start("").await?;
    let mut messages = conversation("Bicycle");
    let first = host.ask("first", &messages).await?;
    ensure!(first.prompt_tokens > 500 && first.cached_tokens == 0, "{first:?}");
    host.ask("b", &conversation("Library")).await?;
    ensure!(host.state("a").await?.worker_url().is_none(), "one model is loaded at a time");
    messages.push(Message::new("assistant", first.text));
    messages.push(Message::new("user", "And the last one?"));
    let second = host.ask("a", &messages).await?;
    let reused = second.cached_tokens as f64 / first.prompt_tokens as f64;
    ensure!(reused >= 0.95, "{} of {} tokens", second.cached_tokens, first.prompt_tokens);
    let HostSummary { memory, models, .. } = host.summary().await?;
    let ModelState::Loadable { memory_bytes, .. } = models[1].state else { anyhow::bail!("{models:?}") };
    ensure!(memory[0].device == RAM && memory[0].free_bytes < memory_bytes, "both do not fit: {memory:?} {models:?}");
    let kv = host.dir.path().join("kv");
    ensure!(kv.join("a").is_dir() && kv.join("b").is_dir() && !has_temporary_files(&kv));
    let log = host.end().await?;
    ensure!(log.contains("warmpath: a is loaded") && !log.contains("some chunks were not written"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_worker_that_crashes_is_reported_and_started_again() -> anyhow::Result<()> {
    let host = Host::start("").await?;
    let before = host.loaded("a").await?;
    host.crash("a").await?;
    let after = host.loaded("a").await?;
    ensure!(before != after, "another process has another port");
    host.ask("a", &conversation("Bicycle")).await?;
    host.crash("a").await?;
    let ModelState::Impossible { reason, retry_ms } = host.state("a").await? else {
        anyhow::bail!("a second crash within a minute is followed by a pause");
    };
    ensure!(reason.contains("signal: 9") && retry_ms.is_some_and(|ms| ms <= 1_000), "{reason} {retry_ms:?}");
    host.loaded("a").await?;
    let log = host.end().await?;
    ensure!(log.contains("warmpath: a: its worker ended: signal: 9"), "{log}");
    Ok(())
}

/// Waits until no worker answers at a URL.
async fn until_gone(worker_url: &str) -> anyhow::Result<()> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    let is_gone = async || http.get(format!("{worker_url}/health")).send().await.is_err().then_some(());
    poll_until(DEADLINE, is_gone).await.context("the worker never ended")
}

#[tokio::test]
async fn a_host_that_is_killed_leaves_no_worker_and_loses_no_conversation() -> anyhow::Result<()> {
    // In the middle of a load.
    let host = Host::start("").await?;
    ensure!(host.post(LOAD_PATH, &json!(ModelName { model: "a".to_owned() })).await?.status().is_success());
    let url = async |summary: &HostSummary| summary.model("a")?.state.worker_url().map(str::to_owned);
    let worker_url = host.until("the start of a worker", url).await?;
    let dir = host.kill().await?;
    until_gone(&worker_url).await?;
    // While the model is loaded.
    let host = Host::start_in(dir, "").await?;
    let mut messages = conversation("Bicycle");
    let first = host.ask("a", &messages).await?;
    let worker_url = host.loaded("a").await?;
    let dir = host.kill().await?;
    until_gone(&worker_url).await?;
    let host = Host::start_in(dir, "").await?;
    messages.push(Message::new("assistant", first.text));
    messages.push(Message::new("user", "And the last one?"));
    let second = host.ask("a", &messages).await?;
    let reused = second.cached_tokens as f64 / first.prompt_tokens as f64;
    ensure!(reused >= 0.95, "{} of {} tokens", second.cached_tokens, first.prompt_tokens);
    host.end().await?;
    Ok(())
}

#[tokio::test]
async fn a_worker_that_is_killed_while_it_drains_makes_room_and_comes_again() -> anyhow::Result<()> {
    let host = Host::start("").await?;
    let messages = conversation("Bicycle");
    let expected = host.ask("a", &messages).await?;
    let client = ChatClient::new(&host.loaded("a").await?, Some("a".to_owned()))?;
    let long_answer = tokio::spawn(async move { client.ask_exactly(&[Message::new("user", "Count.")], 3_000).await });
    let is_running = async |summary: &HostSummary| {
        matches!(summary.model("a")?.state, ModelState::Loaded { n_running: 1, .. }).then_some(())
    };
    host.until("the long answer", is_running).await?;
    ensure!(host.post(UNLOAD_PATH, &json!(ModelName { model: "a".to_owned() })).await?.status().is_success());
    ensure!(matches!(host.state("a").await?, ModelState::Unloading { .. }), "it drains");
    host.crash("a").await?;
    ensure!(long_answer.await?.is_err(), "the answer is lost with its worker");
    host.ask("b", &messages).await?;
    let again = host.ask("a", &messages).await?;
    ensure!(again.text == expected.text, "{again:?} {expected:?}");
    host.end().await?;
    Ok(())
}

#[tokio::test]
async fn a_disk_that_is_full_costs_the_kept_state_and_nothing_else() -> anyhow::Result<()> {
    let (dir, disk) = (tempfile::tempdir()?, tempfile::tempdir()?);
    std::fs::create_dir(dir.path().join("kv"))?;
    std::os::unix::fs::symlink(disk.path(), dir.path().join("kv/a"))?;
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=64k", "warmpath-test"]).arg(disk.path());
    if !mount.output().await.is_ok_and(|output| output.status.success()) {
        eprintln!("not run: a small disk needs root");
        return Ok(());
    }
    let result = async {
        let host = Host::start_in(dir, "").await?;
        let messages = conversation("Bicycle");
        let expected = host.ask("a", &messages).await?;
        host.ask("b", &messages).await?;
        let again = host.ask("a", &messages).await?;
        ensure!(again.text == expected.text, "{again:?} {expected:?}");
        ensure!(again.cached_tokens < expected.prompt_tokens / 2, "the state found room: {again:?}");
        host.end().await
    }
    .await;
    ensure!(Command::new("umount").arg("--lazy").arg(disk.path()).status().await?.success());
    result.map(drop)
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_says_why_and_disturbs_no_other() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let damaged = folder.path().join("damaged.gguf");
    std::fs::write(&damaged, &std::fs::read(made_model(Preset::Tiny, 1)?)?[..1000])?;
    let wrong_flag = format!("[wrong]\nmodel = {}\nslotz = 1", made_model(Preset::Tiny, 1)?.display());
    let host = Host::start(&format!("[damaged]\nmodel = {}\n{wrong_flag}", damaged.display())).await?;
    let worker = host.loaded("a").await?;
    let impossible = async |name: &str| {
        let reason = async |summary: &HostSummary| match &summary.model(name)?.state {
            ModelState::Impossible { reason, .. } => Some(reason.clone()),
            // If its pause is over, a request has it tried again.
            _ => host.post(DEMAND_PATH, &demand(name)).await.ok().and(None),
        };
        host.until("the refusal", reason).await
    };
    let reason = impossible("damaged").await?;
    ensure!(reason.contains("damaged.gguf") && !reason.contains(&*folder.path().to_string_lossy()), "{reason}");
    ensure!(impossible("wrong").await?.contains("slotz"));
    ensure!(host.post(DEMAND_PATH, &demand("damaged")).await?.status().is_success());
    ensure!(host.state("a").await?.worker_url() == Some(&worker), "nothing leaves for it");
    let unknown = host.post(LOAD_PATH, &json!(ModelName { model: "c".to_owned() })).await?;
    ensure!(unknown.status() == 404, "{unknown:?}");
    let error: Value = unknown.json().await?;
    ensure!(error["error"]["code"] == "model_not_found" && error["error"]["param"] == "model", "{error}");
    host.end().await?;
    Ok(())
}

#[tokio::test]
async fn models_are_loaded_and_unloaded_by_hand_and_the_catalogue_is_read_again() -> anyhow::Result<()> {
    let host = Host::start("").await?;
    let mut events = host.http.get(format!("{}{EVENTS_PATH}", host.url)).send().await?.error_for_status()?;
    let first = events.chunk().await?.context("an event")?;
    ensure!(first.starts_with(b"data: {\"host\":"), "{first:?}");
    let named = json!(ModelName { model: "first".to_owned() });
    ensure!(host.post(LOAD_PATH, &named).await?.status().is_success());
    let is_loaded =
        async |summary: &HostSummary| matches!(summary.model("a")?.state, ModelState::Loaded { .. }).then_some(());
    host.until("the load", is_loaded).await?;
    ensure!(host.post(UNLOAD_PATH, &named).await?.status().is_success());
    let is_unloaded =
        async |summary: &HostSummary| matches!(summary.model("a")?.state, ModelState::Loadable { .. }).then_some(());
    host.until("the end", is_unloaded).await?;
    let preset = host.dir.path().join("models.ini");
    let text = std::fs::read_to_string(&preset)?;
    std::fs::write(&preset, text.clone() + "\n[c]\nttl = never")?;
    let refused: Value = host.post(RELOAD_PATH, &Value::Null).await?.json().await?;
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("section [c], key `ttl`") || message.contains("section [c]: it has neither"), "{refused}");
    std::fs::write(&preset, text.replace("[b]", "[c]"))?;
    let summary: HostSummary = host.post(RELOAD_PATH, &Value::Null).await?.json().await?;
    ensure!(summary.model("b").is_none() && summary.model("c").is_some(), "{summary:?}");
    // A router waits for the number in the answer.
    let mut seen = String::new();
    while !seen.contains(&format!("\"sequence\":{},", summary.sequence)) {
        let event = tokio::time::timeout(DEADLINE, events.chunk()).await??.context("an event")?;
        seen += &String::from_utf8_lossy(&event);
    }
    let (_, published) = seen.rsplit_once("data: ").context("data")?;
    ensure!(!published.contains("\"name\":\"b\""), "{published}");
    host.loaded("c").await?;
    host.end().await?;
    Ok(())
}

#[tokio::test]
async fn a_router_loads_what_clients_request_and_a_conversation_is_warm_after_a_swap() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let [listen, admin, host] = free_addresses()?.map(|address| address.to_string());
    let brief = "[a:brief]\nbase = a\nset-params = {\"max_tokens\": 3}";
    let mut command = warmpath("serve", dir.path(), brief)?;
    command.args(["--listen", &listen, "--admin-listen", &admin, "--host-listen", &host]);
    // A host and workers that routers of other machines could reach.
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, "0123456789abcdef0123456789abcdef")?;
    command.arg("--host-token-file").arg(&token_file);
    let mut serving = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(serving.stdout.take().context("a stdout")?).lines();
    let mut greeting = String::new();
    while !greeting.contains("Ctrl-C ends the fleet") {
        let line = tokio::time::timeout(DEADLINE, lines.next_line()).await??;
        greeting += &line.with_context(|| format!("it ended: {greeting}"))?;
    }
    ensure!(greeting.contains("a, b are served at"), "{greeting}");
    let ask = async |model: &str, messages: &[Message]| {
        let client = ChatClient::new(&format!("http://{listen}"), Some(model.to_owned()))?;
        client.ask(messages, 8).await
    };
    let mut messages = conversation("Bicycle");
    let first = ask("first", &messages).await?;
    ask("b", &conversation("Library")).await?;
    messages.push(Message::new("assistant", first.text));
    messages.push(Message::new("user", "And the last one?"));
    // A name that sets parameters shares the model's worker and cache.
    let second = ask("a:brief", &messages).await?;
    let reused = second.cached_tokens as f64 / first.prompt_tokens as f64;
    ensure!(reused >= 0.95, "{} of {} tokens", second.cached_tokens, first.prompt_tokens);
    ensure!(second.completion_tokens <= 3, "{second:?}");
    // Without the token neither the host nor a worker shows anything.
    let http = reqwest::Client::builder().no_proxy().build()?;
    let summary_url = format!("http://{host}{SUMMARY_PATH}");
    ensure!(http.get(&summary_url).send().await?.status() == 401);
    let token = std::fs::read_to_string(&token_file)?;
    let summary: HostSummary = http.get(&summary_url).bearer_auth(&token).send().await?.json().await?;
    let worker_url = summary.model("a").and_then(|model| model.state.worker_url()).context("it is loaded")?.to_owned();
    ensure!(http.get(format!("{worker_url}/v1/models")).send().await?.status() == 401);
    let pid = serving.id().context("it has ended")?.to_string();
    ensure!(Command::new("kill").args(["-TERM", &pid]).status().await?.success());
    let status = tokio::time::timeout(DEADLINE, serving.wait()).await??;
    ensure!(status.success(), "{status}");
    Ok(())
}
