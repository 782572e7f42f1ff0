//! I3: every copy of a parameter shard at one version has the same bits.

use std::collections::BTreeMap;
use std::sync::Arc;

use everstep_transport::protocol::{Shard, Step, WorkerId};

use super::{Chronicle, Copy, Found, Invariant};

#[derive(Debug)]
pub(super) struct Copies {
    reference: Option<Arc<Chronicle>>,
    /// Of each version of each shard, the first digest, and whose it was.
    first: BTreeMap<(Step, Shard), (WorkerId, u64)>,
}

impl Copies {
    pub(super) fn new(reference: Option<Arc<Chronicle>>) -> Self {
        Self { reference, first: BTreeMap::new() }
    }

    pub(super) fn updated(&mut self, worker: WorkerId, copy: Copy<'_>) -> Result<(), Found> {
        let Some(digest) = copy.digest else { return Ok(()) };
        let key @ (version, shard) = (copy.version, copy.shard);
        let (owner, first) = *self.first.entry(key).or_insert((worker, digest));
        let reference = self.reference.as_ref().and_then(|run| run.digests.get(&key).copied());
        let other = match (first, reference) {
            _ if first != digest => format!("worker {owner} has {first:016x}"),
            (_, Some(known)) if known != digest => format!("the reference has {known:016x}"),
            _ => return Ok(()),
        };
        let seen = format!(
            "worker {worker} has {digest:016x} of shard {shard} at version {version}, {other}"
        );
        Err((Invariant::I3, seen))
    }

    pub(super) fn digests(&self) -> BTreeMap<(Step, Shard), u64> {
        self.first.iter().map(|(key, (_, digest))| (*key, *digest)).collect()
    }
}
