//! Input from another worker on one link: messages, and streams of chunks.
//!
//! A task brings one thing at a time and waits for the actor before it reads on, so a busy actor
//! exerts back-pressure on its peers. A chunk's body stays with its sender until the core takes it.
//! If a sender resets a stream, the reader forgets the stream: its generation is over, and the link
//! lives on.

use std::sync::Arc;

use actix::Recipient;
use everstep_kernels::buffer::{Buffer, Pool};
use everstep_kernels::reduce;
use everstep_transport::protocol::{Chunk, ChunkKind, Encoding, codec};
use everstep_transport::quic::{BulkReceiver, Link, LinkError};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::event::{AdmitChunk, Heard, PeerInput};
use super::shared_memory::{MemoryReadError, SharedMemory};
use super::traffic::Traffic;
use crate::step::event::Admission;

/// The receivers of everything that comes in.
#[derive(Clone)]
pub struct ReaderContext {
    /// The actor, for inputs.
    pub inputs: Recipient<PeerInput>,
    /// The actor, for questions about chunks.
    pub questions: Recipient<AdmitChunk>,
    /// Changes whenever the core may admit a chunk that it did not admit before.
    pub changed: watch::Receiver<u64>,
    /// The pool of the buffers for tensors.
    pub pool: Pool,
    /// Counts the received bytes.
    pub traffic: Arc<Traffic>,
    /// Whether tensors go through shared memory where that is possible.
    pub shares_memory: bool,
}

/// Starts to listen to the link with this number. When the set is dropped, the tasks end, and no
/// more input comes of this link.
pub fn listen(
    link: &Link,
    number: u64,
    memory: &SharedMemory,
    reader_context: &ReaderContext,
) -> JoinSet<()> {
    let (link, memory, reader_context) = (link.clone(), memory.clone(), reader_context.clone());
    let reader = Reader { link, memory, number, reader_context };
    let mut tasks = JoinSet::new();
    tasks.spawn(reader.clone().messages());
    tasks.spawn(reader.streams());
    tasks
}

#[derive(Clone)]
struct Reader {
    link: Link,
    /// The memory in which the other end may put tensors.
    memory: SharedMemory,
    number: u64,
    reader_context: ReaderContext,
}

impl Reader {
    async fn messages(self) {
        let reason = loop {
            match self.link.receive().await {
                Ok(message) => self.send(Heard::Message(message.into())).await,
                Err(error) => break error.to_string(),
            }
        };
        self.send(Heard::Lost(reason)).await;
    }

    async fn streams(self) {
        // The streams have a set of their own, so that they end with this task.
        let mut streams = JoinSet::new();
        while let Ok(stream) = self.link.accept_bulk().await {
            while streams.try_join_next().is_some() {} // Drops the tasks that have ended.
            let reader = self.clone();
            streams.spawn(async move {
                match reader.chunks(stream).await {
                    Ok(()) | Err(LinkError::Abandoned) => {}
                    Err(error) => reader.link.close(&format!("a stream ended: {error}")),
                }
            });
        }
    }

    async fn chunks(&self, mut stream: BulkReceiver) -> Result<(), LinkError> {
        while let Some(chunk) = stream.header().await? {
            match self.admission(&chunk).await {
                Admission::Take if chunk.kind == ChunkKind::Message => {
                    let mut bytes = vec![0; chunk.body_bytes()];
                    stream.body(&chunk, &mut bytes).await?;
                    let Ok(message) = codec::decode(&bytes) else {
                        self.link.close("a garbled message on a bulk stream");
                        return Ok(());
                    };
                    self.send(Heard::Message(Box::new(message))).await;
                }
                Admission::Take => {
                    let values = self.values(&mut stream, &chunk).await?;
                    self.reader_context.traffic.add_received(chunk.body_bytes());
                    self.send(Heard::Chunk(chunk, values)).await;
                }
                // The admission is final: a chunk that is early has waited.
                Admission::Wait | Admission::Drop => {
                    let worker = &self.link.identity().name;
                    tracing::debug!(%worker, ?chunk, "a chunk outside the plan");
                    self.send(Heard::Refused).await;
                    if let Some(place) = stream.place() {
                        self.memory.release(&place);
                    }
                    stream.skip(&chunk).await?;
                }
            }
        }
        Ok(())
    }

    /// Asks the core until it takes the chunk or drops it. Never returns [`Admission::Wait`].
    async fn admission(&self, chunk: &Chunk) -> Admission {
        let mut changed = self.reader_context.changed.clone();
        loop {
            changed.mark_unchanged();
            let ask = AdmitChunk { link: self.number, chunk: *chunk };
            match self.reader_context.questions.send(ask).await {
                Ok(Admission::Wait) => {
                    if changed.changed().await.is_err() {
                        return Admission::Drop; // the actor has ended
                    }
                }
                Ok(answer) => return answer,
                Err(_) => return Admission::Drop,
            }
        }
    }

    async fn send(&self, heard: Heard) {
        // An error means that the actor has ended, and the process with it.
        let _ = self.reader_context.inputs.send(PeerInput { link: self.number, heard }).await;
    }

    async fn values(&self, stream: &mut BulkReceiver, chunk: &Chunk) -> Result<Buffer, LinkError> {
        let mut values = self.reader_context.pool.take(chunk.count as usize);
        if chunk.encoding == Encoding::Bf16 {
            let mut bytes = vec![0; chunk.body_bytes()];
            self.body(stream, chunk, &mut bytes).await?;
            reduce::decode_bf16(&bytes, &mut values);
        } else {
            self.body(stream, chunk, values.as_bytes_mut()).await?;
        }
        Ok(values)
    }

    /// Reads the body of a chunk, wherever it is.
    async fn body(
        &self,
        stream: &mut BulkReceiver,
        chunk: &Chunk,
        into: &mut [u8],
    ) -> Result<(), LinkError> {
        let Some(place) = stream.place() else {
            return stream.body(chunk, into).await;
        };
        self.memory.read(&place, into).map_err(|error| match error {
            MemoryReadError::Closed => LinkError::Abandoned,
            MemoryReadError::Unknown => {
                stream.refuse_place("a tensor in memory that it does not share")
            }
            MemoryReadError::Damaged => {
                stream.refuse_place("a tensor in memory with other bytes than it announced")
            }
        })
    }
}
