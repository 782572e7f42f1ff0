//! A local cluster, started and watched by a program: it trains a small GPT on a text.
//!
//! ```text
//! cargo run --release --example cluster_from_code [FILE or DIRECTORY]
//! ```
//!
//! Without an argument the text is Everstep's own source. `cluster::train` does all of this in one
//! call. A program that wants to act while the cluster trains does it as here. If it ends early, in
//! any way, its processes end too.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use everstep::cli::Overrides;
use everstep::cluster::{Cluster, ClusterOptions, Directory};
use everstep::{EventKind, RunSpec, builtin};

const RUN: &str = "
[run]
name = 'from-code'
steps = 60

[model]
layers = 2
width = 64
context = 64
";

/// How many workers to start.
const WORKERS: u32 = 2;
/// The number of steps between two progress lines.
const PACE: u64 = 10;

fn main() -> anyhow::Result<ExitCode> {
    let text = match std::env::args().nth(1) {
        // Coordinator and workers are this very program, started with a verb.
        Some(verb) if matches!(&*verb, "coordinator" | "worker") => {
            return Ok(everstep::program(builtin::registry()));
        }
        Some(path) => path,
        None => concat!(env!("CARGO_MANIFEST_DIR"), "/src").into(),
    };
    let flags = Overrides { workers: Some(WORKERS), ..Overrides::default() };
    let file = (Path::new("the run in cluster_from_code.rs"), RUN);
    let mut run = everstep::config::resolve(Some(file), &flags, &builtin::registry())?.run;
    // An absolute path, since workers may run in other directories.
    let text = std::fs::canonicalize(&text).with_context(|| format!("the text {text}"))?;
    run.data.path = text.to_string_lossy().into();
    train(&run)?;
    Ok(ExitCode::SUCCESS)
}

#[tokio::main(flavor = "current_thread")]
async fn train(run: &RunSpec) -> anyhow::Result<()> {
    let directory = Directory::claim_new(Path::new("runs"), run)?;
    let mut cluster = Cluster::start(directory, &ClusterOptions::new(WORKERS)).await?;
    println!("files       {}", cluster.directory().display());
    println!("workers     processes {:?}", cluster.worker_pids());
    cluster.submit(run).await?;

    // The newest thousands of lines and events are in memory: the newest ones are told by number.
    let (mut event_number, mut step) = (0, 0);
    loop {
        let complete = cluster.advance().await?;
        let progress = cluster.progress();
        for event in progress.events.iter().filter(|event| event.number > event_number) {
            if let EventKind::Generation { generation, cause, workers, at_step, .. } = &event.kind {
                let members = workers.len();
                println!(
                    "generation  {generation} after step {at_step}: {members} members, {cause:?}"
                );
            }
        }
        let new = progress.lines.iter().filter(|line| line.step.0 > step);
        for line in new.filter(|line| line.step.0 % PACE == 0) {
            println!("step        {}: loss {:.3} nats", line.step, line.loss);
        }
        event_number = progress.events.last().map_or(event_number, |event| event.number);
        step = progress.step().0;
        if complete {
            break;
        }
    }

    let report = cluster.report(run);
    cluster.finish().await;
    println!("validation  {:.3} nats", report.loss.validation.unwrap_or(f64::NAN));
    println!("state hash  {}", report.state_hash);
    Ok(())
}
