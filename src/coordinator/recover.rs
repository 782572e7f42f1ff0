//! `everstep coordinator recover`: the cluster goes on from one coordinator's directory.

use everstep_coordinator::daemon::{self, RecoverError, Recovered};
use everstep_coordinator::recovery::{RecoveryError, RecoveryPlan};
use serde_json::json;

use super::advice;
use crate::cli::RecoverFlags;
use crate::failure::{Exit, Failure};
use crate::output;

pub(super) fn run(flags: &RecoverFlags) -> Result<(), Failure> {
    let dir = flags.dir.display();
    let Recovered { plan, before } =
        match daemon::recover(flags.dir.clone(), flags.accept_lost_entries) {
            Ok(recovered) => recovered,
            Err(error) => return Err(failure(error).at(dir)),
        };
    if flags.json {
        let lost = plan.lost.iter().map(|view| json!({ "id": view.id, "name": view.name }));
        return output::print(json!({
            "id": plan.survivor, "last_entry": plan.last.index, "last_term": plan.last.term,
            "agreed": plan.agreed,
            "newest_unix_ms": plan.newest_unix_ms, "lost": lost.collect::<Vec<_>>(),
            "log_before": before,
        }));
    }
    output::say(format_args!(
        "{}. The log as it was is kept in {}",
        described(&plan),
        before.display()
    ));
    output::say(
        "destroy the disks of the lost coordinators. Start this one as ever, where it listened \
         before, then `everstep coordinator add` for each that is to replace a lost one",
    );
    output::print(format_args!("the cluster goes on from coordinator {} alone", plan.survivor))
}

/// The content of the directory, and the parts that are lost.
fn described(plan: &RecoveryPlan) -> String {
    let lost: Vec<String> = plan.lost.iter().map(|view| view.id.to_string()).collect();
    let RecoveryPlan { last, agreed, .. } = plan;
    format!(
        "its log ends with entry {} of term {}, and up to entry {agreed} is known to be agreed on. \
         Coordinators that are given up: {}",
        last.index,
        last.term,
        if lost.is_empty() { "none".into() } else { lost.join(", ") }
    )
}

fn failure(error: RecoverError) -> Failure {
    let new = |exit| Failure::new(exit, "the cluster does not go on from this directory");
    match &error {
        RecoverError::NotAccepted(plan) => new(Exit::Usage)
            .because(format_args!(
                "{}. Entries that the others agreed on since are lost: settled steps are missing \
                 in the history, and changes of workers, runs and tokens are undone",
                described(plan)
            ))
            .next(
                "use the directory with the newest log. If the others are lost for good, pass \
                 --accept-lost-entries",
            ),
        RecoverError::Answers { .. } => new(Exit::Usage).because(&error).next(
            "if most of the coordinators run, `everstep coordinator remove` does without the rest. \
             Else stop that one too, and recover the one with the newest log",
        ),
        RecoverError::Log(RecoveryError::Alone) => {
            new(Exit::Usage).because(&error).next("start it: `everstep coordinator --dir DIR`")
        }
        RecoverError::Log(RecoveryError::Empty | RecoveryError::Removed) => {
            new(Exit::Usage).because(&error).next("name the directory of another coordinator")
        }
        RecoverError::Log(RecoveryError::Log(_)) => new(Exit::Failed)
            .because(&error)
            .next("name the directory of another coordinator, or use the version that wrote it"),
        RecoverError::Coordinator(inner) => {
            let (exit, next) = advice(inner);
            new(exit).because(&error).next(next)
        }
    }
}
