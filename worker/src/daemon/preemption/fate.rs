//! What a cloud says of the machine's fate, and what follows for the worker. Pure.
//!
//! Inputs are the status and the body of an answer, and the wall clock. The bytes may be anything:
//! an answer outside the cloud's documents is an error in words, and never a notice.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Duration;

use everstep_transport::protocol::Cloud;
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::{Rfc2822, Rfc3339};

/// The worker says goodbye so long before its machine is taken back, or at half of a shorter time.
const GOODBYE_BEFORE: Duration = Duration::from_secs(3);
/// No cloud tells further ahead, seconds.
const LONGEST_NOTICE_S: i64 = 86_400;

/// What becomes of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The cloud announces nothing for this machine.
    Stays,
    /// The cloud takes the machine back.
    TakenBack {
        /// When it does, seconds of Unix time. None if the answer does not say.
        at_unix_s: Option<i64>,
    },
}

/// An answer that says nothing of the machine's fate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// A status that has no meaning here.
    #[error("it answers with the HTTP status {0}")]
    Status(u16),
    /// The body is not as the cloud documents it.
    #[error("its answer is not one that this cloud documents: {0}")]
    Body(String),
}

/// What follows from a new answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FateChange {
    /// The worker has to leave.
    TakenBack {
        /// The time until the machine is taken back.
        left: Duration,
        /// The time until the worker leaves in any case.
        leave_after: Duration,
    },
    /// An earlier notice no longer holds.
    Withdrawn,
}

/// The newest fate that a cloud has told. Only another one is news.
#[derive(Debug)]
pub struct FateWatch {
    cloud: Cloud,
    known: Fate,
}

impl FateWatch {
    /// A watch on a cloud that has told nothing yet.
    pub fn new(cloud: Cloud) -> Self {
        Self { cloud, known: Fate::Stays }
    }

    /// Takes an answer at this time of the wall clock, seconds of Unix time. A moment that has
    /// passed proves only that clocks differ, so the cloud's usual time is left then. A moment more
    /// than a day ahead is no notice yet.
    pub fn take(&mut self, now_unix_s: i64, fate: Fate) -> Option<FateChange> {
        let is_near = |at: i64| at.saturating_sub(now_unix_s) <= LONGEST_NOTICE_S;
        let fate = match fate {
            Fate::TakenBack { at_unix_s } if !at_unix_s.is_none_or(is_near) => Fate::Stays,
            fate => fate,
        };
        if fate == self.known {
            return None;
        }
        self.known = fate;
        let Fate::TakenBack { at_unix_s } = fate else { return Some(FateChange::Withdrawn) };
        let left = at_unix_s.map(|at| at.saturating_sub(now_unix_s)).filter(|left| *left > 0);
        let left = left.map_or(usual_time(self.cloud), |left| Duration::from_secs(left as u64));
        Some(FateChange::TakenBack { left, leave_after: left - GOODBYE_BEFORE.min(left / 2) })
    }
}

/// How long ahead the cloud usually tells.
fn usual_time(cloud: Cloud) -> Duration {
    match cloud {
        Cloud::Aws => Duration::from_secs(120),
        Cloud::Gcp | Cloud::Azure => Duration::from_secs(30),
    }
}

/// EC2's `spot/instance-action`. It is not found while there is none. A recommendation to rebalance
/// has another path and is no notice.
pub fn of_aws(status: u16, body: &[u8]) -> Result<Fate, AnswerError> {
    #[derive(Deserialize)]
    struct InstanceAction {
        #[serde(rename = "action")]
        _action: Action,
        time: String,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Action {
        Terminate,
        Stop,
        Hibernate,
    }
    if status == 404 {
        return Ok(Fate::Stays);
    }
    let InstanceAction { time, .. } = json(status, body)?;
    let at = OffsetDateTime::parse(&time, &Rfc3339).map_err(body_error)?;
    Ok(Fate::TakenBack { at_unix_s: Some(at.unix_timestamp()) })
}

/// The answer of Compute Engine's metadata service to `instance/preempted`.
pub fn of_gcp(status: u16, body: &[u8]) -> Result<Fate, AnswerError> {
    match (status, body.trim_ascii()) {
        (200, b"FALSE") => Ok(Fate::Stays),
        (200, b"TRUE") => Ok(Fate::TakenBack { at_unix_s: None }),
        (200, _) => Err(body_error("it is neither TRUE nor FALSE")),
        (status, _) => Err(AnswerError::Status(status)),
    }
}

/// Azure's Scheduled Events, of the machine with this name. The earliest event counts. A `Freeze`
/// is no notice: the machine stands still for seconds, and goes on.
pub fn of_azure(status: u16, body: &[u8], machine: &str) -> Result<Fate, AnswerError> {
    let document: Document = json(status, body)?;
    let mut earliest = Fate::Stays;
    for event in document.events.iter().filter(|event| event.ends(machine)) {
        let at = match event.not_before.as_str() {
            "" => None, // The event has begun.
            time => Some(OffsetDateTime::parse(time, &Rfc2822).map_err(body_error)?),
        };
        let at_unix_s = at.map(OffsetDateTime::unix_timestamp);
        earliest = match earliest {
            Fate::TakenBack { at_unix_s: other } => {
                Fate::TakenBack { at_unix_s: other.min(at_unix_s) }
            }
            Fate::Stays => Fate::TakenBack { at_unix_s },
        };
    }
    Ok(earliest)
}

/// The document of Azure's Scheduled Events.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    events: Vec<ScheduledEvent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ScheduledEvent {
    event_type: String,
    #[serde(default)]
    event_status: String,
    resources: Vec<String>,
    #[serde(default)]
    not_before: String,
}

impl ScheduledEvent {
    /// Whether the event ends the processes of this machine.
    fn ends(&self, machine: &str) -> bool {
        let kinds = ["Preempt", "Terminate", "Reboot", "Redeploy"];
        let is_its_own = self.resources.iter().any(|it| it.eq_ignore_ascii_case(machine));
        is_its_own && kinds.contains(&&*self.event_type) && self.event_status != "Completed"
    }
}

fn json<'a, T: Deserialize<'a>>(status: u16, body: &'a [u8]) -> Result<T, AnswerError> {
    match status {
        200 => serde_json::from_slice(body).map_err(body_error),
        status => Err(AnswerError::Status(status)),
    }
}

fn body_error(error: impl ToString) -> AnswerError {
    AnswerError::Body(error.to_string())
}

#[cfg(test)]
mod tests;
