//! What the two ends of a link say of their memory, on their local socket.

use std::os::fd::OwnedFd;

/// The name of the link's secret from which the socket's name follows. Its number rises with the
/// bytes of the notices: two builds with other numbers do not meet, and share no memory.
pub const MEMORY_PROTOCOL: &str = "shared memory 1";
/// Bytes of a notice in a packet.
pub const NOTICE_BYTES: usize = 16;

/// What one side says to the other.
#[derive(Debug)]
pub enum MemoryNotice {
    /// A segment of the sender. Segments have numbers in the order in which they are opened.
    Open {
        /// The sender's number for it.
        segment: u32,
        /// Its descriptor. None if the receiver has no free one.
        file: Option<OwnedFd>,
    },
    /// The answer to that.
    Opened {
        /// The receiver's number for it.
        segment: u32,
        /// Whether the sender has it.
        is_taken: bool,
    },
    /// Nothing in this segment of the sender is of use any more.
    Close {
        /// The sender's number for it.
        segment: u32,
    },
    /// The sender is done with a range of a segment of the receiver.
    Release {
        /// The receiver's number for it.
        segment: u32,
        /// Where the range begins.
        at: u64,
    },
}

const OPEN: u32 = 1;
const CLOSE: u32 = 2;
const RELEASE: u32 = 3;
const OPENED: u32 = 4;

impl MemoryNotice {
    /// The notice as bytes. The descriptor goes beside them.
    pub fn encode(&self) -> [u8; NOTICE_BYTES] {
        let (kind, segment, at) = match self {
            Self::Open { segment, .. } => (OPEN, segment, 0),
            Self::Opened { segment, is_taken } => (OPENED, segment, u64::from(*is_taken)),
            Self::Close { segment } => (CLOSE, segment, 0),
            Self::Release { segment, at } => (RELEASE, segment, *at),
        };
        let mut bytes = [0; NOTICE_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&segment.to_le_bytes());
        bytes[8..].copy_from_slice(&at.to_le_bytes());
        bytes
    }

    /// Reads a notice. None if no honest process sends it. One that opens a segment takes the
    /// packet's descriptor.
    pub fn decode(bytes: &[u8], file: &mut Option<OwnedFd>) -> Option<Self> {
        let bytes: &[u8; NOTICE_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("16 bytes"));
        let (segment, at) = (word(4), u64::from_le_bytes(*bytes.last_chunk().expect("16 bytes")));
        match word(0) {
            OPEN => Some(Self::Open { segment, file: file.take() }),
            OPENED => Some(Self::Opened { segment, is_taken: at == 1 }),
            CLOSE => Some(Self::Close { segment }),
            RELEASE => Some(Self::Release { segment, at }),
            _ => None,
        }
    }
}
