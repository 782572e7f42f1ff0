//! Bulk streams: chunks, each a header and a body, to the end of the stream.
//!
//! Bodies are not copied on the way out, and copied once on the way in. A receiver that does not
//! read holds its sender back, on this stream only. In place of a body, a stream may say in which
//! memory it lies. This module does not know that memory.

use std::collections::VecDeque;

use bytes::Bytes;
use quinn::{RecvStream, SendStream};

use super::error::{ABANDONED, LinkError};
use super::wire::Wire;
use crate::protocol::chunk::{HEADER_BYTES, PLACE_BYTES};
use crate::protocol::{Chunk, MemoryPlace};

/// Pieces taken from the connection at a time. Each taking locks it once. A stream may hold this
/// many packets before its reader asks for them.
const PIECES: usize = 32;

/// The sending end of a stream of chunks. If the caller drops it before [`BulkSender::finish`], it
/// gives the stream up and tells the receiver so.
pub struct BulkSender {
    wire: Wire,
    stream: SendStream,
    finished: bool,
}

impl BulkSender {
    pub(super) fn new(wire: Wire, stream: SendStream) -> Self {
        Self { wire, stream, finished: false }
    }

    /// Sends one chunk. Returns when the link has taken all of it. The link keeps slices of `body`
    /// until the peer acknowledges them. The drop of its owner therefore means that the memory can
    /// be used again ([`Bytes::from_owner`]). Not cancel-safe.
    ///
    /// # Errors
    /// [`LinkError::Abandoned`] if the receiver has stopped reading this stream. Otherwise the link
    /// has ended.
    ///
    /// # Panics
    /// If the length of the body is not that in the header.
    pub async fn send(&mut self, chunk: &Chunk, body: Bytes) -> Result<(), LinkError> {
        assert_eq!(body.len(), chunk.body_bytes(), "a body as long as its header says");
        let header = Bytes::copy_from_slice(&chunk.encode());
        let written = self.stream.write_all_chunks(&mut [header, body]).await;
        written.map_err(|error| self.wire.write_failure(error))
    }

    /// Sends the header of a chunk with a body in memory that the peer can read. Not cancel-safe.
    ///
    /// # Errors
    /// As [`BulkSender::send`].
    pub async fn announce(&mut self, chunk: &Chunk, place: &MemoryPlace) -> Result<(), LinkError> {
        let head = Bytes::copy_from_slice(&chunk.encode_with_place(place));
        let written = self.stream.write_chunk(head).await;
        written.map_err(|error| self.wire.write_failure(error))
    }

    /// Ends the stream: the receiver sees a clean end after the last chunk.
    ///
    /// # Errors
    /// As [`BulkSender::send`].
    pub fn finish(mut self) -> Result<(), LinkError> {
        self.finished = true;
        // Closed already means that the receiver has stopped reading, or that the link is gone.
        self.stream.finish().map_err(|_| match self.wire.connection.close_reason() {
            None => LinkError::Abandoned,
            Some(_) => self.wire.failure(),
        })
    }
}

impl Drop for BulkSender {
    fn drop(&mut self) {
        if !self.finished {
            let _ = self.stream.reset(ABANDONED); // an error means that it has ended already
        }
    }
}

/// The receiving end of a stream of chunks. If the caller drops it before the end of the stream,
/// the sender gets a request to stop.
pub struct BulkReceiver {
    wire: Wire,
    stream: RecvStream,
    pieces: VecDeque<Bytes>,
    /// A header, and the place that may follow it.
    head: [u8; HEADER_BYTES + PLACE_BYTES],
    filled: usize,
    /// Where the body of the last header lies, if it does not follow.
    place: Option<MemoryPlace>,
}

impl BulkReceiver {
    pub(super) fn new(wire: Wire, stream: RecvStream) -> Self {
        let (pieces, head) = (VecDeque::new(), [0; HEADER_BYTES + PLACE_BYTES]);
        Self { wire, stream, pieces, head, filled: 0, place: None }
    }

