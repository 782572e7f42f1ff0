//! Whether the store of a run's checkpoints can be used, before anything starts.
//!
//! In: the run's specification. Out: nothing if the store keeps what checkpoints need. What it
//! refuses is an error with what to do: the first due step would be too late. A store that is away
//! for the moment is a note, since the workers try it again. This module reads no checkpoint.

use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::store::probe::probe;
use everstep_checkpoint::store::{
    self, Environment, ErrorKind, Place, Store, StoreError, missing_credentials,
};
use everstep_transport::protocol::{CheckpointSpec, Step};

use crate::failure::{Exit, Failure};
use crate::output;

/// A store that has not answered for this long is away.
const STORE_PROBE_TIMEOUT: Duration = Duration::from_secs(15);

/// How a verb depends on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreUse {
    /// A new run will write into it: a directory is made.
    Begin,
    /// A new run would write into it. Nothing is made.
    Estimate,
    /// It has what a run goes on from. A directory that is not there may be one that is not
    /// mounted.
    Resume,
    /// Workers on other machines go on from what it has, with credentials of their own.
    Elsewhere,
    /// Workers on other machines begin a new run in it.
    BeginElsewhere,
}

/// What a look at a store comes to.
#[derive(Clone, Debug, PartialEq)]
enum Finding {
    /// It keeps what checkpoints need, and has one of this step, if any: the newest.
    Usable(Option<Step>),
    /// It may be usable later, or from another machine. The words say what is wrong.
    Away(String),
    /// It will not be usable before a person has changed something.
    Refused(StoreError),
}

/// Checks the store of a run. The user hears of one that is away.
///
/// # Errors
/// What the store refuses, with what to do.
pub(crate) fn check(spec: &CheckpointSpec, usage: StoreUse) -> Result<(), Failure> {
    match look(&spec.path, usage) {
        Finding::Usable(Some(step))
            if matches!(usage, StoreUse::Begin | StoreUse::BeginElsewhere) =>
        {
            let place = output::plain(&spec.path);
            output::say(format_args!(
                "note: {place} has checkpoints already, up to step {step}. This run begins at \
                 step 0 and writes over them: `everstep resume {place}` goes on from them"
            ));
            Ok(())
        }
        Finding::Usable(_) => Ok(()),
        Finding::Away(why) => {
            let why = output::plain(&why);
            output::say(format_args!(
                "note: the store of the checkpoints cannot be used now: {why}. The workers try it \
                 again"
            ));
            Ok(())
        }
        Finding::Refused(error) => {
            Err(Failure::new(Exit::Usage, "the store of the checkpoints cannot be used")
                .at(if error.place.is_empty() { &spec.path } else { &error.place })
                .because(error.why)
                .next("change what it names, or name another store in checkpoint.path"))
        }
    }
}

fn look(path: &str, usage: StoreUse) -> Finding {
    let place = match path.parse() {
        Ok(place) => place,
        Err(error) => return Finding::Refused(error),
    };
    if let Place::Directory(path) = &place
        && usage != StoreUse::Begin
        && matches!(path.try_exists(), Ok(false))
    {
        return missing_directory(path, usage);
    }
    let environment = Environment::of_process();
    let lacks = missing_credentials(&place, &environment);
    let store = match store::open(&place, &environment) {
        Ok(store) => store,
        Err(error) => return judge(error, usage, lacks),
    };
    // A request may be repeated for minutes. The thread ends with the process.
    let (answers, answered) = channel();
    thread::spawn(move || answers.send(probe(&*store).and_then(|()| newest(&*store))));
    match answered.recv_timeout(STORE_PROBE_TIMEOUT) {
        Ok(Ok(step)) => Finding::Usable(step),
        Ok(Err(error)) => judge(error, usage, lacks),
        Err(_) => {
            let why = format!("it has not answered for {} s", STORE_PROBE_TIMEOUT.as_secs());
            let error = StoreError::refuse(path, why);
            judge(StoreError { kind: ErrorKind::Retry, ..error }, usage, lacks)
        }
    }
}

