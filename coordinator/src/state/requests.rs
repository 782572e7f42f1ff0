//! The outcomes of operators' requests: each request is carried out once, however often it is said.
//!
//! A client that loses its leader does not know whether the log has its request, and repeats it to
//! the next leader. The state keeps the newest outcome of each client, and those of the newest
//! clients. A request counts as new if a thousand other clients were answered since. If it asks for
//! something else under the same id, it is another request, and is refused.

use std::collections::BTreeMap;

use everstep_transport::protocol::{RequestId, RunId, Step, Wish};
use rkyv::{Archive, Deserialize, Serialize, rancor};

use super::{State, Verdict};

/// How many clients the state keeps the newest outcome of.
pub(super) const CLIENTS: usize = 1_000;

/// The newest outcomes.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct Outcomes {
    clients: BTreeMap<u64, Kept>,
}

#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(super) struct Kept {
    number: u64,
    /// A digest of the wish.
    wish: u64,
    refusal: Option<String>,
    /// The run that was submitted, if one was.
    run: Option<RunId>,
    /// The index of the entry with this outcome.
    index: u64,
}

impl Outcomes {
    /// The outcome of the request, if it was carried out, or a refusal if its client has made a
    /// later one.
    pub(super) fn of(&self, id: RequestId, wish: &Wish) -> Option<Result<Verdict, String>> {
        let kept = self.find(id)?;
        Some(match &kept.refusal {
            _ if kept.number > id.number => Err("its client has asked for more since".into()),
            _ if kept.wish != wish_digest(wish) => {
                Err("its client has asked for something else".into())
            }
            None => Ok(kept.run.map_or(Verdict::Accepted, Verdict::Run)),
            Some(refusal) => Err(refusal.clone()),
        })
    }

    fn find(&self, id: RequestId) -> Option<&Kept> {
        self.clients.get(&id.client).filter(|kept| kept.number >= id.number)
    }

    pub(super) fn keep(
        &mut self,
        index: u64,
        id: RequestId,
        wish: &Wish,
        outcome: &Result<Verdict, String>,
    ) {
        let run = match outcome {
            Ok(Verdict::Run(run)) => Some(*run),
            _ => None,
        };
        let refusal = outcome.as_ref().err().cloned();
        let kept = Kept { number: id.number, wish: wish_digest(wish), refusal, run, index };
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
    pub fn has_decided_another(&self, id: RequestId, wish: &Wish) -> bool {
        let kept = self.outcomes.find(id).filter(|kept| kept.number == id.number);
        kept.is_some_and(|kept| kept.wish != wish_digest(wish))
    }

    pub(super) fn once(
        &mut self,
        unix_ms: u64,
        id: RequestId,
        wish: &Wish,
        steps: Step,
    ) -> Result<Verdict, String> {
        let before = self.outcomes.of(id, wish);
        #[cfg(feature = "planted")]
        let before = before.filter(|_| self.plant != Some(crate::plant::Plant::ApplyTwice));
        if let Some(outcome) = before {
            return outcome;
        }
        let outcome = self.grant(unix_ms, wish, steps);
        self.outcomes.keep(self.applied, id, wish, &outcome);
        outcome
    }

    fn grant(&mut self, unix_ms: u64, wish: &Wish, steps: Step) -> Result<Verdict, String> {
        match wish {
            Wish::Submit(run) => self.submit(unix_ms, run),
            Wish::Cancel(run) => self.cancel(unix_ms, *run, steps),
            Wish::Drain(worker) => {
                self.must_run()?;
                self.drain(unix_ms, *worker)
            }
            Wish::CreateToken(token) => self.create_token(unix_ms, token),
            Wish::RevokeToken(token) => self.revoke_token(token),
            Wish::Revoke(node) => self.revoke(unix_ms, node),
            Wish::Remove(coordinator) => self.remove(*coordinator),
            Wish::Rollback { run, step, generation } => {
                self.want_rollback(*run, *step, *generation)
            }
        }
    }
}

/// Tells one wish from another. A token is known by its id: an accepted token keeps its terms, even
/// if a later request states others.
pub(crate) fn wish_digest(wish: &Wish) -> u64 {
    let digest = match wish {
        Wish::CreateToken(token) => blake3::hash(&token.id()),
        wish => {
            let bytes = rkyv::to_bytes::<rancor::Error>(wish);
            blake3::hash(&bytes.expect("a wish is finite and needs no shared pointers"))
        }
    };
    u64::from_le_bytes(*digest.as_bytes().first_chunk().expect("32 bytes"))
}
