//! The actor's first state: a coordinator as its predecessor in the same directory left it.

use std::time::Instant;

use everstep_transport::identity::Tokens;
use everstep_transport::protocol::{CoordinatorId, Frame, Keys, News};
use everstep_transport::time::Time;
use tokio::sync::mpsc;

use crate::daemon::CoordinatorError;
use crate::daemon::book::Book;
use crate::daemon::files::{Cluster, OperatorFolder, Past};
use crate::daemon::gate::Admission;
use crate::daemon::journal::Journal;
use crate::history::History;
use crate::line_file::LineFiles;
use crate::log::{Beside, Log};
use crate::raft::{self, ReplicaId};
use crate::seat::{self, Seat};
use crate::state::Coordinator;

/// A seat takes a snapshot after this many entries since the last snapshot.
const SNAPSHOT_ENTRIES: u64 = 10_000;
/// How many entries before a snapshot's place stay in the log, for a replica that is a little
/// behind.
const KEEP: u64 = 1_000;

/// The parts of a new actor. See the module.
pub(in crate::daemon) struct Outfit {
    /// The id of the coordinator.
    pub(in crate::daemon) id: CoordinatorId,
    pub(super) seat: Seat,
    /// The seat's time zero.
    pub(super) start: Instant,
    pub(super) log: Log,
    pub(super) journal: Journal,
    pub(super) lines: LineFiles,
    /// The journal's file, for the log's thread.
    pub(super) sync: Beside,
    pub(super) history: History,
    pub(super) told: u64,
    pub(super) book: Book,
    pub(super) keys: Keys,
    pub(super) tokens: Tokens,
    pub(super) operator: OperatorFolder,
    pub(super) applicants: mpsc::Receiver<Admission>,
}

impl Outfit {
    /// Builds the parts from a directory's content.
    pub(in crate::daemon) fn new(
        cluster: Cluster,
        own: Coordinator,
        past: Past,
        applicants: mpsc::Receiver<Admission>,
    ) -> Result<Self, CoordinatorError> {
        let Past { log, kept, journal, frames, lines } = past;
        let (id, content) = (cluster.id().unwrap_or_default(), cluster.book.content());
        let (entries, frames_kept) = (kept.entries.len(), frames.len());
        match content.revision {
            0 if content.founds.is_some() => tracing::info!(id, "a cluster is founded"),
            _ => tracing::info!(id, entries, frames = frames_kept, "it goes on from its log"),
        }
        let start = Instant::now();
        // A founder that has not founded yet has only itself in its book.
        let heard = match content.revision {
            0 => (0, Vec::new()),
            revision => (revision, content.members.clone()),
        };
        let options = seat::Options {
            replica: raft::Options {
                id: ReplicaId(id),
                seed: own.incarnation,
                keep: KEEP,
                #[cfg(feature = "planted")]
                plant: None,
            },
            own,
            epoch_unix_ms: super::unix_ms(),
            snapshot_entries: SNAPSHOT_ENTRIES,
            founds: content.founds,
            tokens: cluster.default_tokens(),
            book: heard,
            lacks_history: journal.wanted().is_some(),
        };
        let told = frames.last().map_or(0, |frame| frame.index);
        let history = recalled(&frames);
        let seat = Seat::new(Time(0), options, kept, frames)?;
        let (keys, operator) = (cluster.keys(), cluster.operator_folder());
        let mut tokens = Tokens::default();
        if content.founds.is_some() {
            cluster.default_tokens().into_iter().for_each(|token| tokens.accept(token));
        }
        let sync = journal.file()?;
        let book = cluster.book;
        Ok(Self {
            id,
            seat,
            start,
            log,
            journal,
            lines,
            sync,
            history,
            told,
            book,
            keys,
            tokens,
            operator,
            applicants,
        })
    }
}

/// Sums up the history before this process.
pub(super) fn recalled(frames: &[Frame]) -> History {
    let mut history = History::default();
    for news in frames.iter().flat_map(|frame| &frame.news) {
        match news {
            News::Event(event) => history.event(event),
            News::Run(_) => history.begin(),
        }
    }
    history
}
