//! Several routers in front of one fleet: they share nothing except what workers publish, and lose no reuse by it.
//!
//! `warmpath-bench fleets --routers` measures them; the router's own tests cover invalid streams.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::try_join_all;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use warmpath_bench::chat_load::{Shape, drive};
use warmpath_bench::client::{ChatClient, Message};
use warmpath_bench::corpora::TextKind;
use warmpath_bench::fleet::{Server, start_router};
use warmpath_bench::prompts::words;
use warmpath_common::summary::STREAM_PATH;
use warmpath_tests::rig::{Rig, bin_dir};

const N_ROUTERS: usize = 8;

/// Length of the common prefix of siblings: some twenty blocks.
const PREFIX_WORDS: usize = 200;

/// Routers of a fleet, except the rig's own, and a client of each.
struct Replicas {
    routers: Vec<Server>,
    clients: Vec<ChatClient>,
}

impl Replicas {
    async fn start(rig: &Rig, n_routers: usize) -> anyhow::Result<Self> {
        let mut routers = Vec::new();
        while routers.len() + 1 < n_routers {
            routers.push(rig.fleet.replica().await?);
        }
        let urls = std::iter::once(rig.router_url()).chain(routers.iter().map(Server::base_url));
        let clients = urls.map(|url| ChatClient::new(&url, None)).collect::<anyhow::Result<_>>()?;
        Ok(Self { routers, clients })
    }

    /// Returns the views of all routers, the rig's last.
    async fn views(&self, rig: &Rig) -> anyhow::Result<Vec<Value>> {
        try_join_all(self.routers.iter().chain([&rig.fleet.router]).map(|router| router.fleet_state(&rig.http))).await
    }

    /// Returns the number of blocks that each router knows.
    async fn n_blocks(&self, rig: &Rig) -> anyhow::Result<Vec<Option<u64>>> {
        Ok(self.views(rig).await?.iter().map(|view| view["index"]["blocks"].as_u64()).collect())
    }

    /// Waits until no worker is busy and every router knows the blocks of each.
    async fn settled(&self, rig: &Rig) -> anyhow::Result<()> {
        rig.settled().await?;
        rig.wait_for("all routers know the same blocks", || async {
            let views = self.views(rig).await.ok()?;
            let blocks = |view: &Value| {
                let workers = view["workers"].as_array().into_iter().flatten();
                workers.map(|worker| (worker["url"].to_string(), worker["blocks_digest"].to_string())).collect()
            };
            let blocks: Vec<BTreeMap<_, _>> = views.iter().map(blocks).collect();
            blocks.windows(2).all(|pair| pair[0] == pair[1]).then_some(())
        })
        .await
    }
}

#[tokio::test]
async fn eight_routers_reuse_as_much_as_one() -> anyhow::Result<()> {
    // One conversation at a time, so that reuse depends only on the routers' knowledge.
    let shape = Shape {
        tenants: 3,
        users: 4,
        turns: 4,
        text: TextKind::Made,
        system_words: 200,
        user_words: 20,
        answer_tokens: 8,
        concurrency: 1,
        seed: 5,
    };
    let mut hit_ratios = Vec::new();
    for n_routers in [N_ROUTERS, 1] {
        let rig = Rig::start(3, &[]).await?;
        let replicas = Replicas::start(&rig, n_routers).await?;
        hit_ratios.push(drive(&replicas.clients, &shape).await?.summary().prefix_hit_ratio);
    }
    println!("hit ratio with {N_ROUTERS} routers {:.4}, with one {:.4}", hit_ratios[0], hit_ratios[1]);
    assert!(hit_ratios[1] > 0.7, "{hit_ratios:?}");
    assert!(hit_ratios[0] > hit_ratios[1] * 0.99, "{hit_ratios:?}");
    Ok(())
}

/// Conversations that run at once while routers are replaced, each with the users of one system prompt.
const N_LANES: usize = 3;

