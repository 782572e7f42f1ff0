//! The header in front of every body on a bulk stream.

use rkyv::{Archive, Deserialize, Serialize};

use super::ids::{Generation, Shard, Step};

/// What the body of a chunk contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum ChunkKind {
    /// A partial sum of gradients: one parameter shard, one node of the tree over data shards.
    Partial = 1,
    /// A reduced gradient: one parameter shard, from its primary to a backup.
    Reduced = 2,
    /// New computing parameters: one parameter shard, from its primary.
    Parameters = 3,
    /// The f32 master weights of one parameter shard, for the worker that writes the model.
    Master = 4,
    /// A control message too large for the control stream, or one at the head of a stream.
    Message = 5,
    /// A part of an owner's state of one parameter shard, for a joiner: `index` 0 is the master
    /// weights, from 1 on its moments.
    State = 6,
}

impl ChunkKind {
    const ALL: [Self; 6] =
        [Self::Partial, Self::Reduced, Self::Parameters, Self::Master, Self::Message, Self::State];
}

/// How a body's elements are encoded, little-endian.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum Encoding {
    /// Four bytes an element.
    F32 = 1,
    /// Two bytes an element.
    Bf16 = 2,
    /// One byte an element: an encoded message.
    Bytes = 3,
}

impl Encoding {
    const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Bytes];

    /// Bytes of one element.
    pub fn width(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::Bytes => 1,
        }
    }
}

/// A validated chunk header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// What the body contains.
    pub kind: ChunkKind,
    /// The generation in which the sender sends it.
    pub generation: Generation,
    /// The step of the body. For parameters, masters and states, their version.
    pub step: Step,
    /// The parameter shard. 0 for a message.
    pub shard: Shard,
    /// The node of the tree, for a partial: level above the leaves.
    pub level: u32,
    /// The node of the tree, for a partial: index within its level. For a state: which part.
    pub index: u32,
    /// Number of elements in the body.
    pub count: u32,
    /// How the elements are encoded.
    pub encoding: Encoding,
    /// Digest of the values of a reduced gradient. An owner that applies them knows by it that they
    /// are what the primary made. 0 for all other kinds.
    pub digest: u64,
}

/// Where a body lies that does not follow its header: in memory that the sender shares with the
/// receiver. Both are processes of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlace {
    /// The sender's number for the memory.
    pub segment: u32,
    /// The offset of the first byte.
    pub at: u64,
    /// xxh3 of the bytes.
    pub digest: u64,
}

/// Bytes of a place on the wire. It follows the header.
pub const PLACE_BYTES: usize = 20;

/// The bit of the kind by which a header says that a place follows, not a body.
const IN_MEMORY: u32 = 1 << 31;

/// Bytes of a header on the wire.
pub const HEADER_BYTES: usize = size_of::<ArchivedHeader>();
/// Most elements in the body of a tensor chunk: the largest parameter shard.
pub const MAX_ELEMENTS: u32 = 1 << 20;
/// Most bytes in the body of a message chunk.
pub const MAX_MESSAGE_CHUNK: u32 = 64 << 20;

#[derive(Archive, Serialize, Deserialize)]
struct Header {
    generation: u64,
    step: u64,
    digest: u64,
    kind: u32,
    shard: u32,
    level: u32,
    index: u32,
    count: u32,
    encoding: u32,
}

/// A header that no honest node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// No kind has this number.
    #[error("chunk of unknown kind {0}")]
    Kind(u32),
    /// No encoding has this number, or the kind does not allow it.
    #[error("chunk of unknown or unfit encoding {0}")]
    Encoding(u32),
    /// The body would be empty or larger than any body may be.
    #[error("chunk of {0} elements")]
    Count(u32),
    /// The level is higher than any tree.
    #[error("chunk at level {0} of the tree")]
    Level(u32),
}

impl Chunk {
    /// Bytes of the body that follows.
    pub fn body_bytes(&self) -> usize {
        self.count as usize * self.encoding.width()
    }

    /// A message chunk of `bytes` bytes.
    ///
    /// # Panics
    /// If there are 4 GiB or more. No message is nearly as large.
    pub fn message(generation: Generation, step: Step, bytes: usize) -> Self {
        Self {
            kind: ChunkKind::Message,
            generation,
            step,
            shard: Shard(0),
            level: 0,
            index: 0,
            count: bytes.try_into().expect("a message is smaller than 4 GiB"),
            encoding: Encoding::Bytes,
            digest: 0,
        }
    }

