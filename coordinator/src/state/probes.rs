//! Which workers' first gradients have the same bits, and the devices of those that differ.
//!
//! A run's bits are those of any other such run as long as all workers that ever registered for it
//! got the same from its first micro-batch. If they did not, a user wants to know why, even when
//! the worker that differs has gone. This module does not know how a digest is made, and makes no
//! sentence.

use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::{DeviceName, WorkerLabel};
use rkyv::{Archive, Deserialize, Serialize};

/// The most kinds of workers that are told apart.
const MAX_KINDS: usize = 8;
/// The most workers of a kind that are named.
pub(crate) const MAX_NAMED: usize = 3;

/// The workers of a run, by their device and their first gradient.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct ProbeDigests(pub(crate) Vec<ProbeKind>);

/// Workers with the same digest on devices of one name.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct ProbeKind {
    /// The name of their devices.
    pub device: DeviceName,
    /// The digest of their first gradients.
    pub probe: u64,
    /// The first workers of this kind.
    pub named: Vec<WorkerLabel>,
    /// How many workers are of this kind.
    pub count: u64,
}

/// Why the bits of a run are not those of any other such run: its workers got different first
/// gradients. It displays itself as a sentence.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Divergence(pub(crate) ProbeDigests);

impl ProbeDigests {
    /// Takes note of a worker that has registered.
    pub(super) fn note(&mut self, worker: WorkerLabel, stated: &Registration) {
        let (device, probe) = (&stated.device.name, stated.probe);
        let is_one = |kind: &&mut ProbeKind| kind.probe == probe && kind.device == *device;
        if let Some(kind) = self.0.iter_mut().find(is_one) {
            kind.count += 1;
            if kind.named.len() < MAX_NAMED {
                kind.named.push(worker);
            }
            return;
        }
        // A worker of yet another kind changes nothing, unless it is the first to differ.
        if self.0.len() == MAX_KINDS && !self.differ() {
            self.0.pop();
        }
        if self.0.len() < MAX_KINDS {
            self.0.push(ProbeKind { device: device.clone(), probe, named: vec![worker], count: 1 });
        }
    }

    fn differ(&self) -> bool {
        self.0.windows(2).any(|pair| pair[0].probe != pair[1].probe)
    }

    /// Why the bits are not those of any other such run. `None` if they are.
    pub(crate) fn divergence(&self) -> Option<Divergence> {
        self.differ().then(|| Divergence(self.clone()))
    }
}

#[cfg(test)]
pub(crate) mod tests;
