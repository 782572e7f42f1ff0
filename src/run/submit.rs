//! `everstep run submit`: gives a cluster a run to train.
//!
//! In: a file with the run, a script that states it, or the store of a run that another cluster has
//! begun. Out: its id, and what it waits for. The program does not look for the data: the workers'
//! machines have it.

use std::fs;
use std::path::Path;

use everstep_transport::protocol::question::RunView;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::run::SpecError;
use everstep_transport::protocol::{CheckpointSpec, RunOrigin, RunSpec};
use everstep_worker::registry::Registry;
use serde_json::json;

use super::sentence;
use crate::cli::{Overrides, SubmitFlags};
use crate::config;
use crate::failure::{Exit, Failure};
use crate::operator::{ClusterHandle, OperatorError};
use crate::resume::ClaimedRun;
use crate::script::{self, Measured};
use crate::store_check::{self, StoreUse};
use crate::{checkpoint, output, resume, train};

pub(super) fn run(flags: &SubmitFlags, registry: &Registry) -> Result<(), Failure> {
    reject_misplaced(flags)?;
    let (run, stored) = match (&flags.from, &flags.file) {
        (Some(from), _) => {
            let (run, stored) = stored(from, flags, registry)?;
            (run, Some(stored))
        }
        (None, Some(file)) => (read(file, registry)?, None),
        (None, None) if !flags.script.is_empty() => (stated(flags)?, None),
        (None, None) => {
            return Err(Failure::new(Exit::Usage, "there is no run to submit")
                .next("name a TOML file, a run's run.json, or a store with --from"));
        }
    };
    if let Some(spec) = &run.checkpoint {
        let begins = if stored.is_none() { StoreUse::BeginElsewhere } else { StoreUse::Elsewhere };
        store_check::check(spec, begins)?;
    }
    let needed = needed_on_workers(&run);
    let idle = train::idle(run.start_workers, run.batch.data_shards);
    let cluster = ClusterHandle::find(&flags.ask.cluster)?;
    let origin = stored.map(|stored| claim(stored, &cluster)).transpose()?;
    let (id, runs) = cluster.ask(async |operator| {
        let id = operator.next_id();
        let id = match origin {
            Some(origin) => operator.resume_stored(id, run, origin).await?,
            None => operator.submit(id, run).await?,
        };
        Ok((id, operator.runs().await?))
    })?;
    let view = runs.iter().rfind(|view| Some(view.id) == id);
    if flags.ask.json {
        return output::print(json!({ "id": id, "run": view }));
    }
    if let Some(note) = idle {
        output::say(format_args!("note: {note}"));
    }
    output::say(format_args!("note: {needed}"));
    output::print(view.map_or("the run is accepted".into(), sentence))
}

/// What the machines of the workers must have.
fn needed_on_workers(run: &RunSpec) -> String {
    if script::is_of_script(run) {
        return "each worker is a process of its script: `everstep worker … -- SCRIPT ARGS`".into();
    }
    format!("its data, \"{}\", is looked for on each worker's machine", run.data.path)
}

/// The run that a script states.
fn stated(flags: &SubmitFlags) -> Result<RunSpec, Failure> {
    let settings = config::read_launch_elsewhere(flags.config.as_deref(), flags.checkpoint_every)?;
    let file = flags.config.as_ref().map_or("--config FILE".into(), |it| it.display().to_string());
    // Before the script computes, which may take long.
    must_be_reachable(settings.checkpoint.as_ref(), &file)?;
    ClusterHandle::find(&flags.ask.cluster)?;
    let script = script::found_here(&flags.script, flags.threads.unwrap_or(1), flags.isa)?;
    Ok(settings.complete(&Measured::of(&script)?.run, flags.workers.unwrap_or(1)))
}