/// Holds conversations of four turns one after the other; requests go to the routers in `clients` in turn. `asked`
/// counts the answers. Returns the tokens of all prompts, and those of them that were cached.
async fn converse(lane: usize, clients: &Mutex<Vec<ChatClient>>, asked: &AtomicUsize) -> anyhow::Result<(u64, u64)> {
    let seed = 1_000 * (lane as u64 + 1);
    let mut sum = (0, 0);
    for user in 0..8 {
        let mut messages = vec![Message::new("system", words(seed, 200))];
        for turn in 0..4 {
            messages.push(Message::new("user", words(seed + 10 * user + turn + 1, 20)));
            let nth = asked.fetch_add(1, Ordering::SeqCst);
            let client = {
                let clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
                clients[nth % clients.len()].clone()
            };
            let answer = client.ask(&messages, 8).await?;
            sum = (sum.0 + answer.prompt_tokens, sum.1 + answer.cached_tokens);
            messages.push(Message::new("assistant", answer.text));
        }
    }
    Ok(sum)
}

/// Returns the hit ratio of conversations through two routers, each of which is replaced once while they run.
async fn hit_ratio_of_two_routers(is_replaced: bool) -> anyhow::Result<f64> {
    let mut rig = Rig::start(3, &[]).await?;
    let mut other = rig.fleet.replica().await?;
    let client = |router: &Server| ChatClient::new(&router.base_url(), None);
    let clients = Mutex::new(vec![client(&rig.fleet.router)?, client(&other)?]);
    let asked = AtomicUsize::new(0);
    let replace = async {
        for (idx, router) in [&mut rig.fleet.router, &mut other].into_iter().enumerate().filter(|_| is_replaced) {
            while asked.load(Ordering::SeqCst) < 20 * (idx + 1) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // The new one gets requests at once, before it is ready; the old one ends its own.
            let new = start_router(&rig.fleet.spec, &rig.fleet.workers).await?;
            clients.lock().unwrap_or_else(PoisonError::into_inner)[idx] = client(&new)?;
            let status = std::mem::replace(router, new).terminate(Duration::from_secs(60)).await?;
            anyhow::ensure!(status.success(), "the old router ended with {status}");
        }
        Ok(())
    };
    let lanes = try_join_all((0..N_LANES).map(|lane| converse(lane, &clients, &asked)));
    let (sums, ()) = tokio::try_join!(lanes, replace)?;
    let (prompt, cached) = sums.iter().fold((0, 0), |(prompt, cached), sum| (prompt + sum.0, cached + sum.1));
    Ok(cached as f64 / prompt as f64)
}

#[tokio::test]
async fn routers_that_are_replaced_under_load_one_after_the_other_lose_no_reuse() -> anyhow::Result<()> {
    let undisturbed = hit_ratio_of_two_routers(false).await?;
    let replaced = hit_ratio_of_two_routers(true).await?;
    println!("hit ratio {undisturbed:.4}, with routers that are replaced {replaced:.4}");
    assert!(undisturbed > 0.7, "{undisturbed}");
    assert!(replaced > undisturbed - 0.005, "{replaced}, undisturbed {undisturbed}");
    Ok(())
}

#[tokio::test]
async fn siblings_of_an_announced_prefix_through_eight_routers_reach_at_most_two_workers() -> anyhow::Result<()> {
    let rig = Rig::start(4, &[]).await?;
    let replicas = Replicas::start(&rig, N_ROUTERS).await?;
    for seed in 0..5 {
        replicas.settled(&rig).await?;
        let known = replicas.n_blocks(&rig).await?;
        let prefix = Message::new("system", words(seed, PREFIX_WORDS));
        let sibling = async |idx: usize, n_tokens| {
            let own = Message::new("user", words(1_000 * (seed + 1) + idx as u64, 20));
            replicas.clients[idx].ask_exactly(&[prefix.clone(), own], n_tokens).await
        };
        // The first one still generates while the others arrive.
        let first = sibling(0, 64);
        let others = async {
            rig.wait_for("every router knows the first one's blocks", || async {
                let n_blocks = replicas.n_blocks(&rig).await.ok()?;
                n_blocks.iter().zip(&known).all(|(now, before)| now > before).then_some(())
            })
            .await?;
            try_join_all((1..N_ROUTERS).map(|idx| sibling(idx, 8))).await
        };
        let (first, mut answers) = tokio::try_join!(first, others)?;
        answers.push(first);
        let landed: BTreeSet<_> = answers.iter().map(|answer| &answer.worker).collect();
        assert!(landed.len() <= 2, "burst {seed}: {landed:?}");
    }
    Ok(())
}

