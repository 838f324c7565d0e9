//! Files under `helm`, `deploy` and `.github`: the Helm chart, the download of models, alerts and dashboards, releases.
//!
//! The checks are in `tests/python`.
//!
//! Each test starts one program in Python, after the tools that it needs have been built; if they are not available, it
//! prints that and is skipped.

use std::process::Command;

use anyhow::ensure;
use warmpath_tests::rig::{bin_dir, root};
use warmpath_tests::tools;

/// Runs a test program to its end, if the tool that it `needs` exists; the error contains its output if it fails.
fn check(script: &str, needs: &str) -> anyhow::Result<()> {
    tools::make(&[&["scripts/python-venv.sh"], &["scripts/deploy-tools.sh"]])?;
    if tools::find(needs).is_none() {
        eprintln!("{script} is skipped: {needs} cannot be installed here");
        return Ok(());
    }
    let output = Command::new(root().join("target/venv/bin/python")).arg("-B").arg(root().join(script)).output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success() && said.contains("OK"), "{script} ended with {}:\n{said}", output.status);
    Ok(())
}

#[test]
fn the_chart_renders_its_values_with_every_feature_on_and_off() -> anyhow::Result<()> {
    // The programs say which flags they know.
    bin_dir()?;
    check("tests/python/test_chart.py", "helm")
}

#[test]
fn a_model_is_downloaded_whole_or_not_at_all() -> anyhow::Result<()> {
    check("tests/python/test_download.py", "curl")
}

#[test]
fn alerts_and_dashboards_query_exported_metrics() -> anyhow::Result<()> {
    check("tests/python/test_monitoring.py", "promtool")
}

#[test]
fn releases_are_complete_and_install_on_their_platforms() -> anyhow::Result<()> {
    // The archive has the programs.
    bin_dir()?;
    check("tests/python/test_release.py", "python3")
}

#[test]
fn units_compose_and_images_use_known_flags_and_variables() -> anyhow::Result<()> {
    // The programs say which variables they read.
    bin_dir()?;
    check("tests/python/test_units.py", "python3")
}