/// Refuses what would have no effect.
fn reject_misplaced(flags: &SubmitFlags) -> Result<(), Failure> {
    let (of_script, of_store) = (!flags.script.is_empty(), flags.from.is_some());
    let given = [
        ("--workers", flags.workers.is_some(), of_script, "a script"),
        ("--threads", flags.threads.is_some(), of_script, "a script"),
        ("--isa", flags.isa.is_some(), of_script, "a script"),
        ("--config", flags.config.is_some(), of_script, "a script"),
        ("--checkpoint-every", flags.checkpoint_every.is_some(), of_script, "a script"),
        ("--step", flags.step.is_some(), of_store, "--from"),
        ("--data", flags.data.is_some(), of_store, "--from"),
    ];
    // A variable may be meant for another command.
    let is_stated = |flag: &str| {
        let name = flag.trim_start_matches('-').replace('-', "_").to_uppercase();
        std::env::var_os(format!("EVERSTEP_{name}")).is_none()
    };
    let misplaced = |(flag, is_given, has_effect, _): &(&str, bool, bool, &str)| {
        *is_given && !has_effect && is_stated(flag)
    };
    match given.into_iter().find(misplaced) {
        None => Ok(()),
        Some((flag, _, _, with)) => Err(Failure::new(Exit::Usage, "there is no run to submit")
            .at(flag)
            .because(format_args!("it has a meaning with {with} alone"))
            .next("state it in the run's file, or leave it out")),
    }
}

/// Checks that all workers can reach the store.
fn must_be_reachable(store: Option<&CheckpointSpec>, place: &str) -> Result<(), Failure> {
    let Some(why) = store.and_then(config::is_elsewhere) else { return Ok(()) };
    Err(Failure::new(Exit::Usage, "there is no run to submit").at(place).because(why).next(
        "state checkpoint.path: a directory that all workers see under the same absolute path, or \
         a URL such as s3://BUCKET/FOLDER",
    ))
}

/// Checks the run against this program's models. Those of a script are checked by its workers.
fn validate(registry: &Registry, run: &RunSpec) -> Result<(), SpecError> {
    if script::is_of_script(run) { run.validate() } else { registry.validate(run) }
}

/// Claims the store of a run for a cluster, and reads what the cluster has to know of it. A cluster
/// that trains another run refuses this one, and claims nothing.
fn claim(stored: ClaimedRun, cluster: &ClusterHandle) -> Result<RunOrigin, Failure> {
    let runs = cluster.ask(async |operator| operator.runs().await)?;
    let is_over = |run: &&RunView| matches!(run.state.as_str(), "complete" | "failed");
    if let Some(current) = runs.last().filter(|run| !is_over(run)) {
        let why = Rejection::OtherRun(current.name.clone());
        return Err(cluster.failure(OperatorError::Refused(why.to_string())));
    }
    stored.origin(&cluster.cluster()?)
}

/// The run in a store, and the store to claim. The data are those of the workers' machines: a
/// worker with other data restores nothing.
fn stored(
    from: &Path,
    flags: &SubmitFlags,
    registry: &Registry,
) -> Result<(RunSpec, ClaimedRun), Failure> {
    let place = resume::store_of(from)?;
    let found = resume::read_run(&place, flags.step)?;
    let stored = ClaimedRun::new(&place, flags.step, &found.manifest);
    let (step, mut run) = (found.origin.step(), found.run);
    let refused = |why: String, next: &str| {
        let failure = Failure::new(Exit::Usage, "the run cannot go on from its store");
        failure.at(from.display()).because(why).next(next)
    };
    if let Some(data) = &flags.data {
        if script::is_of_script(&run) {
            let why = "it is the run of a script, which names its data itself".into();
            return Err(refused(why, "leave --data out"));
        }
        run.data.path = data.clone();
    }
    if let Some(why) = run.data.is_elsewhere().filter(|_| !script::is_of_script(&run)) {
        let next = "name with --data the absolute path that they have on the workers' machines";
        return Err(refused(why, next));
    }
    match &mut run.checkpoint {
        Some(checkpoint) => checkpoint.path = place.to_string(),
        None => {
            let why = "its specification has no section [checkpoint]".into();
            let next = "`everstep checkpoint export` makes weights for a new run of it";
            return Err(refused(why, next));
        }
    }
    let next = "submit it with the program that began it";
    validate(registry, &run).map_err(|error| refused(error.to_string(), next))?;
    // Before the store is claimed: nothing is undone if it is damaged.
    if flags.step.is_some() {
        checkpoint::must_be_whole(&*checkpoint::open(&place)?, step)?;
    }
    output::say(format_args!("goes on from the checkpoint of step {step} in {place}"));
    Ok((run, stored))
}