/// Proxy to one worker on which only summary streams can be cut.
struct Proxy {
    address: SocketAddr,
    cut: Arc<Notify>,
    n_streams: Arc<AtomicUsize>,
}

impl Proxy {
    async fn to(worker: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let proxy = Self { address: listener.local_addr()?, cut: Arc::default(), n_streams: Arc::default() };
        let (cut, n_streams) = (Arc::clone(&proxy.cut), Arc::clone(&proxy.n_streams));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, worker, Arc::clone(&cut), Arc::clone(&n_streams)));
            }
        });
        Ok(proxy)
    }
}

async fn pass(
    mut client: TcpStream,
    worker: SocketAddr,
    cut: Arc<Notify>,
    n_streams: Arc<AtomicUsize>,
) -> anyhow::Result<()> {
    let mut worker = TcpStream::connect(worker).await?;
    let mut head = vec![0; 4096];
    let n = client.read(&mut head).await?;
    worker.write_all(&head[..n]).await?;
    if !head.starts_with(format!("GET {STREAM_PATH}").as_bytes()) {
        copy_bidirectional(&mut client, &mut worker).await?;
        return Ok(());
    }
    n_streams.fetch_add(1, Ordering::SeqCst);
    tokio::select! {
        done = copy_bidirectional(&mut client, &mut worker) => drop(done?),
        () = cut.notified() => {}
    }
    Ok(())
}

#[tokio::test]
async fn a_router_whose_streams_are_cut_repeatedly_knows_its_workers_blocks() -> anyhow::Result<()> {
    let mut rig = Rig::start(2, &[]).await?;
    let mut proxies = Vec::new();
    for worker in &rig.fleet.workers {
        proxies.push(Proxy::to(worker.address()).await?);
    }
    let mut args: Vec<String> = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"].map(str::to_owned).into();
    args.extend(proxies.iter().flat_map(|proxy| ["--worker".to_owned(), format!("http://{}", proxy.address)]));
    rig.fleet.router = Server::start("router", &bin_dir()?.join("warmpath-router"), &args).await?;
    rig.all_known().await?;
    for round in 0..6 {
        let before: Vec<_> = proxies.iter().map(|proxy| proxy.n_streams.load(Ordering::SeqCst)).collect();
        proxies.iter().for_each(|proxy| proxy.cut.notify_waiters());
        // The answers arrive while the streams are cut, so that there are updates to be missed.
        for seed in 0..3 {
            let messages = [Message::new("user", words(round * 10 + seed, 100))];
            rig.ask(&messages, 8).await?;
        }
        rig.wait_for("the streams are back", || async {
            let is_back = |(proxy, before): (&Proxy, &usize)| proxy.n_streams.load(Ordering::SeqCst) > *before;
            proxies.iter().zip(&before).all(is_back).then_some(())
        })
        .await?;
        rig.settled().await?;
    }
    let streams = async |start: &str| {
        let line = format!("warmpath_router_summary_streams_total{{start=\"{start}\"}}");
        rig.router_metric(&line).await.unwrap_or(0.0)
    };
    assert_eq!(streams("snapshot").await, 2.0, "one for each worker, when the router started");
    assert!(streams("resumed").await >= 12.0, "{}", streams("resumed").await);
    let distrusts = rig.router_metric("warmpath_router_summary_stream_ends_total{reason=\"digest\"}").await;
    assert!(distrusts.is_err(), "no digest ever differed: {distrusts:?}");
    Ok(())
}
