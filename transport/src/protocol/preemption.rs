//! What a cloud says before it takes a machine back.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use std::fmt;
use std::time::Duration;

use rkyv::{Archive, Deserialize, Serialize};

/// A cloud that announces when it takes a machine back.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Cloud {
    /// Amazon EC2: interruptions of Spot Instances.
    Aws,
    /// Google Compute Engine: preemptions of Spot VMs.
    Gcp,
    /// Microsoft Azure: Scheduled Events.
    Azure,
}

impl Cloud {
    /// The cloud's name in JSON, in logs and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Gcp => "gcp",
            Self::Azure => "azure",
        }
    }
}

/// A worker's machine is about to be taken back.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptionNotice {
    /// The cloud that the machine belongs to.
    pub cloud: Cloud,
    /// The time until then, as the worker counted when it sent this, seconds.
    pub seconds_left: u32,
}

impl PreemptionNotice {
    /// A notice with so much time left.
    pub fn until(cloud: Cloud, left: Duration) -> Self {
        Self { cloud, seconds_left: u32::try_from(left.as_secs()).unwrap_or(u32::MAX) }
    }
}

impl fmt::Display for PreemptionNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cloud, seconds_left } = self;
        write!(f, "the cloud ({}) takes its machine back in {seconds_left} s", cloud.name())
    }
}
