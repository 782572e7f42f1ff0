//! The outcomes of operators' requests: each request is carried out once, however often it is said.
//!
//! A client that loses its leader does not know whether the log has its request, and repeats it to
//! the next leader. The state keeps the newest outcome of each client, and those of the newest
//! clients. A request counts as new if a thousand other clients were answered since. If it asks for
//! something else under the same id, it is another request, and is refused.

use std::collections::BTreeMap;

use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{
    CheckpointId, ListedCheckpoint, OperatorCommand, RequestId, RunId,
};
use rkyv::{Archive, Deserialize, Serialize};

use super::{EntryOutcome, RunSoFar, State};

/// How many clients the state keeps the newest outcome of.
pub(super) const CLIENTS: usize = 1_000;

/// The outcome of the newest request of each client, as long as there is room.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct RequestOutcomes {
    pub(super) clients: BTreeMap<u64, RequestOutcome>,
}

#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(super) struct RequestOutcome {
    pub(super) number: u64,
    /// A digest of the command.
    pub(super) command: u64,
    pub(super) refusal: Option<Rejection>,
    /// The run that was submitted, if one was.
    pub(super) run: Option<RunId>,
    /// The index of the entry with this outcome.
    pub(super) index: u64,
}

impl RequestOutcomes {
    /// The outcome of the request, if it was carried out, or a refusal if its client has made a
    /// later one.
    pub(super) fn of(
        &self,
        id: RequestId,
        command: &OperatorCommand,
    ) -> Option<Result<EntryOutcome, Rejection>> {
        let kept = self.find(id)?;
        Some(match &kept.refusal {
            _ if kept.number > id.number => Err(Rejection::Superseded),
            _ if kept.command != command_digest(command) => Err(Rejection::OtherCommand),
            None => Ok(kept.run.map_or(EntryOutcome::Accepted, EntryOutcome::Run)),
            Some(refusal) => Err(refusal.clone()),
        })
    }

    fn find(&self, id: RequestId) -> Option<&RequestOutcome> {
        self.clients.get(&id.client).filter(|kept| kept.number >= id.number)
    }

    pub(super) fn keep(
        &mut self,
        index: u64,
        id: RequestId,
        command: &OperatorCommand,
        outcome: &Result<EntryOutcome, Rejection>,
    ) {
        let run = match outcome {
            Ok(EntryOutcome::Run(run)) => Some(*run),
            _ => None,
        };
        let refusal = outcome.as_ref().err().cloned();
        let kept = RequestOutcome {
            number: id.number,
            command: command_digest(command),
            refusal,
            run,
            index,
        };
        self.clients.insert(id.client, kept);
        if self.clients.len() > CLIENTS {
            let oldest = self.clients.iter().min_by_key(|(_, kept)| kept.index);
            let oldest = oldest.map(|(client, _)| *client);
            oldest.map(|client| self.clients.remove(&client));
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }
}

impl State {
    /// Whether the request was carried out or refused, or a later request of its client was.
    pub fn has_decided(&self, id: RequestId) -> bool {
        self.outcomes.find(id).is_some()
    }

    /// Whether a request of this id was decided that asked for something else.
    pub fn has_decided_another(&self, id: RequestId, command: &OperatorCommand) -> bool {
        let kept = self.outcomes.find(id).filter(|kept| kept.number == id.number);
        kept.is_some_and(|kept| kept.command != command_digest(command))
    }

    pub(super) fn once(
        &mut self,
        unix_ms: u64,
        id: RequestId,
        command: &OperatorCommand,
        so_far: &RunSoFar,
    ) -> Result<EntryOutcome, Rejection> {
        let before = self.outcomes.of(id, command);
        #[cfg(feature = "planted")]
        let before = before.filter(|_| self.plant != Some(crate::plant::CorePlant::ApplyTwice));
        if let Some(outcome) = before {
            return outcome;
        }
        let outcome = self.execute(unix_ms, command, so_far);
        self.outcomes.keep(self.applied, id, command, &outcome);
        outcome
    }

