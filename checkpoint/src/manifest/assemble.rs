//! Makes the manifest of parts that are durable.

use std::collections::BTreeMap;

use everstep_kernels::layout::Layout;
use everstep_kernels::reduce;
use everstep_transport::protocol::message::Fingerprint;
use everstep_transport::protocol::{Generation, RunSpec, Shard, Step};

use super::check::{check, digest_of, hash_of};
use super::{CommitRecord, FORMAT, FileEntry, Manifest, ManifestError, ShardEntry, tensors_of};
use crate::digest::Digest;
use crate::part::PartSummary;
use crate::slots::Slots;

/// What the writer of a manifest knows besides the parts.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The identity of the run: see [`Manifest::run`].
    pub run: &'a str,
    /// The specification of the run that saves.
    pub spec: &'a RunSpec,
    /// What all members of the run share.
    pub fingerprint: &'a Fingerprint,
    /// The names and shapes of the model's tensors.
    pub layout: &'a Layout,
    /// The vectors of each shard.
    pub slots: &'a Slots,
    /// The step, which must be settled.
    pub step: Step,
    /// The generation that committed it.
    pub generation: Generation,
    /// What the commit said. None for step 0.
    pub commit: Option<CommitRecord>,
    /// Whether all members computed the same bits.
    pub bitwise: bool,
}

/// Why parts are no whole checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// No part has this shard yet.
    #[error("no part has parameter shard {0}")]
    Lacks(Shard),
    /// Two parts have one shard with different bits: one of their writers erred.
    #[error("two parts have different bits of parameter shard {0}")]
    Differs(Shard),
    /// The parts are not those of this model.
    #[error(transparent)]
    Invalid(#[from] ManifestError),
}

impl Manifest {
    /// The manifest of these parts. If two parts have the same shards, the first one is listed.
    ///
    /// # Errors
    /// If the parts do not cover the vector, or do not agree.
    pub fn assemble(facts: &Facts<'_>, parts: &[PartSummary]) -> Result<Self, AssembleError> {
        let parameters = facts.layout.count();
        let mut shards: BTreeMap<Shard, ShardEntry> = BTreeMap::new();
        let mut files = Vec::new();
        for part in parts {
            let (file, before) = (files.len() as u32, shards.len());
            for &(shard, blake3) in &part.shards {
                let entry = *shards.entry(shard).or_insert(ShardEntry { file, blake3 });
                if entry.blake3 != blake3 {
                    return Err(AssembleError::Differs(shard));
                }
            }
            if shards.len() - before == part.shards.len() {
                files.push(FileEntry {
                    name: part.name,
                    bytes: part.bytes,
                    head_bytes: part.head_bytes,
                    head_blake3: part.head_blake3,
                });
            } else if shards.len() > before {
                let problem = format!("{} has shards of another part, too", part.name);
                return Err(ManifestError::Invalid(problem).into());
            }
        }
        let count = reduce::shard_count(parameters) as u32;
        if let Some(lacks) = (0..count).map(Shard).find(|shard| !shards.contains_key(shard)) {
            return Err(AssembleError::Lacks(lacks));
        }
        let manifest = Self::with(facts, files, shards.into_values().collect());
        check(&manifest)?;
        Ok(manifest)
    }

    fn with(facts: &Facts<'_>, files: Vec<FileEntry>, shards: Vec<ShardEntry>) -> Self {
        let Facts { fingerprint, layout, step, .. } = *facts;
        let parameters = layout.count();
        let spec = serde_json::to_value(facts.spec).expect("a specification is plain data");
        let state_hash = hash_of(step, shards.iter().map(|shard| shard.blake3));
        Self {
            format: FORMAT,
            everstep: env!("CARGO_PKG_VERSION").into(),
            run: facts.run.into(),
            step,
            generation: facts.generation,
            commit: facts.commit,
            spec_digest: digest_of(&spec),
            spec,
            model: Digest(fingerprint.model),
            data: Digest(fingerprint.data),
            samples: fingerprint.samples,
            bitwise: facts.bitwise,
            parameters: parameters as u64,
            shard_length: reduce::shard_length(parameters) as u64,
            slots: facts.slots.clone(),
            tensors: tensors_of(layout).collect(),
            files,
            shards,
            state_hash: state_hash.expect("every shard has a digest"),
        }
    }
}
