//! The actor's first state: a coordinator as its predecessor in the same directory left it.

use std::time::Instant;

use everstep_transport::identity::Tokens;
use everstep_transport::protocol::{CoordinatorId, HistoryEntry, HistoryEvent, Keys};
use everstep_transport::time::Time;
use tokio::sync::mpsc;

use crate::daemon::CoordinatorError;
use crate::daemon::admission::AdmissionRequest;
use crate::daemon::files::{Cluster, OperatorFolder, StoredHistory};
use crate::daemon::history_file::HistoryFile;
use crate::daemon::membership_file::MembershipFile;
use crate::history::HistorySummary;
use crate::line_file::LineFiles;
use crate::log::{Log, SyncFile};
use crate::node::{Node, NodeOptions};
use crate::raft::{RaftOptions, ReplicaId};
use crate::state::CoordinatorInfo;

/// A node takes a snapshot after this many entries since the last snapshot.
const SNAPSHOT_ENTRIES: u64 = 10_000;
/// How many entries before a snapshot's place stay in the log, for a replica that is a little
/// behind.
const ENTRIES_KEPT_BEFORE_SNAPSHOT: u64 = 1_000;

/// The parts of a new actor. See the module.
pub(in crate::daemon) struct RestoredNode {
    /// The id of the coordinator.
    pub(in crate::daemon) id: CoordinatorId,
    pub(super) node: Node,
    /// The node's time zero.
    pub(super) start: Instant,
    pub(super) log: Log,
    pub(super) history_file: HistoryFile,
    pub(super) lines: LineFiles,
    /// The open history file, for the log's thread.
    pub(super) sync: SyncFile,
    pub(super) history: HistorySummary,
    pub(super) told: u64,
    pub(super) membership: MembershipFile,
    pub(super) keys: Keys,
    pub(super) tokens: Tokens,
    pub(super) operator: OperatorFolder,
    pub(super) applicants: mpsc::Receiver<AdmissionRequest>,
}

impl RestoredNode {
    /// Builds the parts from a directory's content.
    pub(in crate::daemon) fn new(
        cluster: Cluster,
        own: CoordinatorInfo,
        stored: StoredHistory,
        applicants: mpsc::Receiver<AdmissionRequest>,
    ) -> Result<Self, CoordinatorError> {
        let StoredHistory { log, kept, history_file, history_entries, lines } = stored;
        let (id, membership) = (cluster.id().unwrap_or_default(), cluster.membership.membership());
        let (entries, history_len) = (kept.entries.len(), history_entries.len());
        match membership.revision {
            0 if membership.founds.is_some() => tracing::info!(id, "a cluster is founded"),
            _ => tracing::info!(id, entries, history_len, "coordinator restored from its log"),
        }
        let start = Instant::now();
        // A founder that has not founded yet has only itself in its membership file.
        let heard = match membership.revision {
            0 => (0, Vec::new()),
            revision => (revision, membership.members.clone()),
        };
        let options = NodeOptions {
            replica: RaftOptions {
                id: ReplicaId(id),
                seed: own.incarnation,
                keep: ENTRIES_KEPT_BEFORE_SNAPSHOT,
                #[cfg(feature = "planted")]
                plant: None,
            },
            own,
            epoch_unix_ms: super::unix_ms(),
            snapshot_entries: SNAPSHOT_ENTRIES,
            founds: membership.founds,
            tokens: cluster.default_tokens(),
            membership: heard,
            lacks_history: history_file.wanted().is_some(),
        };
        let told = history_entries.last().map_or(0, |history_entry| history_entry.index);
        let history = recalled(&history_entries);
        let node = Node::new(Time(0), options, kept, history_entries)?;
        let (keys, operator) = (cluster.keys(), cluster.operator_folder());
        let mut tokens = Tokens::default();
        if membership.founds.is_some() {
            cluster.default_tokens().into_iter().for_each(|token| tokens.accept(token));
        }
        let sync = history_file.file()?;
        let membership = cluster.membership;
        Ok(Self {
            id,
            node,
            start,
            log,
            history_file,
            lines,
            sync,
            history,
            told,
            membership,
            keys,
            tokens,
            operator,
            applicants,
        })
    }
}

/// Sums up the history before this process.
pub(super) fn recalled(history_entries: &[HistoryEntry]) -> HistorySummary {
    let mut history = HistorySummary::default();
    for event in history_entries.iter().flat_map(|history_entry| &history_entry.events) {
        match event {
            HistoryEvent::Event(event) => history.event(event),
            HistoryEvent::Run(_) => history.begin(),
        }
    }
    history
}
