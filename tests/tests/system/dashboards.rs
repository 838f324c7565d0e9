//! Prometheus scrapes a live fleet under load, and every expression of every dashboard, alert and rule returns data.
//!
//! The load and the queries are in `tests/python/live_dashboards.py`; `deploy.rs` checks that the metrics exist at all.
//!
//! The fleet is set up so that rare events happen too: a worker under a second URL, a stock server that is lost,
//! workers that are restarted.

use std::process::Stdio;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use warmpath_bench::fleet::Server;
use warmpath_tests::rig::{Rig, bin_dir, root, tiny_model};
use warmpath_tests::tools;

use super::models::{Host, conversation};

#[tokio::test]
async fn every_expression_of_every_dashboard_and_alert_returns_data() -> anyhow::Result<()> {
    // Debian's Prometheus is unpacked if none is installed.
    tools::make(&[&["scripts/python-venv.sh"], &["scripts/debian-package.sh", "prometheus=prometheus"]])?;
    let Some(prometheus) = tools::find("prometheus") else {
        eprintln!("skipped: prometheus cannot be installed here");
        return Ok(());
    };
    let disk = tempfile::tempdir()?;
    let disk_path = disk.path().display().to_string();
    // The caches are so small that state is evicted all the time.
    let small = ["--cache-ram", "1", "--queue-max", "2"];
    let mut rig = Rig::start_with(2, &small, &[]).await?;
    let model = tiny_model()?.display().to_string();
    let stock_args = ["--model", &model, "--alias", "stock", "--cache-disk", &disk_path, "--listen", "127.0.0.1:0"];
    let mut stock = Server::start("stock", &bin_dir()?.join("warmpath-worker"), &stock_args.map(str::to_owned)).await?;
    stock.ready(std::time::Duration::from_secs(300)).await?;
    let stock_url = format!("openai+{}", stock.base_url());
    // The same process under another name is a duplicate worker.
    let duplicate_url = rig.fleet.workers[0].base_url().replace("127.0.0.1", "localhost");
    let line = ["--queue-max", "4", "--queue-timeout", "2", "--worker-wait-max", "0.05"];
    let router_args = ["--worker", &stock_url, "--worker", &duplicate_url, "--worker-dns", "nowhere.invalid:1"]
        .into_iter()
        .chain(line)
        .map(str::to_owned);
    rig.fleet.restart_router(router_args.collect()).await?;

    // A host whose models displace each other, and whose conversations continue.
    let host = Host::start("").await?;
    let messages = conversation("Bicycle");
    for model in ["a", "b", "a", "b"] {
        host.ask(model, &messages).await?;
    }

    let mut script = Command::new(root().join("target/venv/bin/python"));
    script.arg("-B").arg(root().join("tests/python/live_dashboards.py")).arg(&prometheus);
    script.args([rig.router_url(), rig.fleet.router.admin_url()?, host.url.clone(), "stock".to_owned()]);
    script.args(rig.fleet.workers.iter().map(Server::base_url)).arg(stock.base_url());
    let mut script =
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut said = BufReader::new(script.stdout.take().context("stdout")?).lines();
    if said.next_line().await?.as_deref() == Some("loaded") {
        for model in ["a", "b", "a", "b"] {
            host.ask(model, &messages).await?;
        }
        stock.kill().await?;
        rig.fleet.workers[1].kill().await?;
        rig.fleet.restart_worker(1).await?;
    }
    drop(script.stdin.take());
    let output = script.wait_with_output().await?;
    let last = said.next_line().await?.unwrap_or_default();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success() && last.starts_with("OK"), "{last}\n{complaint}");
    Ok(())
}
