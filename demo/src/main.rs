//! `warmpath-demo`: the command line of the demo.

use clap::Parser as _;
use warmpath_demo::conversations::{self, DemoArgs};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    conversations::run(&DemoArgs::parse()).await
}