/// The run in a file: one that `everstep train` reads, or one that it has written.
fn read(file: &Path, registry: &Registry) -> Result<RunSpec, Failure> {
    let refused = |why: String, next: &str| {
        let failure = Failure::new(Exit::Usage, "there is no run to submit");
        failure.at(file.display()).because(why).next(next)
    };
    let text = fs::read_to_string(file)
        .map_err(|error| refused(error.to_string(), "name a TOML file, or a run's run.json"))?;
    let run = if text.trim_start().starts_with('{') {
        let next = "pass it as a run's directory has it in run.json";
        let run = RunSpec::from_file(text.as_bytes());
        let run = run.map_err(|error| refused(error.to_string(), next))?;
        validate(registry, &run).map_err(|error| refused(error.to_string(), next))?;
        run
    } else {
        let mut resolved = config::resolve(Some((file, &text)), &Overrides::default(), registry)?;
        if let Some(why) = resolved.run.model.init.as_ref().and_then(config::is_init_elsewhere) {
            let next = "state model.init: a path that all workers see, or a URL";
            return Err(refused(why, next));
        }
        config::read_initial_weights(&mut resolved, registry)?;
        resolved.run
    };
    must_be_reachable(run.checkpoint.as_ref(), &file.display().to_string())?;
    if script::is_of_script(&run) {
        return Ok(run);
    }
    if run.data.kind == "text" && run.data.path.is_empty() {
        let why = "it states no data.path, and the default text is one of this machine's".into();
        return Err(refused(why, "state data.path, a path on the workers' machines"));
    }
    if let Some(why) = run.data.is_elsewhere() {
        let here = std::path::absolute(run.data.path.trim_start_matches('@'));
        let here = here.map_or_else(|_| "/DIR/TEXT".into(), |path| path.display().to_string());
        let next = format!(
            "write the absolute path that the text has on the workers' machines. From here it \
             would be {here}"
        );
        return Err(refused(why, &next));
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use everstep_worker::builtin;

    use super::*;

    fn read_text(text: &str) -> Result<RunSpec, Failure> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("run.toml");
        fs::write(&file, text).expect("written");
        read(&file, &builtin::registry())
    }

    #[test]
    fn a_run_is_read_as_train_takes_it_or_as_it_leaves_it() {
        let toml = "run.steps = 7\nmodel.width = 32\ndata.path = \"/elsewhere/text\"";
        let run = read_text(toml).expect("a run");
        assert_eq!((run.steps, &*run.data.path), (7, "/elsewhere/text"), "it need not be here");
        let json = serde_json::to_string_pretty(&run).expect("plain data");
        assert_eq!(read_text(&json), Ok(run));
    }

    #[test]
    fn a_run_in_json_keeps_to_the_same_rules() {
        let run = read_text("data.path = \"/t\"").expect("a run");
        let json = serde_json::to_string(&run).expect("plain data");
        for (from, to, words) in [
            ("\"adamw\"", "\"adam\"", "optimizer.kind is \"adam\", which is no optimizer"),
            ("\"heads\":4", "\"heads\":3", "model.heads is 3, which does not divide"),
        ] {
            assert!(json.contains(from), "{json}");
            let told = read_text(&json.replace(from, to)).expect_err(to).to_string();
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn what_is_no_run_is_refused_with_what_to_do() {
        for (text, words) in [
            ("run.step = 7\ndata.path = \"/t\"", "did you mean \"run.steps\"?"),
            ("run.steps = 7", "state data.path"),
            ("data.path = \"texts\"", "data.path is \"texts\", a relative path"),
            ("data.path = \"@list\"", "From here it would be /"),
            ("optimizer.kind = \"adam\"\ndata.path = \"/t\"", "run.toml:1"),
            ("optimizer.kind = \"adam\"\ndata.path = \"/t\"", "\"adamw\", \"lion\" or \"sgd\""),
            ("model.heads = 3\ndata.path = \"/t\"", "does not divide model.width = 128"),
            ("data.kind = \"tokens\"\ndata.path = \"t\"", "data.path is \"t\", a relative path"),
            ("checkpoint.every = 5\ndata.path = \"/t\"", "it states no checkpoint.path"),
            (
                "checkpoint.every = 5\ncheckpoint.path = \"a\"\ndata.path = \"/t\"",
                "checkpoint.path is \"a\", a relative path",
            ),
            (
                "checkpoint.every = 5\ncheckpoint.path = \"ftp://a/b\"\ndata.path = \"/t\"",
                "run.toml:2",
            ),
            ("{\"name\": 3}", "as a run's directory has it in run.json"),
        ] {
            let told = read_text(text).expect_err(text).to_string();
            assert!(told.contains(words), "{told}");
        }
    }
}