    fn execute(
        &mut self,
        unix_ms: u64,
        command: &OperatorCommand,
        so_far: &RunSoFar,
    ) -> Result<EntryOutcome, Rejection> {
        match command {
            OperatorCommand::Submit(run) => self.submit(unix_ms, run),
            OperatorCommand::Continue { run, origin } => {
                self.submit_continued(unix_ms, run, origin)
            }
            OperatorCommand::Cancel(run) => self.cancel(unix_ms, *run, so_far),
            OperatorCommand::Drain(worker) => {
                self.runs.must_run()?;
                self.drain(unix_ms, *worker, None)
            }
            OperatorCommand::CreateToken(token) => self.access.create_token(unix_ms, token),
            OperatorCommand::RevokeToken(token) => self.access.revoke_token(token),
            OperatorCommand::Revoke(node) => self.access.revoke(self.applied, unix_ms, node),
            OperatorCommand::Remove(coordinator) => {
                self.coordinators.remove(self.applied, *coordinator)
            }
            OperatorCommand::Rollback { run, step, generation } => {
                self.want_rollback(*run, *step, *generation)
            }
            OperatorCommand::Pause(run) => self.pause_run(unix_ms, *run),
            OperatorCommand::Resume(run) => self.resume_run(unix_ms, *run),
            OperatorCommand::Checkpoint(run) => self.ask_for_checkpoint(unix_ms, *run),
        }
    }
}

/// Tells one command from another. The state keeps the digest, and coordinators of two versions
/// must agree on it. So it is that of a name with numbers and names, and of a specification as
/// JSON, which leaves a key that came later out where it has its default. A token is known by its
/// id: an accepted token keeps its terms, even if a later request states others.
pub(crate) fn command_digest(command: &OperatorCommand) -> u64 {
    let bytes = match command {
        OperatorCommand::Submit(run) => json(&("submit", run)),
        OperatorCommand::Continue { run, origin } => {
            let ids = |all: &mut dyn Iterator<Item = CheckpointId>| {
                all.map(|id| [id.step.0, id.generation.0]).collect::<Vec<_>>()
            };
            let listed = ids(&mut origin.checkpoints.iter().map(ListedCheckpoint::id));
            let undone = ids(&mut origin.undone.iter().copied());
            json(&("continue", run, listed, undone, origin.generation.0, origin.falls_back))
        }
        OperatorCommand::Cancel(run) => json(&("cancel", run)),
        OperatorCommand::Drain(worker) => json(&("drain", worker.0)),
        // So the first format of the state has it.
        OperatorCommand::CreateToken(token) => token.id().to_vec(),
        OperatorCommand::RevokeToken(token) => json(&("revoke_token", token)),
        OperatorCommand::Revoke(node) => json(&("revoke", node.role, &node.name)),
        OperatorCommand::Remove(coordinator) => json(&("remove", coordinator)),
        OperatorCommand::Rollback { run, step, generation } => {
            json(&("rollback", run, step.0, generation.0))
        }
        OperatorCommand::Pause(run) => json(&("pause", run)),
        OperatorCommand::Resume(run) => json(&("resume", run)),
        OperatorCommand::Checkpoint(run) => json(&("checkpoint", run)),
    };
    let digest = blake3::hash(&bytes);
    u64::from_le_bytes(*digest.as_bytes().first_chunk().expect("32 bytes"))
}

fn json(command: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(command).expect("a command is plain data")
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{Generation, Step};

    use super::*;

    /// Coordinators of another version have these digests in their states.
    #[test]
    fn i23_the_digests_of_commands_do_not_change() {
        let run = RunId(7);
        let back = OperatorCommand::Rollback { run, step: Step(60), generation: Generation(3) };
        let commands = [
            (OperatorCommand::Cancel(run), 16_487_999_982_448_704_920),
            (OperatorCommand::Pause(run), 5_768_232_601_114_933_530),
            (OperatorCommand::Resume(run), 823_938_052_869_117_711),
            (OperatorCommand::Checkpoint(run), 1_938_914_087_263_375_131),
            (OperatorCommand::RevokeToken([5; 9]), 15_915_695_315_019_733_916),
            (back, 4_172_290_368_682_630_890),
        ];
        for (command, digest) in commands {
            assert_eq!(command_digest(&command), digest, "{command:?}");
        }
    }
}
