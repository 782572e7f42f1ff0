//! Checkpoints that workers of a running cluster read, since this machine need not see their store.
//!
//! In: an operator of the cluster. Out: a worker's verdict on each checkpoint. The leader has one
//! worker read one checkpoint, and is asked again until there is a verdict.

use std::time::{Duration, Instant};

use everstep_transport::protocol::checkpoint::CheckpointView;
use everstep_transport::protocol::{Step, Verification};
use serde_json::{Value, json};

use super::read_progress::ReadProgress;
use super::source::views;
use crate::cli::VerifyFlags;
use crate::failure::{Exit, Failure};
use crate::operator::{ClusterHandle, Operator, OperatorError};
use crate::output;

/// How often the program asks how far a checkpoint is read.
const VERIFICATION_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long the program waits for a worker that can read a checkpoint.
const READER_TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until a worker has read the checkpoint of a step, and shows how far it is. The verdict is
/// never [`Verification::Reading`].
pub(crate) async fn verdict(
    operator: &mut Operator,
    step: Step,
) -> Result<Verification, OperatorError> {
    let (began, mut progress) = (Instant::now(), None);
    loop {
        match operator.verification(step).await? {
            Verification::Reading { bytes, total: total @ 1.. } => {
                let what = format!("checkpoint of step {step}");
                progress.get_or_insert_with(|| ReadProgress::of_bytes(what, total)).reach(bytes);
            }
            Verification::Reading { .. } => {}
            Verification::NoReader if began.elapsed() < READER_TIMEOUT => {}
            verdict => return Ok(verdict),
        }
        tokio::time::sleep(VERIFICATION_POLL_INTERVAL).await;
    }
}

/// Why a verdict is none that a checkpoint is whole, in words that follow its name.
pub(crate) fn reason(verdict: Verification) -> Option<String> {
    match verdict {
        Verification::Whole => None,
        Verification::Damaged(why) => Some(format!("is damaged: {why}")),
        Verification::Unread(why) => Some(format!("cannot be read: {why}")),
        Verification::NotListed => Some("is not listed".into()),
        Verification::NoReader | Verification::Reading { .. } => {
            Some("cannot be read: no worker is there. Start one, and ask again".into())
        }
    }
}

/// A listed checkpoint as a worker found it.
struct WorkerVerdict {
    view: CheckpointView,
    /// Why the checkpoint is not known to be whole. None if it is.
    reason: Option<String>,
}

/// `everstep checkpoint verify` for the store of a cluster that only the workers see.
pub(super) fn verify(cluster: &ClusterHandle, flags: &VerifyFlags) -> Result<(), Failure> {
    let mut listed = views(cluster)?;
    listed.retain(|view| flags.step.is_none_or(|step| view.step == Step(step)));
    let mut verified = Vec::new();
    for view in listed {
        let verdict = cluster.ask(async |operator| verdict(operator, view.step).await)?;
        verified.push(WorkerVerdict { view, reason: reason(verdict) });
    }
    match flags.store.json {
        true => output::print(json!(verified.iter().map(WorkerVerdict::json).collect::<Vec<_>>()))?,
        false => verified.iter().try_for_each(|it| output::print(it.words()))?,
    }
    let wrong: Vec<_> = verified.iter().filter(|it| it.reason.is_some()).collect();
    if wrong.is_empty() && !verified.is_empty() {
        return Ok(());
    }
    let steps: Vec<_> = wrong.iter().map(|it| it.view.step.to_string()).collect();
    let because = match verified.is_empty() {
        true => "the cluster lists none of this step".to_string(),
        false => format!("the checkpoint of step {} is not known to be whole", steps.join(", ")),
    };
    Err(Failure::new(Exit::Failed, "a checkpoint cannot be restored")
        .at(cluster.dir.display())
        .because(because)
        .next("a run goes on from the newest one that is not damaged"))
}

impl WorkerVerdict {
    fn json(&self) -> Value {
        let Self { view, reason } = self;
        let damage = reason.iter().map(|why| json!({ "file": null, "shard": null, "why": why }));
        json!({
            "step": view.step,
            "bytes": view.bytes,
            "state_hash": view.state_hash,
            "damage": damage.collect::<Vec<_>>(),
        })
    }

    fn words(&self) -> String {
        let CheckpointView { step, bytes, state_hash, .. } = &self.view;
        match &self.reason {
            Some(reason) => output::plain(&format!("step {step}: {reason}")),
            None => {
                let hash = state_hash.as_deref().unwrap_or_default();
                format!("step {step}: {:.1} MB as written, state hash {hash}", *bytes as f64 / 1e6)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_of_a_worker_is_told_like_that_of_this_machine() {
        let view = |damage| CheckpointView {
            step: Step(5),
            bytes: 1_500_000,
            seconds: None,
            state_hash: Some("08".into()),
            complete: true,
            path: "/store/step-000005".into(),
            damage,
        };
        let verdict = |verdict| WorkerVerdict { view: view(None), reason: reason(verdict) };
        let whole = verdict(Verification::Whole);
        assert_eq!(whole.words(), "step 5: 1.5 MB as written, state hash 08");
        assert_eq!(whole.json()["damage"], json!([]));
        let damaged = verdict(Verification::Damaged("a bit flipped".into()));
        assert_eq!(damaged.words(), "step 5: is damaged: a bit flipped");
        assert_eq!(damaged.json()["damage"][0]["why"], "is damaged: a bit flipped");
        let unread = reason(Verification::NoReader).expect("no verdict");
        assert!(unread.contains("no worker is there"), "{unread}");
    }
}
