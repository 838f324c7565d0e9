//! Real stock servers: llama-server behind a router, routed by text, by its vocabulary and next to a Warmpath worker.
//!
//! The router's own tests cover faulty servers and corrections of its records.
//!
//! llama-server takes ten minutes to build, so these tests run only if `scripts/llama-server.sh` has built it (`make
//! bench` does); otherwise they print that they are skipped.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use warmpath_bench::fleet::Server;
use warmpath_bench::prompts::words;
use warmpath_tests::rig::{MODEL_NAME, bin_dir, root, tiny_model};

/// Longest time until the fleet reaches the state for which a test waits.
const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
const BLOCK_SIZE_TOKENS: u64 = warmpath_tests::rig::BLOCK_SIZE_TOKENS;

/// Returns the path of llama-server, if it exists.
fn llama_server() -> Option<PathBuf> {
    let program = root().join("target/peers/llama-server/llama-server");
    let is_there = program.exists();
    if !is_there {
        eprintln!("SKIPPED: there is no {}; scripts/llama-server.sh builds it", program.display());
    }
    is_there.then_some(program)
}

struct Fleet {
    router: Server,
    servers: Vec<Server>,
    http: reqwest::Client,
}

async fn start_server(program: &Path) -> anyhow::Result<Server> {
    let model = tiny_model()?.display().to_string();
    let flags = "--host 127.0.0.1 --port 0 --threads 1 --parallel 2 --ctx-size 8192 --flash-attn off --no-kv-unified";
    let args =
        flags.split(' ').chain(["--alias", MODEL_NAME, "--model", &model]).map(str::to_owned).collect::<Vec<_>>();
    let mut server = Server::start("llama-server", program, &args).await?;
    server.answers("/health", DEADLINE).await?;
    Ok(server)
}

