//! `everstep launch`: a local cluster whose workers are processes of a Python script.
//!
//! The launcher imports nothing of Python. The first process of the script says which run it
//! trains.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use everstep_transport::protocol::RunSpec;

use crate::cli::LaunchFlags;
use crate::cluster::{self, ClusterOptions, Directory, Script};
use crate::failure::{Exit, Failure};
use crate::progress::{self, Display};
use crate::train::{ReportFile, check_coordinators};
use crate::{logging, output};

pub(crate) fn run(flags: &LaunchFlags) -> Result<(), Failure> {
    logging::start("warn")?;
    check_coordinators(flags.coordinators)?;
    let script = script(flags)?;
    let report_file = flags.report.as_deref().map(ReportFile::open).transpose()?;
    let directory = match &flags.dir {
        Some(path) => Directory::claim_empty(path)?,
        None => Directory::claim_new_empty(Path::new("runs"), &name(flags))?,
    };
    let home = directory.path().to_path_buf();
    output::say(format_args!("starting {} of {}", processes(flags.workers), name(flags)));
    let options = ClusterOptions {
        coordinators: flags.coordinators,
        wait: Duration::from_secs(flags.wait.into()),
        respawn: flags.respawn,
        script: Some(script),
        ..ClusterOptions::new(flags.workers)
    };
    let shown: RefCell<Option<(RunSpec, Display)>> = RefCell::default();
    let begin = |run: &RunSpec| {
        let display = Display::new(run, flags.workers, &home);
        *shown.borrow_mut() = Some((run.clone(), display));
    };
    let trained = cluster::launch(directory, &options, begin, |progress| {
        if let Some((_, display)) = &mut *shown.borrow_mut() {
            display.show(progress);
        }
    });
    let begun = shown.into_inner().map(|(run, display)| {
        display.end();
        run
    });
    match trained {
        Ok((run, report)) => {
            report_file.map_or(Ok(()), |file| file.write(&report))?;
            output::print(progress::summary(&run, &report, &home))
        }
        Err(error) => Err(ended(error.into(), &home, begun.as_ref())),
    }
}

/// The failure of a launch, with the words of a run that was interrupted.
fn ended(failure: Failure, home: &Path, begun: Option<&RunSpec>) -> Failure {
    let Some(run) = begun else {
        Directory::forget(home);
        return failure;
    };
    if !failure.is_interruption() {
        return failure;
    }
    let step = cluster::ended(home).and_then(|it| it["step"].as_u64()).unwrap_or_default();
    let why = format!("the run stopped after step {step} of {}; its files are kept", run.steps);
    failure.at(home.display()).because(why).next("launch it again: it begins at the first step")
}

/// The script of the workers. Its interpreter is that of this program, if one runs it.
fn script(flags: &LaunchFlags) -> Result<Script, Failure> {
    let path = Path::new(&flags.script[0]);
    if !path.is_file() {
        return Err(Failure::new(Exit::Usage, "the script cannot be launched")
            .at(path.display())
            .because("there is no such file")
            .next("name a Python script, and after it the script's own arguments"));
    }
    Ok(crate::script::of(flags.script.clone(), flags.threads))
}

/// The name of the script, for its directory.
fn name(flags: &LaunchFlags) -> String {
    let stem = Path::new(&flags.script[0]).file_stem();
    stem.map_or("script".into(), |stem| stem.to_string_lossy().into_owned())
}

fn processes(count: u32) -> String {
    format!("{count} process{}", if count == 1 { "" } else { "es" })
}
