//! `everstep train`: a local cluster of real processes that trains one run.

use std::path::Path;

use everstep_transport::protocol::RunSpec;
use everstep_worker::registry::Registry;

use crate::cli::TrainFlags;
use crate::cluster::{self, Directory, Options, Report};
use crate::config::{self, Resolved};
use crate::failure::{Exit, Failure};
use crate::generate::{self, continue_text, read_model};
use crate::text::RunText;
use crate::{dry_run, later, progress};

pub(crate) fn run(flags: &TrainFlags, registry: &Registry) -> Result<(), Failure> {
    if flags.coordinators != 1 {
        return Err(later("--coordinators above 1").at("--coordinators"));
    }
    if flags.respawn {
        return Err(later("--respawn"));
    }
    let mut resolved = config::read(flags.config.as_deref(), &flags.overrides, registry)?;
    for note in &resolved.notes {
        eprintln!("note: {note}");
    }
    let text = RunText::find(&resolved)?;
    if flags.dry_run {
        resolved.run.data.path = text.listed_in(&std::env::temp_dir())?;
        return dry_run::run(&resolved, registry);
    }
    let report = train(flags, &mut resolved, &text, registry)?;
    if let Some(path) = &flags.report {
        write_report(path, &report)?;
    }
    Ok(())
}

/// Checks that the model and data can be built here, then trains them on a cluster.
fn train(
    flags: &TrainFlags,
    resolved: &mut Resolved,
    text: &RunText,
    registry: &Registry,
) -> Result<Report, Failure> {
    let directory = match &flags.dir {
        Some(path) => Directory::claim(path, &resolved.run)?,
        None => Directory::claim_new(Path::new("runs"), &resolved.run)?,
    };
    let home = directory.path().to_path_buf();
    resolved.run.data.path = text.listed_in(&home)?;
    let run = &resolved.run;
    check(resolved, registry).inspect_err(|_| {
        // Nothing was trained: the directory may be used again.
        let _ = std::fs::remove_file(home.join("run.json"));
    })?;
    let mut display = progress::Display::new(run, resolved.workers, &home);
    let options = Options::new(resolved.workers);
    let report = cluster::train(run, directory, &options, |progress| display.show(progress));
    display.end();
    let mut report = report?;
    report.loss.bigram = text.bigram(run)?;
    progress::summary(run, &report, &home);
    sample(run, &home.join("model.safetensors"), text, registry);
    Ok(report)
}

/// What a worker would find wrong only after it has started.
fn check(resolved: &Resolved, registry: &Registry) -> Result<(), Failure> {
    let refused = |key, error: &dyn std::fmt::Display| {
        Failure::from(resolved.refusal(key, &format!("cannot be used: {error}")))
    };
    registry.build_model(&resolved.run).map_err(|error| refused("model.kind", &error))?;
    let dataset =
        registry.build_dataset(&resolved.run).map_err(|error| refused("data.path", &error))?;
    if dataset.is_empty() {
        return Err(refused("data.kind", &"the data set is empty"));
    }
    Ok(())
}

/// Continues some held-out text with what was trained, if that is what the model does.
fn sample(run: &RunSpec, model: &Path, text: &RunText, registry: &Registry) {
    let Some(prompt) = text.prompt(run) else { return };
    let options = generate::Options { bytes: 240, temperature: 0.7, seed: run.seed };
    let continued = read_model(model, registry)
        .ok()
        .and_then(|mut compute| continue_text(compute.as_mut(), &prompt, &options));
    if let Some(continued) = continued {
        // A young model's control characters are no good for a terminal.
        let visible = |c: char| if c.is_control() && c != '\n' && c != '\t' { '.' } else { c };
        let show = |bytes: &[u8]| -> String {
            String::from_utf8_lossy(bytes).chars().map(visible).collect()
        };
        println!("a held-out beginning, and what the model makes of it after \"|\":\n");
        println!("{}|{}\n", show(&prompt), show(&continued));
    }
}

fn write_report(path: &Path, report: &Report) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(report).expect("a report is plain data");
    std::fs::write(path, text + "\n").map_err(|error| {
        Failure::new(Exit::Failed, "the report cannot be written")
            .at(path.display())
            .because(error)
            .next("the run is complete; its files are in its directory")
    })
}
