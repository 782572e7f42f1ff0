//! Writes a part shard by shard, as updates free them.

use std::collections::{BTreeMap, BTreeSet};

use everstep_kernels::reduce;
use everstep_transport::protocol::{Shard, Step};

use super::{FORMAT, FORMAT_KEY, PartSummary, RUN_KEY, STEP_KEY, tensor_name};
use crate::bytes_of::Encoder;
use crate::digest::{Digest, ShardHasher};
use crate::head::{ElementType, Head, TensorHead};
use crate::names::{ObjectName, PartName};
use crate::slots::Slots;
use crate::store::{Store, StoreError, Upload, UploadSize};

/// What a part will contain.
#[derive(Clone, Debug)]
pub struct PartPlan {
    /// The step that the states are of.
    pub step: Step,
    /// The name of the file to write.
    pub name: PartName,
    /// The identity of the run: see [`Manifest::run`](crate::manifest::Manifest::run).
    pub run: String,
    /// The length of the flat parameter vector.
    pub parameters: usize,
    /// The vectors of each shard.
    pub slots: Slots,
    /// The shards, at least one, in any order.
    pub shards: Vec<Shard>,
}

/// A part under way. If it is dropped before it is finished, nothing remains of it.
pub struct PartWriter {
    upload: Box<dyn Upload>,
    plan: PartPlan,
    size: UploadSize,
    /// The tensors so far, in the order of their bytes.
    tensors: Vec<TensorHead>,
    digests: Vec<(Shard, Digest)>,
    missing: BTreeSet<Shard>,
    encoder: Encoder,
}

impl PartWriter {
    /// Begins a part. A disk that is too full for it says so here, if its file system can.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Panics
    /// If the plan has no shard, or has one twice or outside the vector.
    pub fn begin(store: &dyn Store, plan: PartPlan) -> Result<Self, StoreError> {
        let size = plan.size();
        let upload = store.upload(&ObjectName::Part(plan.step, plan.name), size)?;
        let missing = plan.shards.iter().copied().collect();
        let (tensors, digests, encoder) = (Vec::new(), Vec::new(), Encoder::default());
        Ok(Self { upload, plan, size, tensors, digests, missing, encoder })
    }

    /// Writes one shard: its master weights and moments, in the order of the slots. Returns the
    /// digest, which is the shard's leaf of the state hash.
    ///
    /// # Errors
    /// Those of the store. The part cannot be finished then.
    ///
    /// # Panics
    /// If the plan lacks the shard, it was written before, or a vector is not as long as the shard.
    pub fn write(&mut self, shard: Shard, slots: &[&[f32]]) -> Result<Digest, StoreError> {
        let Self { plan, tensors, upload, .. } = self;
        assert!(self.missing.remove(&shard), "a shard of the plan, once");
        assert_eq!(slots.len(), plan.slots.count(), "one vector for each slot");
        let length = plan.length(shard);
        let mut hasher = ShardHasher::new(plan.step);
        for (slot, values) in plan.slots.names().zip(slots) {
            assert_eq!(values.len(), length, "vectors as long as the shard");
            let start = tensors.last().map_or(0, |last| last.data.end);
            let name = tensor_name(shard, slot);
            tensors.push(TensorHead::at(start, name, ElementType::F32, vec![length as u64]));
            self.encoder.try_each(values, &mut |bytes| {
                hasher.update(bytes);
                upload.write(bytes)
            })?;
        }
        let digest = hasher.finish();
        self.digests.push((shard, digest));
        Ok(digest)
    }

    /// Makes the part durable under its name.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Panics
    /// If a shard of the plan was not written.
    pub fn finish(self) -> Result<PartSummary, StoreError> {
        let Self { upload, plan, size, tensors, digests, missing, .. } = self;
        assert!(missing.is_empty(), "every shard of the plan");
        let head = Head { metadata: plan.metadata(), tensors }.to_bytes(size.head as usize);
        upload.finish(&head)?;
        Ok(PartSummary {
            name: plan.name,
            bytes: size.total,
            head_bytes: size.head,
            head_blake3: Digest::of(&head),
            shards: digests,
        })
    }
}

impl PartPlan {
    fn length(&self, shard: Shard) -> usize {
        reduce::shard_range(self.parameters, shard.0 as usize).len()
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        let (format, step) = (FORMAT.to_string(), self.step.to_string());
        [(FORMAT_KEY, format), (RUN_KEY, self.run.clone()), (STEP_KEY, step)]
            .map(|(key, value)| (key.to_string(), value))
            .into()
    }

    /// The size of the file. The head has room for any order of the shards: an offset takes no more
    /// digits than the number of all bytes.
    fn size(&self) -> UploadSize {
        let mut shards = self.shards.clone();
        shards.sort();
        let is_cut = shards.windows(2).all(|pair| pair[0] < pair[1])
            && shards.iter().all(|shard| self.length(*shard) > 0);
        assert!(is_cut && !shards.is_empty(), "shards of the vector, each once");
        let elements: u64 = shards.iter().map(|shard| self.length(*shard) as u64).sum();
        let data = elements * self.slots.bytes_per_parameter();
        let longest = |shard: Shard, slot: &str| TensorHead {
            name: tensor_name(shard, slot),
            element: ElementType::F32,
            shape: vec![self.length(shard) as u64],
            data: data..data,
        };
        let of_shard = |shard| self.slots.names().map(move |slot| longest(shard, slot));
        let tensors = shards.into_iter().flat_map(of_shard).collect();
        let head = Head { metadata: self.metadata(), tensors }.to_bytes(0).len() as u64;
        UploadSize { head, total: head + data }
    }
}
