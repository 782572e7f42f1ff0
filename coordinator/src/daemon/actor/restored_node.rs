//! The actor's first state: a coordinator as its predecessor in the same directory left it.

use std::time::Instant;

use everstep_transport::identity::AcceptedTokens;
use everstep_transport::protocol::{ClusterKeys, CoordinatorId, HistoryEvent};
use everstep_transport::time::Time;
use tokio::sync::mpsc;

use crate::core::HistoryCache;
use crate::daemon::CoordinatorError;
use crate::daemon::admission::AdmissionRequest;
use crate::daemon::files::{Cluster, OperatorFolder, StoredHistory, reach};
use crate::daemon::history_file::{HistoryFile, HistoryFileError};
use crate::daemon::membership_file::MembershipFile;
use crate::history::HistorySummary;
use crate::line_file::LineFiles;
use crate::log::{Log, SyncFile};
use crate::node::{Node, NodeOptions};
use crate::raft::RaftOptions;
use crate::state::CoordinatorInfo;

/// A node takes a snapshot after this many entries since the last snapshot.
const SNAPSHOT_ENTRIES: u64 = 10_000;
/// How many entries before a snapshot's place stay in the log, for a replica that is a little
/// behind.
const ENTRIES_KEPT_BEFORE_SNAPSHOT: u64 = 1_000;

/// The parts of a new actor.
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
    pub(super) keys: ClusterKeys,
    pub(super) tokens: AcceptedTokens,
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
        let StoredHistory { log, kept, history_file, lines } = stored;
        let (id, membership) = (cluster.id().unwrap_or_default(), cluster.membership.membership());
        let recalled = RecalledHistory::read(&history_file, reach(&kept.snapshot)?, u64::MAX)?;
        let (entries, history_len) = (kept.entries.len(), recalled.entries);
        match membership.revision {
            0 if membership.founds.is_some() => tracing::info!(id = id.0, "a cluster is founded"),
            _ => {
                tracing::info!(id = id.0, entries, history_len, "coordinator restored from its log")
            }
        }
        let start = Instant::now();
        // A founder that has not founded yet has only itself in its membership file.
        let heard = match membership.revision {
            0 => (0, Vec::new()),
            revision => (revision, membership.members.clone()),
        };
        let options = NodeOptions {
            replica: RaftOptions {
                id: id.into(),
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
        let (history, told) = (recalled.summary, recalled.newest);
        let node = Node::new(Time(0), options, kept, recalled.cache)?;
        let (keys, operator) = (cluster.keys(), cluster.operator_folder());
        let mut tokens = AcceptedTokens::default();
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

/// The content of a history file in a form that does not grow with the file.
pub(super) struct RecalledHistory {
    /// The part that the core gets.
    pub(super) cache: HistoryCache,
    /// The sums for the API.
    pub(super) summary: HistorySummary,
    /// The index of the newest entry in the sums.
    pub(super) newest: u64,
    /// How many entries the sums include.
    pub(super) entries: u64,
}

impl RecalledHistory {
    /// Reads a file: for the core up to the entry `cached_to`, for the sums up to `summed_to`.
    pub(super) fn read(
        file: &HistoryFile,
        cached_to: u64,
        summed_to: u64,
    ) -> Result<Self, HistoryFileError> {
        let (cache, summary) = (HistoryCache::default(), HistorySummary::default());
        let mut recalled = Self { cache, summary, newest: 0, entries: 0 };
        file.visit(|entry| {
            if entry.index <= cached_to {
                recalled.cache.take(&entry.events);
            }
            if entry.index <= summed_to {
                (recalled.newest, recalled.entries) = (entry.index, recalled.entries + 1);
                entry.events.iter().for_each(|event| match event {
                    HistoryEvent::Event(event) => recalled.summary.event(event),
                    HistoryEvent::Run(_) => recalled.summary.begin(),
                });
            }
        })?;
        Ok(recalled)
    }
}
