//! One connection, shared by everything that speaks on it: how it ends, and why.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use quinn::{Connection, ConnectionError, ReadError, VarInt, WriteError};

use super::allow_list::NOT_LISTED;
use super::error::{ABANDONED, CLOSED, GOODBYE, LinkError, NOT_ADMITTED, REFUSED};
use super::links::Links;
use crate::identity::Identity;

/// A handle on one connection.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) connection: Connection,
    /// Why this side closed, if it has.
    ended: Arc<OnceLock<LinkError>>,
    pub(super) links: Arc<Links>,
}

impl Wire {
    /// For the connection of a new link. This enters it in the endpoint's table.
    pub(super) fn new(connection: Connection, peer: &Identity, links: Arc<Links>) -> Self {
        let wire = Self { connection, ended: Arc::default(), links };
        wire.links.insert(&wire.connection, peer, &wire.ended);
        wire
    }

    /// Closes because this side has no more use for the link.
    pub(super) fn close(&self, reason: &str) {
        self.end(CLOSED, reason, LinkError::Ended { reason: reason.into() });
    }

    /// Closes because a message could not be sent for this error. The peer gets its sentence.
    pub(super) fn close_unsent(&self, error: LinkError) {
        self.end(CLOSED, &error.to_string(), LinkError::Unsent(Box::new(error)));
    }

    /// Closes because this node leaves.
    pub(super) fn leave(&self, reason: &str) {
        self.end(GOODBYE, reason, LinkError::Ended { reason: reason.into() });
    }

    /// Closes because the peer leaves, and has said its last word.
    pub(super) fn done(&self) {
        self.end(CLOSED, "all was received", LinkError::Gone { words: None });
    }

    /// Closes because the peer's host refuses packets for its process, and nothing else arrives.
    pub(super) fn unreachable(&self, how: &'static str) {
        self.end(CLOSED, how, LinkError::Unreachable { how });
    }

    /// Closes because the peer sent what no honest node sends.
    pub(super) fn refuse(&self, what: impl Into<String>) -> LinkError {
        let error = LinkError::Refused { what: what.into() };
        tracing::warn!(peer = %self.connection.remote_address(), %error, "link closed");
        if self.end(REFUSED, &error.to_string(), error.clone()) {
            self.links.refused_peers.fetch_add(1, Ordering::Relaxed);
        }
        error
    }

    /// Closes because the allow list does not admit the peer.
    pub(super) fn expel(&self) {
        expel(&self.connection, &self.ended);
    }

    fn end(&self, code: VarInt, reason: &str, error: LinkError) -> bool {
        let first = self.ended.set(error).is_ok();
        self.connection.close(code, reason.as_bytes());
        first
    }

    /// Why nothing more can be sent or received.
    pub(super) fn failure(&self) -> LinkError {
        match self.connection.close_reason() {
            // If both sides close at once, the peer's reason says more.
            Some(reason) if reason != ConnectionError::LocallyClosed => reason.into(),
            _ => self.ended.get().cloned().unwrap_or(ConnectionError::LocallyClosed.into()),
        }
    }

    pub(super) fn read_failure(&self, error: ReadError) -> LinkError {
        match error {
            ReadError::Reset(ABANDONED) => LinkError::Abandoned,
            ReadError::Reset(code) => self.refuse(format!("a stream with the unknown end {code}")),
            ReadError::ConnectionLost(_) => self.failure(),
            error => LinkError::Broken { what: error.to_string() },
        }
    }

    pub(super) fn write_failure(&self, error: WriteError) -> LinkError {
        match error {
            WriteError::Stopped(_) => LinkError::Abandoned,
            WriteError::ConnectionLost(_) => self.failure(),
            error => LinkError::Broken { what: error.to_string() },
        }
    }
}

/// Does the work of [`Wire::expel`] for the table, which holds no wires, since they hold the table.
pub(super) fn expel(connection: &Connection, ended: &OnceLock<LinkError>) {
    let _ = ended.set(LinkError::Ended { reason: NOT_LISTED.into() }); // or it has ended already
    connection.close(NOT_ADMITTED, NOT_LISTED.as_bytes());
}