    /// The header as bytes for the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        self.encode_kind(self.kind as u32)
    }

    /// The header of a body that lies in memory, with its place, as bytes for the wire.
    pub fn encode_with_place(&self, place: &MemoryPlace) -> [u8; HEADER_BYTES + PLACE_BYTES] {
        let mut bytes = [0; HEADER_BYTES + PLACE_BYTES];
        let (header, rest) = bytes.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&self.encode_kind(self.kind as u32 | IN_MEMORY));
        rest.copy_from_slice(&place.encode());
        bytes
    }

    fn encode_kind(&self, kind: u32) -> [u8; HEADER_BYTES] {
        let header = Header {
            generation: self.generation.0,
            step: self.step.0,
            kind,
            shard: self.shard.0,
            level: self.level,
            index: self.index,
            count: self.count,
            encoding: self.encoding as u32,
            digest: self.digest,
        };
        let bytes = rkyv::to_bytes::<rkyv::rancor::Error>(&header).expect("primitives always fit");
        bytes.as_slice().try_into().expect("an archived header is its own size")
    }

    /// Reads and validates a header. Also returns whether a [`MemoryPlace`] follows in place of the
    /// body. Never allocates.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(Self, bool), ChunkError> {
        let mut aligned = Aligned([0; HEADER_BYTES]);
        aligned.0.copy_from_slice(bytes);
        let header = rkyv::access::<ArchivedHeader, rkyv::rancor::Error>(&aligned.0)
            .expect("any bytes are a header of primitives");
        let (stated, encoding) = (header.kind.to_native(), header.encoding.to_native());
        let (kind, is_in_memory) = (stated & !IN_MEMORY, stated & IN_MEMORY != 0);
        let chunk = Self {
            kind: *ChunkKind::ALL
                .iter()
                .find(|known| **known as u32 == kind)
                .filter(|known| !is_in_memory || **known != ChunkKind::Message)
                .ok_or(ChunkError::Kind(stated))?,
            generation: Generation(header.generation.to_native()),
            step: Step(header.step.to_native()),
            shard: Shard(header.shard.to_native()),
            level: header.level.to_native(),
            index: header.index.to_native(),
            count: header.count.to_native(),
            encoding: *Encoding::ALL
                .iter()
                .find(|known| **known as u32 == encoding)
                .ok_or(ChunkError::Encoding(encoding))?,
            digest: header.digest.to_native(),
        };
        Ok((chunk.check()?, is_in_memory))
    }

    fn check(self) -> Result<Self, ChunkError> {
        let fits = match self.kind {
            ChunkKind::Message => self.encoding == Encoding::Bytes,
            ChunkKind::Parameters => self.encoding != Encoding::Bytes,
            ChunkKind::Partial | ChunkKind::Reduced | ChunkKind::Master | ChunkKind::State => {
                self.encoding == Encoding::F32
            }
        };
        let most = if self.kind == ChunkKind::Message { MAX_MESSAGE_CHUNK } else { MAX_ELEMENTS };
        match () {
            () if !fits => Err(ChunkError::Encoding(self.encoding as u32)),
            () if self.count == 0 || self.count > most => Err(ChunkError::Count(self.count)),
            () if self.level > 32 => Err(ChunkError::Level(self.level)),
            () => Ok(self),
        }
    }
}

impl MemoryPlace {
    fn encode(&self) -> [u8; PLACE_BYTES] {
        let mut bytes = [0; PLACE_BYTES];
        bytes[..4].copy_from_slice(&self.segment.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.at.to_le_bytes());
        bytes[12..].copy_from_slice(&self.digest.to_le_bytes());
        bytes
    }

    /// Reads a place. Any bytes are some place: the receiver looks whether it has the memory.
    pub fn decode(bytes: &[u8; PLACE_BYTES]) -> Self {
        let [segment, low, high, first, last] = std::array::from_fn(|word| {
            let word = bytes[4 * word..].first_chunk().expect("a place is five words");
            u32::from_le_bytes(*word)
        });
        let wide = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Self { segment, at: wide(low, high), digest: wide(first, last) }
    }
}

#[repr(align(8))]
struct Aligned([u8; HEADER_BYTES]);
