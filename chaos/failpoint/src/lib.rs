//! Failpoints: named places where a test may kill, stop or delay a process.
//!
//! In: the environment of the process, and the names of its points as it passes them. The syntax of
//! the crate `fail` says what happens at which point: `FAILPOINTS="vote.send=1*return(kill)"`. In
//! addition to that crate's actions there is `return(kill)`: SIGKILL, on itself. A term that begins
//! with a kind of process is for these alone: a launcher that has `worker:load=sleep(20)` hands it
//! on to all of its processes. Each point that acts first appends its name as a line to the file
//! that `EVERSTEP_FAILPOINT_LOG` names, if it names one. No point begins to sleep once there is a
//! file at the path of `EVERSTEP_FAILPOINTS_UNTIL`: so a test slows a run down for as long as it
//! needs.
//!
//! This crate does not know which points there are: worker and coordinator each list theirs. Only
//! their feature `failpoints` builds this.

use std::env;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use rustix::process::{Signal, getpid, kill_process};

/// The `fail` point that performs the present action of any point.
const ACTION: &str = "action";
/// The `fail` point that tests whether an action exists.
const TRIAL: &str = "trial";

/// A part of `FAILPOINTS` is not valid.
#[derive(Debug, thiserror::Error)]
#[error("FAILPOINTS: \"{term}\" {problem}")]
pub struct FailpointError {
    /// The part of the setting that is not valid.
    pub term: String,
    /// What is wrong with it.
    pub problem: TermError,
}

/// What is wrong with a part of `FAILPOINTS`.
#[derive(Debug, thiserror::Error)]
pub enum TermError {
    /// It is no name with actions.
    #[error("is not NAME=ACTIONS")]
    Form,
    /// The process has no failpoint of this name.
    #[error("is no failpoint of this process")]
    Unknown,
    /// The action returns something that means nothing here.
    #[error("returns something else than `kill`")]
    Returns,
    /// The crate `fail` refuses the action, in its own words.
    #[error("{0}")]
    Action(String),
}

/// Reads `FAILPOINTS`, once, when a process of this `kind` with these `points` starts.
///
/// # Errors
/// A name that is none of them, or an action that does not exist.
pub fn arm(kind: &str, points: &[&str]) -> Result<(), FailpointError> {
    let all = env::var("FAILPOINTS").unwrap_or_default();
    all.split(';').filter_map(|term| own(kind, term)).try_for_each(|term| {
        arm_one(points, term).map_err(|problem| FailpointError { term: term.into(), problem })
    })
}

/// The term without the kind of process that it is for. None if that is another kind, and for an
/// empty term.
fn own<'a>(kind: &str, term: &'a str) -> Option<&'a str> {
    let name = term.split('=').next().unwrap_or_default();
    let (of, term) = match name.split_once(':') {
        Some((of, _)) => (of.trim(), term[of.len() + 1..].trim()),
        None => (kind, term.trim()),
    };
    (of == kind && !term.is_empty()).then_some(term)
}

/// The process passes this point: performs the action that is set for it, if any.
pub fn pass(point: &str) {
    fail::fail_point!(point, |action| act(point, &action.unwrap_or_default()));
}

fn arm_one(points: &[&str], term: &str) -> Result<(), TermError> {
    let (name, actions) = term.split_once('=').ok_or(TermError::Form)?;
    let known = points.contains(&name.trim());
    known.then_some(()).ok_or(TermError::Unknown)?;
    let told: Result<Vec<_>, _> = actions.split("->").map(told).collect();
    fail::cfg(name.trim(), &told?.join("->")).map_err(TermError::Action)
}

/// The same action at the same times, but handed to [`act`]. The crate does most actions without a
/// word, and each must be logged.
fn told(term: &str) -> Result<String, TermError> {
    let term = term.trim();
    let head = term.split('(').next().unwrap_or_default();
    let (times, action) = term.split_at(head.rfind(['%', '*']).map_or(0, |at| at + 1));
    match action {
        "off" | "return(kill)" => Ok(term.into()),
        _ if action.starts_with("return") => Err(TermError::Returns),
        _ => {
            fail::cfg(TRIAL, action).map_err(TermError::Action)?;
            Ok(format!("{times}return({action})"))
        }
    }
}

fn act(point: &str, action: &str) {
    if has_ended(action, env::var_os("EVERSTEP_FAILPOINTS_UNTIL")) {
        return;
    }
    tracing::warn!(point, action, "failpoint");
    if let Err(error) = log(point) {
        tracing::error!(point, %error, "the failpoint cannot be logged");
    }
    if action == "kill" {
        let _ = kill_process(getpid(), Signal::KILL); // nothing comes after this
    }
    if fail::cfg(ACTION, action).is_ok() {
        fail::fail_point!(ACTION);
    }
}

/// Whether the action is a sleep, and there is a file at this path, which ends all sleeps.
fn has_ended(action: &str, until: Option<OsString>) -> bool {
    action.starts_with("sleep") && until.is_some_and(|path| Path::new(&path).exists())
}

fn log(point: &str) -> io::Result<()> {
    let Some(path) = env::var_os("EVERSTEP_FAILPOINT_LOG") else { return Ok(()) };
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(format!("{point}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTS: &[&str] = &["vote.send", "update", "enter"];

    #[test]
    fn what_is_no_failpoint_or_no_action_is_refused() {
        for (term, problem) in [
            ("vote.sent=return(kill)", "is no failpoint of this process"),
            ("vote.send", "is not NAME=ACTIONS"),
            ("vote.send=return(1)", "returns something else than `kill`"),
            ("vote.send=sleeep(1)", "unrecognized command \"sleeep\""),
            ("vote.send=x*sleep(1)", "failed to parse"),
        ] {
            let error = arm_one(POINTS, term).unwrap_err().to_string();
            assert!(error.contains(problem), "{term}: {error}");
        }
    }

    #[test]
    fn a_term_is_for_all_processes_or_for_those_of_a_kind() {
        for (term, is_for_a_worker) in [
            ("update=sleep(1)", Some("update=sleep(1)")),
            (" worker:update=print(a:b)", Some("update=print(a:b)")),
            ("coordinator:update=sleep(1)", None),
            ("update=print(a:b)", Some("update=print(a:b)")),
            (" ", None),
        ] {
            assert_eq!(own("worker", term), is_for_a_worker, "{term}");
        }
    }

    #[test]
    fn an_action_is_done_as_often_as_was_said() {
        let arm_one = |term| arm_one(POINTS, term).unwrap();
        arm_one("update = off");
        pass("update");
        arm_one("update = 1*off -> 2*panic(now) -> off");
        pass("update");
        for _ in 0..2 {
            assert!(std::panic::catch_unwind(|| pass("update")).is_err());
        }
        pass("update");
        pass("enter");
    }

    #[test]
    fn sleeps_alone_end_once_there_is_a_file() {
        let there = || Some(env::current_exe().unwrap().into_os_string());
        assert!(has_ended("sleep(20)", there()));
        assert!(!has_ended("sleep(20)", Some("/nonexistent".into())));
        assert!(!has_ended("sleep(20)", None));
        assert!(!has_ended("kill", there()));
    }

    #[test]
    fn frequencies_stay_and_actions_are_told() {
        let told = |term| told(term).unwrap();
        assert_eq!(told("sleep(30)"), "return(sleep(30))");
        assert_eq!(told(" 50%3*pause"), "50%3*return(pause)");
        assert_eq!(told("1*return(kill)"), "1*return(kill)");
        assert_eq!(told("off"), "off");
        assert_eq!(told("print(100% * 2)"), "return(print(100% * 2))");
    }
}