    /// The next chunk's header, validated. `None` at the clean end of the stream. The caller must
    /// read or skip the body before the next header. Cancel-safe.
    ///
    /// # Errors
    /// [`LinkError::Abandoned`] if the sender gave the stream up. [`LinkError::Refused`] for bytes
    /// that are no header, which also closes the link. Otherwise the link has ended.
    pub async fn header(&mut self) -> Result<Option<Chunk>, LinkError> {
        if !self.fill(HEADER_BYTES).await? {
            return Ok(None);
        }
        let header = self.head.first_chunk().expect("a head begins with a header");
        let (chunk, is_in_memory) =
            Chunk::decode(header).map_err(|error| self.wire.refuse(error.to_string()))?;
        self.place = None;
        if is_in_memory {
            self.fill(HEADER_BYTES + PLACE_BYTES).await?;
            let place = self.head.last_chunk().expect("a head ends with a place");
            self.place = Some(MemoryPlace::decode(place));
        }
        self.filled = 0;
        Ok(Some(chunk))
    }

    /// Where the body of the last header lies. `None` if it follows on the stream.
    pub fn place(&self) -> Option<MemoryPlace> {
        self.place
    }

    /// Refuses the place of the last header, which is none. This closes the link.
    pub fn refuse_place(&self, what: &str) -> LinkError {
        self.wire.refuse(what)
    }

    /// Reads on until the head has so many bytes. False at the clean end of the stream.
    async fn fill(&mut self, bytes: usize) -> Result<bool, LinkError> {
        while self.filled < bytes {
            match self.piece(bytes - self.filled).await? {
                Some(piece) => {
                    self.head[self.filled..][..piece.len()].copy_from_slice(&piece);
                    self.filled += piece.len();
                }
                None if self.filled == 0 => return Ok(false),
                None => return Err(self.wire.refuse("a stream that ends within a header")),
            }
        }
        Ok(true)
    }

    /// Reads the body that belongs to the last header. Not cancel-safe.
    ///
    /// # Errors
    /// As [`BulkReceiver::header`].
    ///
    /// # Panics
    /// If the length of `into` is not that in the header.
    pub async fn body(&mut self, chunk: &Chunk, mut into: &mut [u8]) -> Result<(), LinkError> {
        assert_eq!(into.len(), chunk.body_bytes(), "a buffer as long as the header says");
        if self.place.is_some() {
            return Err(self.wire.refuse("a body in memory that is not shared here"));
        }
        while !into.is_empty() {
            let piece = self.within_body(into.len()).await?;
            let (filled, rest) = into.split_at_mut(piece.len());
            filled.copy_from_slice(&piece);
            into = rest;
        }
        Ok(())
    }

    /// Drops the body that belongs to the last header. Not cancel-safe.
    ///
    /// # Errors
    /// As [`BulkReceiver::header`].
    pub async fn skip(&mut self, chunk: &Chunk) -> Result<(), LinkError> {
        let mut left = if self.place.is_some() { 0 } else { chunk.body_bytes() };
        while left > 0 {
            left -= self.within_body(left).await?.len();
        }
        Ok(())
    }

    async fn within_body(&mut self, at_most: usize) -> Result<Bytes, LinkError> {
        let piece = self.piece(at_most).await?;
        piece.ok_or_else(|| self.wire.refuse("a stream that ends within a body"))
    }

    /// The next bytes, at least one and at most `at_most`. `None` at the end.
    async fn piece(&mut self, at_most: usize) -> Result<Option<Bytes>, LinkError> {
        loop {
            if let Some(mut piece) = self.pieces.pop_front() {
                if piece.len() > at_most {
                    self.pieces.push_front(piece.split_off(at_most));
                }
                return Ok(Some(piece));
            }
            let mut fresh = [const { Bytes::new() }; PIECES];
            match self.stream.read_chunks(&mut fresh).await {
                Ok(Some(_)) => self.pieces.extend(fresh.into_iter().filter(|f| !f.is_empty())),
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.wire.read_failure(error)),
            }
        }
    }
}