/// The step of the newest checkpoint that is complete by its names.
fn newest(store: &dyn Store) -> Result<Option<Step>, StoreError> {
    let steps = store.list_checkpoints()?.into_iter().filter_map(|object| match object.name {
        ObjectName::Manifest(step) => Some(step),
        _ => None,
    });
    Ok(steps.max())
}

/// Sorts an error. `lacks` says what to set if this machine has no credentials for the store. The
/// workers' machines may have some. A service that does not answer here gives no role to this
/// machine, so that is no outage.
fn judge(error: StoreError, usage: StoreUse, lacks: Option<&str>) -> Finding {
    let may_pass = match usage {
        StoreUse::Elsewhere | StoreUse::BeginElsewhere => {
            error.kind == ErrorKind::Retry || lacks.is_some()
        }
        StoreUse::Begin | StoreUse::Estimate | StoreUse::Resume => {
            error.kind == ErrorKind::Retry && lacks.is_none()
        }
    };
    if may_pass {
        return Finding::Away(error.to_string());
    }
    match lacks.filter(|next| !error.why.contains(next)) {
        Some(next) => {
            Finding::Refused(StoreError { why: format!("{}; {next}", error.why), ..error })
        }
        None => Finding::Refused(error),
    }
}

/// A directory that is not there. A run makes its own in the course of time.
fn missing_directory(path: &Path, usage: StoreUse) -> Finding {
    match usage {
        StoreUse::Begin | StoreUse::Estimate | StoreUse::Elsewhere | StoreUse::BeginElsewhere => {
            Finding::Usable(None)
        }
        StoreUse::Resume => Finding::Away(format!("there is no directory {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn found(path: &Path, usage: StoreUse) -> Finding {
        look(path.to_str().expect("UTF-8"), usage)
    }

    #[test]
    fn a_directory_is_usable_unless_a_file_is_in_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let (store, file) = (folder.path().join("a/store"), folder.path().join("file"));
        assert!(matches!(found(&store, StoreUse::Resume), Finding::Away(_)));
        assert_eq!(
            found(&store, StoreUse::Elsewhere),
            Finding::Usable(None),
            "the workers may see it"
        );
        assert_eq!(found(&store, StoreUse::Estimate), Finding::Usable(None), "the run makes it");
        assert!(!store.exists(), "a look makes nothing");
        assert_eq!(found(&store, StoreUse::Begin), Finding::Usable(None));
        assert_eq!(found(&store, StoreUse::Resume), Finding::Usable(None));
        fs::write(&file, b"").expect("written");
        assert!(!matches!(found(&file, StoreUse::Begin), Finding::Usable(None)));
        assert!(matches!(found(Path::new("ftp://a/b"), StoreUse::Begin), Finding::Refused(_)));
    }

    #[test]
    fn what_waits_and_what_refuses_by_table() {
        let of = |kind| StoreError { kind, ..StoreError::refuse("s3://b", "no answer") };
        let judged = |kind, usage, lacks| match judge(of(kind), usage, lacks) {
            Finding::Usable(_) => panic!("it was an error"),
            Finding::Away(_) => "away",
            Finding::Refused(_) => "refused",
        };
        use StoreUse::{Begin, Elsewhere, Estimate, Resume};
        for (kind, usage, lacks, finding) in [
            (ErrorKind::Retry, Begin, None, "away"),
            (ErrorKind::Retry, Resume, None, "away"),
            (ErrorKind::Retry, Begin, Some("set AWS_REGION"), "refused"),
            (ErrorKind::Refuse, Begin, None, "refused"),
            (ErrorKind::Refuse, Estimate, Some("set AWS_REGION"), "refused"),
            (ErrorKind::Refuse, Elsewhere, Some("set AWS_REGION"), "away"),
            (ErrorKind::Retry, Elsewhere, None, "away"),
            (ErrorKind::Refuse, Elsewhere, None, "refused"),
        ] {
            assert_eq!(judged(kind, usage, lacks), finding, "{kind:?} {usage:?} {lacks:?}");
        }
        let Finding::Refused(error) = judge(of(ErrorKind::Retry), Begin, Some("set it")) else {
            panic!("refused")
        };
        assert_eq!(error.why, "no answer; set it");
    }
}
