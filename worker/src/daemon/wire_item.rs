//! The entries of bulk streams as they go onto the wire.
//!
//! A primary sends each of its parameter shards to every other member. The receivers of one tensor
//! share its bytes: bf16 is encoded once, and no longer takes the memory of the f32 values while it
//! waits. This file does not know lanes, nor which worker gets what.

use std::sync::Arc;

use bytes::Bytes;
use everstep_kernels::buffer::Shared;
use everstep_kernels::reduce;
use everstep_transport::protocol::{Chunk, Encoding, codec};

use crate::step::event::StreamItem;

/// An entry of a bulk stream.
pub enum WireItem {
    /// A message, encoded for all of its receivers.
    Message(Bytes),
    /// A chunk of a tensor.
    Tensor {
        /// The header, which the receiver judges.
        chunk: Chunk,
        /// The elements in the chunk's encoding.
        body: Bytes,
    },
}

impl WireItem {
    /// Bytes of a tensor. Messages are small and count as 0.
    pub fn tensor_bytes(&self) -> usize {
        match self {
            Self::Message(_) => 0,
            Self::Tensor { body, .. } => body.len(),
        }
    }
}

/// Encodes items. It remembers the newest bf16 tensor, since all of its receivers come in a row.
#[derive(Default)]
pub struct Encoder {
    newest: Option<(Shared, Bytes)>,
}

impl Encoder {
    /// The item as it goes onto the wire.
    pub fn encode(&mut self, item: StreamItem) -> WireItem {
        match item {
            StreamItem::Message(message) => {
                WireItem::Message(Bytes::from_owner(codec::encode(&message)))
            }
            StreamItem::Tensor { chunk, values } if chunk.encoding == Encoding::Bf16 => {
                WireItem::Tensor { chunk, body: self.bf16(&chunk, values) }
            }
            StreamItem::Tensor { chunk, values } => {
                WireItem::Tensor { chunk, body: Bytes::from_owner(WireBytes(values)) }
            }
        }
    }

    fn bf16(&mut self, chunk: &Chunk, values: Shared) -> Bytes {
        let newest = self.newest.take().filter(|(newest, _)| Arc::ptr_eq(newest, &values));
        let (_, body) = self.newest.insert(newest.unwrap_or_else(|| {
            let mut body = vec![0; chunk.body_bytes()];
            reduce::encode_bf16(&values, &mut body);
            (values, body.into())
        }));
        body.clone()
    }
}

/// A shared buffer as the bytes that go onto the wire.
struct WireBytes(Shared);

impl AsRef<[u8]> for WireBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use everstep_kernels::buffer::Buffer;
    use everstep_transport::protocol::{ChunkKind, Generation, Shard, Step};

    use super::*;

    fn shared(values: &[f32]) -> Shared {
        Shared::new(Buffer::detached(values.to_vec()))
    }

    /// The body of a chunk with these values.
    fn body(encoder: &mut Encoder, encoding: Encoding, values: &Shared) -> Bytes {
        let head = Chunk::message(Generation(1), Step(3), values.len());
        let chunk = Chunk { kind: ChunkKind::Parameters, encoding, shard: Shard(1), ..head };
        match encoder.encode(StreamItem::Tensor { chunk, values: values.clone() }) {
            WireItem::Tensor { body, .. } => body,
            WireItem::Message(_) => panic!("it is a tensor"),
        }
    }

    #[test]
    fn the_receivers_of_a_tensor_share_its_bytes() {
        let (one, other) = (shared(&[1.0, -2.5]), shared(&[1.0, 3.0]));
        for encoding in [Encoding::Bf16, Encoding::F32] {
            let mut encoder = Encoder::default();
            let bodies = [&one, &one, &other, &one];
            let bodies = bodies.map(|values| body(&mut encoder, encoding, values));
            assert_eq!(bodies[0].as_ptr(), bodies[1].as_ptr(), "{encoding:?}");
            assert_ne!(bodies[1], bodies[2], "{encoding:?}");
            assert_eq!(bodies[0], bodies[3], "{encoding:?}");
        }
    }

    #[test]
    fn bf16_takes_half_of_the_bytes() {
        let values = shared(&[1.0, -2.5]);
        let body = body(&mut Encoder::default(), Encoding::Bf16, &values);
        assert_eq!(body[..], [0x80, 0x3f, 0x20, 0xc0]);
    }
}
