//! The history file of format 1, which held sentences in place of the reasons of events.

use everstep_transport::protocol::{HistoryEntry, HistoryEvent, RunId};
use rkyv::{Archive, Deserialize, Serialize};

use super::{HEAD, body, encode};
use crate::history_coverage::HistoryRecord;
use crate::state::format_1::EventV1;

#[derive(Archive, Serialize, Deserialize)]
enum HistoryRecordV1 {
    Entry(HistoryEntryV1),
    Seal(u64),
    Gap(u64),
}

#[derive(Archive, Serialize, Deserialize)]
struct HistoryEntryV1 {
    index: u64,
    events: Vec<HistoryEventV1>,
}

#[derive(Archive, Serialize, Deserialize)]
enum HistoryEventV1 {
    Run(RunId),
    Event(EventV1),
}

impl From<HistoryRecordV1> for HistoryRecord {
    fn from(record: HistoryRecordV1) -> Self {
        match record {
            HistoryRecordV1::Entry(HistoryEntryV1 { index, events }) => {
                let events = events.into_iter().map(Into::into).collect();
                Self::Entry(HistoryEntry { index, events })
            }
            HistoryRecordV1::Seal(index) => Self::Seal(index),
            HistoryRecordV1::Gap(index) => Self::Gap(index),
        }
    }
}

impl From<HistoryEventV1> for HistoryEvent {
    fn from(event: HistoryEventV1) -> Self {
        match event {
            HistoryEventV1::Run(run) => Self::Run(run),
            HistoryEventV1::Event(event) => Self::Event(event.into()),
        }
    }
}

/// The records of a file of format 1, as bytes of today behind today's head. A record that differs
/// from what was written ends them.
pub(super) fn upgraded(bytes: &[u8], head: [u8; HEAD]) -> Vec<u8> {
    let (mut upgraded, mut at) = (head.to_vec(), HEAD);
    while let Some((body, end)) = body(bytes, at, 0) {
        let Ok(record) = rkyv::from_bytes::<HistoryRecordV1, rkyv::rancor::Error>(&body) else {
            break;
        };
        upgraded.extend(encode(upgraded.len() as u64, &record.into()));
        at = end;
    }
    upgraded
}
