//! What makes a manifest one of a whole checkpoint. Every number in it is hostile until here.

use std::collections::BTreeSet;

use everstep_kernels::reduce;
use everstep_transport::protocol::outcome::{WorkerResult, state_hash};
use everstep_transport::protocol::step::LossScale;
use everstep_transport::protocol::{Shard, Step};

use super::{Manifest, ManifestError, invalid};
use crate::digest::Digest;
use crate::head::{LENGTH_BYTES, MAX_HEAD_BYTES};
use crate::names::shown;

/// The longest flat vector, elements.
const MAX_PARAMETERS: u64 = 1 << 40;
/// The longest name of a tensor, bytes.
const LONGEST_NAME: usize = 256;
/// The longest identity of a run, bytes.
const LONGEST_RUN: usize = 128;

/// Checks everything but the parts themselves.
pub(super) fn check(manifest: &Manifest) -> Result<(), ManifestError> {
    check_run(manifest)?;
    check_cut(manifest)?;
    check_tensors(manifest)?;
    check_files(manifest)?;
    let digests = manifest.shards.iter().map(|shard| shard.blake3);
    if hash_of(manifest.step, digests) != Some(manifest.state_hash) {
        return Err(invalid("its state hash is not that of its shards".into()));
    }
    Ok(())
}

/// The state hash of a step and of all shards' digests, in order.
pub(super) fn hash_of(step: Step, digests: impl Iterator<Item = Digest>) -> Option<Digest> {
    let digests = (0..).map(Shard).zip(digests.map(|digest| digest.0)).collect();
    let all = WorkerResult { digests, ..WorkerResult::default() };
    state_hash(step.0, &[all]).map(Digest)
}

pub(super) fn digest_of(spec: &serde_json::Value) -> Digest {
    Digest::of(&serde_json::to_vec(spec).expect("a value is plain data"))
}

fn check_run(manifest: &Manifest) -> Result<(), ManifestError> {
    let is_identity = |text: &str| {
        (1..=LONGEST_RUN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if !is_identity(&manifest.run) {
        return Err(invalid("its run has no identity of 1 to 128 visible characters".into()));
    }
    if manifest.everstep.len() > LONGEST_RUN {
        return Err(invalid("the version of its writer is too long".into()));
    }
    if digest_of(&manifest.spec) != manifest.spec_digest {
        return Err(invalid("its specification has another digest than it states".into()));
    }
    if (manifest.step == Step(0)) != manifest.commit.is_none() {
        return Err(invalid("every step but 0 has a commit, and no other".into()));
    }
    let exponent = manifest.commit.map_or(0, |commit| commit.loss_scale_exponent);
    if exponent > LossScale::MAX_EXPONENT {
        return Err(invalid(format!("a loss scale of 2^{exponent} cannot be")));
    }
    Ok(())
}

/// The cut of the vector follows from its length, in every version that writes this format.
fn check_cut(manifest: &Manifest) -> Result<(), ManifestError> {
    let Manifest { parameters, shard_length, shards, .. } = manifest;
    if !(1..=MAX_PARAMETERS).contains(parameters) {
        return Err(invalid(format!("{parameters} parameters cannot be")));
    }
    let cut = *parameters as usize;
    let (length, count) = (reduce::shard_length(cut) as u64, reduce::shard_count(cut));
    if *shard_length != length || shards.len() != count {
        return Err(invalid(format!(
            "it has {} shards of {shard_length}, and {parameters} parameters are {count} shards of \
             {length}",
            shards.len()
        )));
    }
    Ok(())
}

fn check_tensors(manifest: &Manifest) -> Result<(), ManifestError> {
    let (mut end, mut names) = (0_u64, BTreeSet::new());
    for tensor in &manifest.tensors {
        let name = shown(&tensor.name);
        if !(1..=LONGEST_NAME).contains(&tensor.name.len()) || !names.insert(&tensor.name) {
            return Err(invalid(format!(
                "a tensor's name is \"{name}\": it is too long or repeated"
            )));
        }
        if tensor.offset != end {
            return Err(invalid(format!("tensor \"{name}\" does not begin where the last ends")));
        }
        let count = tensor.shape.iter().try_fold(1_u64, |count, extent| count.checked_mul(*extent));
        let stop = count.and_then(|count| end.checked_add(count));
        end = stop
            .filter(|stop| *stop <= manifest.parameters)
            .ok_or_else(|| invalid(format!("tensor \"{name}\" does not fit in the flat vector")))?;
    }
    if end != manifest.parameters {
        let parameters = manifest.parameters;
        return Err(invalid(format!("its tensors have {end} of {parameters} parameters")));
    }
    Ok(())
}

fn check_files(manifest: &Manifest) -> Result<(), ManifestError> {
    let mut elements = vec![0_u64; manifest.files.len()];
    for (index, shard) in (0..).map(Shard).zip(&manifest.shards) {
        let Some(sum) = elements.get_mut(shard.file as usize) else {
            return Err(invalid(format!("shard {index} is in no file of its list")));
        };
        *sum += manifest.shard_range(index).len() as u64;
    }
    let mut names = BTreeSet::new();
    for (file, elements) in manifest.files.iter().zip(elements) {
        let name = file.name;
        if elements == 0 || !names.insert(name) {
            return Err(invalid(format!("file {name} has no shard, or is listed twice")));
        }
        let is_head = (LENGTH_BYTES..=MAX_HEAD_BYTES).contains(&file.head_bytes);
        // At most 2^40 elements of 16 slots: no overflow.
        let data = elements * manifest.slots.bytes_per_parameter();
        if !is_head || file.bytes != file.head_bytes + data {
            return Err(invalid(format!("file {name} has not the bytes of its shards")));
        }
    }
    Ok(())
}
