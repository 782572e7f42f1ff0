//! How a link with a peer, and how a process, came to its end.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

/// How a link ended, as the coordinator at one end of it saw that.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkEnd {
    /// The peer's process said that it ends, in these words of its own: it is dead.
    #[error("the peer is gone: {0}")]
    Goodbye(String),
    /// The peer's process ended the link after its last message: it is dead.
    #[error("the peer is gone: it has said all it had to say")]
    SaidAll,
    /// The peer's host refuses packets for the process, and nothing arrives on the link any more. A
    /// wait for the peer's answer is not worthwhile, but a firewall refuses packets for a living
    /// process too.
    #[error("the peer cannot be reached: no process listens at its port")]
    Refused,
    /// The peer has closed the link, in these words of its own, and lives.
    #[error("the peer closed the link: {0}")]
    Closed(String),
    /// Nothing was heard from the peer for the idle time-out.
    #[error("the link was lost: nothing was heard from the peer")]
    Silent,
    /// The peer heard nothing for the idle time-out, or another process is in its place.
    #[error("the link was lost: the peer has forgotten the link")]
    Forgotten,
    /// The coordinator closed the link, since the peer sent bytes that no honest node sends: these,
    /// in the words of their decoder.
    #[error("the peer was refused: it sent {0}")]
    Hostile(String),
    /// The coordinator closed the link, since the peer reads too little of what it gets.
    #[error("the link was closed here: too many messages wait for the peer")]
    Unread,
    /// The coordinator closed the link, since a message for the peer was too large.
    #[error("the link was closed here: a {name} message of {bytes} bytes is too large to be sent")]
    TooLarge {
        /// The message's name, as in logs.
        name: String,
        /// The message's encoded size.
        bytes: u64,
    },
    /// The coordinator closed the link, since its allow list has the peer no more.
    #[error(
        "the link was closed here: the node is not in the allow list here: it was removed, or is \
         not known yet"
    )]
    NotListed,
    /// The coordinator closed the link for another reason.
    #[error("the link was closed here")]
    ClosedHere,
    /// The QUIC library reports an error, in its own words.
    #[error("the link broke: {0}")]
    Broken(String),
}

impl LinkEnd {
    /// The words of the peer, of the decoder or of the QUIC library, if it has any. They are
    /// untrusted text.
    pub fn words_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Goodbye(words)
            | Self::Closed(words)
            | Self::Hostile(words)
            | Self::Broken(words) => Some(words),
            Self::SaidAll
            | Self::Refused
            | Self::Silent
            | Self::Forgotten
            | Self::Unread
            | Self::TooLarge { .. }
            | Self::NotListed
            | Self::ClosedHere => None,
        }
    }
}

/// How a process ended. It displays itself as the end of a sentence that names the process.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    /// A signal of this number ended it.
    Signal(i32),
    /// It ended with this exit code.
    Code(i32),
    /// Its launcher ended, and it with the launcher.
    WithLauncher,
    /// It is not known how.
    Unknown,
}

impl ProcessExit {
    /// SIGKILL, which no process can catch.
    pub const KILLED: Self = Self::Signal(9);
}

impl fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::KILLED => f.write_str("was killed (signal 9)"),
            Self::Signal(signal) => write!(f, "ended by signal {signal}"),
            Self::Code(code) => write!(f, "ended with exit code {code}"),
            Self::WithLauncher => f.write_str("ended with its launcher"),
            Self::Unknown => f.write_str("has ended"),
        }
    }
}