impl Fleet {
    /// Starts two llama-servers and a router in front of them and of `workers`.
    async fn start(program: &Path, workers: &[&Server], flags: &[&str]) -> anyhow::Result<Self> {
        let servers = vec![start_server(program).await?, start_server(program).await?];
        let mut args = vec!["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        let urls: Vec<_> = servers.iter().map(|server| format!("openai+{}", server.base_url())).collect();
        let workers: Vec<_> = workers.iter().map(|worker| worker.base_url()).collect();
        args.extend(urls.iter().chain(&workers).flat_map(|url| ["--worker", url.as_str()]));
        let args: Vec<_> = args.iter().chain(flags).map(|&arg| arg.to_owned()).collect();
        let mut router = Server::start("router", &bin_dir()?.join("warmpath-router"), &args).await?;
        router.ready(DEADLINE).await?;
        Ok(Self { router, servers, http: reqwest::Client::builder().no_proxy().build()? })
    }

    async fn admin(&self, path: &str) -> anyhow::Result<String> {
        Ok(self.http.get(format!("{}{path}", self.router.admin_url()?)).send().await?.text().await?)
    }

    async fn worker(&self, idx: usize) -> anyhow::Result<Value> {
        Ok(self.router.fleet_state(&self.http).await?["workers"][idx].clone())
    }

    /// Waits until a worker's field is `value`.
    async fn wait_for(&self, idx: usize, field: &str, value: Value) -> anyhow::Result<()> {
        let started = Instant::now();
        while self.worker(idx).await?[field] != value {
            ensure!(
                started.elapsed() < DEADLINE,
                "{field} {value} of {}:\n{}",
                self.worker(idx).await?,
                self.router.log()
            );
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Waits until the prediction for some worker covers all whole blocks of a prompt except the last.
    async fn wait_until_remembered(&self, messages: &[Value]) -> anyhow::Result<()> {
        let url = format!("{}/internal/v1/route", self.router.admin_url()?);
        let started = Instant::now();
        loop {
            let plan = self.http.post(&url).json(&json!({"messages": messages})).send().await?.json::<Value>().await?;
            let blocks = plan["prompt"]["blocks"].as_u64().context("the prompt is known")?;
            let matched = plan["workers"].as_array().context("workers")?.iter();
            if matched.filter_map(|worker| worker["matched_blocks"].as_u64()).any(|matched| matched == blocks) {
                return Ok(());
            }
            if started.elapsed() > DEADLINE {
                bail!("no block of the prompt is remembered: {plan}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Asks for a short answer and adds it to the conversation.
    async fn ask(&self, messages: &mut Vec<Value>, question: &str) -> anyhow::Result<Turn> {
        messages.push(json!({"role": "user", "content": question}));
        let asked = messages.clone();
        let body = json!({"messages": messages, "temperature": 0, "max_tokens": 8});
        let url = format!("{}/v1/chat/completions", self.router.base_url());
        let response = self.http.post(url).json(&body).send().await?;
        let header = |name: &str| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        let number = |name: &str| header(name).parse::<u64>();
        let (worker, route) = (header("x-warmpath-worker"), header("x-warmpath-route"));
        let (predicted, cached) = (number("x-warmpath-predicted-cached-tokens")?, number("x-warmpath-cached-tokens")?);
        let answer: Value = response.error_for_status()?.json().await?;
        messages.push(answer["choices"][0]["message"].clone());
        let prompt = answer["usage"]["prompt_tokens"].as_u64().context("usage")?;
        self.wait_until_remembered(&asked).await?;
        Ok(Turn { worker, route, predicted, cached, prompt })
    }

    async fn metric(&self, line: &str) -> anyhow::Result<f64> {
        let text = self.admin("/metrics").await?;
        Ok(text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok()).unwrap_or(0.0))
    }
}

#[derive(Debug)]
struct Turn {
    worker: String,
    route: String,
    predicted: u64,
    cached: u64,
    prompt: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_and_its_siblings_stay_on_one_llama_server_until_it_is_killed() -> anyhow::Result<()> {
    let Some(program) = llama_server() else { return Ok(()) };
    let model = tiny_model()?.display().to_string();
    for (mode, flags) in [("text", &[][..]), ("vocabulary", &["--vocab", &model][..])] {
        let mut fleet = Fleet::start(&program, &[], flags).await?;
        fleet.wait_for(0, "mode", json!(mode)).await?;
        let system = json!({"role": "system", "content": words(1, 200)});
        let mut chat = vec![system.clone()];
        let first = fleet.ask(&mut chat, &words(2, 30)).await?;
        let second = fleet.ask(&mut chat, &words(3, 10)).await?;
        assert_eq!((&second.worker, second.route.as_str()), (&first.worker, "prefix"), "{mode}: {first:?} {second:?}");
        assert!(second.cached + BLOCK_SIZE_TOKENS > first.prompt, "{mode}: {first:?} {second:?}");
        if mode == "vocabulary" {
            assert_eq!(second.predicted, first.prompt / BLOCK_SIZE_TOKENS * BLOCK_SIZE_TOKENS, "{first:?}");
        } else {
            assert!(second.predicted > 0, "{second:?}");
        }
        let sibling = fleet.ask(&mut vec![system], &words(4, 20)).await?;
        assert_eq!((&sibling.worker, sibling.route.as_str()), (&first.worker, "prefix"), "{mode}: {sibling:?}");
        assert!(sibling.cached > 0, "{sibling:?}");
        assert_eq!(fleet.metric("warmpath_router_stock_predictions_total{outcome=\"less\"}").await?, 0.0, "{mode}");
        assert_eq!(fleet.metric("warmpath_router_stock_vocabulary_mismatches_total").await?, 0.0, "{mode}");
        let rates = fleet.worker(0).await?["load"]["rates"].clone();
        let home: usize = first.worker.strip_prefix("stock-").context("a stock server's name")?.parse()?;
        assert!(home != 0 || rates["prefill_tokens_per_s"].is_number(), "{rates}");

        fleet.servers[home].kill().await?;
        let after = fleet.ask(&mut chat, &words(5, 10)).await?;
        assert_eq!(after.worker, format!("stock-{}", 1 - home), "{mode}: {after:?}");
        fleet.wait_for(home, "state", json!("down")).await?;
        fleet.wait_for(home, "blocks", json!(0)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn llama_servers_and_a_warmpath_worker_serve_one_name_with_one_vocabulary() -> anyhow::Result<()> {
    let Some(program) = llama_server() else { return Ok(()) };
    let model = tiny_model()?.display().to_string();
    let flags = "--listen 127.0.0.1:0 --threads 1 --slots 2 --ctx-size 8192 --flash-attn off --kv-unified off";
    let args =
        flags.split(' ').chain(["--alias", MODEL_NAME, "--model", &model]).map(str::to_owned).collect::<Vec<_>>();
    let mut worker = Server::start("worker", &bin_dir()?.join("warmpath-worker"), &args).await?;
    worker.ready(DEADLINE).await?;
    let fleet = Fleet::start(&program, &[&worker], &[]).await?;
    fleet.wait_for(0, "mode", json!("vocabulary")).await?;
    fleet.wait_for(2, "mode", json!("summary")).await?;
    let mut homes = Vec::new();
    for tenant in 0..6 {
        let mut chat = vec![json!({"role": "system", "content": words(100 + tenant, 100)})];
        let first = fleet.ask(&mut chat, &words(200 + tenant, 20)).await?;
        let second = fleet.ask(&mut chat, &words(300 + tenant, 20)).await?;
        assert_eq!(second.worker, first.worker, "{first:?} {second:?}");
        assert!(second.predicted + BLOCK_SIZE_TOKENS > first.prompt, "{first:?} {second:?}");
        assert!(second.cached >= second.predicted, "{first:?} {second:?}");
        homes.push(first.worker);
    }
    for idx in 0..3 {
        assert_eq!(fleet.worker(idx).await?["state"], "ready");
    }
    assert_eq!(fleet.metric("warmpath_router_stock_vocabulary_mismatches_total").await?, 0.0, "{homes:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn dialects_stay_on_their_llama_server_and_their_answers_are_counted() -> anyhow::Result<()> {
    let Some(program) = llama_server() else { return Ok(()) };
    let model = tiny_model()?.display().to_string();
    let fleet = Fleet::start(&program, &[], &["--vocab", &model]).await?;
    fleet.wait_for(0, "mode", json!("vocabulary")).await?;
    let mut n_asked = 0.0;
    for (path, seed) in [("/v1/messages", 1), ("/v1/responses", 2)] {
        let question = json!([{"role": "user", "content": words(10 + seed, 200)}]);
        let body = json!({"messages": question, "max_tokens": 4, "temperature": 0});
        let body = if path == "/v1/messages" { body } else { json!({"input": question, "max_output_tokens": 4}) };
        let mut homes = Vec::new();
        for delivery in [false, true, false] {
            let mut body = body.clone();
            body["stream"] = json!(delivery);
            let response = fleet.http.post(format!("{}{path}", fleet.router.base_url())).json(&body).send().await?;
            let header =
                |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
            homes.push((
                header("x-warmpath-worker"),
                header("x-warmpath-route"),
                header("x-warmpath-predicted-cached-tokens"),
            ));
            response.error_for_status()?.text().await?;
            n_asked += 1.0;
            let question = question.as_array().context("messages")?;
            fleet.wait_until_remembered(question).await?;
        }
        let (home, ..) = homes[0].clone();
        for (worker, route, predicted) in &homes[1..] {
            assert_eq!((worker, route.as_deref()), (&home, Some("prefix")), "{path}: {homes:?}");
            assert!(predicted.as_ref().is_some_and(|n| n.parse().is_ok_and(|n: u64| n > 100)), "{path}: {homes:?}");
        }
    }
    let count = async |outcome: &str| {
        fleet.metric(&format!("warmpath_router_stock_predictions_total{{outcome=\"{outcome}\"}}")).await
    };
    assert_eq!((count("unchecked").await?, count("less").await?), (0.0, 0.0), "every answer reported its reuse");
    assert_eq!(count("exact").await? + count("more").await?, n_asked);
    assert_eq!(fleet.metric("warmpath_router_stock_vocabulary_mismatches_total").await?, 0.0);
    Ok(())
}
